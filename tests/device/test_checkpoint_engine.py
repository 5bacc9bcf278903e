"""The engine as verl's manager drives it: one sender, an actor rank that only walks along, two receivers, each in a thread."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest
import ray
import torch

with warnings.catch_warnings():
    # verl's and Ray's own imports warn; what they say is not ours to fix.
    warnings.simplefilter("ignore")
    from verl.checkpoint_engine import CheckpointEngineRegistry

    from verl_musa.device import checkpoint_engine as module
    from verl_musa.device import proof
    from verl_musa.device.checkpoint_engine import MCCLCheckpointEngine, Member
    from verl_musa.device.checkpoint_engine_channel import Channel, TransferError

ACTORS = 2
ROLLOUTS = 2
LIMIT_S = 240
Named = tuple[str, torch.Tensor]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.delenv("VERL_MUSA_RUN_DIR", raising=False)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(proof, "prove", roles.append)
    roles.clear()


roles: list[str] = []


def weights(step: int, count: int = 5) -> list[Named]:
    generator = torch.Generator().manual_seed(step)
    return [(f"layer.{index}.weight", torch.randn(33, 17, generator=generator)) for index in range(count)]


class World:
    """All ranks of a job, and what verl's CheckpointEngineManager does with them."""

    def __init__(self, **options: Any) -> None:
        options = {"bucket_size": 4096, "transport": "gloo", "timeout_s": 20.0, **options}
        self.actors = [MCCLCheckpointEngine(is_master=rank == 0, **options) for rank in range(ACTORS)]
        self.rollouts = [MCCLCheckpointEngine(**options) for _ in range(ROLLOUTS)]
        self.pool = ThreadPoolExecutor(ACTORS + ROLLOUTS)
        self.walked = 0

    @property
    def engines(self) -> list[MCCLCheckpointEngine]:
        return [*self.actors, *self.rollouts]

    def connect(self) -> str:
        members = [engine.prepare() for engine in self.engines]
        actor, rollout = MCCLCheckpointEngine.build_topology(ACTORS, ROLLOUTS, members)
        calls = [
            {name: values[index] for name, values in kwargs.items()}
            for kwargs, count in ((actor, ACTORS), (rollout, ROLLOUTS))
            for index in range(count)
        ]
        joined = [
            self.pool.submit(engine.init_process_group, **call)
            for engine, call in zip(self.engines, calls, strict=True)
        ]
        for one in joined:
            one.result(timeout=30)
        return str(calls[0]["token"])

    def sync(
        self, step: int, *, source: Callable[[], Iterator[Named]] | None = None, take: Any = None
    ) -> list[Any]:
        """One transfer; what each rank returned, or the error that it raised."""

        def walk() -> Iterator[Named]:
            for named in weights(step):
                self.walked += 1
                yield named

        first = source or (lambda: iter(weights(step)))
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: self.actors[0].send_weights(first(), global_steps=step),
            lambda: self.actors[1].send_weights(walk(), global_steps=step),
            lambda: (take or collect)(self.rollouts[0].receive_weights(global_steps=step)),
            lambda: collect(self.rollouts[1].receive_weights(global_steps=step)),
        ]
        running = [self.pool.submit(outcome, call) for call in calls]
        return [one.result(timeout=60) for one in running]


async def collect(stream: Any) -> list[Named]:
    return [named async for named in stream]


def outcome(call: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await call()

    try:
        return asyncio.run(run())
    except Exception as error:  # noqa: BLE001  (the test looks at it)
        return error


def same(left: list[Named], right: list[Named]) -> bool:
    return [name for name, _ in left] == [name for name, _ in right] and all(
        torch.equal(one, other) for (_, one), (_, other) in zip(left, right, strict=True)
    )


def test_verl_finds_it_under_its_name() -> None:
    assert CheckpointEngineRegistry.get("mccl") is MCCLCheckpointEngine


def test_every_rollout_worker_takes_all_weights_and_keeps_them() -> None:
    world = World()
    world.connect()
    figures, walked, first, second = world.sync(1)
    assert figures["weight_sync/tensors"] == 5
    assert figures["weight_sync/bytes"] == 5 * 33 * 17 * 4
    assert figures["weight_sync/buckets"] == 5  # 2244 bytes each: two do not fit into one
    assert figures["weight_sync/seconds"] > 0
    assert walked is None
    assert world.walked == 5
    # Compared after the transfer: what was taken first has not been overwritten by what came later.
    assert same(first, weights(1))
    assert same(second, weights(1))


def test_the_group_is_kept_for_the_next_transfer() -> None:
    world = World()
    token = world.connect()
    for step in (1, 2, 3):
        assert world.connect() == token
        *_, taken = world.sync(step)
        assert same(taken, weights(step))
        for engine in world.engines:
            engine.finalize()


def test_a_worker_that_was_replaced_gets_a_new_group_with_all_others() -> None:
    world = World()
    token = world.connect()
    world.sync(1)
    world.rollouts[1]._close()
    assert world.connect() != token
    *_, taken = world.sync(2)
    assert same(taken, weights(2))


def test_a_replica_that_was_taken_away_leaves_no_hole_in_the_group() -> None:
    world = World()
    token = world.connect()
    members = [engine.prepare() for engine in (*world.actors, world.rollouts[0])]
    actor, rollout = MCCLCheckpointEngine.build_topology(ACTORS, 1, members)
    assert {*actor["token"], *rollout["token"]} != {token}
    assert {*actor["size"], *rollout["size"]} == {2}


def test_a_server_that_refuses_weights_ends_the_transfer_for_all_at_once() -> None:
    world = World(timeout_s=120.0)
    world.connect()

    async def refuse(stream: Any) -> None:
        async for _ in stream:
            await stream.aclose()
            raise ConnectionError("HTTP 400")

    started = time.monotonic()
    sent, _, refused, other = world.sync(1, take=refuse)
    assert time.monotonic() - started < 60
    assert isinstance(refused, ConnectionError)
    for error in (sent, other):
        assert isinstance(error, TransferError)
        assert "the rollout's side stopped taking weights" in str(error)
    assert all(engine._channel is None for engine in (world.actors[0], *world.rollouts))
    world.connect()
    *_, taken = world.sync(2)
    assert same(taken, weights(2))


def test_an_error_of_the_trainer_reaches_the_rollout_and_the_generator_is_walked_to_its_end() -> None:
    world = World(timeout_s=120.0)
    world.connect()
    seen: list[int] = []

    class Weights:
        """Fails once and can go on, as a gather that runs out of memory."""

        def __init__(self) -> None:
            self.items = iter(weights(1))

        def __iter__(self) -> Weights:
            return self

        def __next__(self) -> Named:
            seen.append(len(seen))
            if len(seen) == 3:
                raise MemoryError("out of device memory")
            return next(self.items)

    sent, _, first, second = world.sync(1, source=Weights)
    assert isinstance(sent, MemoryError)
    # The error is still there, and with it the frames that hold the bucket; its memory is not.
    (bucket,) = [
        frame.f_locals["packer"]._buffer
        for frame, _ in walk_tb(sent.__traceback__)
        if "packer" in frame.f_locals
    ]
    assert bucket.untyped_storage().nbytes() == 0
    for error in (first, second):
        assert isinstance(error, TransferError)
        assert "rank 0: MemoryError: out of device memory" in str(error)
    assert len(seen) == 7  # five tensors, the failure, and the end


def corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Channel.broadcast

    async def damaged(channel: Channel, data: torch.Tensor, **options: Any) -> None:
        await plain(channel, data, **options)
        if channel.rank == 2:
            data[100] ^= 1

    monkeypatch.setattr(Channel, "broadcast", damaged)


def test_a_changed_bit_is_seen_where_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt(monkeypatch)
    world = World()
    world.connect()
    sent, _, first, second = world.sync(1)
    assert isinstance(second, TransferError)
    assert "bucket 0 (2304 bytes) arrived with checksum 0x" in str(second)
    assert "rank 2: TransferError: bucket 0" in str(sent)
    assert "rank 2: TransferError: bucket 0" in str(first)


def test_without_checksums_it_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    corrupt(monkeypatch)
    world = World(checksum=False)
    world.connect()
    sent, _, first, second = world.sync(1)
    assert sent["weight_sync/tensors"] == 5
    assert same(first, weights(1))
    assert not same(second, weights(1))


def test_a_transfer_before_the_group_is_refused() -> None:
    engine = MCCLCheckpointEngine(bucket_size=4096, transport="gloo", is_master=True)
    with pytest.raises(TransferError, match="init_process_group was not called"):
        asyncio.run(engine.send_weights(iter(weights(1))))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"transport": "nccl"}, "transport: found 'nccl'"), ({"timeout_s": 0}, "timeout_s: found 0")],
)
def test_arguments_out_of_range_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MCCLCheckpointEngine(bucket_size=4096, **options)


def test_topology_has_one_sender_and_all_rollout_workers() -> None:
    members = [Member(("10.0.0.1", 4), None), Member(None, None), Member(None, None), Member(None, None)]
    actor, rollout = MCCLCheckpointEngine.build_topology(2, 2, members)
    assert actor["rank"] == [0, -1]
    assert rollout["rank"] == [1, 2]
    assert {*actor["size"], *rollout["size"]} == {3}
    assert {*actor["endpoint"], *rollout["endpoint"]} == {("10.0.0.1", 4)}
    assert len({*actor["token"], *rollout["token"]}) == 1


def test_topology_without_a_master_is_refused() -> None:
    with pytest.raises(ValueError, match="expected that of actor rank 0"):
        MCCLCheckpointEngine.build_topology(1, 1, [Member(None, None), Member(None, None)])


def test_a_worker_without_a_training_engine_proves_its_device() -> None:
    MCCLCheckpointEngine(bucket_size=4096)
    assert roles == [module.ROLLOUT_ROLE]


def test_what_was_moved_is_written_beside_the_proofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_MUSA_RUN_DIR", str(tmp_path))
    notes: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "write_atomically", lambda _, text: notes.append(json.loads(text)))
    # Another test of this process may have left counters, for which there is no folder here.
    monkeypatch.setattr("verl_musa.device.proof.write_counters", lambda: None)
    world = World()
    world.connect()
    assert [result for result in world.sync(7) if isinstance(result, BaseException)] == []
    assert sorted((note["role"], note["rank"]) for note in notes) == [
        ("weights-receiver", 1),
        ("weights-receiver", 2),
        ("weights-sender", 0),
    ]
    assert {note["size"] for note in notes} == {3}
    (digest,) = {note["syncs"][0]["digest"] for note in notes}
    assert digest.startswith("0x")
    assert {note["syncs"][0]["step"] for note in notes} == {7}


SIMULATED = """
import sys, torch, verl
sys.path.insert(0, sys.argv[1])
import torch_musa
from verl.plugin.platform import get_platform
from verl_musa.device import checkpoint_engine as module
import test_checkpoint_engine as ours

module.proof.prove = lambda role: None
module.ray.util.get_node_ip_address = lambda: "127.0.0.1"
world = ours.World(transport="mccl")
places = {id(engine): place for place, engine in enumerate(world.engines)}
module.MCCLCheckpointEngine._device = lambda self: torch.device("musa", places[id(self)])
moved = ours.weights
ours.weights = lambda step, count=5: [(name, weight.to("musa:0")) for name, weight in moved(step, count)]
world.connect()
for step in (1, 2):
    figures, _, first, second = world.sync(step)
    assert {str(tensor.device) for _, tensor in first} == {"musa:2"}, first
    assert {str(tensor.device) for _, tensor in second} == {"musa:3"}, second
    expected = [(name, tensor.cpu()) for name, tensor in moved(step)]
    for taken in (first, second):
        assert ours.same([(name, tensor.cpu()) for name, tensor in taken], expected)
del first, second, taken
print("CALLS", torch_musa.mccl.counters()["broadcast"]["calls"])
for device in range(4):
    print("MEMORY", device, torch.musa.memory_allocated(device))
"""


@pytest.mark.integration
def test_between_simulated_devices_over_mccl_and_no_memory_stays() -> None:
    pytest.importorskip("torch_musa", reason="the simulator is not installed", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED, str(Path(__file__).parent)],
        env={**os.environ, "VERL_PLATFORM": "musa", "MUSA_SIM_DEVICES": "4", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [int(line[1]) for line in lines if line[0] == "CALLS"] == [2 * 5 * 3]
    assert {line[1]: int(line[2]) for line in lines if line[0] == "MEMORY"} == dict.fromkeys("0123", 0)
