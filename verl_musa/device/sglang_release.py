"""SGLang's memory saver for a server that computes on the CPU: it really gives memory back, and hides no mistake.

SGLang releases and resumes weights and key-value cache through ``TorchMemorySaverAdapter``, whose only implementation
needs the torch-memory-saver package, which hooks a CUDA allocator. On the CPU ``enable_memory_saver`` ends the server with an
ImportError, and without it release and resume do nothing. With this one the storages are freed and made again.

What was released comes back as NaN, weights included: verl asks for a host copy of them, which in host memory would give
nothing back. So a server that answers before all of its weights have been sent again shows at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from verl_musa.device.expect import own_file, proof_dir, write_atomically

logger = logging.getLogger(__name__)

ADAPTER = "sglang.srt.utils.torch_memory_saver_adapter.TorchMemorySaverAdapter.create"
RELEASE = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.release_memory_occupation"
WEIGHTS, CACHE = "weights", "kv_cache"
# Every bit set: a NaN in each floating-point format, and an index out of any range.
POISON = 0xFF


class HostMemorySaver:
    """Stands where SGLang's own adapter stands; one for each scheduler process."""

    enabled = True

    def __init__(self) -> None:
        self._runner: Any = None
        self._released: dict[str, list[tuple[Any, int]]] = {}
        self._counts = {"releases": 0, "resumes": 0}
        self._bytes: dict[str, int] = {}

    def bind(self, runner: Any) -> None:
        """Name the model runner whose tensors are meant."""
        self._runner = runner

    def pause(self, tag: str) -> None:
        """Free what ``tag`` names. Tags that mean nothing on the CPU (graphs) are left alone.

        Raises:
            RuntimeError: it is free already, or no model runner is known.
        """
        if tag not in {WEIGHTS, CACHE}:
            return
        if tag in self._released:
            raise RuntimeError(f"{tag}: released twice without a resume between")
        storages = self._storages(tag)
        self._released[tag] = [(storage, storage.nbytes()) for storage in storages]
        for storage in storages:
            storage.resize_(0)
        self._bytes[tag] = sum(size for _, size in self._released[tag])
        self._counts["releases"] += 1
        self._note()

    def resume(self, tag: str) -> None:
        """Make it again, as large as it was. Weights are poisoned; the cache is empty, as when it was made.

        Raises:
            RuntimeError: it was not released.
        """
        if tag not in {WEIGHTS, CACHE}:
            return
        if tag not in self._released:
            raise RuntimeError(f"{tag}: resumed without a release before")
        for storage, size in self._released.pop(tag):
            storage.resize_(size)
            storage.fill_(POISON if tag == WEIGHTS else 0)
        self._counts["resumes"] += 1
        self._note()

    def _storages(self, tag: str) -> list[Any]:
        """The storages behind ``tag``, each once: tied weights share theirs."""
        if self._runner is None:
            raise RuntimeError(f"{tag}: SGLang releases memory before this adapter knows its model runner")
        if tag == WEIGHTS:
            model = self._runner.model
            tensors = [*model.parameters(), *model.buffers()]
        else:
            pool = self._runner.token_to_kv_pool
            tensors = [*pool.k_buffer, *pool.v_buffer]
        found = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
        return [storage for storage in found.values() if storage.nbytes()]

    def _note(self) -> None:
        folder = proof_dir()
        if folder is not None:
            facts = {**self._counts, "bytes": self._bytes, "still_released": sorted(self._released)}
            write_atomically(folder / own_file("released"), json.dumps(facts, indent=1))

    # What SGLang's adapter offers beside, with nothing to do on the CPU: tensors are found when they are released.

    @contextlib.contextmanager
    def region(self, tag: str, enable_cpu_backup: bool = False) -> Iterator[None]:
        """Do nothing."""
        del tag, enable_cpu_backup
        yield

    @contextlib.contextmanager
    def cuda_graph(self, **kwargs: Any) -> Iterator[None]:
        """Do nothing."""
        del kwargs
        yield

    @contextlib.contextmanager
    def configure_subprocess(self) -> Iterator[None]:
        """Do nothing."""
        yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Do nothing."""
        yield

    def check_validity(self, caller_name: str) -> None:
        """Do nothing: memory is given back."""


_saver = HostMemorySaver()


def register() -> None:
    """Hook SGLang's adapter. For servers that compute on the CPU only."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(ADAPTER, create, HookType.AROUND)
    HookRegistry.register(RELEASE, bind_and_release, HookType.AROUND)


def create(original: Any, enable: bool) -> Any:
    """SGLang's factory: ours where a saver is asked for, SGLang's do-nothing adapter otherwise."""
    return _saver if enable else original(enable)


def bind_and_release(original: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Tell the adapter which model is meant, then release as SGLang does."""
    _saver.bind(manager.tp_worker.model_runner)
    return original(manager, *args, **kwargs)
