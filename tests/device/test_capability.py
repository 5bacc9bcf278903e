from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torch_musa", reason="neither torch_musa nor the simulator is installed")

from verl_musa.device import capability, sglang_plugin

S5000 = (3, 1)


def pretended(device: Any = None) -> tuple[int, int]:
    del device
    return 8, 0


@pytest.mark.parametrize("space", ["musa", "cuda"])
def test_a_pretended_capability_is_put_right(monkeypatch: pytest.MonkeyPatch, space: str) -> None:
    monkeypatch.setattr(getattr(torch, space), capability.GETTER, pretended)
    assert capability.restore() == [f"torch.{space}"]
    assert getattr(torch, space).get_device_capability(0) == S5000
    assert capability.restore() == []


def test_a_genuine_one_is_left_alone() -> None:
    before = torch.musa.get_device_capability, torch.cuda.get_device_capability
    assert capability.restore() == []
    assert (torch.musa.get_device_capability, torch.cuda.get_device_capability) == before


def test_without_torch_musa_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "musa")
    assert capability.restore() == []


def test_sglang_processes_see_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sglang_plugin.SEEDING_ENV, raising=False)
    monkeypatch.setattr(torch.musa, capability.GETTER, pretended)
    sglang_plugin.register()
    assert torch.musa.get_device_capability(0) == S5000
