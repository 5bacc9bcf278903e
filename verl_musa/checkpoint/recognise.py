"""How a checkpoint is written, found out from its index alone. Nothing here reads a weight or imports torch."""

from __future__ import annotations

from verl_musa.checkpoint.index import LAYERS, Index
from verl_musa.checkpoint.mapping import EMBEDDING, OUTPUT, Target, mcore_shapes, moe_norm_key
from verl_musa.checkpoint.spec import ModelSpec
from verl_musa.errors import CheckpointError

SHOWN = 5
"""Tensors that a message lists before it only counts."""


def target_of(index: Index, spec: ModelSpec) -> Target:
    """Find out with which names, how many vocabulary rows and which head a model was written.

    Raises:
        CheckpointError: the tensors are not this model's.
    """
    embedding = index.tensors.get(EMBEDDING)
    rows = embedding.shape[0] if embedding is not None else spec.vocab
    numbered = any(key.startswith(f"{LAYERS}0.") for key in index.tensors)
    prefix = f"{LAYERS}0." if numbered else LAYERS
    layer_spec = "te" if not spec.experts or prefix + moe_norm_key("te") in index.tensors else "local"
    output = index.tensors.get(OUTPUT)
    critic = output is not None and not spec.labels and output.shape == (1, spec.hidden)
    target = Target(layer_spec, max(rows, spec.vocab), critic)
    wrong = list(_differences(index, spec, target, numbered=numbered))
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise CheckpointError(
            "the checkpoint is not this model's",
            where=str(index.path),
            found="; ".join(wrong[:SHOWN]) + more,
            expected=f"the tensors of {spec.architecture} with the numbers of config.json",
            fix="name the folder of the right model with --config",
        )
    return target


def _differences(index: Index, spec: ModelSpec, target: Target, *, numbered: bool) -> list[str]:
    wrong = []
    for key, whole in mcore_shapes(spec, target).items():
        names, shape = [key], whole
        if numbered and key.startswith(LAYERS):
            names = [f"{LAYERS}{layer}.{key.removeprefix(LAYERS)}" for layer in range(spec.layers)]
            shape = whole[1:]  # one tensor a layer has no axis of layers
        for name in names:
            found = index.tensors[name].shape if name in index.tensors else None
            if found != shape:
                wrong.append(f"{name} is {list(found) if found else 'missing'}, expected {list(shape)}")
    return wrong
