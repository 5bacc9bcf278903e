"""Proofs: each worker writes down where it really runs, and how often it used the device's collectives.

``<run directory>/logs/proof/<role>-<pid>-<host>.json`` is written once the worker's process group exists, and only if it agrees
with the run's expectation; ``mccl-<pid>-<host>.json`` after each batch and at exit.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
from typing import Any

from verl_musa.device.expect import ExpectationError, expectation, own_file, proof_dir, write_atomically


def find_facts(role: str, *, grouped: bool = True) -> dict[str, Any]:
    """Ask torch, verl and the process group what this worker runs on.

    Returns:
        role, platform, device, device_name, device_index, backend, simulated, pid, node, rank, world_size,
        local_rank, accelerators, patch_plan.

    Raises:
        RuntimeError: verl has no platform, or the device does not answer.
    """
    import torch
    from verl.plugin.platform import get_platform

    platform = get_platform()
    device = platform.device_name
    group = grouped and torch.distributed.is_available() and torch.distributed.is_initialized()
    module = platform.device_module
    namer = getattr(module, "get_device_name", None)
    return {
        "role": role,
        "platform": os.environ.get("VERL_PLATFORM", device),
        "device": device,
        "device_name": str(namer(platform.current_device())) if namer and platform.is_available() else None,
        "device_index": platform.current_device() if platform.is_available() else None,
        "backend": group_backend(device) if group else platform.communication_backend_name(),
        "simulated": bool(getattr(sys.modules.get("torch_musa"), "__simulator__", False)),
        "pid": os.getpid(),
        "node": socket.gethostname(),
        "rank": torch.distributed.get_rank() if group else _number("RANK"),
        "world_size": torch.distributed.get_world_size() if group else _number("WORLD_SIZE"),
        "local_rank": os.environ.get("LOCAL_RANK"),
        "accelerators": accelerators(),
        "patch_plan": patch_plan(),
    }


def _number(variable: str) -> int | None:
    """What verl gave a worker that has no process group yet; None in processes that are no worker."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


def patch_plan() -> str | None:
    """Return the short hash of the patch series in force in this process, None where there is none."""
    start = sys.modules.get("verl_musa._start")
    finder = start.installed_finder() if start is not None else None
    return None if finder is None else str(finder.digest)


def accelerators() -> list[str]:
    """Return the ids of the accelerators that Ray gave this worker; empty outside Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return []
    return [str(index) for index in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]


def group_backend(device: str) -> str:
    """Return the backend that the default process group uses for ``device``.

    Raises:
        ExpectationError: the group has no backend for that device.
    """
    import torch

    config = str(torch.distributed.get_backend_config())
    backends = dict(part.split(":", 1) for part in config.split(",") if ":" in part)
    if device not in backends:
        raise ExpectationError(f"the process group has no backend for device {device!r}: found {config!r}")
    return backends[device]


def all_visible() -> bool:
    """Whether this worker sees more devices than Ray gave it, so that its index is the one of the host."""
    return "," in os.environ.get("MUSA_VISIBLE_DEVICES", "")


def check(facts: dict[str, Any]) -> None:
    """Compare ``facts`` with the run's expectation.

    Raises:
        ExpectationError: they differ, or this worker computes on another device than the one that Ray gave it.
    """
    expected = expectation()
    if expected is None:
        return
    for name in ("device", "backend", "simulated"):
        if facts[name] != getattr(expected, name):
            raise ExpectationError(
                f"worker {facts['role']} (pid {facts['pid']} on {facts['node']}): found {name} {facts[name]!r}, "
                f"expected {getattr(expected, name)!r}: the run would not measure what it claims to"
            )
    given = facts["accelerators"]
    if len(given) == 1 and all_visible() and str(facts["device_index"]) != given[0]:
        raise ExpectationError(
            f"worker {facts['role']} (pid {facts['pid']} on {facts['node']}): found device index "
            f"{facts['device_index']}, expected {given[0]}, which Ray gave it: workers would share a device. verl selects a "
            "device per worker only with RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES=1 in the runtime_env and "
            "verl_musa.device.guard.on_worker_start as its worker_process_setup_hook"
        )


def prove(role: str, *, parallel: dict[str, int] | None = None, grouped: bool = True) -> dict[str, Any]:
    """Find the facts, check them and write the proof.

    Args:
        role: what this worker is, e.g. ``fsdp-language_model`` or ``sglang-server``; becomes part of the file name.
        grouped: whether the worker's process group, if it has one, is that of its device; False for one of the host only.
        parallel: ranks that share one model, by kind, e.g. ``{"tensor": 2}``; left out of the proof where empty.

    Raises:
        ExpectationError: the worker is not what the run expects; no proof is written then.
    """
    facts = find_facts(role, grouped=grouped)
    if parallel:
        facts["parallel"] = parallel
    check(facts)
    folder = proof_dir()
    if folder is not None:
        write_atomically(folder / own_file(role), json.dumps(facts, indent=1))
        atexit.register(write_counters)
    return facts


def write_counters() -> None:
    """Write the collective counters of this process, null where torch_musa keeps none (real hardware)."""
    folder = proof_dir()
    if folder is None:
        return
    mccl = getattr(sys.modules.get("torch_musa"), "mccl", None)
    reader = getattr(mccl, "counters", None)
    counters = reader() if reader is not None else None
    text = json.dumps({"pid": os.getpid(), "counters": counters}, indent=1)
    write_atomically(folder / own_file("mccl"), text)
