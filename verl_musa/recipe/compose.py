"""verl's config, composed by Hydra from the installed verl's own tree, without importing verl."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from verl_musa.errors import HostError, RecipeError
from verl_musa.recipe.overrides import Override, close_keys
from verl_musa.recipe.removed import replacement
from verl_musa.recipe.validation import describe

MISSING = "???"
"""OmegaConf's mark for a value that must be given."""


def config_dir(module: str) -> Path:
    """The ``config`` folder beside ``module`` (where verl's ``hydra.main(config_path="config")`` looks).

    The package is located, never imported: its ``__init__`` pulls torch in.

    Raises:
        HostError: the package is not installed.
        RecipeError: it has no such folder.
    """
    package, *rest = module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise HostError(
            f"{package} is not installed in this Python environment",
            found="no such package",
            expected=f"{package}, whose config tree the recipe's overrides refer to",
            fix=f"pip install --no-deps {package} (the version is pinned in images/<image>/pins.toml)",
        )
    folder = Path(next(iter(spec.submodule_search_locations)), *rest[:-1], "config")
    if not folder.is_dir():
        raise RecipeError(
            f"trainer.module {module!r} has no config folder beside it",
            found=f"no folder {folder}",
            expected="a verl entry point such as verl.trainer.main_ppo",
            fix="correct trainer.module in recipe.yaml",
        )
    return folder


@lru_cache(maxsize=8)
def base_config(folder: Path, name: str, groups: tuple[str, ...] = ()) -> Any:
    """Verl's defaults: the config ``name`` of ``folder`` with only ``groups`` (``group=option`` texts) applied.

    Returns an OmegaConf DictConfig, shared between callers: do not change it.
    """
    return _compose(folder, name, groups)


def _compose(folder: Path, name: str, overrides: Sequence[str]) -> Any:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    # Hydra keeps one global state; ours is put back so that a caller's own Hydra application is not disturbed.
    saved = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            return compose(name, overrides=list(overrides))
    finally:
        GlobalHydra.instance().hydra = saved


def compose(folder: Path, name: str, overrides: Sequence[Override]) -> dict[str, Any]:
    """Compose ``name`` with ``overrides`` and return it as plain data, interpolations kept.

    Raises:
        RecipeError: an unknown key, a type clash with verl's default, a group option or an interpolation that does
            not exist; names the override's origin.
    """
    if not (folder / f"{name}.yaml").is_file():
        raise RecipeError(
            f"trainer.config_name {name!r} does not exist",
            found=f"no {name}.yaml in {folder}",
            expected="one of " + ", ".join(sorted(file.stem for file in folder.glob("*.yaml"))),
            fix="correct trainer.config_name in recipe.yaml",
        )
    groups = [o for o in overrides if selects_group(folder, o)]
    for count, group in enumerate(groups, start=1):
        _with_origin(group, folder, name, tuple(o.text for o in groups[:count]))
    base = _with_origin(groups[-1] if groups else None, folder, name, tuple(o.text for o in groups))
    known = set(_paths(base))
    for override in overrides:
        if override not in groups:
            _check_key(override, base, known)
    return _final(folder, name, overrides)


def selects_group(folder: Path, override: Override) -> bool:
    """Whether ``override`` picks an option of a config group (``model_engine: megatron``) rather than sets a value."""
    return override.is_group or (isinstance(override.value, str) and (folder / override.path).is_dir())


def _with_origin(group: Override | None, folder: Path, name: str, texts: tuple[str, ...]) -> Any:
    from hydra.errors import HydraException

    try:
        return base_config(folder, name, texts)
    except HydraException as error:
        raise RecipeError(
            f"config group {group.path!r} cannot be set" if group else "verl's own config does not compose",
            where=group.origin if group else str(folder),
            found=str(group.value) if group else _one_line(error),
            expected=_one_line(error) if group else "a complete installation of verl",
            fix="correct the option" if group else "reinstall verl",
        ) from error


def _final(folder: Path, name: str, overrides: Sequence[Override]) -> dict[str, Any]:
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = _compose(folder, name, [override.text for override in overrides])
    except (HydraException, OmegaConfBaseException) as error:
        culprit = next((o for o in overrides if o.path in str(error) or o.text in str(error)), None)
        raise RecipeError(
            "Hydra cannot compose verl's config with these overrides",
            where=culprit.origin if culprit else None,
            found=_one_line(error),
            expected="overrides that fit verl's config tree",
            fix="correct the override",
        ) from error
    for override in overrides:
        _check_interpolation(override, config)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=False, throw_on_missing=False)
    return plain


def _one_line(error: Exception) -> str:
    """Hydra's message on one line, without the search path that it appends."""
    return " ".join(str(error).partition("Config search path:")[0].split())


def _paths(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted paths of every key of a DictConfig, inner ones included; nothing is resolved."""
    from omegaconf import DictConfig

    if not isinstance(node, DictConfig) or node._is_interpolation() or node._is_none():  # noqa: SLF001
        return
    for key in node:
        path = f"{prefix}{key}"
        yield path
        yield from _paths(node._get_node(key), f"{path}.")  # noqa: SLF001


def _check_key(override: Override, base: Any, known: set[str]) -> None:
    """The key exists (or is new, with ``+``) and its value fits verl's default."""
    exists = override.path in known
    gone = None if exists else replacement(override.path)
    if gone is not None:
        raise RecipeError(
            f"verl 0.9.1 no longer has {override.path!r}",
            where=override.origin,
            found=override.key,
            expected=gone,
            fix="remove the line",
        )
    if override.sign in {"", "~"} and not exists:
        close = close_keys(override.path, known)
        raise RecipeError(
            f"verl has no key {override.path!r}",
            where=override.origin,
            found=override.key,
            expected="a key of verl's config" + (f"; did you mean {' or '.join(close)}?" if close else ""),
            fix=f"correct the key, or write '+{override.path}' to add a new one",
        )
    default = _default(base, override.path) if exists else None
    if override.sign == "+" and exists and not isinstance(default, dict):
        raise RecipeError(
            f"verl has {override.path!r} already, so it cannot be added",
            where=override.origin,
            found=override.key,
            expected=f"{override.path} without the '+'",
            fix="remove the '+'",
        )
    if exists and override.sign in {"", "+"} and not override.forced:
        _check_type(override, override.path, override.value, default)


def _default(base: Any, path: str) -> Any:
    """Verl's default as plain data, resolved where it can be; None where it has none."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = OmegaConf.select(base, path)
        return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return None  # an interpolation to a key that verl leaves open: no type to compare with


def _check_type(override: Override, path: str, value: Any, default: Any) -> None:
    if not _fits(value, default):
        raise RecipeError(
            f"wrong type for {path!r}",
            where=override.origin,
            found=describe(value),
            expected=_expected(default),
            fix=f"correct the value; to replace it with another type all the same, write '++{override.path}'",
        )
    if isinstance(value, dict) and isinstance(default, dict):
        for key, item in value.items():
            inner = f"{path}.{key}"
            if key in default:
                _check_type(override, inner, item, default[key])
            elif override.sign == "":
                raise RecipeError(
                    f"verl has no key {inner!r}",
                    where=override.origin,
                    found=key,
                    expected="one of " + (", ".join(default) or "no keys: the mapping is empty in verl"),
                    fix=f"correct the key, or write '+{path}' to add to the mapping",
                )


def _fits(value: Any, default: Any) -> bool:
    """Whether ``value`` may stand where verl has ``default``.

    verl writes ``0`` and ``1`` for defaults of fields that take fractions, so a fraction may replace those integers
    but no other. A text and a list are one kind: ``trainer.logger`` or ``target_modules`` take both.
    """
    if value is None or default is None or default == MISSING:
        return True
    if isinstance(value, str) and "${" in value:
        return True
    if isinstance(default, str) and "${" in default:
        return True
    if isinstance(value, float) and type(default) is int:
        return default in {0, 1}
    kinds: tuple[tuple[type, ...], ...] = ((bool,), (int, float), (str, list), (dict,))
    for kind in kinds:
        if isinstance(default, kind):
            return isinstance(value, kind) and (isinstance(value, bool) == isinstance(default, bool))
    return True


def _expected(default: Any) -> str:
    match default:
        case bool():
            return f"true or false (verl's default: {str(default).lower()})"
        case int() if default not in {0, 1}:
            return f"an integer (verl's default: {default!r})"
        case int() | float():
            return f"a number (verl's default: {default!r})"
        case str():
            return f"text (verl's default: {default!r})"
        case list():
            return f"a list (verl's default: {default!r})"
        case _:
            return "a mapping with keys " + (", ".join(map(str, default)) or "of your own")


def _check_interpolation(override: Override, config: Any) -> None:
    """An interpolation written by the user leads to a key that exists. Resolvers such as oc.env are left alone."""
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

    if "${" not in str(override.value) or override.sign == "~":
        return
    try:
        selected = OmegaConf.select(config, override.path)
        if OmegaConf.is_config(selected):
            OmegaConf.to_container(selected, resolve=True)
    except InterpolationKeyError as error:
        raise RecipeError(
            f"{override.path} refers to a key that does not exist",
            where=override.origin,
            found=str(override.value),
            expected=_one_line(error),
            fix="correct the name inside ${…}",
        ) from error
    except OmegaConfBaseException:
        return  # a resolver that only works inside the job, e.g. an environment variable of the workers


def dump_config(config: dict[str, Any]) -> str:
    """``config`` as YAML that Hydra reads back to the same values.

    OmegaConf's own dumper: PyYAML leaves a text such as ``1e-6`` unquoted, and OmegaConf reads that as a number.
    """
    from omegaconf import OmegaConf

    return str(OmegaConf.to_yaml(OmegaConf.create(config), resolve=False))
