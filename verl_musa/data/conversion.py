"""Checks of the Megatron-Core checkpoints that a job loads its weights from: each role's folder against its model.

Sizes, index and manifest are looked at, no weight is read: that is ``verl-musa convert verify``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from verl_musa.checkpoint import ToMcore
from verl_musa.checkpoint.from_recipe import declared
from verl_musa.checkpoint.recorded import differences, interrupted, look
from verl_musa.checkpoint.spec import read_spec
from verl_musa.checks import Check, Finding, fail, ok, unknown
from verl_musa.data import scorers
from verl_musa.data.subject import Subject
from verl_musa.recipe.resolution import MEGATRON


def _used(subject: Subject, role: str) -> bool:
    """Whether the job has that role."""
    if role == "critic":
        return scorers.used(subject, role)
    if role == "ref":
        asked = ("algorithm.use_kl_in_reward", "actor_rollout_ref.actor.use_kl_loss")
        return any(subject.select(key) for key in asked)
    return True


def check_role(role: str, subject: Subject) -> Finding:
    """The role's checkpoint is whole and was made from its model."""
    names = {"actor": "actor", "ref": "reference model", "critic": "critic"}
    if not _used(subject, role):
        return ok(f"the job has no {names[role]}")
    if not subject.select(f"{MEGATRON[role]}.use_dist_checkpointing"):
        return ok("loads no Megatron-Core checkpoint")
    key = f"{MEGATRON[role]}.dist_checkpointing_path"
    path = subject.select(key)
    if not path:
        return fail("use_dist_checkpointing is true, but there is no dist_checkpointing_path",
                    f"declare a conversion for the {role} in recipe.yaml", subject.where(key))  # fmt: skip
    folder = Path(str(path))
    pending = subject.not_made_yet(folder)
    if pending:
        return pending
    options, command, asked = _wanted(subject, role, folder)
    if not folder.is_dir():
        begun = interrupted(options)
        return fail(f"no folder {folder}" + (", but an interrupted conversion to it" if begun else ""),
                    f"convert the weights: {command}{' --resume' if begun else ''}", subject.where(key))  # fmt: skip
    return _finding(options, command, asked=asked)


def _wanted(subject: Subject, role: str, folder: Path) -> tuple[ToMcore, str, bool]:
    """What the folder should hold, the command that makes it, and whether the recipe says all its options."""
    resolved = subject.resolved
    for one in declared(resolved):
        if role in one.roles and one.options.output == folder:
            return one.options, f"verl-musa convert recipe {resolved.recipe.title}", True
    critic = role == "critic"
    source = Path(str(subject.select(scorers.PATHS[role], ""))) if critic else subject.model_path
    head = " --value-head" if critic else ""
    options = ToMcore(source=source, output=folder, value_head=critic)
    return options, f"verl-musa convert to-mcore{head} {source} {folder}", False


def _finding(options: ToMcore, command: str, *, asked: bool) -> Finding:
    folder = str(options.output)
    found = look(options)
    wrong = differences(found, options, asked=asked)
    if wrong:
        return fail("; ".join(wrong), f"remove the folder and convert again: {command}", folder)
    if found.manifest is None:
        return unknown(
            f"{found.tensors} tensors of this model's shapes, but no conversion.json says what they were made from",
            f"compare them: verl-musa convert verify {options.source} {folder}",
            folder,
        )
    made = found.manifest
    text = f"{found.tensors} tensors made from {options.source}, {found.target.layer_spec} names, {made['made_by']}"
    if options.value_head and not found.target.value_head and not read_spec(options.source).labels:
        # verl 0.9.1 leaves the head out when it loads a critic; Megatron-Core alone would not.
        text += "; with a language model's output layer, which verl leaves out for a fresh value head"
    return ok(text)


CHECKS = tuple(
    Check(
        f"conversion.{role}",
        f"the {role}'s Megatron-Core checkpoint against its model",
        partial(check_role, role),
    )
    for role in MEGATRON
)
