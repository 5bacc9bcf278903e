"""The job that is run on a fresh Ray before the real one: every host moves data, in Ray and over the training network.

Runs as the driver on the head (``python -m verl_musa.cluster.preflight.probe_job``), with its parameters as JSON in
``VERL_MUSA_PROBE``. Prints :data:`MARK` and what is known so far after each step, so that even a job that is cut off tells how far
it came. Every wait has a bound; nothing here decides what is good enough (:mod:`afterwards` does).
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

MARK = "@@verl-musa-probe-job@@"
PARAMETERS = "VERL_MUSA_PROBE"
MIB = 2**20
ROUNDS = 3
"""Repetitions of the all-reduce; the fastest counts."""

ACCEPT_S = 20.0
USUAL_S = 80.0
"""Bound of the whole that the bounds of the steps are made for."""


class Worker:
    """What runs on each host, as an actor of Ray."""

    def __init__(self) -> None:
        self._received: dict[str, float] = {}

    def facts(self) -> dict[str, Any]:
        """Who this is, as Ray and the interpreter have it."""
        import ray

        context = ray.get_runtime_context()
        return {
            "address": ray.util.get_node_ip_address(),
            "node": context.get_node_id(),
            "hostname": socket.gethostname(),
            "python": platform.python_version(),
            "ray": ray.__version__,
            "accelerators": [str(one) for one in context.get_accelerator_ids().get("GPU", [])],
            "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        }

    def take(self, boxed: Sequence[Any]) -> float:
        """Seconds until the object in ``boxed`` is here; in a list, so that Ray does not fetch it before the clock runs."""
        import ray

        start = time.monotonic()
        value = ray.get(boxed[0], timeout=ACCEPT_S)
        return time.monotonic() - start if len(value) else -1.0

    def listen(self, address: str, size: int, count: int) -> int:
        """Take in ``count`` transfers of ``size`` bytes on a free port of ``address``, each answered by one byte."""
        server = socket.create_server((address, 0), family=_family(address))
        server.settimeout(ACCEPT_S)
        port = int(server.getsockname()[1])

        def serve() -> None:
            with server, suppress(OSError):
                for _ in range(count):
                    _take_in(server.accept()[0], size)

        threading.Thread(target=serve, daemon=True).start()
        return port

    def send(self, address: str, port: int, size: int, limit: float) -> float:
        """Seconds until ``size`` bytes are over there; -1.0 where they are not within ``limit``."""
        start = time.monotonic()
        try:
            with socket.create_connection((address, port), timeout=limit) as link:
                link.sendall(bytes(size))
                return time.monotonic() - start if link.recv(1) else -1.0
        except OSError:
            return -1.0

    def free_port(self, address: str) -> int:
        """A port of ``address`` that was free a moment ago."""
        with socket.create_server((address, 0), family=_family(address)) as server:
            return int(server.getsockname()[1])

    def all_reduce(
        self, rank: int, world: int, store: str, *, size: int, backend: str, limit: float
    ) -> dict[str, Any]:
        """Sum ``size`` bytes over all hosts, and check the sum.

        Returns:
            seconds of the fastest of some rounds, backend, right: whether the sum is what it must be.
        """
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        device = torch.device("cpu")
        if backend == "mccl":
            import torch_musa  # noqa: F401  (registers the device)

            device = torch.device("musa", 0)
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=limit))  # fmt: skip
        try:
            best, right = float("inf"), True
            for _ in range(ROUNDS):
                tensor = torch.full((size // 4,), float(rank + 1), device=device)
                start = time.monotonic()
                dist.all_reduce(tensor)
                total = float(tensor[-1].item())  # waits for the device, too
                best = min(best, time.monotonic() - start)
                right = right and total == world * (world + 1) / 2
        finally:
            dist.destroy_process_group()
        return {"seconds": best, "right": right, "backend": backend}

    def platform(self) -> dict[str, Any]:
        """What verl takes this worker's device for; with the worker hook of the run, a missing plugin fails right here."""
        import torch
        from verl.plugin.platform import get_platform

        found = get_platform()
        module = found.device_module
        return {
            "device": found.device_name,
            "backend": found.communication_backend_name(),
            "count": int(module.device_count()) if hasattr(module, "device_count") else None,
            "simulated": bool(getattr(sys.modules.get("torch_musa"), "__simulator__", False)),
            "sum": float(torch.ones(8, device=found.device_name).sum().item()),
        }


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _take_in(link: socket.socket, size: int) -> None:
    with link:
        link.settimeout(ACCEPT_S)
        left = size
        while left > 0:
            data = link.recv(min(left, MIB))
            if not data:
                return
            left -= len(data)
        link.sendall(b"+")


class Probe:
    """The driver.

    Args:
        parameters: ``hosts`` (name -> address, the head first), ``devices`` (of each host, 0: none), ``seconds`` (bound of all),
            ``backend``, ``object_bytes``, ``reduce_bytes``, ``pair_bytes``, ``platform`` (whether to ask for it).
        told: gets what is known so far after each step.
    """

    def __init__(self, parameters: dict[str, Any], told: Callable[[dict[str, Any]], None]) -> None:
        self._given = parameters
        self._told = told
        self._until = time.monotonic() + float(parameters["seconds"])
        self._patience = max(1.0, float(parameters["seconds"]) / USUAL_S)
        self._hosts: dict[str, str] = parameters["hosts"]
        self._workers: dict[str, Any] = {}
        self.report: dict[str, Any] = {"step": "start", "hosts": {}, "pairs": [], "errors": {}}

    def left(self, most: float) -> float:
        """Seconds that a step may take: ``most`` where the whole has its usual bound, more where it has more."""
        return max(1.0, min(most * self._patience, self._until - time.monotonic()))

    def run(self) -> None:
        """Take the steps, one after another; one that fails does not keep the others from being tried."""
        for step, function in (
            ("place", self._place), ("object", self._object), ("pairs", self._pairs), ("all_reduce", self._all_reduce), ("platform", self._platform),
        ):  # fmt: skip
            self.report["step"] = step
            if self._until - time.monotonic() < 1:
                self.report["errors"][step] = "no time was left"
                continue
            try:
                function()
            except Exception as error:  # noqa: BLE001  (what went wrong is the result)
                self.report["errors"][step] = f"{type(error).__name__}: {str(error)[-600:]}"
            self._told(self.report)
        self.report["step"] = "end"
        self._told(self.report)

    def _place(self) -> None:
        """One worker on each host, strictly spread as verl's own; then who is where."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": 1.0, **({"GPU": 1.0} if self._given["devices"] else {})}
        group = placement_group([bundle] * len(self._hosts), strategy="STRICT_SPREAD")
        if not group.wait(self.left(30)):
            raise TimeoutError(f"Ray cannot place {bundle} on {len(self._hosts)} hosts at once")
        actor = ray.remote(num_cpus=1, num_gpus=bundle.get("GPU", 0))(Worker)
        made = [
            actor.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                )
            ).remote()
            for index in range(len(self._hosts))
        ]
        names = self._names_of(group)
        found = self._gather({names[index]: one.facts.remote() for index, one in enumerate(made)}, 45)
        for name, said in found.items():
            self._workers[name] = made[names.index(name)]
            self.report["hosts"].setdefault(name, {})["facts"] = said

    def _names_of(self, group: Any) -> list[str]:
        """The host of each bundle; its address where it is none of ours."""
        import ray
        from ray.util.placement_group import placement_group_table

        addresses = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in ray.nodes()}
        names = {address: name for name, address in self._hosts.items()}
        nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
        return [names.get(addresses[nodes[index]], addresses[nodes[index]]) for index in range(len(nodes))]

    def _gather(self, calls: dict[str, Any], most: float) -> dict[str, Any]:
        """The answers of those calls that come within the bound; of the others an error is noted by their name."""
        import ray

        ready, waiting = ray.wait(list(calls.values()), num_returns=len(calls), timeout=self.left(most))
        by_call = {call: name for name, call in calls.items()}
        found = {}
        for call in ready:
            try:
                found[by_call[call]] = ray.get(call)
            except Exception as error:  # noqa: BLE001  (one host's failure)
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                self._note(by_call[call], lines[-1] if lines else type(error).__name__)
        for call in waiting:
            self._note(by_call[call], "no answer in time")
        return found

    def _note(self, name: str, text: str) -> None:
        host = self.report["hosts"].setdefault(name, {})
        host.setdefault("errors", {})[self.report["step"]] = text[-400:]

    def _object(self) -> None:
        """Each host fetches an object of the head's, larger than what Ray sends along with a call."""
        import ray

        boxed = [ray.put(bytes(self._given["object_bytes"]))]
        for name, seconds in self._gather(
            {n: w.take.remote(boxed) for n, w in self._workers.items()}, 25
        ).items():
            self.report["hosts"][name]["object_s"] = seconds

    def _pairs(self) -> None:
        """Every host sends to every other one, in rounds of disjoint pairs, until all have or the time is over."""
        names = [name for name in self._hosts if name in self._workers]
        size, until = self._given["pair_bytes"], time.monotonic() + self.left(15)
        turns = rounds(names)
        if not turns:
            return
        ports = self._gather(
            {name: self._workers[name].listen.remote(self._hosts[name], size, len(turns)) for name in names},
            10,
        )
        for turn in turns:
            if time.monotonic() > until:
                self.report["errors"]["pairs"] = "the time was over before all pairs had their turn"
                return
            calls = {f"{one} {other}": self._workers[one].send.remote(self._hosts[other], ports[other], size, 5.0)
                     for one, other in turn if other in ports}  # fmt: skip
            for pair, seconds in self._gather_pairs(calls).items():
                one, _, other = pair.partition(" ")
                self.report["pairs"].append({"from": one, "to": other, "seconds": seconds, "bytes": size})

    def _gather_pairs(self, calls: dict[str, Any]) -> dict[str, float]:
        import ray

        ready, waiting = ray.wait(list(calls.values()), num_returns=len(calls), timeout=self.left(7))
        by_call = {call: pair for pair, call in calls.items()}
        found = {by_call[call]: -1.0 for call in waiting}
        for call in ready:
            try:
                found[by_call[call]] = float(ray.get(call))
            except Exception:  # noqa: BLE001  (a worker that is gone)
                found[by_call[call]] = -1.0
        return found

    def _all_reduce(self) -> None:
        """All hosts sum one tensor, as the trainers will."""
        import ray

        names = [name for name in self._hosts if name in self._workers]
        if len(names) < len(self._hosts):
            raise RuntimeError("not tried: some hosts have no worker")
        head = self._hosts[names[0]]
        limit = self.left(35)
        port = ray.get(self._workers[names[0]].free_port.remote(head), timeout=self.left(10))
        store = f"tcp://{f'[{head}]' if ':' in head else head}:{port}"
        size, backend = self._given["reduce_bytes"], self._given["backend"]
        calls = {name: self._workers[name].all_reduce.remote(rank, len(names), store, size=size, backend=backend, limit=limit)
                 for rank, name in enumerate(names)}  # fmt: skip
        for name, said in self._gather(calls, limit + 2).items():
            self.report["hosts"][name]["all_reduce"] = said

    def _platform(self) -> None:
        if not self._given["platform"]:
            return
        calls = {name: worker.platform.remote() for name, worker in self._workers.items()}
        for name, said in self._gather(calls, 60).items():
            self.report["hosts"][name]["platform"] = said


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Rounds in which every host sends to one other and hears from one other; after all of them, each has sent to each."""
    count = len(names)
    return [
        [(name, names[(index + step) % count]) for index, name in enumerate(names)]
        for step in range(1, count)
    ]


def main() -> int:
    """Run the job."""
    import ray

    def told(report: dict[str, Any]) -> None:
        sys.stdout.write(f"{MARK}{json.dumps(report)}\n")
        sys.stdout.flush()

    ray.init(address="auto", logging_level="error", log_to_driver=False)
    Probe(json.loads(os.environ[PARAMETERS]), told).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
