"""Handing weights to a rollout server through host memory, for devices whose memory cannot be shared by handle."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where torch's file_system strategy keeps its segments on Linux
FILE_SYSTEM = "file_system"


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` as a host tensor of its own, ready to be put into shared memory.

    A copy in every case: sharing moves the storage, which must not happen to a tensor that the trainer still owns.
    """
    return tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach().to("cpu")


@contextlib.contextmanager
def host_sharing() -> Iterator[None]:
    """Share host tensors by file name while the block runs; restore the strategy afterwards, on errors too.

    torch's default passes file descriptors, which needs a common authentication key: an unrelated server refuses the
    first descriptor. If the block fails, the segments that this process made meanwhile are unlinked: the receiver that
    would have released them never opened them.
    """
    before = torch.multiprocessing.get_sharing_strategy()
    existing = shared_segments()
    torch.multiprocessing.set_sharing_strategy(FILE_SYSTEM)
    try:
        yield
    except BaseException:
        unlink_segments(shared_segments() - existing)
        raise
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def shared_segments() -> set[str]:
    """Names of the shared-memory segments that torch made in this process."""
    prefix = f"torch_{os.getpid()}_"
    if not SHARED_MEMORY.is_dir():
        return set()
    return {entry.name for entry in SHARED_MEMORY.iterdir() if entry.name.startswith(prefix)}


def unlink_segments(names: set[str]) -> None:
    """Remove segments; one that somebody else removed meanwhile is fine."""
    for name in sorted(names):
        (SHARED_MEMORY / name).unlink(missing_ok=True)
    if names:
        logger.warning("removed %d shared-memory segments of a failed weight update", len(names))


def require_host_reducer(patch_torch: Any) -> None:
    """Check that SGLang leaves host tensors to torch, which the patch ``sglang-reduce-host-tensors`` sees to.

    Args:
        patch_torch: the module ``sglang.srt.utils.patch_torch``.

    Raises:
        RuntimeError: it does not, and the first update would end in an IndexError inside SGLang.
    """
    if not getattr(patch_torch._reduce_tensor_modified, "leaves_host_tensors", False):
        raise RuntimeError(
            "weights travel through host memory here, but SGLang's tensor reducer is not patched for it "
            "(sglang-reduce-host-tensors): this process does not run the patch series. Start the run with "
            "`verl-musa run`, which activates it in every process"
        )
