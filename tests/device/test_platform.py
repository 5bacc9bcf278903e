from __future__ import annotations

import os

import pytest
import torch

torch_musa = pytest.importorskip("torch_musa", reason="neither torch_musa nor the simulator is installed")

from verl_musa.device.platform import PlatformMUSA  # noqa: E402


@pytest.fixture
def platform() -> PlatformMUSA:
    return PlatformMUSA()


def test_names_are_those_of_the_public_plugin(platform: PlatformMUSA) -> None:
    assert platform.device_name == "musa"
    assert platform.vendor_name == "moore_threads"
    assert platform.communication_backend_name() == "mccl"
    assert platform.visible_devices_envvar() == "MUSA_VISIBLE_DEVICES"
    assert platform.ray_resource_name() == "GPU"
    assert platform.ray_resource_options(1) == {"num_gpus": 1}
    assert platform.device_module is torch.musa


def test_ray_leaves_all_devices_visible(platform: PlatformMUSA) -> None:
    assert "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES" in platform.ray_noset_envvars()
    assert "RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES" in platform.ray_noset_envvars()


def test_visible_devices_are_always_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSA_VISIBLE_DEVICES", raising=False)
    count = PlatformMUSA().device_count()
    assert os.environ["MUSA_VISIBLE_DEVICES"] == ",".join(str(index) for index in range(count))
    monkeypatch.setenv("MUSA_VISIBLE_DEVICES", "0")
    PlatformMUSA()
    assert os.environ["MUSA_VISIBLE_DEVICES"] == "0"


def test_devices_can_be_selected_and_seeded(platform: PlatformMUSA) -> None:
    before = platform.current_device()
    platform.set_device(platform.device_count() - 1)
    assert platform.current_device() == platform.device_count() - 1
    platform.set_device(before)
    platform.manual_seed_all(5)
    first = torch.rand(4, device="musa")
    platform.manual_seed(5)
    assert torch.equal(torch.rand(4, device="musa").cpu(), first.cpu())
    platform.synchronize()
    platform.empty_cache()


def test_ipc_is_asked_of_the_device(platform: PlatformMUSA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_musa, "__simulator__", False, raising=False)
    assert platform.is_ipc_supported()
    monkeypatch.setattr(torch_musa, "__simulator__", True, raising=False)
    monkeypatch.setattr(torch_musa, "ipc_supported", False, raising=False)
    assert not platform.is_ipc_supported()
    monkeypatch.setattr(torch_musa, "ipc_supported", lambda: True, raising=False)
    assert platform.is_ipc_supported()


def test_capability_is_a_pair_of_numbers(platform: PlatformMUSA) -> None:
    major, minor = platform.get_device_capability()
    assert isinstance(major, int)
    assert isinstance(minor, int)


def test_profiler_and_allocator_calls_are_harmless(platform: PlatformMUSA) -> None:
    with platform.nvtx_range("step"):
        platform.profiler_start()
        platform.profiler_stop()
    platform.set_allocator_settings("expandable_segments:False")
    assert platform.cudart() is None
