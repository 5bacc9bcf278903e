"""What a folder of weights holds, for people and programs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from verl_musa.checkpoint import manifest
from verl_musa.checkpoint.folder import PLAN, SUFFIX
from verl_musa.checkpoint.index import METADATA, read_index
from verl_musa.checkpoint.safetensors_folder import open_weights
from verl_musa.checkpoint.spec import CONFIG, read_spec
from verl_musa.checkpoint.to_hf import find_checkpoint
from verl_musa.errors import CheckpointError

SCHEMA = 1


def describe(path: Path) -> dict[str, Any]:
    """Describe a Hugging Face folder, a torch_dist checkpoint or a training checkpoint.

    Returns:
        ``{"schema", "kind", "path", "model", "tensors": [{"name", "dtype", "shape", "boxes"}], "files", "bytes",
        "manifest"}``; ``model`` and ``manifest`` are None where there is none.

    Raises:
        CheckpointError: it is none of these.
    """
    if path.name.endswith(SUFFIX) and (path / PLAN).is_file():
        raise CheckpointError(
            "an interrupted conversion; no loader takes it for a checkpoint",
            where=str(path),
            fix="continue it: give the same command again with --resume",
        )
    try:
        checkpoint, config = find_checkpoint(path, None)
    except CheckpointError:
        checkpoint, config = path, None
    if (checkpoint / METADATA).is_file():
        return _torch_dist(checkpoint, config)
    if (path / CONFIG).is_file():
        return _hugging_face(path)
    raise CheckpointError(
        "neither a Hugging Face folder nor a Megatron-Core checkpoint",
        where=str(path),
        found="no config.json and no .metadata",
        fix="name the folder that holds one of them",
    )


def _hugging_face(path: Path) -> dict[str, Any]:
    weights = open_weights(path)
    tensors = [
        {"name": entry.name, "dtype": entry.dtype, "shape": list(entry.shape), "boxes": 1}
        for entry in weights.entries.values()
    ]
    sizes = [file.size for file in weights.files]
    return _described("Hugging Face", path, path, tensors, sizes)


def _torch_dist(path: Path, config: Path | None) -> dict[str, Any]:
    index = read_index(path)
    tensors = [
        {
            "name": key,
            "dtype": value.dtype,
            "shape": list(value.shape),
            "boxes": len(value.boxes),
        }
        for key, value in sorted(index.tensors.items())
    ]
    sizes = [file.stat().st_size for file in index.files() if file.is_file()]
    return _described("Megatron-Core torch_dist", path, config, tensors, sizes)


def _described(
    kind: str, path: Path, config: Path | None, tensors: list[dict[str, Any]], sizes: list[int]
) -> dict[str, Any]:
    made = manifest.read(path)
    kept = ("made_by", "direction", "mapping_version", "target", "hash")
    return {
        "schema": SCHEMA,
        "kind": kind,
        "path": str(path),
        "model": None if config is None else dataclasses.asdict(read_spec(config)),
        "tensors": tensors,
        "files": len(sizes),
        "bytes": sum(sizes),
        "manifest": None if made is None else {key: made[key] for key in kept},
    }
