"""Weight transfers between two threads over a real zmq socket, whole and broken."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

PACKAGE = "verl.workers.rollout.vllm_rollout"


def _without_vllm() -> ModuleType:
    """Import the module under test where vLLM is not installed: verl's package around its transfer wants it."""
    with warnings.catch_warnings():
        # verl's and Ray's own imports warn; what they say is not ours to fix.
        warnings.simplefilter("ignore")
        utils = importlib.import_module("verl.workers.rollout.utils")
    hollow = ModuleType(PACKAGE)
    hollow.__path__ = [str(Path(str(utils.__file__)).parent / "vllm_rollout")]
    known = sys.modules.get(PACKAGE)
    sys.modules[PACKAGE] = hollow
    try:
        return importlib.import_module("verl_musa.device.vllm_transfer")
    finally:
        if known is None:
            del sys.modules[PACKAGE]
        else:
            sys.modules[PACKAGE] = known


vllm_transfer: Any = _without_vllm()
BoundedWeightReceiver, BoundedWeightSender = (
    vllm_transfer.BoundedWeightReceiver,
    vllm_transfer.BoundedWeightSender,
)
WeightSyncError = vllm_transfer.WeightSyncError
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where multiprocessing keeps its segments on Linux
WEIGHTS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(5, dtype=torch.bfloat16),
    "c": torch.full((7,), 3.0),
}


def segments() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob("verl_weights_*")}


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(vllm_transfer.LIMIT_ENV, "20")
    device = SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None)
    monkeypatch.setattr(vllm_transfer.upstream, "get_torch_device", lambda: device)
    monkeypatch.setattr(vllm_transfer.upstream, "is_support_ipc", lambda: False)
    before = segments()
    yield
    assert segments() == before


@pytest.fixture
def handle(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/weights.sock"


def send(
    handle: str, weights: dict[str, torch.Tensor], failure: Callable[[], BaseException | None] = lambda: None
) -> None:
    watching = type("Watching", (BoundedWeightSender,), {"failure": staticmethod(failure)})
    made = watching(handle, bucket_size_mb=1, use_shm=True)
    asyncio.run(made.async_send_weights(iter(weights.items())))


class Receiving(threading.Thread):
    """A receiver in a thread; ``error`` is what ended it."""

    def __init__(self, handle: str, take: Callable[[list[tuple[str, torch.Tensor]], bool], None]) -> None:
        super().__init__(daemon=True)
        self.handle, self.take = handle, take
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            BoundedWeightReceiver(self.handle, torch.device("cpu"), use_shm=True).receive_weights(self.take)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error


def test_weights_arrive_whole_in_several_buckets(handle: str) -> None:
    weights = {**WEIGHTS, "large": torch.rand(200_000), "larger": torch.rand(250_000)}
    found: dict[str, torch.Tensor] = {}
    lasts: list[bool] = []

    def take(bucket: list[tuple[str, torch.Tensor]], last: bool) -> None:
        found.update((name, tensor.clone()) for name, tensor in bucket)
        lasts.append(last)

    receiving = Receiving(handle, take)
    receiving.start()
    send(handle, weights)
    receiving.join(20)
    assert receiving.error is None
    assert len(lasts) > 1
    assert lasts == [False] * (len(lasts) - 1) + [True]
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_a_server_that_failed_ends_the_sender_at_once_and_with_the_reason(handle: str) -> None:
    failed = ValueError("no parameter of that shape")
    started = time.monotonic()
    with pytest.raises(WeightSyncError, match="could not take the weights") as caught:
        send(handle, WEIGHTS, failure=lambda: failed)
    assert caught.value.__cause__ is failed
    assert time.monotonic() - started < 10


def test_an_absent_receiver_is_waited_for_within_bounds(handle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_transfer.LIMIT_ENV, "1")
    with pytest.raises(WeightSyncError, match="within 1 s"):
        send(handle, WEIGHTS)


def test_an_absent_sender_is_waited_for_within_bounds(handle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_transfer.LIMIT_ENV, "1")
    receiving = Receiving(handle, lambda *_: None)
    receiving.run()
    assert isinstance(receiving.error, WeightSyncError)
    assert "no message within 1 s" in str(receiving.error)


def test_a_load_that_fails_is_heard_on_both_sides(handle: str) -> None:
    def refuse(bucket: list[tuple[str, torch.Tensor]], last: bool) -> None:
        raise KeyError(bucket[0][0], last)

    receiving = Receiving(handle, refuse)
    receiving.start()
    with pytest.raises(WeightSyncError):
        send(handle, WEIGHTS, failure=lambda: receiving.error)
    receiving.join(20)
    assert isinstance(receiving.error, KeyError)


def test_a_view_that_outlives_the_sender_holds_up_nothing(
    handle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(vllm_transfer.LIMIT_ENV, "1")
    kept: list[torch.Tensor] = []
    start = BoundedWeightSender._init_buffer

    def remember(self: Any) -> None:
        try:
            start(self)
        finally:
            kept.append(self.buffer[:8])

    monkeypatch.setattr(BoundedWeightSender, "_init_buffer", remember)
    with pytest.raises(WeightSyncError, match="within 1 s"):
        send(handle, WEIGHTS)
    assert kept[0].sum() == 0


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_bound_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_transfer.LIMIT_ENV, text)
    with pytest.raises(ValueError, match=vllm_transfer.LIMIT_ENV):
        vllm_transfer.limit_s()


def test_installing_puts_them_in_verls_place(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = vllm_transfer.upstream
    monkeypatch.setattr(upstream, "BucketedWeightSender", upstream.BucketedWeightSender)
    monkeypatch.setattr(upstream, "BucketedWeightReceiver", upstream.BucketedWeightReceiver)
    vllm_transfer.install()
    assert upstream.BucketedWeightSender is BoundedWeightSender
    assert upstream.BucketedWeightReceiver is BoundedWeightReceiver
