"""A torch_dist checkpoint, ours or one that training wrote, back to Hugging Face's layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_musa.checkpoint import manifest
from verl_musa.checkpoint.folder import PartialFolder
from verl_musa.checkpoint.mapping import (
    MAPPING_VERSION,
    OUTPUT,
    Mapped,
    Target,
    mapped_tensors,
)
from verl_musa.checkpoint.recognise import target_of
from verl_musa.checkpoint.safetensors_folder import INDEX, ITEM_BYTES, SINGLE, open_weights
from verl_musa.checkpoint.safetensors_writer import SafetensorsWriter
from verl_musa.checkpoint.spec import CONFIG, ModelSpec, read_spec
from verl_musa.checkpoint.to_mcore import DTYPES, HF_FOLDER, Progress, copy_small_files
from verl_musa.errors import CheckpointError
from verl_musa.fileio import write_json

if TYPE_CHECKING:
    import torch

    from verl_musa.checkpoint.torch_dist_reader import TorchDistFolder

SHARD_BYTES = 4 << 30
"""Largest weight file, unless one tensor is larger."""


@dataclass(frozen=True, kw_only=True)
class ToHf:
    """What to convert, and into what.

    Attributes:
        checkpoint: a folder in the torch_dist format, or one of verl's training checkpoints (``global_step_N``,
            its ``actor`` or that one's ``model``).
        output: folder to make.
        config: folder with config.json and tokenizer; None: the one that lies with the checkpoint.
        dtype: ``float32``, ``float16`` or ``bfloat16``; None keeps the checkpoint's.
        resume: continue an interrupted conversion.
        shard_bytes: largest weight file.
    """

    checkpoint: Path
    output: Path
    config: Path | None = None
    dtype: str | None = None
    resume: bool = False
    shard_bytes: int = SHARD_BYTES


def to_hf(options: ToHf, progress: Progress = lambda _done, _all: None) -> Path:
    """Convert, and return the folder.

    Raises:
        CheckpointError: the checkpoint is incomplete or another model's, or the output cannot be written.
    """
    path, config = find_checkpoint(options.checkpoint, options.config)
    spec = read_spec(config)
    folder, target = open_checkpoint(path, spec)
    if target.value_head:
        raise CheckpointError(
            "the checkpoint is a critic's, config.json is a language model's",
            where=str(config / CONFIG),
            found=f"{OUTPUT} has one row, {spec.architecture} has no value head",
            fix="name with --config a folder whose config.json says Qwen3ForSequenceClassification (or "
            "Qwen3MoeForSequenceClassification) with num_labels 1",
        )
    mapped = tuple(mapped_tensors(spec, target))
    types = _types(folder, mapped, options.dtype)
    shards = _shards(mapped, types, options.shard_bytes)
    described = {
        "checkpoint": sorted(
            (file.name, file.stat().st_size) for file in folder.index.files() if file.is_file()
        )
    }
    wanted = {"format": "safetensors", "dtype": options.dtype or "as the checkpoint", "shards": len(shards)}
    partial = PartialFolder(
        options.output, {"source": described, "target": wanted, "mapping_version": MAPPING_VERSION}
    )
    partial.open(resume=options.resume)
    with partial.writing():
        records = partial.done()
        left = [number for number in range(len(shards)) if number not in records]
        total = sum(_nbytes(tensor, types) for tensor in mapped)
        rest = sum(_nbytes(tensor, types) for number in left for tensor in shards[number])
        partial.require_space(rest)
        done = total - rest
        progress(done, total)
        for number in left:
            name = SINGLE if len(shards) == 1 else f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
            hashes = {}
            announced = {tensor.name: (types[tensor.name], tensor.shape) for tensor in shards[number]}
            with SafetensorsWriter(partial.path / name, announced) as stream:
                for tensor in shards[number]:
                    content = as_bytes(assemble(folder, tensor), types[tensor.name])
                    stream.write(tensor.name, content)
                    hashes[tensor.name] = manifest.checksum(content)
                    done += content.nbytes
                    progress(done, total)
            records[number] = partial.record(
                number, name, checksums=hashes, tensors=[tensor.name for tensor in shards[number]]
            )
        _finish(partial, records, total)
        copy_small_files(config, partial.path)
        checksums = {name: text for record in records.values() for name, text in record["checksums"].items()}
        write_json(partial.path / manifest.MANIFEST, manifest.make("to-hf", described, wanted, checksums))
        open_weights(partial.path)
        partial.commit()
    return options.output


def find_checkpoint(path: Path, config: Path | None) -> tuple[Path, Path]:
    """Return the torch_dist folder and the folder with config.json.

    Raises:
        CheckpointError: one of them is not found.
    """
    places = (path, path / "dist_ckpt", path / "model" / "dist_ckpt", path / "actor" / "model" / "dist_ckpt")
    found = next((place for place in places if (place / ".metadata").is_file()), path)
    configs = (config,) if config else (found / HF_FOLDER, found.parent / HF_FOLDER)
    for place in configs:
        if (place / CONFIG).is_file():
            return found, place
    raise CheckpointError(
        "no config.json lies with the checkpoint",
        where=str(found),
        found=f"looked into {', '.join(str(place) for place in configs)}",
        fix="name the folder of the original model with --config",
    )


def open_checkpoint(path: Path, spec: ModelSpec) -> tuple[TorchDistFolder, Target]:
    """Open a checkpoint and find out how it is written.

    Raises:
        CheckpointError: it is incomplete, or its tensors are not this model's.
    """
    from verl_musa.checkpoint.torch_dist_reader import TorchDistFolder

    folder = TorchDistFolder(path)
    return folder, target_of(folder.index, spec)


def assemble(folder: TorchDistFolder, tensor: Mapped) -> torch.Tensor:
    """Put one Hugging Face tensor together."""
    import torch

    rows = [folder.read(part.key, part.offset, part.sizes) for part in tensor.parts]
    shaped = [
        row.reshape(part.stop - part.start, *tensor.shape[1:])
        for row, part in zip(rows, tensor.parts, strict=True)
    ]
    return shaped[0] if len(shaped) == 1 else torch.cat(shaped)


def as_bytes(tensor: torch.Tensor, dtype: str) -> memoryview:
    """A tensor's bytes as the type that safetensors calls ``dtype``."""
    import torch

    from verl_musa.checkpoint.torch_dist_reader import DTYPES as TORCH

    return memoryview(tensor.to(TORCH[dtype]).contiguous().view(-1).view(torch.uint8).numpy())


def _types(folder: TorchDistFolder, mapped: tuple[Mapped, ...], dtype: str | None) -> dict[str, str]:
    """Name, in safetensors' words, of each tensor's type in the output."""
    from verl_musa.checkpoint.torch_dist_reader import DTYPES as TORCH

    if dtype is not None:
        if dtype not in DTYPES:
            raise CheckpointError(
                "--dtype has no such value", where="--dtype", found=dtype, expected=", ".join(DTYPES)
            )
        return {tensor.name: DTYPES[dtype] for tensor in mapped}
    names = {value: name for name, value in TORCH.items()}
    return {tensor.name: names[folder.dtype(tensor.parts[0].key)] for tensor in mapped}


def _shards(mapped: tuple[Mapped, ...], types: dict[str, str], limit: int) -> list[list[Mapped]]:
    shards: list[list[Mapped]] = [[]]
    size = 0
    for tensor in mapped:
        nbytes = _nbytes(tensor, types)
        if shards[-1] and size + nbytes > limit:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += nbytes
    return shards


def _nbytes(tensor: Mapped, types: dict[str, str]) -> int:
    return math.prod(tensor.shape) * ITEM_BYTES[types[tensor.name]]


def _finish(partial: PartialFolder, records: dict[int, dict[str, Any]], total: int) -> None:
    """Write the index where there are several files, in the layout that huggingface_hub reads and writes."""
    if len(records) > 1:
        placed = {name: record["file"] for record in records.values() for name in record["tensors"]}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
        write_json(partial.path / INDEX, index)
