"""The conversions that a recipe declares, with the recipe's own options and its layout's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verl_musa.checkpoint.layout import Layout, check_layout
from verl_musa.checkpoint.recorded import Recorded, differences, look
from verl_musa.checkpoint.spec import read_spec
from verl_musa.checkpoint.to_mcore import Progress, ToMcore, plan, to_mcore
from verl_musa.errors import CheckpointError
from verl_musa.recipe import Resolved
from verl_musa.recipe.resolution import MEGATRON
from verl_musa.recipe.schema import Conversion

_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "cp": "context_parallel_size",
    "etp": "expert_tensor_parallel_size",
}


@dataclass(frozen=True)
class Declared:
    """One conversion of a recipe.

    Attributes:
        roles: who loads the result.
        options: what to convert, and into what.
        where: ``file:line`` that declares it.
    """

    roles: tuple[str, ...]
    options: ToMcore
    where: str


def declared(resolved: Resolved) -> tuple[Declared, ...]:
    """The conversions of a resolved recipe."""
    document = resolved.recipe.document
    return tuple(
        Declared(one.roles, _options(resolved, one), document.where(("conversion", index)))
        for index, one in enumerate(resolved.recipe.conversion)
    )


def _options(resolved: Resolved, one: Conversion) -> ToMcore:
    recipe = resolved.recipe
    model = recipe.critic if "critic" in one.roles and recipe.critic is not None else recipe.model
    return ToMcore(
        source=Path(model.path),
        output=Path(one.output),
        layer_spec=one.spec,
        dtype=one.dtype,
        pad_vocab=one.pad_vocab,
        value_head=one.value_head,
    )


def layout_of(resolved: Resolved, role: str) -> Layout:
    """The layout under which verl's config runs a role.

    Raises:
        CheckpointError: a size is not a positive integer.
    """
    sizes = {name: resolved.select(f"{MEGATRON[role]}.{key}") for name, key in _SIZES.items()}
    nodes, devices = resolved.select("trainer.nnodes"), resolved.select("trainer.n_gpus_per_node")
    for name, size in {**sizes, "nodes": nodes, "devices": devices}.items():
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise CheckpointError(
                "a size of the layout is no positive integer",
                where=resolved.origin(f"{MEGATRON[role]}.{_SIZES.get(name, name)}"),
                found=f"{name} is {size!r}",
            )
    world = nodes * devices if nodes and devices else None
    given = {name: size for name, size in sizes.items() if size is not None}
    return Layout(**given, world=world)


def convert_recipe(
    resolved: Resolved,
    *,
    jobs: int,
    resume: bool,
    dry_run: bool,
    say: Callable[[str], None],
    progress: Progress = lambda _done, _all: None,
) -> Sequence[Declared]:
    """Make every checkpoint that the recipe declares and that is not there, and check those that are.

    Args:
        resolved: the recipe; its assets are there.
        jobs: files written at once.
        resume: continue an interrupted conversion.
        dry_run: check only.
        say: told what was found and done.
        progress: as in :func:`to_mcore`.

    Raises:
        CheckpointError: the layout does not fit, a folder holds something else than what is declared, or a conversion
            fails.
    """
    found = declared(resolved)
    for one in found:
        _check_layouts(resolved, one)
    for one in found:
        options = replace(one.options, jobs=jobs, resume=resume)
        names = ", ".join(one.roles)
        if options.output.is_dir() and any(options.output.iterdir()):
            there = require_declared(one)
            say(f"{names}: {options.output} is there: {there.tensors} tensors made from {options.source}")
        elif dry_run:
            size = plan(options).source_bytes / 2**30
            say(f"{names}: {size:.2f} GiB of {options.source} would be converted into {options.output}")
        else:
            say(f"{names}: converting {options.source} into {options.output}")
            to_mcore(options, progress)
    return found


def require_declared(one: Declared) -> Recorded:
    """Look at a checkpoint that is there.

    Raises:
        CheckpointError: it is not what the recipe declares, or nothing says what it was made from.
    """
    folder = one.options.output
    there = look(one.options)
    wrong = differences(there, one.options, asked=True)
    if there.manifest is None:
        wrong.append("it has no conversion.json: another tool made it, and nothing says from what")
    if wrong:
        raise CheckpointError(
            "the checkpoint that is there is not the one that the recipe declares",
            where=str(folder),
            found="; ".join(wrong),
            expected=f"what {one.where} declares",
            fix="remove that folder and convert again, or name another output",
        )
    return there


def _check_layouts(resolved: Resolved, one: Declared) -> None:
    spec = read_spec(one.options.source)
    rows = -(-spec.vocab // one.options.pad_vocab) * one.options.pad_vocab
    for role in one.roles:
        where = resolved.origin(f"{MEGATRON[role]}.{_SIZES['tp']}")
        check_layout(spec, layout_of(resolved, role), rows, where)
