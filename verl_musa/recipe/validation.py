"""Checking a parsed file against its schema, with messages for the person who wrote the file."""

from __future__ import annotations

import difflib
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from verl_musa.errors import RecipeError
from verl_musa.recipe._yaml import Document, Location

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], document: Document) -> Model:
    """Check ``document`` against ``model``.

    Raises:
        RecipeError: the first problem in full, the others by place.
    """
    if not isinstance(document.value, dict):
        raise RecipeError(
            "the file must hold a mapping",
            where=document.where(),
            found=describe(document.value),
            expected="lines of the form 'key: value'",
            fix="start from an existing recipe or site.example.yaml",
        )
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=True)
    # An unknown key first: a misspelt key is also missing under its right name, and the spelling is the cause.
    problems.sort(key=lambda problem: (problem["type"] != "extra_forbidden", _line(document, problem["loc"])))
    first, *others = [_problem(model, document, dict(problem)) for problem in problems]
    if others:
        listed = "; ".join(f"{other.where}: {other.message}" for other in others)
        first.fix = f"{first.fix}; then look at {listed}"
    raise first


def _line(document: Document, location: Location) -> int:
    return next(
        (
            document.lines[location[:n]]
            for n in range(len(location), -1, -1)
            if location[:n] in document.lines
        ),
        0,
    )


def _problem(model: type[BaseModel], document: Document, problem: dict[str, Any]) -> RecipeError:
    location: Location = tuple(part for part in problem["loc"] if part != "[key]")
    name = ".".join(map(str, location))
    where = document.where(location)
    kind = problem["type"]
    if kind == "extra_forbidden":
        known = _fields(model, location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, n=1)
        return RecipeError(
            f"unknown key {name!r}",
            where=where,
            found=str(location[-1]),
            expected="one of " + ", ".join(known),
            fix=f"did you mean {close[0]!r}?" if close else "remove the line",
        )
    if kind == "missing":
        return RecipeError(
            f"key {name!r} is missing",
            where=where,
            found="no such key",
            expected=_description(model, location) or f"a value for {name!r}",
            fix=f"add '{location[-1]}: …' under {'.'.join(map(str, location[:-1])) or 'the top level'}",
        )
    message = str(problem["msg"]).removeprefix("Value error, ")
    return RecipeError(
        f"wrong value for {name!r}" if not kind.endswith("_type") else f"wrong type for {name!r}",
        where=where,
        found=describe(problem["input"]),
        expected=message[0].lower() + message[1:],
        fix=_description(model, location) or "correct the value",
    )


def _nested(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """The model at ``location``, seen through ``Optional``; None where no model is."""
    current: type[BaseModel] = model
    for part in location:
        field = next((f for name, f in current.model_fields.items() if part in {name, f.alias}), None)
        if field is None:
            return None
        options = (field.annotation, *getattr(field.annotation, "__args__", ()))
        inner = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
        if inner is None:
            return None
        current = inner
    return current


def _fields(model: type[BaseModel], location: Location) -> list[str]:
    nested = _nested(model, location)
    return [] if nested is None else [field.alias or name for name, field in nested.model_fields.items()]


def _description(model: type[BaseModel], location: Location) -> str | None:
    nested = _nested(model, location[:-1]) if location else None
    if nested is None:
        return None
    fields = (f for name, f in nested.model_fields.items() if location[-1] in {name, f.alias})
    return next((f.description for f in fields), None)


def describe(value: Any) -> str:
    """A value and its type as a user would name them."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return f"boolean {str(value).lower()}"
    if isinstance(value, dict):
        return f"a mapping with {len(value)} keys"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} items"
    names = {int: "integer", float: "number", str: "text"}
    return f"{names.get(type(value), type(value).__name__)} {value!r}"
