"""The way from one trainer rank to all rollout workers: a key-value store for words, broadcasts for weights.

The two sides are different Ray jobs' worth of processes with process groups of their own, so the backend is made here, on a
store of its own, without touching torch.distributed's default group. Every wait looks at the clock and at the other
side's failures: a peer that fails says why, and nobody waits for it any longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)

SENDER = 0
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.05
# A store's own timeout only bounds connecting and single requests; the waits above it are counted here.
STORE_S = 60.0


class TransferError(RuntimeError):
    """A weight transfer that failed here or on another rank, or took too long."""


def open_store(host: str, timeout_s: float) -> Any:
    """Start the store on a free port of ``host`` and return it; its ``port`` is what the others connect to."""
    return dist.TCPStore(
        host, 0, None, is_master=True, timeout=_seconds(min(timeout_s, STORE_S)), wait_for_workers=False
    )


def make_backend(name: str, store: Any, rank: int, size: int, *, timeout_s: float, group: str) -> Any:
    """Make the collective backend ``name`` (``gloo``, or one that a device registered, such as ``mccl``).

    torch.distributed would make it only within its default group, which the two sides do not share.

    Raises:
        TransferError: no such backend is registered in this process.
    """
    timeout = _seconds(timeout_s)
    if name == dist.Backend.GLOO:
        return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None:
        known = ", ".join(sorted(key.lower() for key in dist.Backend._plugins)) or "none"
        raise TransferError(
            f"no collective backend {name!r} in this process; registered: {known}. Is torch_musa imported, and built "
            "with MCCL? transport: gloo goes through host memory instead"
        )
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    options = torch._C._distributed_c10d._DistributedBackendOptions()
    options.store = store
    options.group_rank = rank
    options.group_size = size
    options.timeout = timeout
    options.group_id = group
    options.global_ranks_in_group = list(range(size))
    return plugin.creator_fn(options, None)


def _seconds(value: float) -> dt.timedelta:
    return dt.timedelta(seconds=value)


async def _pauses(timeout_s: float) -> AsyncIterator[float]:
    """Yield the seconds left, pausing longer and longer in between; ends when none are left."""
    deadline = time.monotonic() + timeout_s
    pause = FIRST_PAUSE_S
    while (left := deadline - time.monotonic()) > 0:
        yield left
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


class Channel:
    """One rank's end. Rank 0 sends, all others receive.

    Args:
        token: name of the group, the same on all ranks and never used again.
        store: this process's own server (rank 0), None to connect to ``endpoint``.
        endpoint: (host, port) of rank 0's store.
        rank: 0 for the sender.
        size: ranks in all.
        backend: collective backend.
        device: where the buckets lie; must be one that the backend serves.
        timeout_s: longest wait for anything another rank does.

    Raises:
        TransferError: the backend is not there, or the other ranks did not come in time.
    """

    def __init__(
        self,
        *,
        token: str,
        store: Any,
        endpoint: tuple[str, int],
        rank: int,
        size: int,
        backend: str,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        self.token, self.rank, self.size = token, rank, size
        self.backend, self.device, self.timeout_s = backend, device, timeout_s
        self._round = 0
        self._said: dict[int, list[str]] = {}
        try:
            if store is None:
                store = dist.TCPStore(
                    *endpoint, None, is_master=False, timeout=_seconds(min(timeout_s, STORE_S))
                )
            self._store = dist.PrefixStore(f"weights/{token}", store)
            inner = dist.PrefixStore("group", self._store)
            self._group = make_backend(
                backend, inner, rank, size, timeout_s=timeout_s, group=f"weights-{token}"
            )
        except TransferError:
            raise
        except RuntimeError as error:
            raise TransferError(
                f"rank {rank} of {size} did not reach the group of the weight transfer through "
                f"{endpoint[0]}:{endpoint[1]} within {timeout_s:.0f} s: {error}"
            ) from error

    @property
    def receivers(self) -> range:
        """The ranks that receive."""
        return range(1, self.size)

    def begin(self) -> None:
        """Start the next transfer. This rank's words of the last but one are removed: all ranks are through with it.

        Those of the last one may still be waited for: a receiver can be here before the sender has seen its last word.
        """
        with self._reported("starting a transfer"):
            for key in self._said.pop(self._round - 1, []):
                self._store.delete_key(key)
        self._round += 1

    def say(self, word: str, text: str) -> None:
        """Leave ``text`` under ``word`` of this transfer, for whoever waits for it.

        Raises:
            TransferError: rank 0, which keeps the words, is gone.
        """
        key = self._key(word)
        with self._reported(f"leaving word {word!r}"):
            self._store.set(key, text)
        self._said.setdefault(self._round, []).append(key)

    async def hear(self, words: Iterable[str]) -> list[str]:
        """Wait for all of ``words`` of this transfer and return their texts.

        Raises:
            TransferError: another rank failed, or the time is over; names the words that are missing.
        """
        keys = {word: self._key(word) for word in words}
        with self._reported(f"waiting for {', '.join(keys)}"):
            async for _ in _pauses(self.timeout_s):
                self.check_peers()
                if not keys or self._store.check(list(keys.values())):
                    return [self._store.get(key).decode() for key in keys.values()]
            missing = [word for word, key in keys.items() if not self._store.check([key])]
        raise TransferError(
            f"rank {self.rank} of {self.size} waited {self.timeout_s:.0f} s for {', '.join(missing)}: a rank "
            "has died or is stuck; look at its log"
        )

    async def broadcast(self, data: torch.Tensor, *, synchronize: Callable[[], None]) -> None:
        """Broadcast (n,) uint8 from rank 0 into ``data`` of all ranks and wait until it is there.

        A device backend's own wait() returns as soon as the work is queued: its completion is looked at, with a bound.

        Raises:
            TransferError: it failed or took too long.
        """
        options = dist.BroadcastOptions()
        options.rootRank = SENDER
        options.rootTensor = 0
        what = f"{self.backend} broadcast of {data.numel()} bytes"
        with self._reported(what):
            work = self._group.broadcast([data], options)
            async for _ in _pauses(self.timeout_s):
                if work.is_completed():
                    work.wait()
                    synchronize()
                    return
                self.check_peers()
        raise TransferError(
            f"rank {self.rank} of {self.size}: {what} was not done within {self.timeout_s:.0f} s: a rank has died or "
            "is stuck; look at its log"
        )

    def check_peers(self) -> None:
        """Raise TransferError if another rank has said that it failed."""
        key = self._key("failed")
        if self._store.check([key]):
            raise TransferError(
                f"another rank of the weight transfer failed: {self._store.get(key).decode()}"
            )

    def fail(self, reason: str) -> None:
        """Tell the others why this rank fails; the first reason stays. Does not raise: the cause is on its way already."""
        try:
            self._store.compare_set(self._key("failed"), "", f"rank {self.rank}: {reason}")
        except RuntimeError:
            logger.exception("the other ranks could not be told that rank %d failed", self.rank)

    def close(self) -> None:
        """End the group and free what it holds. Safe after a failure and safe to call again."""
        group, self._group = self._group, None
        # abort() where the backend can: shutdown() may wait for ranks that are gone.
        for end in filter(None, (getattr(group, name, None) for name in ("abort", "shutdown"))):
            try:
                end()
            except RuntimeError as error:
                logger.warning(
                    "the %s group of the weight transfer did not end in order: %s", self.backend, error
                )
            else:
                return

    @contextlib.contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Turn what torch.distributed raises into TransferError, saying what was going on.

        The simulator's backend and gloo raise plain RuntimeError for a peer that is gone.
        """
        try:
            yield
        except TransferError:
            raise
        except RuntimeError as error:
            raise TransferError(f"rank {self.rank} of {self.size}: {what} failed: {error}") from error

    def _key(self, word: str) -> str:
        return f"{self._round}/{word}"
