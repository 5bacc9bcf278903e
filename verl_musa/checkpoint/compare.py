"""Whether a model folder's weights are those that its config.json describes. Headers only, no weight is read."""

from __future__ import annotations

import re
from collections.abc import Iterable

from verl_musa.checkpoint.mapping import HF_EMBEDDING, HF_OUTPUT, Mapped
from verl_musa.checkpoint.safetensors_folder import ITEM_BYTES, WeightFolder
from verl_musa.checkpoint.spec import CONFIG, ModelSpec
from verl_musa.errors import CheckpointError

SHOWN = 5
"""Names that a message lists before it only counts."""


def check_weights(
    spec: ModelSpec, weights: WeightFolder, mapped: Iterable[Mapped], *, may_drop: set[str]
) -> None:
    """Compare names, shapes and types.

    Args:
        spec: what config.json says.
        weights: the headers.
        mapped: the tensors that will be converted.
        may_drop: names that may be there and are not converted, such as the output layer for a critic.

    Raises:
        CheckpointError: a tensor is missing, unexpected, of another shape or of a type that no weight has.
    """
    wanted = {tensor.name: tensor.shape for tensor in mapped}
    config = str(weights.path / CONFIG)
    missing = [name for name in wanted if name not in weights.entries]
    unexpected = [name for name in weights.entries if name not in wanted and name not in may_drop]
    shapes = [
        f"{name} is {list(weights.entries[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in weights.entries and weights.entries[name].shape != shape
    ]
    if missing or unexpected or shapes:
        reason, fix = _diagnosis(spec, weights, missing, unexpected)
        parts = [
            f"{len(names)} {what}: {_some(names)}"
            for what, names in (
                ("missing", missing),
                ("unexpected", unexpected),
                ("of another shape", shapes),
            )
            if names
        ]
        raise CheckpointError(
            f"config.json and the weights do not belong together: {reason}",
            where=config,
            found="; ".join(parts),
            expected=f"the {len(wanted)} tensors of {spec.architecture} with the numbers of config.json",
            fix=fix,
        )
    odd = [name for name in wanted if weights.entries[name].dtype not in ITEM_BYTES]
    if odd:
        raise CheckpointError(
            "these weights are not floating-point numbers",
            where=str(weights.path / weights.entries[odd[0]].file),
            found=f"{odd[0]} is {weights.entries[odd[0]].dtype}",
            expected=f"one of {', '.join(ITEM_BYTES)}",
            fix="convert the unquantised weights",
        )


def _some(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _diagnosis(
    spec: ModelSpec, weights: WeightFolder, missing: list[str], unexpected: list[str]
) -> tuple[str, str]:
    """The likeliest reason, and what to do."""
    names, entries = weights.entries.keys(), weights.entries
    experts = _highest(r"\.mlp\.experts\.(\d+)\.", names)
    layers = _highest(r"^model\.layers\.(\d+)\.", names)
    rows = entries[HF_EMBEDDING].shape[0] if HF_EMBEDDING in entries else spec.vocab
    stacked = any(name.endswith(".mlp.experts.gate_up_proj") for name in names)
    take = "take the config.json that belongs to these weights"
    known = (
        (
            bool(spec.experts) and stacked,
            "the experts are stacked in one tensor a layer",
            "save the model with save_pretrained(), which writes one tensor an expert",
        ),
        (
            bool(experts) and not spec.experts,
            "the weights have experts, config.json is a dense model's",
            take,
        ),
        (
            bool(spec.experts) and not experts,
            "config.json has experts, the weights are a dense model's",
            take,
        ),
        (
            missing == [HF_OUTPUT],
            "tie_word_embeddings is false, but there is no output layer",
            f"set tie_word_embeddings to true if the model is tied; else copy the file with {HF_OUTPUT}",
        ),
        (
            experts != spec.experts,
            f"num_experts is {spec.experts}, the weights have {experts} experts",
            take,
        ),
        (
            layers != spec.layers,
            f"num_hidden_layers is {spec.layers}, the weights have {layers} layers",
            take,
        ),
        (rows != spec.vocab, f"vocab_size is {spec.vocab}, the embedding has {rows} rows", take),
        (
            bool(missing) and not unexpected,
            "tensors are missing",
            "copy the weights again; a file may be left out or of another download",
        ),
        (
            bool(unexpected) and not missing,
            "there are tensors that this architecture lacks",
            "remove what was added (adapters, extra heads), or use the config.json that knows them",
        ),
    )
    return next(((reason, fix) for holds, reason, fix in known if holds), ("the sizes differ", take))


def _highest(pattern: str, names: Iterable[str]) -> int:
    """One more than the highest number that ``pattern`` finds; 0 for none."""
    found = [int(match[1]) for name in names if (match := re.search(pattern, name))]
    return max(found) + 1 if found else 0
