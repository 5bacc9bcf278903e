"""``recipe.lock``: what a recipe was accepted with, and the refusal to run it with anything else.

One file in the recipe's folder, one entry for each ``NAME`` or ``NAME@VARIANT``. Paths of this machine are named symbolically, so
that the entry holds on every machine that has the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.checks import Finding, Result, Status, fail, ok, warn
from verl_musa.errors import ImageError
from verl_musa.fileio import write_json
from verl_musa.image.current import current_image
from verl_musa.image.tree import HashCache
from verl_musa.patching import load_series
from verl_musa.recipe import Recipe, Resolved, Site, portable

LOCK = "recipe.lock"
SCHEMA = 1
ITEMS = ("image", "patches", "conversion", "model", "data", "config")
CONVERTED = "dist_checkpointing_path"
MANIFEST = "conversion.json"
SHOWN = 8
_SECRET = re.compile(r"(token|secret|password|passwd|credential|key)s?$", re.IGNORECASE)

Entry = dict[str, Any]


@dataclass(frozen=True)
class Locking:
    """How a run stands with the lock.

    Attributes:
        status: ``locked``, or ``unlocked`` with the reason in ``why``.
        results: one for each item; empty where the recipe has no lock.
        unlocked: items that were let through by hand, each with the reason given.
        lock_sha256: digest of the lock's entry.
    """

    status: str
    why: str = ""
    results: Sequence[Result] = ()
    unlocked: Mapping[str, str] = field(default_factory=dict)
    lock_sha256: str = ""

    @property
    def failed(self) -> list[Result]:
        """What differs and was not let through."""
        return [result for result in self.results if result.status is Status.FAIL]


def parse_unlocked(texts: Sequence[str]) -> dict[str, str]:
    """Item -> reason, of ``NAME=why`` texts.

    Raises:
        ImageError: an unknown item, or no reason.
    """
    found = {}
    for text in texts:
        name, _, why = text.partition("=")
        if name not in ITEMS or not why.strip():
            raise ImageError(
                "an item can only be let through by name and with a reason",
                where="--unlocked",
                found=text,
                expected=f"NAME=why, with NAME one of {', '.join(ITEMS)}",
                fix=f"--unlocked {name if name in ITEMS else ITEMS[0]}='the reason, which is written into the run'",
            )
        found[name] = why.strip()
    return found


def make_entry(resolved: Resolved, site: Site, there: Mapping[str, Any] | None = None) -> Entry:
    """What the recipe consists of now: image and patches of this machine, or ``there``, those of the hosts of the run.

    Raises:
        VerlMusaError: a file of it is missing or unreadable.
    """
    names = _symbols(resolved, site)
    software = there or {"image": current_image(resolved), "patches": {"series": load_series().digest}}
    return {
        **software,
        "conversion": _conversions(resolved, names),
        "model": _models(resolved, names),
        "data": _data(resolved, names),
        "config": _config(resolved, names),
    }


def lock_path(recipe: Recipe) -> Path:
    """Where the lock of a recipe lies."""
    return recipe.folder / LOCK


def read_entry(recipe: Recipe) -> Entry | None:
    """The recipe's entry of its lock; None where it has none.

    Raises:
        ImageError: the file cannot be read or is of another version.
    """
    found = _read(lock_path(recipe)).get(recipe.title)
    if found is not None and set(found) != set(ITEMS):
        raise ImageError("the entry is not whole", where=f"{lock_path(recipe)}: {recipe.title}", found=", ".join(sorted(found)), expected=", ".join(ITEMS), fix=f"verl-musa recipe lock {recipe.title}")  # fmt: skip
    return found


def _read(path: Path) -> dict[str, Entry]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ImageError(
            "the lock cannot be read", where=str(path), found=str(error), fix="verl-musa recipe lock NAME"
        ) from error
    if (
        not isinstance(content, dict)
        or content.get("schema") != SCHEMA
        or not isinstance(content.get("recipes"), dict)
    ):
        raise ImageError(
            "the lock is of another version",
            where=str(path),
            found=f"schema {content.get('schema')!r}" if isinstance(content, dict) else "no JSON object",
            expected=f"schema {SCHEMA}",
            fix="verl-musa recipe lock NAME",
        )
    recipes: dict[str, Entry] = content["recipes"]
    return recipes


def write_entry(recipe: Recipe, entry: Entry) -> Path:
    """Put the recipe's entry into its lock; those of its other variants stay."""
    path = lock_path(recipe)
    recipes = {**_read(path), recipe.title: entry}
    write_json(path, {"schema": SCHEMA, "recipes": dict(sorted(recipes.items()))})
    return path


def check_lock(
    resolved: Resolved, site: Site, unlocked: Mapping[str, str], there: Mapping[str, Any] | None = None
) -> Locking:
    """Hold the recipe against its lock. Starts nothing and changes nothing.

    ``there``: as for :func:`make_entry`.

    Raises:
        VerlMusaError: the lock or a file of the recipe cannot be read.
    """
    recipe = resolved.recipe
    locked = read_entry(recipe)
    if locked is None:
        has_file = lock_path(recipe).is_file()
        why = f"{LOCK} has no entry for {recipe.title}" if has_file else f"no {LOCK}"
        return Locking("unlocked", why, unlocked=dict(unlocked))
    found = make_entry(resolved, site, there)
    results = [_result(item, _COMPARE[item](locked[item], found[item]), unlocked, recipe) for item in ITEMS]
    let_through = {result.check.removeprefix("lock."): unlocked[result.check.removeprefix("lock.")]
                   for result in results if result.status is Status.WARN}  # fmt: skip
    status = "unlocked" if let_through else "locked"
    why = f"let through by hand: {', '.join(let_through)}" if let_through else ""
    return Locking(status, why, results, let_through, _digest(locked))


def require(locking: Locking, recipe: Recipe) -> None:
    """Refuse what differs from the lock.

    Raises:
        ImageError: something differs and was not let through; the message is a diff.
    """
    failed = locking.failed
    if not failed:
        return
    names = [result.check.removeprefix("lock.") for result in failed]
    found = "\n".join(f"    {name}: {result.evidence}" for name, result in zip(names, failed, strict=True))
    raise ImageError(
        f"{recipe.title} is not what its lock says: {', '.join(names)}",
        where=str(lock_path(recipe)),
        found=f"\n{found}",
        expected="what the recipe was locked with",
        fix=f"restore it; let it through for this run with --unlocked {names[0]}='why'; or, when the new state is the accepted "
        f"one, verl-musa recipe lock {recipe.title}",
    )


def _result(item: str, finding: Finding, unlocked: Mapping[str, str], recipe: Recipe) -> Result:
    if finding.status is Status.FAIL and item in unlocked:
        finding = warn(
            f"{finding.evidence} (let through: {unlocked[item]})", "lock the recipe anew when this is to stay"
        )
    return Result(
        check=f"lock.{item}",
        looks_at=_LOOKS_AT[item],
        status=finding.status,
        evidence=finding.evidence,
        fix=finding.fix,
        where=str(lock_path(recipe)),
    )


_FIX = "restore it, or lock the recipe anew: verl-musa recipe lock NAME"
_LOOKS_AT = {
    "image": "image, or packages of the environment",
    "patches": "patch series",
    "conversion": "manifests of converted weights",
    "model": "files and revision of the models",
    "data": "data files and their row counts",
    "config": "resolved config",
}


def _compare_image(locked: Entry, found: Entry) -> Finding:
    if locked["sha256"] == found["sha256"]:
        return ok(f"{found['kind']} sha256:{found['sha256'][:16]}")
    if locked["kind"] != found["kind"]:
        return fail(f"locked with an {locked['kind']}, run in an {found['kind']}", _FIX)
    changes = _changes(locked["packages"], found["packages"])
    return fail(
        f"{found['kind']} {locked['sha256'][:16]} -> {found['sha256'][:16]}: {_shown(changes) or 'files outside of packages'}",
        _FIX,
    )


def _compare_patches(locked: Entry, found: Entry) -> Finding:
    if locked == found:
        return ok(f"series {found['series']}")
    return fail(f"series {locked['series']} -> {found['series']}", _FIX)


def _compare_all(locked: Entry, found: Entry) -> Finding:
    changes = _changes(_flat_texts(locked), _flat_texts(found))
    if changes:
        return fail(_shown(changes), _FIX)
    return ok(f"{len(found)} as locked") if found else ok("none, as locked")


def _compare_config(locked: Entry, found: Entry) -> Finding:
    if locked["sha256"] == found["sha256"]:
        return ok(f"sha256:{found['sha256'][:16]}")
    return fail(
        _shown(_changes(locked["values"], found["values"])) or "a value that is not written down", _FIX
    )


_COMPARE: dict[str, Callable[[Entry, Entry], Finding]] = {
    "image": _compare_image,
    "patches": _compare_patches,
    "conversion": _compare_all,
    "model": _compare_all,
    "data": _compare_all,
    "config": _compare_config,
}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """``KEY: old -> new`` of every entry that differs."""
    return [
        f"{key}: {_short(before[key]) if key in before else 'not there'} -> {_short(after[key]) if key in after else 'not there'}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key, _MISSING) != after.get(key, _MISSING)
    ]


_MISSING = object()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 90 else f"{text[:87]}…"  # noqa: PLR2004  (a line of a message)


def _shown(changes: Sequence[str]) -> str:
    more = f"; and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    return "; ".join(changes[:SHOWN]) + more


def _flat_texts(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: text
        for name, inner in value.items()
        for key, text in _flat_texts(inner, f"{prefix} {name}".strip()).items()
    }


def _symbols(resolved: Resolved, site: Site) -> dict[str, str]:
    """Folder of this machine -> its name in the lock."""
    names = {text: f"<site.{name}>" for name, text in site.lookup().items() if text.startswith("/")}
    names[str(resolved.recipe.folder)] = "<recipe.dir>"
    if resolved.assets_dir is not None:
        names[str(resolved.assets_dir)] = "<assets.dir>"
    return names


def _named(path: str, names: Mapping[str, str]) -> str:
    for folder in sorted(names, key=len, reverse=True):
        if path == folder or path.startswith(f"{folder}/"):
            return names[folder] + path[len(folder) :]
    return path


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def _config(resolved: Resolved, names: Mapping[str, str]) -> Entry:
    """Every key with its value; of a secret the hash alone counts."""
    values: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    for key, value in _leaves(portable(resolved)):
        named = json.loads(json.dumps(value, default=str))
        if isinstance(named, str):
            named = _named(named, names)
        elif isinstance(named, list):
            named = [_named(one, names) if isinstance(one, str) else one for one in named]
        whole[key] = named
        if not (_SECRET.search(key) and isinstance(named, str) and named):
            values[key] = named
    return {"sha256": _digest(whole), "values": dict(sorted(values.items()))}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _conversions(resolved: Resolved, names: Mapping[str, str]) -> Entry:
    """Each converted checkpoint that the config reads -> digest of its manifest."""
    found = {}
    for key, value in _leaves(resolved.config):
        if key.rpartition(".")[2] == CONVERTED and isinstance(value, str) and value:
            found[_named(value, names)] = _manifest_digest(Path(value))
    return found


def _manifest_digest(folder: Path) -> str:
    file = folder / MANIFEST
    try:
        return _digest(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ImageError(
            "the manifest of converted weights cannot be read",
            where=str(file),
            found=str(error),
            expected="what verl-musa convert writes",
            fix="convert the weights: verl-musa convert",
        ) from error


def _models(resolved: Resolved, names: Mapping[str, str]) -> Entry:
    recipe = resolved.recipe
    models = {"model": recipe.model, "critic": recipe.critic, "reward_model": recipe.reward_model}
    found = {}
    for name, model in models.items():
        if model is None:
            continue
        folder = Path(model.path)
        found[name] = {
            "path": _named(model.path, names),
            "revision": getattr(model, "revision", None) or "not pinned",
            "files": _hashes(folder, sorted(file for file in folder.rglob("*") if file.is_file())),
        }
    return found


def _data(resolved: Resolved, names: Mapping[str, str]) -> Entry:
    import pyarrow.parquet as pq

    found = {}
    for split in ("train", "val"):
        for path in getattr(resolved.recipe.data, split):
            file = Path(path)
            digest = _hashes(file.parent, [file])[file.name]
            try:
                rows = pq.ParquetFile(file).metadata.num_rows
            except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
                raise ImageError("a data file cannot be read", where=path, found=str(error)) from error
            found[f"{split} {_named(path, names)}"] = {"sha256": digest, "rows": rows}
    return found


def _hashes(root: Path, files: Sequence[Path]) -> dict[str, str]:
    cache = HashCache(str(root))
    try:
        found = {file.relative_to(root).as_posix(): cache.sha256(file) for file in files}
    except OSError as error:
        raise ImageError(
            "a file of the recipe cannot be read", where=str(error.filename), found=str(error)
        ) from error
    cache.save()
    if not found:
        raise ImageError(
            "the recipe's files are not there",
            where=str(root),
            expected="files",
            fix="make or fetch them first",
        )
    return found
