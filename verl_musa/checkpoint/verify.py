"""Proof that a Hugging Face folder and a Megatron-Core checkpoint hold the same weights: by content, not by names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from verl_musa.checkpoint import manifest
from verl_musa.checkpoint.compare import check_weights
from verl_musa.checkpoint.logits import Case, compare_logits
from verl_musa.checkpoint.mapping import (
    HF_EMBEDDING,
    HF_OUTPUT,
    Mapped,
    Target,
    extra_state_keys,
    mapped_tensors,
    mcore_shapes,
    zero_boxes,
)
from verl_musa.checkpoint.reading import same_bytes
from verl_musa.checkpoint.safetensors_folder import WeightFolder, open_weights
from verl_musa.checkpoint.spec import CONFIG, ModelSpec, read_spec
from verl_musa.checkpoint.to_hf import as_bytes, assemble, find_checkpoint, open_checkpoint
from verl_musa.checks import Check, Finding, Result, fail, ok, run_checks, unknown, warn

if TYPE_CHECKING:
    from verl_musa.checkpoint.torch_dist_reader import TorchDistFolder

SHOWN = 3
LOGIT_LIMIT = 5e-6
"""Largest difference of fp32 logits, relative to the largest logit where that is above 1. Measured: at most 2.2e-6 for
tiny models, from another order of additions under tensor parallelism."""

Progress = Callable[[int, int], None]


@dataclass
class Pair:
    """What is compared.

    Attributes:
        source: folder in Hugging Face layout.
        checkpoint: the torch_dist folder.
        prompts: prompts for the comparison of logits; 0 leaves it out.
        megatron: folder that holds the package ``megatron``.
        progress: called with (bytes compared, all bytes).
    """

    source: Path
    checkpoint: Path
    prompts: int = 0
    megatron: Path | None = None
    progress: Progress = field(default=lambda _done, _all: None)

    @cached_property
    def spec(self) -> ModelSpec:
        """The model, by the source's config.json."""
        return read_spec(self.source)

    @cached_property
    def weights(self) -> WeightFolder:
        """The source's headers."""
        return open_weights(self.source)

    @cached_property
    def opened(self) -> tuple[TorchDistFolder, Target]:
        """The checkpoint, and how it is written."""
        return open_checkpoint(find_checkpoint(self.checkpoint, self.source)[0], self.spec)

    @cached_property
    def mapped(self) -> tuple[Mapped, ...]:
        """Every tensor of the source with its place."""
        return tuple(mapped_tensors(self.spec, self.opened[1]))


def check_source(pair: Pair) -> Finding:
    """The source's config and weights belong together."""
    spec = pair.spec
    check_weights(
        spec,
        pair.weights,
        mapped_tensors(spec, Target("te", spec.vocab)),
        may_drop={HF_OUTPUT} if spec.tied else set(),
    )
    entries = pair.weights.entries
    if (
        spec.tied
        and HF_OUTPUT in entries
        and not same_bytes(pair.source, entries[HF_EMBEDDING], entries[HF_OUTPUT])
    ):
        return fail(
            f"tie_word_embeddings is true, but {HF_OUTPUT} differs from {HF_EMBEDDING}",
            "set tie_word_embeddings to false if the model is not tied",
            str(pair.source / CONFIG),
        )
    return ok(f"{spec.architecture}, {len(entries)} tensors in {len(pair.weights.files)} files")


def check_format(pair: Pair) -> Finding:
    """The checkpoint's files are those of the format, whole, and agree with its index."""
    folder, target = pair.opened
    missing = [file.name for file in folder.index.files() if not file.is_file()]
    if missing:
        return fail(
            f"no {', '.join(missing)}; Megatron-Core 0.16 and 0.18 need it, 0.19 writes none",
            "convert or save the checkpoint with Megatron-Core 0.16 or 0.18",
            str(folder.path),
        )
    absent = [key for key in extra_state_keys(pair.spec, Target("local", 0)) if key not in folder.objects]
    if absent and not any(map(_numbered, folder.tensors)):
        return warn(
            f"{len(absent)} objects of modules are not there, such as {absent[0]}",
            "Megatron-Core's loader asks for them; convert the weights again",
            str(folder.path),
        )
    names = len(folder.tensors)
    return ok(
        f"{names} tensors, {len(folder.objects)} objects, {target.layer_spec} names, {target.vocab_rows} vocabulary rows"
    )


def check_tensors(pair: Pair) -> Finding:
    """Every tensor's content is the source's, after the inverse mapping."""
    from verl_musa.checkpoint.torch_dist_reader import DTYPES as TORCH

    folder, _ = pair.opened
    names = {value: name for name, value in TORCH.items()}
    total = sum(pair.weights.entries[tensor.name].nbytes for tensor in pair.mapped)
    done, different, cast = 0, [], 0
    for tensor in pair.mapped:
        entry = pair.weights.entries[tensor.name]
        dtype = names[folder.dtype(tensor.parts[0].key)]
        expected = _source_bytes(pair.weights, tensor.name, dtype)
        if manifest.checksum(expected) != manifest.checksum(as_bytes(assemble(folder, tensor), dtype)):
            different.append(tensor.name)
        cast += dtype != entry.dtype
        done += entry.nbytes
        pair.progress(done, total)
    if different:
        return fail(
            f"{len(different)} of {len(pair.mapped)} tensors differ: {', '.join(different[:SHOWN])}",
            "convert the weights again; if it is a training checkpoint, this is what training changed",
            str(folder.path),
        )
    return ok(
        f"{len(pair.mapped)} tensors, {total / 2**20:,.1f} MiB, all equal"
        + (f" ({cast} after the same change of type)" if cast else "")
    )


def check_rest(pair: Pair) -> Finding:
    """Nothing is in the checkpoint that no source tensor accounts for, and padding is zero."""
    folder, target = pair.opened
    known = mcore_shapes(pair.spec, target)
    extra = [key for key in folder.tensors if key not in known and not _numbered(key)]
    if extra:
        return fail(
            f"{len(extra)} tensors have no counterpart: {', '.join(extra[:SHOWN])}",
            "is the checkpoint of another model, or does it hold an optimizer?",
            str(folder.path),
        )
    zeros = tuple(zero_boxes(pair.spec, target))
    filled = [part.key for part in zeros if bool(folder.read(part.key, part.offset, part.sizes).any())]
    if filled:
        return warn(
            f"not zero beyond the vocabulary, or a trained head: {', '.join(filled)}",
            "expected in a training checkpoint; else convert the weights again",
            str(folder.path),
        )
    return ok(f"{len(zeros)} boxes beyond the source, all zero" if zeros else "nothing beyond the source")


def check_manifest(pair: Pair) -> Finding:
    """``conversion.json`` describes this source, and its checksums are the source's."""
    folder, _ = pair.opened
    found = manifest.read(folder.path)
    if found is None:
        return unknown("no conversion.json: not made by verl-musa convert, or it was left out of a copy")
    where = str(folder.path / manifest.MANIFEST)
    changed = manifest.other_source(found, pair.weights)
    if changed:
        return fail(
            f"made from another source: other {changed}", "name the source that it was made from", where
        )
    changed = manifest.other_output(found, folder.path)
    if changed:
        return fail(f"files have changed since: {changed}", "convert the weights again", where)
    wrong = [
        name
        for name, text in found["tensors"].items()
        if manifest.checksum(_source_bytes(pair.weights, name, pair.weights.entries[name].dtype)) != text
    ]
    if wrong:
        return fail(
            f"{len(wrong)} tensors of the source have changed since: {', '.join(wrong[:SHOWN])}",
            "convert the weights again",
            where,
        )
    return ok(
        f"{len(found['tensors'])} checksums hold; mapping {found['mapping_version']}, {found['made_by']}"
    )


def check_logits(pair: Pair) -> Finding:
    """The same prompts give the same logits, in fp32 on the CPU."""
    folder, target = pair.opened
    if pair.megatron is None:
        return unknown("no Megatron-Core given", "name the folder that holds it with --megatron")
    if target.value_head or pair.spec.labels:
        return unknown("a critic has no logits to compare")
    case = Case(source=pair.source, checkpoint=folder.path, layer_spec=target.layer_spec)
    (difference,) = compare_logits([case], prompts=pair.prompts, megatron=pair.megatron)
    text = (
        f"{pair.prompts} prompts: largest difference {difference.maximum:.2e}, mean {difference.mean:.2e}, "
        f"largest logit {difference.largest:.2f}"
    )
    if not difference.maximum <= LOGIT_LIMIT * max(1.0, difference.largest):
        return fail(f"{text}; limit {LOGIT_LIMIT:.0e}", "do not train from it; report this", str(folder.path))
    return ok(text)


CHECKS = (
    Check("convert.source", "config.json against the weights", check_source),
    Check("convert.format", "the checkpoint's files against its index", check_format),
    Check("convert.tensors", "content of every tensor after the inverse mapping", check_tensors),
    Check("convert.rest", "what the source does not account for", check_rest),
    Check("convert.manifest", "conversion.json against the source", check_manifest),
)
LOGITS = Check("convert.logits", "logits of Hugging Face against Megatron-Core", check_logits)


def verify(pair: Pair) -> list[Result]:
    """Run all checks; those of logits only where prompts are asked for."""
    return run_checks((*CHECKS, LOGITS) if pair.prompts else CHECKS, pair)


def _numbered(key: str) -> bool:
    """Whether a key names one layer's tensor, as models with unlike layers are saved."""
    prefix, _, rest = key.partition("decoder.layers.")
    return not prefix and rest.split(".", 1)[0].isdecimal()


def _source_bytes(weights: WeightFolder, name: str, dtype: str) -> memoryview:
    """A source tensor's bytes, changed to the type that safetensors calls ``dtype``."""
    import torch

    from verl_musa.checkpoint.torch_dist_reader import DTYPES as TORCH

    entry = weights.entries[name]
    with (weights.path / entry.file).open("rb") as stream:
        stream.seek(entry.start)
        raw = bytearray(entry.nbytes)
        stream.readinto(raw)
    if entry.dtype == dtype:
        return memoryview(raw)
    return as_bytes(torch.frombuffer(raw, dtype=TORCH[entry.dtype]), dtype)
