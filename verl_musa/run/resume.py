"""Going on with a run: which checkpoint is whole, and whether the run is still the same one."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.cluster.processes import same_process_runs
from verl_musa.errors import RunError
from verl_musa.recipe import Recipe, dump_config
from verl_musa.run.directory import RunDirectory
from verl_musa.run.manifest import MANIFEST, Manifests, verify
from verl_musa.run.record import GOING_ON, RunRecord
from verl_musa.run.supervisor_state import sign_of

TRACKER = "latest_checkpointed_iteration.txt"
# What a resumed run may differ in by itself.
OWN_KEYS = ("trainer.resume_mode", "trainer.resume_from_path")
_SHARD = re.compile(r"^(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt$")
# verl's Megatron engine (0.9.1) writes the list of contents last, and beside weights in Hugging Face layout folders of Megatron's:
# metadata and files of each rank.
MEGATRON_CONTENTS = "ckpt_contents.json"
MEGATRON_FOLDER = "dist_ckpt"
_MEGATRON_METADATA = ("metadata.json", ".metadata")
_MEGATRON_SHARDS = "*.distcp"


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint of verl's, after training step ``step``; ``hashed``: its files are those that were written."""

    step: int
    path: Path
    hashed: bool = False


def find_checkpoint(folder: Path, progress: Callable[[str], None] = lambda _: None) -> tuple[Checkpoint | None, list[str]]:  # fmt: skip
    """The last whole, readable checkpoint in verl's checkpoint folder, and a sentence for each that was rejected.

    verl writes its tracker file last: what lies above the step named there was being written when the run ended. The files are
    held against the hashes that were taken when verl had finished (:mod:`verl_musa.run.manifest`).
    """
    problems: list[str] = []
    latest = _tracked(folder / TRACKER)
    for step, path in reversed(_steps(folder)):
        if step > latest:
            problems.append(f"checkpoint of step {step} ignored: verl had not finished writing it")
        elif lacking := _lacks(path):
            problems.append(f"checkpoint of step {step} ignored: {lacking}")
        else:
            progress(f"the files of the checkpoint of step {step}")
            verdict = verify(path)
            if not verdict.wrong:
                return Checkpoint(step, path, verdict.hashed), problems
            problems.append(f"checkpoint of step {step} ignored: {verdict.wrong}")
    return None, problems


def manifests(folder: Path, tell: Callable[[str], None]) -> Manifests:
    """What writes the hashes of verl's checkpoints below ``folder`` while they come."""

    def finished() -> list[Path]:
        latest = _tracked(folder / TRACKER)
        return [path for step, path in _steps(folder) if step <= latest and not (path / MANIFEST).exists()]

    return Manifests(finished, tell)


def _steps(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in verl's folder by their steps, in order."""
    return sorted(
        (int(path.name.removeprefix("global_step_")), path)
        for path in folder.glob("global_step_*")
        if path.name.removeprefix("global_step_").isdigit()
    )


def _tracked(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _lacks(checkpoint: Path) -> str | None:
    """What a checkpoint lacks, or None when it is whole."""
    actor = checkpoint / "actor"
    files = [path for path in actor.rglob("*") if path.is_file()]
    if not files:
        return "no actor state"
    empty = next((path.name for path in files if not path.stat().st_size), None)
    if empty:
        return f"{empty} is empty"
    if not (checkpoint / "data.pt").is_file():
        return "no data.pt"
    for role in sorted(path.name for path in checkpoint.iterdir() if path.is_dir()):
        if lacking := _lacks_of_megatron(checkpoint / role):
            return f"{role}: {lacking}"
    shards: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, (_SHARD.match(path.name) for path in files)):
        shards.setdefault((match[1], int(match[2])), set()).add(int(match[3]))
    for (kind, world), ranks in shards.items():
        if missing := set(range(world)) - ranks:
            return f"no {kind} of rank {', '.join(map(str, sorted(missing)))}"
    return None


def _lacks_of_megatron(role: Path) -> str | None:
    """What the state of one role (actor, critic) lacks if Megatron wrote it; None where it is whole or FSDP's."""
    folders = [path for path in sorted(role.rglob(MEGATRON_FOLDER)) if path.is_dir() and any(path.iterdir())]
    if folders and not (role / MEGATRON_CONTENTS).is_file():
        return f"no {MEGATRON_CONTENTS}, which verl writes last"
    for folder in folders:
        missing = [name for name in _MEGATRON_METADATA if not (folder / name).is_file()]
        missing += [] if any(folder.glob(_MEGATRON_SHARDS)) else [_MEGATRON_SHARDS]
        if missing:
            return f"no {missing[0]} in {folder.relative_to(role)}"
    return None


def check_resumable(record: RunRecord, run: RunDirectory, recipe: Recipe) -> None:
    """Raise RunError when the run is another recipe's, is finished, or still goes on."""
    now = (recipe.name, recipe.version)
    then = (record.recipe.name, record.recipe.version)
    if now != then:
        raise RunError(
            "this run was made by another recipe or version",
            where=str(run.record),
            found=" ".join(then),
            expected=" ".join(now),
            fix="check that version of the recipe out, or start a new run",
        )
    if record.cluster is not None:
        _refuse_supervised(record, run)
        return
    runner = record.attempt.runner
    if record.status in GOING_ON and same_process_runs(runner.pid, runner.started):
        raise RunError(
            "this run still goes on",
            where=str(run.path),
            found=f"its runner is process {runner.pid} on {record.host}",
            expected="a run that has ended",
            fix="wait for its end, or end it with Ctrl-C or `kill` of that process",
        )


def _refuse_supervised(record: RunRecord, run: RunDirectory) -> None:
    """Raise RunError where the run's supervisor still works on it, unless it is this very process, which tries again."""
    sign = sign_of(run)
    if (
        sign is not None
        and sign.alive
        and record.status in GOING_ON
        and (not sign.here or sign.pid != os.getpid())
    ):
        raise RunError(
            "this run still goes on",
            where=str(run.path),
            found=f"its supervisor is process {sign.pid} on {sign.host}",
            expected="a run that has ended",
            fix=f"look at it with `verl-musa follow {run.path.name}`, or end it with `verl-musa stop {run.path.name}`",
        )


def check_same_config(run: RunDirectory, config: dict[str, Any], given: Collection[str]) -> None:
    """Refuse to go on with another config than the run was started with.

    Args:
        run: the run, whose ``config.yaml`` is what it was started with.
        config: what the recipe and the run's overrides give today.
        given: config keys that were set anew for this attempt; they, and what lies below them, may differ.

    Raises:
        RunError: other keys differ; the message is a diff.
    """
    from omegaconf import OmegaConf

    old = OmegaConf.to_container(OmegaConf.load(run.config), resolve=False)
    new = OmegaConf.to_container(OmegaConf.create(dump_config(config)), resolve=False)
    before = _lines(old, given)
    after = _lines(new, given)
    if before == after:
        return
    diff = list(
        difflib.unified_diff(before, after, "the run's config.yaml", "the recipe today", lineterm="", n=0)
    )
    shown = [line for line in diff if not line.startswith("@@")]
    more = [f"… and {len(shown) - 20} more lines"] if len(shown) > 20 else []  # noqa: PLR2004  (a screen)
    raise RunError(
        "the recipe no longer gives the config that this run was started with",
        where=str(run.config),
        found="\n" + "\n".join(f"    {line}" for line in [*shown[:20], *more]),
        expected="the same config, but for keys that are set anew with --set",
        fix="give the new value with --set to change it on purpose, restore the recipe, or start a new run",
    )


def _lines(config: Any, given: Collection[str]) -> list[str]:
    return sorted(f"{key}: {value!r}" for key, value in _flat(config, "") if not _may_differ(key, given))


def _may_differ(key: str, given: Collection[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in (*given, *OWN_KEYS))


def _flat(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node
