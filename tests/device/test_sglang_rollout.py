"""The adapter's own part of a weight update; verl's and SGLang's parts are replaced."""

from __future__ import annotations

import asyncio
import importlib.util
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytestmark = [
    pytest.mark.integration,  # importing SGLang takes half a minute
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed"),
]


class Weights:
    """An endless stream from another pool, or a short one; knows what became of it."""

    def __init__(self, count: int) -> None:
        self.count, self.taken, self.closed = count, 0, False

    async def stream(self) -> AsyncIterator[tuple[str, int]]:
        try:
            for number in range(self.count):
                self.taken += 1
                yield f"w{number}", number
        finally:
            self.closed = True


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An adapter whose server takes the first weight and refuses it."""
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from verl_musa.device import sglang_rollout as module

    async def refuse(_self: Any, weights: Any, **_options: Any) -> None:
        await anext(weights)
        raise ConnectionError("HTTP 400")

    monkeypatch.setattr(f"{module.__name__}.upstream.ServerAdapter.update_weights", refuse)
    made = object.__new__(module.MusaServerAdapter)
    made._syncs = 0
    return made


def test_a_refused_update_closes_the_stream_so_that_its_sender_stops_waiting(adapter: Any) -> None:
    weights = Weights(5)

    async def update() -> None:
        stream = weights.stream()  # held here as well, as by verl: only closing ends it
        with pytest.raises(ConnectionError, match="HTTP 400"):
            await adapter.update_weights(stream, global_steps=1)
        assert weights.closed

    asyncio.run(update())
    assert weights.taken == 1


def test_a_dropped_sync_still_takes_all_weights_of_a_sender(
    adapter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl_musa.device import sglang_rollout as module

    monkeypatch.setattr(module, "drop_asked", lambda: True)
    adapter._syncs = 1  # the first sync is never dropped
    weights = Weights(5)
    asyncio.run(adapter.update_weights(weights.stream(), global_steps=2))
    assert weights.taken == 5
