"""Hugging Face weights to a torch_dist checkpoint, without building the model and in bounded memory."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.checkpoint import manifest
from verl_musa.checkpoint.compare import check_weights
from verl_musa.checkpoint.folder import PartialFolder
from verl_musa.checkpoint.layout import Layout, check_layout
from verl_musa.checkpoint.mapping import (
    HF_EMBEDDING,
    HF_OUTPUT,
    LAYER_SPECS,
    MAPPING_VERSION,
    Mapped,
    Shape,
    Target,
    extra_state_keys,
    mapped_tensors,
    mcore_shapes,
    zero_boxes,
)
from verl_musa.checkpoint.pieces import Unit, units_of
from verl_musa.checkpoint.reading import same_bytes
from verl_musa.checkpoint.safetensors_folder import ITEM_BYTES, WeightFolder, open_weights
from verl_musa.checkpoint.spec import CONFIG, ModelSpec, read_spec
from verl_musa.errors import CheckpointError
from verl_musa.fileio import write_json

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""What ``dtype`` may be, and safetensors' names."""

SMALL_FILES = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""What a Hugging Face folder holds beside its weights, and a way back needs."""

HF_FOLDER = "huggingface"
"""Where these go, as in verl's own checkpoints."""

STREAMED_SHARE = 0.2
"""Part of the host's memory from which on weights are not kept in its page cache; source and output need twice that."""

Progress = Callable[[int, int], None]
"""Called with (bytes of weights done, all bytes)."""


@dataclass(frozen=True, kw_only=True)
class ToMcore:
    """What to convert, and into what.

    Attributes:
        source: folder in Hugging Face layout.
        output: folder to make.
        layer_spec: key names, ``te`` or ``local``.
        dtype: ``float32``, ``float16`` or ``bfloat16``; None keeps the source's.
        pad_vocab: rows of the embedding and the output layer become a multiple of this.
        value_head: write a critic: a value head of zeros in place of the output layer.
        layout: check that the model can run under it; the checkpoint itself fits any.
        resume: continue an interrupted conversion.
        jobs: output files written at once.
    """

    source: Path
    output: Path
    layer_spec: str = "te"
    dtype: str | None = None
    pad_vocab: int = 1
    value_head: bool = False
    layout: Layout | None = None
    resume: bool = False
    jobs: int = 2


@dataclass(frozen=True)
class Plan:
    """A checked conversion, before its first weight is read.

    Attributes:
        spec: the model.
        target: what is written.
        weights: the source's headers.
        shapes: global shape by Megatron's key.
        dtypes: safetensors' name of the type that is written, by key.
        units: pieces by output file; the first also has the zero boxes.
    """

    spec: ModelSpec
    target: Target
    weights: WeightFolder
    shapes: dict[str, Shape]
    dtypes: dict[str, str]
    units: tuple[Unit, ...]

    @property
    def source_bytes(self) -> int:
        """Bytes of the weights that are read."""
        return sum(piece.source_bytes for unit in self.units for piece in unit)

    def output_bytes(self, unit: int) -> int:
        """Bytes of a unit's tensors as they are written."""
        return sum(piece.items * ITEM_BYTES[self.dtypes[piece.part.key]] for piece in self.units[unit])


def plan(options: ToMcore) -> Plan:
    """Check everything that can be checked without reading a weight or writing a file.

    Raises:
        CheckpointError: the source cannot be converted as asked.
    """
    _check_options(options)
    spec = read_spec(options.source)
    rows = -(-spec.vocab // options.pad_vocab) * options.pad_vocab
    target = Target(options.layer_spec, rows, options.value_head)
    if options.layout is not None:
        check_layout(spec, options.layout, rows, str(options.source / CONFIG))
    weights = open_weights(options.source)
    mapped = tuple(mapped_tensors(spec, target))
    check_weights(spec, weights, mapped, may_drop={HF_OUTPUT} if spec.tied or options.value_head else set())
    dtypes = _dtypes(weights, mapped, options)
    for part in zero_boxes(spec, target):
        dtypes.setdefault(part.key, next(iter(dtypes.values())))
    units = units_of(weights, mapped, zero_boxes(spec, target))
    return Plan(spec, target, weights, mcore_shapes(spec, target), dtypes, units)


def describe_target(options: ToMcore, target: Target) -> dict[str, Any]:
    """What the manifest says about what was asked for."""
    return {
        "format": "torch_dist",
        "layer_spec": options.layer_spec,
        "dtype": options.dtype or "as the source",
        "vocab_rows": target.vocab_rows,
        "value_head": options.value_head,
    }


def to_mcore(options: ToMcore, progress: Progress = lambda _done, _all: None) -> Path:
    """Convert, and return the folder.

    Raises:
        CheckpointError: see :func:`plan`; or the output cannot be written.
    """
    ready = plan(options)
    _refuse_other_tied_head(ready)
    source = manifest.describe_source(ready.weights)
    target = describe_target(options, ready.target)
    from verl_musa.checkpoint.torch_dist import seal

    folder = PartialFolder(
        options.output, {"source": source, "target": target, "mapping_version": MAPPING_VERSION}
    )
    folder.open(resume=options.resume)
    with folder.writing():
        records = folder.done()
        rest = [unit for unit in range(len(ready.units)) if unit not in records]
        folder.require_space(sum(map(ready.output_bytes, rest)))
        records.update(_write(ready, folder, rest, options.jobs, progress))
        checksums = {name: text for record in records.values() for name, text in record["checksums"].items()}
        copy_small_files(options.source, folder.path / HF_FOLDER)
        _finish(ready, folder, records)
        output = manifest.describe_output(folder.path)
        made = manifest.make("to-mcore", source, target, checksums, output)
        write_json(folder.path / manifest.MANIFEST, made)
        seal(folder.path)
        folder.commit()
    return options.output


def copy_small_files(source: Path, destination: Path) -> None:
    """Copy the config, the generation config and the tokenizer, where there are such files."""
    destination.mkdir(exist_ok=True)
    for name in SMALL_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)


def _check_options(options: ToMcore) -> None:
    for name, value, allowed in (
        ("--spec", options.layer_spec, LAYER_SPECS),
        ("--dtype", options.dtype, (None, *DTYPES)),
    ):
        if value not in allowed:
            raise CheckpointError(
                f"{name} has no such value",
                where=name,
                found=repr(value),
                expected=", ".join(str(item) for item in allowed if item is not None),
                fix=f"give one of these to {name}",
            )
    for name, number in (("--pad-vocab", options.pad_vocab), ("--jobs", options.jobs)):
        if number < 1:
            raise CheckpointError(f"{name} must be at least 1", where=name, found=str(number))
    if options.output.resolve() == options.source.resolve():
        raise CheckpointError(
            "source and output are the same folder",
            where=str(options.output),
            fix="name another output folder",
        )


def _dtypes(weights: WeightFolder, mapped: tuple[Mapped, ...], options: ToMcore) -> dict[str, str]:
    """Type to write by key.

    Raises:
        CheckpointError: what is fused into one tensor has several types, and none was chosen.
    """
    if options.dtype is not None:
        return {part.key: DTYPES[options.dtype] for tensor in mapped for part in tensor.parts}
    found: dict[str, str] = {}
    for tensor in mapped:
        dtype = weights.entries[tensor.name].dtype
        for part in tensor.parts:
            if found.setdefault(part.key, dtype) != dtype:
                raise CheckpointError(
                    "tensors that Megatron-Core keeps in one have different types",
                    where=str(weights.path / weights.entries[tensor.name].file),
                    found=f"{tensor.name} is {dtype}, others of {part.key} are {found[part.key]}",
                    fix=f"choose one with --dtype {', '.join(DTYPES)}",
                )
    return found


def _refuse_other_tied_head(ready: Plan) -> None:
    """Some tied models ship the output layer too. It must be the embedding, or the model is not tied.

    Raises:
        CheckpointError: it differs.
    """
    entries = ready.weights.entries
    if not ready.spec.tied or HF_OUTPUT not in entries:
        return
    if not same_bytes(ready.weights.path, entries[HF_EMBEDDING], entries[HF_OUTPUT]):
        raise CheckpointError(
            "tie_word_embeddings is true, but the output layer is not the embedding",
            where=str(ready.weights.path / CONFIG),
            found=f"{HF_OUTPUT} differs from {HF_EMBEDDING}",
            fix="set tie_word_embeddings to false if the model is not tied, else remove the output layer",
        )


def _write(
    ready: Plan, folder: PartialFolder, units: list[int], jobs: int, progress: Progress
) -> dict[int, dict[str, Any]]:
    """Write the units that are left, ``jobs`` at once; a finished one is flushed while the next is written."""
    done = ready.source_bytes - sum(piece.source_bytes for unit in units for piece in ready.units[unit])
    guard = threading.Lock()

    def count(size: int) -> None:
        nonlocal done
        with guard:
            done += size
            progress(done, ready.source_bytes)

    progress(done, ready.source_bytes)
    pool = concurrent.futures.ThreadPoolExecutor
    with pool(1) as flusher, pool(jobs) as writers:  # the writers end first: what they finish is recorded

        def write(unit: int) -> concurrent.futures.Future[dict[str, Any]]:
            return flusher.submit(folder.record, **_write_unit(ready, folder, unit, count))

        tasks = [writers.submit(write, unit) for unit in units]
        try:
            flushing = [task.result() for task in concurrent.futures.as_completed(tasks)]
        except BaseException:
            writers.shutdown(wait=False, cancel_futures=True)
            raise
        records = [task.result() for task in flushing]
    return {record["unit"]: record for record in records}


def _write_unit(
    ready: Plan, folder: PartialFolder, unit: int, count: Callable[[int], None]
) -> dict[str, Any]:
    from verl_musa.checkpoint import torch_dist  # not before it is needed: it wants xxhash

    source = torch_dist.Source(ready.weights.path, ready.source_bytes > _memory() * STREAMED_SHARE)
    objects = tuple(extra_state_keys(ready.spec, ready.target)) if unit == 0 else ()
    written = torch_dist.write_unit(
        folder.path, unit, ready.units[unit], source, ready.dtypes, objects=objects, progress=count
    )
    return {
        "unit": unit,
        "file": written[0].file,
        "written": [dataclasses.astuple(item) for item in written],
        "checksums": {name: value.hexdigest() for name, value in source.hashes.items()},
    }


def _memory() -> int:
    """Bytes of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _finish(ready: Plan, folder: PartialFolder, records: dict[int, dict[str, Any]]) -> None:
    from verl_musa.checkpoint.torch_dist import Written, finish

    written = []
    for unit in sorted(records):
        for key, offset, file, start, length in records[unit]["written"]:
            place = None if offset is None else tuple(offset)
            written.append(Written(key, place, file, start, length))
    boxes = {(piece.part.key, piece.part.offset): piece.part.sizes for unit in ready.units for piece in unit}
    finish(folder.path, written, boxes, ready.shapes, ready.dtypes)
