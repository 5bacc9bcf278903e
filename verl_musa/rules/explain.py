"""One parameter: what it means, its value in a recipe, where that was set, and what has to be true of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from verl_musa.data import Subject
from verl_musa.errors import RecipeError
from verl_musa.recipe import Resolved, Trainer, base_config, close_keys, config_dir, selects_group
from verl_musa.recipe._yaml import parse_document
from verl_musa.rules.defaults import find_default

TABLE = "parameters.yaml"
GROUPS = ("data", "rollout", "resources", "parallelism", "algorithm", "optimisation")
FIELDS = {"group", "means", "holds", "checks"}


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What is known of one parameter.

    Attributes:
        key: the parameter.
        group: one of :data:`GROUPS`; None where the table does not have the key.
        means: in words; None likewise.
        holds: what has to be true of the value.
        checks: ids of the checks that look at it.
        value: in the recipe, references followed; verl's default where no recipe is given.
        written: the value as it is written, where that is a reference to another key.
        origin: where it was set; None where verl's default holds.
        default: verl's default; None where verl has no such key, or none for it.
        default_origin: ``file:line`` of verl's default.
    """

    key: str
    group: str | None
    means: str | None
    holds: tuple[str, ...]
    checks: tuple[str, ...]
    value: Any
    written: str | None
    origin: str | None
    default: Any
    default_origin: str | None


@lru_cache(maxsize=1)
def table() -> dict[str, dict[str, Any]]:
    """The table of parameters, its shape checked.

    Raises:
        RecipeError: an entry with a wrong field or group.
    """
    file = resources.files("verl_musa.rules").joinpath(TABLE)
    document = parse_document(file.read_text(encoding="utf-8"), Path(TABLE))
    for key, entry in document.value.items():
        if set(entry) - FIELDS or entry.get("group") not in GROUPS or not entry.get("means"):
            raise RecipeError(
                f"the entry of {key} is not well formed",
                where=document.where((key,)),
                found=", ".join(entry),
                expected=f"group (one of {', '.join(GROUPS)}), means, and perhaps holds and checks",
            )
    found: dict[str, dict[str, Any]] = document.value
    return found


def explain(key: str, resolved: Resolved | None = None) -> Explanation:
    """Explain ``key``, which may be its end only where that is unique, in ``resolved`` or in verl's defaults for Megatron.

    Raises:
        RecipeError: no such parameter; names those that look like it.
    """
    trainer = Trainer(config_name="ppo_megatron_trainer") if resolved is None else resolved.recipe.trainer
    folder = config_dir(trainer.module)
    overrides = () if resolved is None else resolved.overrides
    groups = tuple(one.text for one in overrides if selects_group(folder, one))
    base = base_config(folder, trainer.config_name, groups)
    config = OmegaConf.create(
        OmegaConf.to_container(base, resolve=False) if resolved is None else resolved.config
    )
    path = _full(key.lstrip("+~"), {*_paths(config), *table()})
    entry = table().get(path, {})
    choices = dict(group.split("=", 1) for group in groups)
    return Explanation(
        key=path,
        group=entry.get("group"),
        means=entry.get("means"),
        holds=tuple(entry.get("holds", ())),
        checks=tuple(entry.get("checks", ())),
        value=_select(config, path),
        written=_reference(config, path),
        origin=None if resolved is None else _origin(resolved, path),
        default=_select(base, path),
        default_origin=find_default(folder, trainer.config_name, path, choices),
    )


def _origin(resolved: Resolved, path: str) -> str | None:
    where = Subject(resolved).where(path)
    return None if where.startswith("verl's default") else where


def _full(key: str, known: set[str]) -> str:
    if key in known:
        return key
    ending = sorted(path for path in known if path.endswith(f".{key}"))
    if len(ending) == 1:
        return ending[0]
    close = ending[:6] or close_keys(key, known)
    raise RecipeError(
        f"{key!r} fits several parameters" if ending else f"no parameter {key!r}",
        found=key,
        expected="a key of verl's configuration, or an end of one that fits no other",
        fix=f"did you mean {' or '.join(close)}?" if close else "see `verl-musa explain --list`",
    )


def _paths(config: Any, prefix: str = "") -> Iterator[str]:
    for key in config:
        yield f"{prefix}{key}"
        node = config._get_node(key)  # noqa: SLF001  (the public way would follow references)
        if OmegaConf.is_dict(node) and not node._is_none() and not node._is_interpolation():  # noqa: SLF001
            yield from _paths(node, f"{prefix}{key}.")


def _select(config: Any, path: str) -> Any:
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = OmegaConf.select(config, path)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return _reference(config, path)


def _reference(config: Any, path: str) -> str | None:
    """The text of ``path`` where it refers to another key."""
    outer, _, last = path.rpartition(".")
    parent = OmegaConf.select(config, outer) if outer else config
    if not OmegaConf.is_dict(parent) or last not in parent:
        return None
    node = parent._get_node(last)  # noqa: SLF001
    return str(node._value()) if node is not None and node._is_interpolation() else None  # noqa: SLF001
