"""``mccl``: verl's checkpoint engine for trainer and rollout on separate devices.

Actor rank 0 broadcasts buckets of weights to all rollout workers, over MCCL from device to device, or over gloo through
host memory where the two pools share no device network. The schedule is one bucket at a time: the sender gathers the next
one while the receivers load the last one, and each side holds one bucket at most.

A receiver leaves "ready" before each bucket and "done" after the last, so a rank that fails or is late is seen, named, and
waited for no longer than ``timeout_s``. Checksums are computed where the bytes lie, on both sides, of every bucket.

verl's own ``nccl`` engine needs cupy and device strings of CUDA; this one is registered beside it.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import ray
import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.plugin.platform import get_platform
from verl.workers.rollout.utils import ensure_async_iterator

from verl_musa.device import proof
from verl_musa.device.checkpoint_engine_buckets import Header, Packer, Unpacker, digest, summary
from verl_musa.device.checkpoint_engine_channel import Channel, TransferError, open_store
from verl_musa.device.expect import own_file, proof_dir, write_atomically

BACKEND = "mccl"
GLOO = "gloo"
# A server may take this long for its first update on MUSA (JIT of kernels; patch verl-sglang-http-timeout), and the sender waits for
# the slowest one before each bucket.
TIMEOUT_S = 600.0
ROLLOUT_ROLE = "rollout-worker"
# Transfers that the file beside the proofs remembers.
REMEMBERED = 100


@dataclass(frozen=True)
class Member:
    """What each rank tells before a transfer.

    Attributes:
        endpoint: (host, port) of the store; of actor rank 0 only.
        group: (token, ranks) of the group that the rank still holds, None after a start or a failure.
    """

    endpoint: tuple[str, int] | None
    group: tuple[str, int] | None


@CheckpointEngineRegistry.register(BACKEND)
class MCCLCheckpointEngine(CheckpointEngine):
    """See the module's docstring.

    The arguments after ``is_master`` come from ``rollout.checkpoint_engine.engine_kwargs.mccl``.

    Args:
        bucket_size: largest bucket in bytes (verl's ``update_weights_bucket_megabytes``).
        is_master: whether this is actor rank 0.
        transport: ``mccl`` for device memory, ``gloo`` for host memory.
        timeout_s: longest wait for another rank, in seconds.
        checksum: whether to compare checksums of every bucket.

    Raises:
        ValueError: an argument is out of range.
        ExpectationError: this rollout worker is not on the device that the run expects.
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        transport: str = BACKEND,
        timeout_s: float = TIMEOUT_S,
        checksum: bool = True,
    ) -> None:
        if transport not in {BACKEND, GLOO}:
            raise ValueError(
                f"engine_kwargs.mccl.transport: found {transport!r}; expected {BACKEND} or {GLOO}"
            )
        if not timeout_s > 0:
            raise ValueError(f"engine_kwargs.mccl.timeout_s: found {timeout_s}; expected seconds, above 0")
        self._bucket_size, self._transport = int(bucket_size), transport
        self._timeout_s, self._checksum = float(timeout_s), bool(checksum)
        self._is_master = is_master
        self._store: Any = None
        self._channel: Channel | None = None
        self._packer: Packer | None = None
        self._rank: int | None = None
        self._syncs: list[dict[str, Any]] = []
        if not torch.distributed.is_initialized():
            # A worker of the rollout's own pool: it has no training engine, whose proof would speak for it.
            proof.prove(ROLLOUT_ROLE)

    def prepare(self) -> Member:
        """Open the store, once, on actor rank 0; the buffers are made when weights move."""
        endpoint = None
        if self._is_master:
            host = str(ray.util.get_node_ip_address()).strip("[]")
            if self._store is None:
                self._store = open_store(host, self._timeout_s)
            endpoint = (host, int(self._store.port))
        return Member(endpoint, (self._channel.token, self._channel.size) if self._channel else None)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Member]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """One sender, all rollout workers; the group of the last transfer if they and nobody else still hold it.

        Raises:
            ValueError: the first of ``metadata`` is not the master's.
        """
        master, receivers = metadata[0], metadata[actor_wg_world_size:]
        if master.endpoint is None:
            raise ValueError("found no endpoint; expected that of actor rank 0, the master of the transfer")
        size = 1 + rollout_world_size
        held = {member.group for member in (master, *receivers)}
        group = held.pop() if len(held) == 1 else None
        token = group[0] if group is not None and group[1] == size else uuid.uuid4().hex
        common = {"size": size, "endpoint": master.endpoint, "token": token}

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, **{name: [value] * len(ranks) for name, value in common.items()}}

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, size: int, endpoint: tuple[str, int], token: str) -> None:
        """Join the group, unless this rank is in it already. Rank -1 takes no part.

        Raises:
            TransferError: the group did not come together in time.
        """
        self._rank = rank
        if rank < 0 or (self._channel is not None and self._channel.token == token):
            return
        self._close()
        self._channel = Channel(
            token=token,
            store=self._store,
            endpoint=endpoint,
            rank=rank,
            size=size,
            backend=self._transport,
            device=self._device(),
            timeout_s=self._timeout_s,
        )

    def finalize(self) -> None:
        """Give unused device memory back; the group is kept for the next transfer."""
        if self._transport != GLOO:
            get_platform().empty_cache()

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> dict[str, float] | None:
        """Send all weights, on actor rank 0; the other actor ranks only walk the generator, whose items are collectives.

        Returns:
            Figures of the transfer, which verl adds to the step's metrics; None on the other ranks.

        Raises:
            TransferError: another rank failed or is late.
        """
        if self._rank is not None and self._rank < 0:
            await _walk(weights)
            return None
        channel = self._joined()
        try:
            return await self._send(channel, weights, global_steps)
        except BaseException as error:
            self._give_up(error)
            if isinstance(error, Exception):
                await _walk(weights)  # the other actor ranks wait in its collectives
            raise

    async def _send(self, channel: Channel, weights: Any, step: int | None) -> dict[str, float]:
        started = time.monotonic()
        channel.begin()
        self._packer = packer = Packer(self._bucket_size, channel.device, checksum=self._checksum)
        totals = {"tensors": 0, "bytes": 0, "buckets": 0}
        digests: list[int | None] = []
        async for header, bucket in packer.buckets(ensure_async_iterator(weights)):
            number = totals["buckets"]
            await channel.hear(f"ready/{number}/{rank}" for rank in channel.receivers)
            channel.say(f"bucket/{number}", header.dumps())
            if header.length:
                self._synchronize()  # the copies into the bucket, which the backend's own stream does not wait for
                await channel.broadcast(bucket, synchronize=self._synchronize)
            _count(totals, header)
            digests.append(header.digest)
        received = await channel.hear(f"done/{rank}" for rank in channel.receivers)
        if unequal := [text for text in received if json.loads(text) != totals]:
            raise TransferError(f"sent {totals}, but a rollout worker took {unequal[0]}")
        self._release()
        seconds = time.monotonic() - started
        self._note("sent", channel, totals, digests, step)
        return {**{f"weight_sync/{name}": float(value) for name, value in totals.items()},
                "weight_sync/seconds": seconds}  # fmt: skip

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) of all weights as they come; each lies in memory that nothing overwrites.

        Raises:
            TransferError: the sender failed or is late, or a checksum differs.
        """
        channel = self._joined()
        try:
            async for named in self._receive(channel, global_steps):
                yield named
        except GeneratorExit:
            self._give_up(TransferError("the rollout's side stopped taking weights: see its log"))
            raise
        except BaseException as error:
            self._give_up(error)
            raise

    async def _receive(self, channel: Channel, step: int | None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        channel.begin()
        unpacker = Unpacker()
        totals = {"tensors": 0, "bytes": 0, "buckets": 0}
        digests: list[int | None] = []
        last = False
        while not last:
            number = totals["buckets"]
            channel.say(f"ready/{number}/{channel.rank}", "")
            header = Header.loads((await channel.hear([f"bucket/{number}"]))[0])
            # A new one each time: whoever still holds a tensor of the last one keeps its memory.
            bucket = torch.empty(header.length, dtype=torch.uint8, device=channel.device)
            if header.length:
                await channel.broadcast(bucket, synchronize=self._synchronize)
            digests.append(_verified(header, bucket, number))
            for named in unpacker.tensors(header, bucket):
                yield named
            _count(totals, header)
            last = header.last
        channel.say(f"done/{channel.rank}", json.dumps(totals))
        self._note("received", channel, totals, digests, step)

    def _joined(self) -> Channel:
        if self._channel is None:
            raise TransferError("init_process_group was not called, or the last transfer failed")
        return self._channel

    def _give_up(self, error: BaseException) -> None:
        """Tell the others, then drop group and buffers: the next transfer starts with a new group."""
        if self._channel is not None:
            self._channel.fail(f"{type(error).__name__}: {error}")
        self._close()
        self._release()
        self.finalize()

    def _release(self) -> None:
        """Free the bucket, not before the group that may still read it has ended."""
        if self._packer is not None:
            self._packer.release()
            self._packer = None

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _device(self) -> torch.device:
        if self._transport == GLOO:
            return torch.device("cpu")
        platform = get_platform()
        return torch.device(platform.device_name, platform.current_device())

    def _synchronize(self) -> None:
        if self._transport != GLOO:
            get_platform().synchronize()

    def _note(
        self, what: str, channel: Channel, totals: dict[str, int], digests: list[int | None], step: int | None
    ) -> None:
        """Write what was moved, beside the proofs of the run: sender and receivers must show the same checksums."""
        folder = proof_dir()
        if folder is None:
            return
        entry = {"step": step, what: totals, "digest": _joint(digests)}
        self._syncs = [*self._syncs, entry][-REMEMBERED:]
        facts = {
            "role": "weights-sender" if channel.rank == 0 else "weights-receiver",
            "rank": channel.rank,
            "size": channel.size,
            "transport": channel.backend,
            "device": str(channel.device),
            "syncs": self._syncs,
        }
        write_atomically(folder / own_file("weights"), json.dumps(facts, indent=1))
        proof.write_counters()


def _count(totals: dict[str, int], header: Header) -> None:
    for name, value in summary(header).items():
        totals[name] += value
    totals["buckets"] += 1


def _verified(header: Header, bucket: torch.Tensor, number: int) -> int | None:
    """The bucket's checksum as computed here; None where the sender sent none.

    Raises:
        TransferError: it differs from the sender's.
    """
    if header.digest is None:
        return None
    found = digest(bucket)
    if found != header.digest:
        raise TransferError(
            f"bucket {number} ({header.length} bytes) arrived with checksum {found:#018x}, was sent with "
            f"{header.digest:#018x}: the transport changed it"
        )
    return found


def _joint(digests: list[int | None]) -> str | None:
    """One text for the checksums of all buckets; None where there are none."""
    known = [value for value in digests if value is not None]
    total = 0
    for value in known:
        total = (total * 1_000_003 + value) % (1 << 64)
    return f"{total:#018x}" if known else None


async def _walk(weights: Any) -> None:
    """Take all items and drop them."""
    async for _ in ensure_async_iterator(weights):
        await asyncio.sleep(0)
