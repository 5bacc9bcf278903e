"""Whether a checkpoint folder is the one that a conversion would make: by its index, its files' sizes and its manifest.

No weight is read and torch is not imported, so that a run can look before it starts. :mod:`verl_musa.checkpoint.verify`
reads the content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_musa.checkpoint import manifest
from verl_musa.checkpoint.folder import PLAN, SUFFIX
from verl_musa.checkpoint.index import read_index
from verl_musa.checkpoint.mapping import Target
from verl_musa.checkpoint.recognise import target_of
from verl_musa.checkpoint.safetensors_folder import open_weights
from verl_musa.checkpoint.spec import read_spec
from verl_musa.checkpoint.to_mcore import ToMcore, describe_target
from verl_musa.errors import CheckpointError


@dataclass(frozen=True)
class Recorded:
    """A whole checkpoint of the source's model.

    Attributes:
        target: how it is written, by its index.
        tensors: how many.
        manifest: None where another tool made it.
    """

    target: Target
    tensors: int
    manifest: dict[str, Any] | None


def interrupted(options: ToMcore) -> bool:
    """Whether a conversion to this folder was begun and not finished."""
    return (options.output.with_name(options.output.name + SUFFIX) / PLAN).is_file()


def look(options: ToMcore) -> Recorded:
    """Look at the folder that ``options`` would make.

    Raises:
        CheckpointError: it is no whole checkpoint, or another model's.
    """
    folder = options.output
    spec = read_spec(options.source)
    index = read_index(folder)
    missing = [file.name for file in index.files() if not file.is_file()]
    if missing:
        raise CheckpointError(
            "a file of the checkpoint is missing",
            where=str(folder),
            found=f"no {', '.join(missing)}",
            expected="the files that Megatron-Core 0.16 and 0.18 ask for",
            fix="copy the checkpoint again, or convert the weights again",
        )
    return Recorded(target_of(index, spec), len(index.tensors), manifest.read(folder))


def differences(found: Recorded, options: ToMcore, *, asked: bool) -> list[str]:
    """What a checkpoint differs in from what ``options`` ask for; empty where it is theirs.

    Args:
        found: what lies there.
        options: what should.
        asked: whether the options of the conversion are given (by a recipe), and not only the model and its head.
    """
    spec = read_spec(options.source)
    wrong = []
    if found.target.value_head and not options.value_head:
        wrong.append("it has a value head and no output layer")
    made = found.manifest
    if made is None:
        return wrong
    changed = manifest.other_source(made, open_weights(options.source))
    if changed:
        wrong.append(f"it was made from other weights than {options.source}: other {changed}")
    changed = manifest.other_output(made, options.output)
    if changed:
        wrong.append(f"its files have changed since: {changed}")
    if asked:
        rows = -(-spec.vocab // options.pad_vocab) * options.pad_vocab
        wanted = describe_target(options, Target(options.layer_spec, rows, options.value_head))
        wrong += [
            f"its {key} is {made['target'].get(key)!r}, asked for is {value!r}"
            for key, value in wanted.items()
            if made["target"].get(key) != value
        ]
    return wrong
