"""The proofs that the workers ran where the recipe wants them, and the counters of their collectives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CHECKED = ("device", "backend", "simulated", "patch_plan")
ROLLOUT_ROLE = "rollout-worker"
"""Role of the workers that hold a device for a server of the rollout's own pool (verl_musa.device.checkpoint_engine)."""

REWARD_ROLE = "reward-worker"
"""The same for a server of the reward model (verl_musa.device.reward_worker)."""

_POOLS = {ROLLOUT_ROLE: "rollout", REWARD_ROLE: "reward"}


def device_actors(actors: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The living actors that own a device, or a part of one."""
    found = []
    for actor in actors:
        needs = actor.get("required_resources") or {}
        owns = any(name.split("_group")[0] == "GPU" and amount > 0 for name, amount in needs.items())
        if owns and actor.get("state") == "ALIVE" and actor.get("pid"):
            found.append(actor)
    return found


def read_proofs(folder: Path) -> list[dict[str, Any]]:
    """What the workers wrote about themselves, with the ``file`` each is from; a worker may write several.

    Files that are not whole yet are left out.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        proof = None if path.name.startswith("mccl-") else _read(path)
        if proof is not None and isinstance(proof.get("pid"), int):
            found.append({**proof, "file": path.name})
    return found


def plugin_failures(folder: Path) -> list[str]:
    """Why the verl plugin did not load in a worker: the first line of each ``failed-<pid>-<host>.txt``."""
    reasons = []
    for path in sorted(folder.glob("failed-*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace")
        reasons.append(f"{path.name}: {text.strip().partition(chr(10))[0]}")
    return reasons


def wrong_proofs(proofs: Iterable[Mapping[str, Any]], expected: Mapping[str, Any]) -> list[str]:
    """One sentence for each proof whose device, backend or simulation is not the expected one."""
    wrong = []
    for proof in proofs:
        differing = [name for name in CHECKED if name in expected and proof.get(name) != expected[name]]
        if differing:
            is_ = ", ".join(f"{name} {proof.get(name)!r} (expected {expected[name]!r})" for name in differing)
            wrong.append(f"{proof.get('file')}: worker {proof.get('pid')} ran with {is_}")
    return wrong


def devices_by_pool(proofs: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Pool (``trainer``, ``rollout``, ``reward``) -> ``node:device`` of each device that its workers hold.

    Servers are left out: they own no device of Ray's. The device is the one that Ray gave, by its number on the host.
    """
    found: dict[str, set[str]] = {}
    for proof in proofs:
        pool = _POOLS.get(str(proof.get("role")), "trainer")
        for device in proof.get("accelerators") or ():
            found.setdefault(pool, set()).add(f"{proof.get('node')}:{device}")
    return {pool: sorted(devices) for pool, devices in sorted(found.items(), reverse=True)}


def shared_devices(proofs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The devices that both pools hold; none may be where the placement is split."""
    found = devices_by_pool(proofs)
    return sorted(set(found.get("trainer", ())) & set(found.get("rollout", ())))


def mccl_calls(folder: Path) -> dict[str, int]:
    """Collective -> number of calls, summed over the workers."""
    total: Counter[str] = Counter()
    for path in sorted(folder.glob("mccl-*.json")):
        counters = _read(path) or {}
        total.update(_calls(counters.get("counters", counters)))
    return dict(sorted(total.items()))


def _calls(counters: Any) -> dict[str, int]:
    """Counters come as ``{op: calls}`` or as ``{op: {"calls": n, ...}}``; other fields (pid, rank) are no counters."""
    found = {}
    for name, value in counters.items() if isinstance(counters, dict) else ():
        calls = value.get("calls") if isinstance(value, dict) else value
        if (
            isinstance(calls, int)
            and not isinstance(calls, bool)
            and name not in {"pid", "rank", "world_size"}
        ):
            found[str(name)] = calls
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
