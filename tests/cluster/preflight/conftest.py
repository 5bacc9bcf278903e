"""What a few healthy hosts say, and views of them with something changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.mesh import Mesh
from verl_musa.cluster.preflight.phases import Asking, Bounds, Facts, clocks_to_head, neighbours
from verl_musa.cluster.preflight.probe import MARK
from verl_musa.cluster.preflight.view import View
from verl_musa.cluster.ssh import Done
from verl_musa.recipe import Resolved, Site, load_recipe

MakeRecipe = Callable[..., Path]
MakeView = Callable[..., View]
MakeResolved = Callable[..., Resolved]


def parts_of(number: int) -> dict[str, Any]:
    """The facts of healthy host ``number``, part by part."""
    disk = {
        "path": "/local",
        "free_mib": 500_000,
        "total_mib": 900_000,
        "inodes_free": 10**7,
        "inodes": 10**8,
        "writable": True,
    }
    interface = {"index": 2, "up": True, "state": "up", "loopback": False, "mtu": 9000, "speed": 100000}
    device = {
        "index": 0,
        "name": "MTT S5000",
        "memory_total_mib": 81920,
        "memory_used_mib": 300,
        "utilization_percent": 0,
    }
    versions = {name: {"value": version} for name, version in
                {"driver": "3.3.8-server", "musa-sdk": "4.3.7", "mccl": "2.11.4", "torch_musa": "2.9.0"}.items()}  # fmt: skip
    return {
        "host": {
            "hostname": f"node{number}", "python": "3.11.2", "uid": 0, "utc_offset_s": 28800, "cpus": 128,
            "memory_mib": {"available": 900_000, "group_left": None},
            "limits": {"nofile": [1048576, 1048576], "nproc": [-1, -1], "memlock": [-1, -1]},
            "pids": {"max": None, "current": None, "file": None},
            "space": {"temporary": {"value": disk}, "shared": {"value": {**disk, "path": "/common"}}, "shm": {"value": {**disk, "path": "/shm"}}},
            "environment": {},
        },
        "site": {
            "executable": "/opt/verl-musa/bin/python", "python": "3.11.2", "implementation": "CPython",
            "packages": {"torch": "2.9.0", "verl": "0.9.1", "ray": "2.58.0", "sglang": "0.5.19", "numpy": "2.1.0", "musa-sim": "0.1.0"},
            "image": {"kind": "image", "sha256": "a" * 64},
            "own": {"extras": {"megatron-core": "0.16.1"}, "series": "5e71e5", "sources": "50u4ce5",
                    "env": {"versions": versions, "devices": {"source": "mthreads-gmi", "list": [dict(device, index=index) for index in range(2)], "notes": []}}},
        },
        "device": {"nodes": ["/dev/mtgpu.0", "/dev/mtgpu.1"], "holders": []},
        "net": {
            "interfaces": {
                "lo": {**interface, "loopback": True, "mtu": 65536, "addresses": [{"address": "127.0.0.1", "prefix": 8}]},
                "eth0": {**interface, "mtu": 1500, "addresses": [{"address": f"192.0.2.{number}", "prefix": 24}]},
                "eth1": {**interface, "addresses": [{"address": f"198.51.100.{number}", "prefix": 24}]},
            },
            "adapters": {"mlx5_0": {"ports": {"1": {"state": "4: ACTIVE", "layer": "Ethernet", "gids": [0, 1, 3]}}}},
            "names": {"node1": {"value": ["192.0.2.1"]}, "node2": {"value": ["192.0.2.2"]}},
            "own_name": {"value": [f"198.51.100.{number}"]},
            "ephemeral": [32768, 60999],
            "listeners": [],
            "ray": [],
            "connected_by": f"192.0.2.{number}",
        },
    }  # fmt: skip


def calls_of(number: int, count: int, ports: Sequence[int] = (6379, 6381, 40000)) -> dict[str, Any]:
    """The mesh part of healthy host ``number`` of ``count``."""
    others = [other for other in range(1, count + 1) if other != number]
    beside = neighbours([f"node{one}" for one in range(1, count + 1)])[f"node{number}"]
    return {
        "bound": {str(port): "ok" for port in ports},
        "calls": {
            f"node{other}": {str(port): {"status": "ok", "ms": 0.2, "error": ""} for port in ports}
            for other in others
        },
        "callers": {f"node{other}": f"198.51.100.{other}" for other in others},
        "clocks": {f"node{other}": [0.001 * (other - number), 0.002] for other in others},
        "pulled": {
            other: {"bytes": 4 * 2**20, "wanted": 4 * 2**20, "seconds": 0.01, "error": ""} for other in beside
        },
        "routes": {f"node{other}": {"source": f"198.51.100.{number}"} for other in others},
        "uncalled": 0,
    }


def files_of(paths: Mapping[str, str]) -> dict[str, Any]:
    """The data part of a healthy host."""
    mount = {"point": "/common", "kind": "nfs4", "source": "filer:/export", "device": "0:55", "root": "/"}
    fact = {"exists": True, "kind": "folder", "readable": True, "mount": mount, "files": 2, "bytes": 30, "names": "9a9e5", "unreadable": [],
            "listed": {"a": 10, "b": 20}, "sampled": {"a": "aa", "b": "bb"}}  # fmt: skip
    return {
        "canary": {"value": {"missing": [], "seconds": 0.2, "left": []}},
        "shared": {"value": mount},
        "paths": {name: {"value": dict(fact)} for name in paths},
    }


def put(target: Any, path: str, value: Any) -> None:
    """Set ``a/b/c`` in nested dicts; ``...`` removes it."""
    *rest, last = path.split("/")
    for part in rest:
        target = target[int(part)] if isinstance(target, list) else target[part]
    if value is ...:
        del target[last]
    else:
        target[last] = value


@pytest.fixture
def make_resolved(make_recipe: MakeRecipe, tmp_path: Path) -> MakeResolved:
    """A resolved recipe; ``env`` its variables, other keywords as for ``make_recipe``."""

    def make(env: Mapping[str, str] | None = None, **options: Any) -> Resolved:
        recipe = load_recipe(str(make_recipe(**options)))
        model = recipe.model.model_copy(update={"path": "/common/model"})
        data = recipe.data.model_copy(
            update={"train": ("/common/train.parquet",), "val": ("/data/val.parquet",)}
        )
        recipe = recipe.model_copy(update={"model": model, "data": data})
        return Resolved(recipe=recipe, run_dir=tmp_path / "run", assets_dir=None, overrides=(), config={},
                        runtime_env={"env_vars": dict(env or {})}, seed=17)  # fmt: skip

    return make


@pytest.fixture
def make_view() -> MakeView:
    """A view of ``count`` healthy hosts.

    ``facts``, ``mesh`` and ``data`` change what they said: ``{"node2": {"host/limits/nofile": [1, 1]}}``; a host that is None did not
    answer, and of ``facts`` a part may be ``{"error": …}``.
    """

    def make(
        count: int = 3,
        *,
        site: Mapping[str, Any] | None = None,
        resolved: Resolved | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        mesh: Mapping[str, Mapping[str, Any]] | None = None,
        data: Mapping[str, Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> View:
        from verl_musa.cluster.preflight import _addresses
        from verl_musa.cluster.preflight.check_path import paths_of

        place = Site.model_validate(
            {
                "shared": "/common",
                "networks": {"management": "192.0.2.0/24", "training": "198.51.100.0/24"},
                **(site or {}),
            }
        )
        names = [f"node{number}" for number in range(1, count + 1)]
        hosts = tuple(
            Host(name, f"192.0.2.{number}", head=number == 1) for number, name in enumerate(names, 1)
        )
        said = {name: parts_of(number) for number, name in enumerate(names, 1)}
        calls = {name: calls_of(number, count) for number, name in enumerate(names, 1)} if count > 1 else {}
        files = {name: files_of({} if resolved is None else paths_of(resolved)) for name in names}
        for target, changes in ((said, facts), (calls, mesh), (files, data)):
            for name, change in (changes or {}).items():
                for path, value in change.items():
                    put(target[name], path, copy.deepcopy(value))
        parts = {
            name: {part: one if set(one) == {"error"} else {"value": one} for part, one in said[name].items()}
            for name in names
        }
        done = {
            name: Done(name, 0, f"{MARK}{json.dumps({'parts': {}})}\n".encode(), "", 1.0) for name in names
        }
        view = View(place, hosts, resolved, done, parts, mesh=Mesh(calls), data=files)
        addresses, lacking = _addresses(view)
        clocks = clocks_to_head(hosts, Facts(done, parts, dict.fromkeys(names, (0.0, 0.5))), view.mesh)
        return replace(view, **{"addresses": addresses, "lacking": lacking, "clocks": clocks, **fields})

    return make


@pytest.fixture
def asking() -> Callable[..., Asking]:
    """What the phases are given; ``said`` collects what they tell the user."""

    def make(
        site: Site,
        hosts: Sequence[Host],
        remote: Any,
        *,
        bounds: Bounds | None = None,
        said: list[str] | None = None,
    ) -> Asking:
        return Asking(site, hosts, remote, bounds or Bounds(), (said if said is not None else []).append)

    return make
