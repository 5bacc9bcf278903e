from __future__ import annotations

import os
import pickle
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest
import torch

from verl_musa.device import ipc
from verl_musa.patching import load_series


def _share(tensor: torch.Tensor) -> bytes:
    return bytes(ForkingPickler.dumps(tensor))


def test_a_host_copy_leaves_the_trainers_tensor_alone() -> None:
    owned = torch.arange(8.0)
    copy = ipc.to_host(owned)
    assert torch.equal(copy, owned)
    assert copy.data_ptr() != owned.data_ptr()
    with ipc.host_sharing():
        _share(copy)
    assert copy.is_shared()
    assert not owned.is_shared()


def test_strategy_is_file_system_inside_and_restored_after() -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    with ipc.host_sharing():
        assert torch.multiprocessing.get_sharing_strategy() == "file_system"
    assert torch.multiprocessing.get_sharing_strategy() == before


def test_on_error_strategy_is_restored_and_segments_are_gone() -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    existing = ipc.shared_segments()
    tensors = [torch.ones(4096), torch.zeros(4096)]

    def refused_update() -> None:
        with ipc.host_sharing():
            for tensor in tensors:
                _share(tensor)
            assert len(ipc.shared_segments() - existing) == 2
            raise ConnectionError("HTTP 400")

    with pytest.raises(ConnectionError, match="HTTP 400"):
        refused_update()
    assert torch.multiprocessing.get_sharing_strategy() == before
    assert ipc.shared_segments() == existing


def test_only_this_processes_segments_are_counted() -> None:
    with ipc.host_sharing():
        tensor = torch.ones(16)
        _share(tensor)
        names = ipc.shared_segments()
    assert names
    assert all(name.startswith(f"torch_{os.getpid()}_") for name in names)


def test_without_the_patch_series_the_trainer_says_so() -> None:
    plain = SimpleNamespace(_reduce_tensor_modified=lambda _: None)
    with pytest.raises(RuntimeError, match="sglang-reduce-host-tensors"):
        ipc.require_host_reducer(plain)


def test_the_patched_reducer_is_accepted() -> None:
    patch = load_series().patch("sglang-reduce-host-tensors")
    reducer = patch.changes[0].make(lambda _: "sglang")
    ipc.require_host_reducer(SimpleNamespace(_reduce_tensor_modified=reducer))


def test_pickled_host_tensor_comes_back_equal() -> None:
    tensor = torch.arange(32.0)
    with ipc.host_sharing():
        data = _share(ipc.to_host(tensor))
        assert torch.equal(pickle.loads(data), tensor)  # noqa: S301 - our own bytes
