from __future__ import annotations

import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from verl_musa.device import guard
from verl_musa.device.expect import EXPECT_ENV, ExpectationError


def _fake_verl(monkeypatch: pytest.MonkeyPatch, platform: Any) -> ModuleType:
    def get_platform() -> Any:
        if platform is None:
            raise ValueError("Unknown platform 'musa'")
        return platform

    module = ModuleType("verl.plugin.platform")
    module.__dict__.update(
        get_platform=get_platform,
        PlatformRegistry=SimpleNamespace(registered_names=lambda: ("nvidia", "huawei")),
    )
    verl = ModuleType("verl")
    monkeypatch.setitem(sys.modules, "verl", verl)
    monkeypatch.setitem(sys.modules, "verl.plugin", ModuleType("verl.plugin"))
    monkeypatch.setitem(sys.modules, "verl.plugin.platform", module)
    return verl


def _platform(device: str, backend: str) -> SimpleNamespace:
    return SimpleNamespace(device_name=device, communication_backend_name=lambda: backend)


@pytest.fixture(autouse=True)
def _expecting_musa(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXPECT_ENV, json.dumps({"device": "musa", "backend": "mccl", "simulated": True}))


def test_the_expected_platform_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    guard.require_platform(_fake_verl(monkeypatch, _platform("musa", "mccl")))


def test_a_plugin_that_was_not_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExpectationError, match=r"registered: nvidia, huawei.*plugin was not loaded"):
        guard.require_platform(_fake_verl(monkeypatch, None))


def test_a_fallback_to_nvidia_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExpectationError, match=r"found device 'cuda' with backend 'nccl'; expected 'musa'"):
        guard.require_platform(_fake_verl(monkeypatch, _platform("cuda", "nccl")))


def test_worker_start_checks_a_verl_that_is_imported_already(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_verl(monkeypatch, _platform("cuda", "nccl"))
    with pytest.raises(ExpectationError, match="found device 'cuda'"):
        guard.on_worker_start()


def test_worker_start_does_nothing_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_verl(monkeypatch, None)
    monkeypatch.delenv(EXPECT_ENV)
    guard.on_worker_start()
    guard.require_platform(sys.modules["verl"])


def test_ray_is_told_to_keep_devices_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXPECT_ENV)
    monkeypatch.setenv(guard.NOSET_CUDA_ENV, "")
    monkeypatch.setenv(guard.NOSET_MUSA_ENV, "0")
    guard.on_worker_start()
    assert os.environ[guard.NOSET_CUDA_ENV] == ""
    monkeypatch.setenv(guard.NOSET_MUSA_ENV, "1")
    guard.on_worker_start()
    assert os.environ[guard.NOSET_CUDA_ENV] == "1"


def test_worker_start_refuses_an_unreadable_expectation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXPECT_ENV, "{")
    with pytest.raises(ExpectationError, match="expected a JSON object"):
        guard.on_worker_start()
