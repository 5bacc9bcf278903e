"""Streams and events: identities, currency, and times."""

from __future__ import annotations

import time

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch


def test_streams_are_current_inside_their_block() -> None:
    default = torch.musa.current_stream()
    assert default == torch.musa.default_stream()
    one, other = torch.musa.Stream(), torch.musa.Stream(device="musa:1", priority=-1)
    assert one != default
    with torch.musa.stream(one):
        assert torch.musa.current_stream() == one
        with torch.musa.stream(other):
            assert torch.musa.current_device() == 1
            assert torch.musa.current_stream() == other
            assert torch.musa.current_stream(0) == one
        assert torch.musa.current_device() == 0
    assert torch.musa.current_stream() == default
    with torch.musa.stream(None):
        assert torch.musa.current_stream() == default
    with one:
        assert torch.musa.current_stream() == one
    torch.musa.set_stream(one)
    assert torch.musa.current_stream() == one
    torch.musa.set_stream(default)
    assert isinstance(torch.musa.current_stream(), torch.musa.Stream)
    assert torch.musa.ExternalStream(one.musa_stream) == one
    assert "musa:1" in repr(other)


def test_waiting_and_synchronising() -> None:
    side = torch.musa.Stream()
    event = side.record_event()
    torch.musa.current_stream().wait_event(event)
    side.wait_stream(torch.musa.current_stream())
    event.wait(side)
    event.synchronize()
    side.synchronize()
    assert event.query()
    assert side.query()
    x = torch.ones(2, device="musa")
    x.record_stream(side)
    torch.musa.synchronize()
    torch.accelerator.synchronize()


def test_events_time() -> None:
    start, end = torch.musa.Event(enable_timing=True), torch.musa.Event(enable_timing=True)
    start.record()
    time.sleep(0.02)
    torch.musa.current_stream().record_event(end)
    assert 20 <= start.elapsed_time(end) < 20_000


def test_times_need_recorded_timing_events() -> None:
    start = torch.musa.Event(enable_timing=True)
    start.record()
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(torch.musa.Event(enable_timing=True))
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(torch.musa.Event())


def test_backward_runs_on_the_forward_stream() -> None:
    seen = []
    x = torch.ones(2, device="musa", requires_grad=True)
    with torch.musa.stream(torch.musa.Stream()):
        y = x * 2
        y.register_hook(lambda _: seen.append(torch.musa.current_stream()))
        here = torch.musa.current_stream()
    y.sum().backward()
    assert seen == [here]
