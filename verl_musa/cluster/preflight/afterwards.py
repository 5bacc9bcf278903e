"""Once Ray is up: are its nodes the hosts, do they stay, and does data move between them as the job will move it.

Called by whoever brought Ray up, before the real job is handed in. :func:`look_afterwards` asks Ray's own interface and runs one
small job (:mod:`probe_job`); the findings are results like those of the preflight, each with its host.
"""

from __future__ import annotations

import json
import secrets
import shlex
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_musa.checks import Finding, Result, Status, fail, ok, unknown, warn
from verl_musa.cluster.jobs_api import Job, JobsApi, RayApiError
from verl_musa.cluster.preflight.probe_job import MARK, MIB, PARAMETERS

Say = Callable[[str], None]

HEALTH_S = 20.0
"""After this Ray has noticed a node that it cannot reach (health checks of Ray 2.58)."""

LOOK_S = 1.0
END_S = 12.0
"""Of the whole bound, what is left to Ray for starting the job's driver."""

SLOW_SHARE = 0.1
SLOW_BYTES = 12.5e6
"""Bytes a second (100 Mbit/s) below which any training network is broken."""

LOOKS_AT = {
    "ray.nodes": "Ray's nodes, by address, and their devices",
    "ray.health": "the same nodes once Ray has checked their health",
    "ray.job": "a small job on every host",
    "ray.same": "Ray and Python of the workers",
    "ray.object": "an object of the head that each host fetches",
    "net.pairs": "transfers between each two hosts",
    "net.allreduce": "an all-reduce over the training network",
    "device.platform": "verl's platform inside a worker with a device",
}


@dataclass(frozen=True)
class Wish:
    """What is looked for.

    Attributes:
        hosts: name -> address in the training network, the head first.
        devices: devices that Ray offers on each host.
        runtime_env: the job's own environment of Ray; the platform is asked for only with it.
        backend: ``gloo``, or ``mccl`` where the devices are real.
        device: device that verl must find in a worker; None: not asked.
        simulated: whether it must be the simulator.
        python: Python with verl-musa on the head.
        seconds: bound of everything.
        health_s: when the nodes are looked at again.
        metadata: of the job in Ray.
    """

    hosts: Mapping[str, str]
    devices: int
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "gloo"
    device: str | None = None
    simulated: bool = False
    python: str = "python3"
    seconds: float = 90.0
    health_s: float = HEALTH_S
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What was seen: Ray's nodes twice, how the job ended, and what it reported.

    Attributes:
        first: nodes at once; None where Ray gave no answer.
        second: nodes after the health interval.
        job: how the job ended; None where it was not handed in, or Ray did not say.
        job_error: why there is no job.
        report: the job's last report.
        logs: the end of the job's output.
    """

    first: Sequence[Mapping[str, Any]] | None
    second: Sequence[Mapping[str, Any]] | None
    job: Job | None
    job_error: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    logs: str = ""


def look_afterwards(api: JobsApi, wish: Wish, display: Say = lambda _: None) -> list[Result]:
    """Look at a Ray that is up. Takes at most ``wish.seconds``, and ends the job that it started."""
    return judge(wish, _watch(api, wish, display))


def _watch(api: JobsApi, wish: Wish, display: Say) -> Seen:
    start = time.monotonic()
    display("asking Ray for its nodes")
    first = _nodes(api)
    submission, error = f"verl-musa-probe-{secrets.token_hex(4)}", ""
    display(f"a small job on {len(wish.hosts)} hosts")
    try:
        api.submit(
            shlex.join([wish.python, "-m", "verl_musa.cluster.preflight.probe_job"]),
            submission_id=submission,
            runtime_env=_environment(wish),
            metadata=dict(wish.metadata),
        )
    except RayApiError as problem:
        error = str(problem)
    job, logs, second = None, "", None
    while time.monotonic() - start < wish.seconds:
        waited = time.monotonic() - start
        if second is None and waited >= wish.health_s:
            second = _nodes(api)
        job = job if error or (job is not None and job.ended) else _job(api, submission)
        if (error or (job is not None and job.ended)) and second is not None:
            break
        time.sleep(LOOK_S)
    if not error:
        logs = _logs(api, submission)
        if job is None or not job.ended:
            _stop(api, submission)
    return Seen(first, second, job, error, _report(logs), logs[-2000:])


def _environment(wish: Wish) -> dict[str, Any]:
    parameters = {
        "hosts": dict(wish.hosts),
        "devices": wish.devices,
        "seconds": max(10.0, wish.seconds - END_S),
        "backend": wish.backend,
        "object_bytes": 8 * MIB,
        "reduce_bytes": 4 * MIB,
        "pair_bytes": 4 * MIB,
        "platform": wish.device is not None,
    }
    given = dict(wish.runtime_env)
    return {**given, "env_vars": {**(given.get("env_vars") or {}), PARAMETERS: json.dumps(parameters)}}


def _nodes(api: JobsApi) -> list[dict[str, Any]] | None:
    try:
        return api.nodes()
    except RayApiError:
        return None


def _job(api: JobsApi, submission: str) -> Job | None:
    try:
        return api.job(submission)
    except RayApiError:
        return None


def _logs(api: JobsApi, submission: str) -> str:
    try:
        return api.job_logs(submission)
    except RayApiError:
        return ""


def _stop(api: JobsApi, submission: str) -> None:
    try:
        api.stop(submission)
    except RayApiError:
        return  # Ray is gone, and the job with it


def _report(logs: str) -> dict[str, Any]:
    """The last whole report in the job's output."""
    for line in reversed(logs.splitlines()):
        if MARK in line:
            try:
                found: dict[str, Any] = json.loads(line.partition(MARK)[2])
            except ValueError:
                continue  # cut off in the middle of a line
            return found
    return {}


def judge(wish: Wish, seen: Seen) -> list[Result]:
    """The results, check by check and host by host."""
    found: list[tuple[str, str, Finding]] = []
    for check, nodes in (("ray.nodes", seen.first), ("ray.health", seen.second)):
        found += [(check, host, finding) for host, finding in _of_nodes(wish, nodes).items()]
    found += [("ray.job", host, finding) for host, finding in _of_job(wish, seen).items()]
    if seen.report:
        for check, judged in (("ray.same", _same), ("ray.object", _object), ("net.pairs", _pairs), ("net.allreduce", _all_reduce), ("device.platform", _platform)):  # fmt: skip
            found += [(check, host, finding) for host, finding in judged(wish, seen.report).items()]
    return [
        Result(check=check, looks_at=LOOKS_AT[check], status=one.status, evidence=one.evidence, fix=one.fix, host=host)
        for check, host, one in found
    ]  # fmt: skip


def _of_nodes(wish: Wish, nodes: Sequence[Mapping[str, Any]] | None) -> dict[str, Finding]:
    head = next(iter(wish.hosts))
    if nodes is None:
        return {head: unknown("Ray's dashboard gave no answer", "look at dashboard.log of the head")}
    alive = {str(node.get("node_ip")): node for node in nodes if node.get("state") == "ALIVE"}
    dead = {
        str(node.get("node_ip")): str(node.get("state_message") or "")
        for node in nodes
        if node.get("state") == "DEAD"
    }
    found = {}
    for name, address in wish.hosts.items():
        node = alive.get(address)
        gpus = None if node is None else int((node.get("resources_total") or {}).get("GPU", 0))
        if node is None and address in dead:
            found[name] = fail(f"{address} is DEAD: {dead[address][:200] or 'no reason given'}",
                               "see net.reach of the preflight: others must reach this host on Ray's ports, and raylet.out there")  # fmt: skip
        elif node is None:
            has = ", ".join(sorted(alive)) or "none"
            found[name] = fail(
                f"{address} is not in Ray; it has {has}",
                "look at what `ray start` said there, and at --node-ip-address",
            )
        elif gpus != wish.devices:
            found[name] = fail(
                f"{address} offers {gpus} devices, not {wish.devices}", "start Ray there with --num-gpus"
            )
        else:
            found[name] = ok(f"{address} is alive with {gpus} devices")
    strangers = sorted(set(alive) - set(wish.hosts.values()))
    if strangers:
        found[head] = fail(
            f"{', '.join(strangers)} is in Ray, but none of the hosts",
            "end that node's Ray: it belongs to another run, or registered another address",
        )
    return found


def _of_job(wish: Wish, seen: Seen) -> dict[str, Finding]:
    """Of each host that no worker came to; else of the head, which the job was handed to."""
    lost = [name for name in wish.hosts if "facts" not in seen.report.get("hosts", {}).get(name, {})]
    errors = "; ".join(f"{step}: {text}" for step, text in seen.report.get("errors", {}).items())
    if lost and seen.report and not seen.job_error:
        return {
            name: fail(
                f"no worker on {name}; {errors or 'no error'}",
                "see ray.nodes, net.mtu of the preflight, and raylet.out of that host",
            )
            for name in lost
        }
    return {next(iter(wish.hosts)): _of_whole_job(wish, seen, errors)}


def _of_whole_job(wish: Wish, seen: Seen, errors: str) -> Finding:
    if seen.job_error:
        return fail(
            f"not taken: {seen.job_error[:400]}", "look at dashboard.log and dashboard_agent.log of the head"
        )
    if seen.job is None or not seen.job.ended:
        step = seen.report.get("step", "its start")
        return fail(
            f"not ended within {wish.seconds:.0f} s, at {step}",
            "look at the hosts that are named beside, and at their load",
        )
    if seen.job.status != "SUCCEEDED" or not seen.report:
        said = [line for line in seen.logs.splitlines() if line.strip() and MARK not in line]
        return fail(
            f"{seen.job.status}: {(said[-1] if said else seen.job.message)[:400]}",
            "run it by hand on the head: python -m verl_musa.cluster.preflight.probe_job",
        )
    return (
        warn(errors, "look at the hosts that are named beside")
        if errors
        else ok(f"ran on {len(wish.hosts)} hosts")
    )


def _said(report: Mapping[str, Any], host: str, key: str, step: str) -> tuple[Any, str]:
    """What a host's worker reported under ``key``, and what went wrong in that step."""
    one = report.get("hosts", {}).get(host, {})
    return one.get(key), one.get("errors", {}).get(step, "")


def _same(wish: Wish, report: Mapping[str, Any]) -> dict[str, Finding]:
    facts = {
        name: value for name in wish.hosts if (value := _said(report, name, "facts", "place")[0]) is not None
    }
    if not facts:
        return {}
    head = next(iter(facts.values()))
    found = {}
    for name, one in facts.items():
        shown = f"Ray {one['ray']}, Python {one['python']}"
        same = (one["ray"], one["python"]) == (head["ray"], head["python"])
        found[name] = (
            ok(shown)
            if same
            else fail(
                f"{shown}; the head has Ray {head['ray']}, Python {head['python']}",
                "bring the same image to every host",
            )
        )
    return found


def _object(wish: Wish, report: Mapping[str, Any]) -> dict[str, Finding]:
    found = {}
    for name in wish.hosts:
        seconds, error = _said(report, name, "object_s", "object")
        if error or (seconds is not None and seconds < 0):
            found[name] = fail(f"8 MiB from the head: {error or 'empty'}",
                               "Ray registered an address that is closed between these hosts, or large packets are lost: see net.reach, net.transfer, net.mtu")  # fmt: skip
        elif seconds is not None:
            found[name] = ok(f"8 MiB in {seconds:.2f} s")
    return found


def _pairs(wish: Wish, report: Mapping[str, Any]) -> dict[str, Finding]:
    """A bad pair is told of the end that has more bad pairs; of its sender where both have as many."""
    pairs = report.get("pairs", [])
    rates = {
        (one["from"], one["to"]): one["bytes"] / max(one["seconds"], 1e-6) if one["seconds"] > 0 else 0.0
        for one in pairs
    }
    if not rates:
        return {}
    usual = statistics.median(rates.values())
    bad = {pair for pair, rate in rates.items() if rate < max(SLOW_BYTES, SLOW_SHARE * usual)}
    owners = _owners(bad)
    found: dict[str, Finding] = {}
    for name in wish.hosts:
        own = [pair for pair in bad if owners[pair] == name]
        sent = [rate for pair, rate in rates.items() if pair[0] == name]
        if own:
            seen = ", ".join(
                f"{one} to {other} {'none' if not rates[one, other] else f'{rates[one, other] / 1e6:.1f} MB/s'}"
                for one, other in sorted(own)[:6]
            )
            lost = any(not rates[pair] for pair in own)
            judged = fail if lost else warn
            found[name] = judged(
                f"{seen}; the median is {usual / 1e6:.1f} MB/s",
                f"look at the link of {name}: ethtool, tc qdisc, the switch's counters",
            )
        elif sent:
            found[name] = ok(f"{min(sent) / 1e6:.0f} to {max(sent) / 1e6:.0f} MB/s")
    return found


def _owners(bad: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Bad pair -> the host whose link explains it: the one with most bad pairs explains its own, then the next of what is left."""
    owners: dict[tuple[str, str], str] = {}
    left = set(bad)
    while left:
        counts = Counter(name for pair in left for name in pair)
        worst = max(sorted(counts), key=counts.__getitem__)
        for pair in [pair for pair in left if worst in pair]:
            sender, receiver = pair
            owners[pair] = sender if counts[sender] == counts[receiver] else worst
            left.remove(pair)
    return owners


def _all_reduce(wish: Wish, report: Mapping[str, Any]) -> dict[str, Finding]:
    found = {}
    for name in wish.hosts:
        said, error = _said(report, name, "all_reduce", "all_reduce")
        if error:
            found[name] = fail(
                f"{wish.backend}: {error}",
                "see net.ifname, net.reach and net.pairs; the interface must be the training one on every host",
            )
        elif said is not None and not said["right"]:
            found[name] = fail(
                f"{said['backend']}: the sum is wrong",
                "do not train on this: look at driver and MCCL, and try `gloo` beside it",
            )
        elif said is not None:
            count = len(wish.hosts)
            rate = 2 * (count - 1) / count * 4 * MIB / max(said["seconds"], 1e-6)
            found[name] = ok(
                f"{said['backend']}: 4 MiB in {said['seconds'] * 1000:.0f} ms, {rate / 1e6:.0f} MB/s of bus bandwidth"
            )
    return found


def _platform(wish: Wish, report: Mapping[str, Any]) -> dict[str, Finding]:
    if wish.device is None:
        return {}
    found = {}
    for name in wish.hosts:
        said, error = _said(report, name, "platform", "platform")
        if error == "no answer in time":
            found[name] = unknown(
                f"verl was not imported in time: {error}",
                "look at the load of the host; the job itself proves it again",
            )
        elif error:
            found[name] = fail(
                f"a worker cannot use verl's platform: {error}",
                "see `verl-musa env` there, and that verl-musa is in the worker's environment",
            )
        elif said is not None and (said["device"], said["simulated"]) != (wish.device, wish.simulated):
            kind = "simulated " if said["simulated"] else ""
            found[name] = fail(
                f"verl chose {kind}{said['device']}, not {'simulated ' if wish.simulated else ''}{wish.device}",
                "check VERL_PLATFORM and that torch_musa and the plugin are installed there",
            )
        elif said is not None:
            found[name] = ok(
                f"{said['device']} with {said['backend']}, {said['count']} devices"
                + (", simulated" if said["simulated"] else "")
            )
    return found


def failed(results: Sequence[Result]) -> list[Result]:
    """Those that must stop the job."""
    return [result for result in results if result.status is Status.FAIL]
