"""The channel with its real store and real gloo, each rank in a thread of its own with its own event loop."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from verl_musa.device.checkpoint_engine_channel import Channel, TransferError, make_backend, open_store

HOST = "127.0.0.1"
SHORT_S = 1.0
Rank = Callable[[Channel], Awaitable[Any]]


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def nothing() -> None:
    """Stands for the device's synchronize()."""


def play(*ranks: Rank, timeout_s: float = 20.0) -> list[Any]:
    """Run each rank's coroutine on its own channel of one group; what each returned or raised."""
    store = open_store(HOST, 20.0)
    token = uuid.uuid4().hex

    def one(rank: int) -> Any:
        try:
            channel = Channel(
                token=token,
                store=store if rank == 0 else None,
                endpoint=(HOST, store.port),
                rank=rank,
                size=len(ranks),
                backend="gloo",
                device=torch.device("cpu"),
                timeout_s=timeout_s,
            )
            channel.begin()
            try:
                return asyncio.run(_call(ranks[rank], channel))
            finally:
                channel.close()
        except Exception as error:  # noqa: BLE001  (the test looks at it)
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, range(len(ranks))))


async def _call(rank: Rank, channel: Channel) -> Any:
    return await rank(channel)


def test_words_and_bytes_reach_all_receivers() -> None:
    data = torch.arange(1000, dtype=torch.int32).view(torch.uint8)

    async def sender(channel: Channel) -> Any:
        await channel.hear(f"ready/{rank}" for rank in channel.receivers)
        channel.say("size", str(data.numel()))
        await channel.broadcast(data.clone(), synchronize=nothing)
        return await channel.hear(f"done/{rank}" for rank in channel.receivers)

    async def receiver(channel: Channel) -> Any:
        channel.say(f"ready/{channel.rank}", "")
        (size,) = await channel.hear(["size"])
        found = torch.empty(int(size), dtype=torch.uint8)
        await channel.broadcast(found, synchronize=nothing)
        channel.say(f"done/{channel.rank}", f"thanks from {channel.rank}")
        return found

    sent, first, second = play(sender, receiver, receiver)
    assert sent == ["thanks from 1", "thanks from 2"]
    assert torch.equal(first, data)
    assert torch.equal(second, data)


def test_a_rank_that_fails_says_why_and_nobody_waits_on() -> None:
    async def sender(channel: Channel) -> Any:
        return await channel.hear(["ready/1", "ready/2"])

    async def fails(channel: Channel) -> Any:
        channel.fail("the server refused the weights")

    async def waits(channel: Channel) -> Any:
        return await channel.hear(["bucket/0"])

    started = time.monotonic()
    sent, _, waited = play(sender, fails, waits, timeout_s=60.0)
    assert time.monotonic() - started < 30
    for error in (sent, waited):
        assert isinstance(error, TransferError)
        assert "rank 1: the server refused the weights" in str(error)


def test_only_the_first_reason_counts() -> None:
    async def sender(channel: Channel) -> Any:
        channel.fail("cause")
        channel.fail("consequence")
        channel.check_peers()

    async def receiver(_: Channel) -> Any:
        return None

    sent, _ = play(sender, receiver)
    assert "cause" in str(sent)
    assert "consequence" not in str(sent)


def test_a_rank_that_never_comes_is_named_when_the_time_is_over() -> None:
    async def sender(channel: Channel) -> Any:
        return await channel.hear(f"ready/{rank}" for rank in channel.receivers)

    async def ready(channel: Channel) -> Any:
        channel.say("ready/1", "")
        await asyncio.sleep(2 * SHORT_S)

    async def silent(_: Channel) -> Any:
        await asyncio.sleep(2 * SHORT_S)

    sent, _, _ = play(sender, ready, silent, timeout_s=SHORT_S)
    assert isinstance(sent, TransferError)
    assert "waited 1 s for ready/2:" in str(sent)


def test_a_broadcast_without_its_receiver_is_bounded() -> None:
    async def sender(channel: Channel) -> Any:
        # Large enough that no socket buffer swallows it.
        await channel.broadcast(torch.zeros(64 << 20, dtype=torch.uint8), synchronize=nothing)

    async def absent(_: Channel) -> Any:
        await asyncio.sleep(2 * SHORT_S)

    started = time.monotonic()
    sent, _ = play(sender, absent, timeout_s=SHORT_S)
    assert isinstance(sent, TransferError)
    assert "gloo broadcast of 67108864 bytes" in str(sent)
    assert time.monotonic() - started < 15


def test_words_of_one_transfer_are_not_taken_for_those_of_the_next() -> None:
    async def sender(channel: Channel) -> Any:
        channel.say("bucket/0", "old")
        await channel.hear(["done/1"])
        channel.begin()
        await channel.hear(["ready/1"])
        channel.say("bucket/0", "new")
        await channel.hear(["done/1"])

    async def receiver(channel: Channel) -> Any:
        heard = await channel.hear(["bucket/0"])
        channel.say("done/1", "")
        channel.begin()
        channel.say("ready/1", "")
        heard += await channel.hear(["bucket/0"])
        channel.say("done/1", "")
        return heard

    sent, received = play(sender, receiver)
    assert sent is None
    assert received == ["old", "new"]


def test_nobody_at_the_endpoint_is_an_error_with_the_address() -> None:
    with pytest.raises(
        TransferError, match=r"rank 1 of 2 did not reach .* through 127\.0\.0\.1:1 within 1 s"
    ):
        Channel(
            token="t",
            store=None,
            endpoint=(HOST, 1),
            rank=1,
            size=2,
            backend="gloo",
            device=torch.device("cpu"),
            timeout_s=SHORT_S,
        )


def test_an_unknown_backend_is_named_with_those_that_are_there() -> None:
    with pytest.raises(TransferError, match=r"no collective backend 'xccl9' in this process; registered: "):
        make_backend("xccl9", None, 0, 1, timeout_s=SHORT_S, group="g")


@pytest.mark.parametrize("extended", [True, False])
def test_a_registered_backend_is_made_as_torch_would(
    monkeypatch: pytest.MonkeyPatch, *, extended: bool
) -> None:
    made: list[Any] = []

    class Plugin:
        extended_api = extended

        @staticmethod
        def creator_fn(*arguments: Any) -> str:
            made.extend(arguments)
            return "backend"

    monkeypatch.setitem(dist.Backend._plugins, "OURS", Plugin)
    store = dist.HashStore()
    assert make_backend("ours", store, 1, 3, timeout_s=7.0, group="group") == "backend"
    if extended:
        options, private = made
        assert private is None
        assert (options.group_rank, options.group_size, options.group_id) == (1, 3, "group")
        assert options.timeout.total_seconds() == 7.0
        assert options.global_ranks_in_group == [0, 1, 2]
    else:
        assert made[1:3] == [1, 3]
        assert made[3].total_seconds() == 7.0


def test_closing_twice_is_fine_and_a_broken_backend_does_not_raise() -> None:
    class Broken:
        def abort(self) -> None:
            raise RuntimeError("does not support abort")

        def shutdown(self) -> None:
            ended.append("shutdown")

    ended: list[str] = []
    channel = object.__new__(Channel)
    channel.backend, channel._group = "ours", Broken()
    channel.close()
    channel.close()
    assert ended == ["shutdown"]
