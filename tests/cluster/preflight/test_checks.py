"""Each check with each of its outcomes, as a pure function of what the hosts said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.preflight.conftest import MakeResolved, MakeView
from verl_musa.checks import Result, Status
from verl_musa.cluster.preflight import CHECKS
from verl_musa.cluster.preflight.mesh import Mesh
from verl_musa.cluster.preflight.view import Clock, View, check_hosts

OK, WARN, FAIL, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.UNKNOWN
NOTHING = None
"""The check has nothing to look at."""

RAY = {"kind": "gcs_server", "pid": 7, "head": None, "run": "other", "port": 6379, "command": "gcs_server"}
LISTENER = {"port": 6379, "address": "0.0.0.0", "uid": 0, "pid": 7, "command": "gcs_server", "run": "other"}  # noqa: S104
REAL = (("simulated: true", "simulated: false"),)
ROCE = "network: {profile: roce, interface: eth1}\n"


@dataclass(frozen=True)
class Case:
    """A check and what it must say of node2 (or ``host``) where this is different from a healthy cluster."""

    check: str
    status: Status | None
    says: str = ""
    host: str = "node2"
    facts: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    site: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    everywhere: bool = False
    recipe: Mapping[str, Any] | None = None
    count: int = 3


def _gone(part: str) -> dict[str, Any]:
    return {part: {"error": "no answer within 18 s"}}


SITE_MISSING = {"site": {"missing": "/opt/python: No such file or directory"}}
CLOCKS = {"clocks": {"node1": Clock(0, 0, 0), "node2": Clock(5.0, 0.1, 0)}}
BLURRED = {"clocks": {"node1": Clock(0, 0, 0), "node2": Clock(1.0, 9.0, 0)}}

CASES = (
    Case("host.count", OK, "3 hosts", "node1", recipe={"replace": (("nodes: 1", "nodes: 3"),)}),
    Case("host.count", FAIL, "3 hosts, the recipe wants 4", "node1", recipe={"replace": (("nodes: 1", "nodes: 4"),)}),
    Case("host.count", WARN, "3 hosts, the recipe uses 1", "node1", recipe={}),
    Case("host.count", NOTHING, host="node1"),
    Case("host.clock", OK, "+0.0 s against node1's"),
    Case("host.clock", FAIL, "+5.0 s against node1's (within 0.10 s), at most 2 s", fields=CLOCKS),
    Case("host.clock", OK, fields=CLOCKS, site={"limits": {"clock_seconds": 9}}),
    Case("host.clock", UNKNOWN, "within 9.00 s", fields=BLURRED),
    Case("host.clock", UNKNOWN, "the head's clock was not read", fields={"clocks": {}}),
    Case("host.clock", NOTHING, host="node1"),
    Case("host.memory", OK, "878.9 GiB free", recipe={}),
    Case("host.memory", FAIL, "1.0 GiB free, the recipe needs 8", facts={"host/memory_mib/group_left": 1024}, recipe={}),
    Case("host.memory", UNKNOWN, facts={"host/memory_mib": {"available": None, "group_left": None}}, recipe={}),
    Case("host.memory", NOTHING),
    Case("host.cpus", OK, recipe={"replace": REAL}),
    Case("host.cpus", WARN, "8 usable, the recipe hands out 16", facts={"host/cpus": 8}, recipe={"replace": REAL}),
    Case("host.cpus", OK, "8 usable", facts={"host/cpus": 8}, recipe={}),
    Case("host.cpus", NOTHING),
    Case("host.space", OK, "/common 488.3 GiB free"),
    Case("host.space", FAIL, "/common 0.1 GiB free, at least 20.0 GiB", facts={"host/space/shared/value/free_mib": 100}),
    Case("host.space", FAIL, "shared folder: no answer within 5 s", facts={"host/space/shared": {"error": "no answer within 5 s"}}),
    Case("host.space", UNKNOWN, "no answer within 18 s", facts=_gone("host")),
    Case("host.inodes", OK),
    Case("host.inodes", OK, "not counted", facts={"host/space/shared/value/inodes": 0, "host/space/shared/value/inodes_free": 0}),
    Case("host.inodes", FAIL, "at least 100,000 inodes needed", facts={"host/space/temporary/value/inodes_free": 9}),
    Case("host.shm", OK),
    Case("host.shm", FAIL, "0.06 GiB free, at least 1", facts={"host/space/shm/value/free_mib": 64}),
    Case("host.shm", FAIL, "cannot be read: gone", facts={"host/space/shm": {"error": "gone"}}),
    Case("host.nofile", OK, "1,048,576"),
    Case("host.nofile", WARN, "the hard limit would do", facts={"host/limits/nofile": [1024, 1048576]}),
    Case("host.nofile", FAIL, "1,024, at least 65,536 needed", facts={"host/limits/nofile": [1024, 4096]}),
    Case("host.nproc", OK, "unlimited"),
    Case("host.nproc", FAIL, "100, at least 16,384", facts={"host/limits/nproc": [100, 100]}),
    Case("host.memlock", NOTHING),
    Case("host.memlock", OK, "unlimited", recipe={"extra": ROCE}),
    Case("host.memlock", FAIL, "0.0 GiB, at least unlimited", facts={"host/limits/memlock": [65536, 65536]}, recipe={"extra": ROCE}),
    Case("host.memlock", FAIL, "1.0 GiB, at least 4 GiB", facts={"host/limits/memlock": [2**30, 2**30]}, site={"limits": {"memlock_gib": 4}}),
    Case("host.pids", OK, "no limit"),
    Case("host.pids", OK, "100,000", facts={"host/pids": {"max": 100000, "current": 5, "file": "pids.max"}}),
    Case("host.pids", FAIL, "pids.max is 4,096, 40 in use; 16,384 needed", facts={"host/pids": {"max": 4096, "current": 40, "file": "pids.max"}}),
    Case("net.address", OK, "198.51.100.2 on eth1"),
    Case("net.address", FAIL, "no address in 198.51.100.0/24; it has eth0 192.0.2.2", facts={"net/interfaces/eth1/addresses": []}),
    Case("net.address", FAIL, "no interface ib0; it has eth0, eth1, lo", site={"networks": {"training": "ib0"}}),
    Case("net.address", FAIL, "interface eth1 has no address", facts={"net/interfaces/eth1/addresses": []}, site={"networks": {"training": "eth1"}}),
    Case("net.address", OK, "198.51.100.2 on eth1", site={"networks": {"training": "eth1"}}),
    Case("net.address", OK, "192.0.2.2 on eth0", site={"networks": {}}),
    Case("net.address", OK, "198.51.100.2 on eth1", site={"networks": {}}, recipe={"extra": "network: {profile: tcp, interface: eth1}\n"}),
    Case("net.address", FAIL, "127.0.0.1 on lo: no other host", site={"networks": {"training": "127.0.0.0/8"}}),
    Case("net.address", UNKNOWN, "no answer within 18 s", facts=_gone("net")),
    Case("net.interface", OK, "eth1 is up, 100000 Mbit/s"),
    Case("net.interface", FAIL, "eth1 is down", facts={"net/interfaces/eth1/state": "down"}),
    Case("net.interface", FAIL, "eth1 is switched off", facts={"net/interfaces/eth1/up": False}),
    Case("net.interface", FAIL, "on eth1, the recipe binds to bond0", recipe={"extra": "network: {profile: tcp, interface: bond0}\n"}),
    Case("net.interface", NOTHING, facts={"net/interfaces/eth1/addresses": []}),
    Case("net.management", OK),
    Case("net.management", FAIL, "192.0.2.2 is in the management network", site={"networks": {"management": "192.0.2.0/24", "training": "eth0"}}),
    Case("net.management", FAIL, "management network eth1", site={"networks": {"management": "eth1", "training": "198.51.100.0/24"}}),
    Case("net.management", OK, site={"networks": {"management": "192.0.2.0/24", "training": "192.0.2.0/24"}}),
    Case("net.management", NOTHING, site={"networks": {"training": "eth1"}}),
    Case("net.subnet", OK, "198.51.100.0/24"),
    Case("net.subnet", OK, "both in 198.51.100.0/24", facts={"net/interfaces/eth1/addresses/0/prefix": 31}),
    Case("net.subnet", FAIL, "203.0.113.0/24, but node1 is in 198.51.100.0/24",
         facts={"net/interfaces/eth1/addresses": [{"address": "203.0.113.2", "prefix": 24}]}, site={"networks": {"training": "eth1"}}),
    Case("net.mtu", OK, "eth1 9000"),
    Case("net.mtu", FAIL, "eth1 1500, most hosts 9000", facts={"net/interfaces/eth1/mtu": 1500}),
    Case("net.mtu", FAIL, "eth1 9000, limits.mtu 4096", site={"limits": {"mtu": 4096}}),
    Case("net.route", OK, "to 2 hosts from 198.51.100.2"),
    Case("net.route", FAIL, "to node1 (198.51.100.1): leaves from 192.0.2.2", mesh={"routes/node1": {"source": "192.0.2.2"}}),
    Case("net.route", FAIL, "Network is unreachable", mesh={"routes/node1": {"error": "Network is unreachable"}}),
    Case("net.route", FAIL, "no answer", mesh={"routes/node1": None}),
    Case("net.route", NOTHING, host="node1", count=1),
    Case("net.route", NOTHING, facts={"net/interfaces/eth1/addresses": [], "net/interfaces/eth0/addresses/0/address": "198.51.100.2"},
         site={"networks": {"management": "eth0", "training": "198.51.100.0/24"}}),
    Case("net.ifname", NOTHING),
    Case("net.ifname", OK, "GLOO_SOCKET_IFNAME=eth1", recipe={"env": {"GLOO_SOCKET_IFNAME": "eth1"}}),
    Case("net.ifname", OK, "MCCL_SOCKET_IFNAME=eth", recipe={"env": {"MCCL_SOCKET_IFNAME": "eth"}}),
    Case("net.ifname", OK, "MCCL_SOCKET_IFNAME=^lo,eth0", recipe={"env": {"MCCL_SOCKET_IFNAME": "^lo,eth0"}}),
    Case("net.ifname", OK, "=eth1", recipe={"env": {"MCCL_SOCKET_IFNAME": "=eth1"}}),
    Case("net.ifname", FAIL, "names none of eth0, eth1, lo", recipe={"env": {"GLOO_SOCKET_IFNAME": "eth"}}),
    Case("net.ifname", FAIL, "names none", recipe={"env": {"MCCL_SOCKET_IFNAME": "=bond0"}}),
    Case("net.ifname", FAIL, "over the loopback", recipe={"env": {"GLOO_SOCKET_IFNAME": "lo"}}),
    Case("net.ifname", OK, "GLOO_SOCKET_IFNAME=lo", host="node1", count=1, recipe={"env": {"GLOO_SOCKET_IFNAME": "lo"}}),
    Case("net.ifname", FAIL, "without the training address", facts={"host/environment": {"MCCL_SOCKET_IFNAME": "eth0"}}),
    Case("net.adapter", NOTHING),
    Case("net.adapter", OK, "mlx5_0 active", recipe={"extra": ROCE}),
    Case("net.adapter", OK, "mlx5_0 active", recipe={"env": {"MCCL_IB_HCA": "mlx5_*", "MCCL_IB_GID_INDEX": "3"}}),
    Case("net.adapter", FAIL, "the host has no RDMA adapter", facts={"net/adapters": {}}, recipe={"extra": ROCE}),
    Case("net.adapter", FAIL, "MCCL_IB_HCA=mlx5_7:1; the host has mlx5_0", recipe={"env": {"MCCL_IB_HCA": "mlx5_7:1"}}),
    Case("net.adapter", FAIL, "no port is active", facts={"net/adapters/mlx5_0/ports/1/state": "1: DOWN"}, recipe={"extra": ROCE}),
    Case("net.adapter", FAIL, "no such entry on mlx5_0", recipe={"env": {"MCCL_IB_HCA": "mlx5_0", "MCCL_IB_GID_INDEX": "7"}}),
    Case("net.names", OK, "2 names as on node1"),
    Case("net.names", FAIL, "node1 is 203.0.113.9 here, 192.0.2.1 on node1", facts={"net/names/node1/value": ["203.0.113.9"]}),
    Case("net.names", OK, "2 names as on node1", facts={"net/names/node1/value": ["192.0.2.1", "198.51.100.1"]}),
    Case("net.names", FAIL, "node1 is unknown here", facts={"net/names/node1/value": []}),
    Case("net.names", WARN, "no answer for node1", facts={"net/names/node1": {"error": "no answer within 4 s"}}),
    Case("net.names", FAIL, "192.0.2.1: no answer within 4 s", facts={"net/names/192.0.2.1": {"error": "no answer within 4 s"}}),
    Case("net.names", OK, facts={"net/names/node2/value": ["127.0.1.1"]}),
    Case("net.names", WARN, "its own name is 127.0.1.1", facts={"net/own_name/value": ["127.0.1.1"]}),
    Case("net.proxy", OK, "none set"),
    Case("net.proxy", FAIL, "http_proxy=http://p:3128 would catch node1 198.51.100.1", facts={"host/environment": {"http_proxy": "http://p:3128"}}),
    Case("net.proxy", FAIL, "ALL_PROXY", recipe={"env": {"ALL_PROXY": "http://p:3128"}}),
    Case("net.proxy", OK, "all hosts are in no_proxy",
         facts={"host/environment": {"http_proxy": "http://p:3128", "no_proxy": "198.51.100.1, 198.51.100.2,198.51.100.3"}}),
    Case("net.proxy", OK, facts={"host/environment": {"http_proxy": "http://p:3128", "NO_PROXY": "*"}}),
    Case("net.reach", OK, "2 hosts reached on 6 ports"),
    Case("net.reach", NOTHING, host="node1", count=1),
    Case("net.reach", UNKNOWN, "exit code 255", fields={"mesh": "broken"}),
    Case("net.source", OK, "seen as 198.51.100.2 by 2 hosts"),
    Case("net.source", NOTHING, host="node1", count=1),
    Case("net.transfer", OK, "4.0 of 4 MiB from node2 to node1"),
    Case("net.delay", OK, "0.2 ms"),
    Case("net.delay", WARN, "50.0 ms", mesh={"calls/node1/6379/ms": 50.0, "calls/node1/6381/ms": 50.0, "calls/node1/40000/ms": 50.0,
                                             "calls/node3/6379/ms": 50.0, "calls/node3/6381/ms": 50.0, "calls/node3/40000/ms": 50.0}),
    Case("ray.ports", OK, "are free"),
    Case("ray.ports", FAIL, "6379 (port) by pid 7 of run other, gcs_server", "node1", facts={"net/listeners": [LISTENER]}),
    Case("ray.ports", OK, "are free", facts={"net/listeners": [LISTENER]}),
    Case("ray.ports", FAIL, "a process of user 5", facts={"net/listeners": [{**LISTENER, "port": 6380, "pid": None, "run": None, "uid": 5}]}),
    Case("ray.ports", OK, "are free", "node1", facts={"net/listeners": [LISTENER]}, fields={"run_id": "other"}),
    Case("ray.ports", FAIL, "of the workers' ports 20000-20200", facts={"net/listeners": [{**LISTENER, "port": port} for port in range(20000, 20150)]},
         site={"ray": {"workers": [20000, 20200]}}),
    Case("ray.stale", OK, "no other Ray"),
    Case("ray.stale", FAIL, "another Ray uses these ports: gcs_server 7 of run other", facts={"net/ray": [RAY]}),
    Case("ray.stale", FAIL, "raylet 8, head 198.51.100.1:6379", facts={"net/ray": [{**RAY, "kind": "raylet", "pid": 8, "run": None, "head": "198.51.100.1:6379", "port": None}]}),
    Case("ray.stale", WARN, "on other ports", facts={"net/ray": [{**RAY, "port": 7777}]}),
    Case("ray.stale", WARN, "1 processes of a Ray that has ended: 7", facts={"net/ray": [{**RAY, "kind": "worker", "port": None}]}),
    Case("ray.stale", OK, facts={"net/ray": [RAY]}, fields={"run_id": "other"}),
    Case("ray.head", OK, "198.51.100.1:6379", "node1"),
    Case("ray.head", NOTHING),
    Case("ray.head", FAIL, "no address in", "node1", facts={"net/interfaces/eth1/addresses": []}),
    Case("ray.head", FAIL, "127.0.0.1 is the loopback", "node1", site={"networks": {"training": "lo"}}),
    Case("ray.head", FAIL, "management network", "node1", site={"networks": {"management": "192.0.2.0/24", "training": "eth0"}}),
    Case("ray.mixed", OK, "control store 6379, Jobs API 8265"),
    Case("ray.mixed", FAIL, "these look swapped", site={"ray": {"port": 8265, "dashboard": 6379}}),
    Case("ray.mixed", FAIL, "RAY_ADDRESS=203.0.113.1:6379 in the environment of node2", facts={"host/environment": {"RAY_ADDRESS": "203.0.113.1:6379"}}),
    Case("ray.mixed", FAIL, "in the environment of the recipe", recipe={"env": {"RAY_ADDRESS": "auto"}}),
    Case("ray.mixed", OK, facts={"host/environment": {"RAY_ADDRESS": "198.51.100.1:6379"}}),
    Case("path.shared", OK, "files of all hosts seen after 0.2 s"),
    Case("path.shared", FAIL, "Read-only file system", data={"canary/value": {"error": "Read-only file system", "missing": []}}),
    Case("path.shared", FAIL, "no answer within 9 s", data={"canary": {"error": "no answer within 9 s"}}),
    Case("path.shared", FAIL, "files of node1 do not appear here", data={"canary/value/missing": ["node1"]}),
    Case("path.shared", WARN, "could not be removed", data={"canary/value/left": ["/common/.x/node2.here"]}),
    Case("path.shared", FAIL, "names no shared folder", site={"shared": None}),
    Case("path.shared", NOTHING, host="node1", count=1, site={"shared": None}),
    Case("path.shared", UNKNOWN, "exit code 1", fields={"data": {}, "data_errors": {"node2": "exit code 1"}}),
    Case("path.run", NOTHING, host="node1"),
    Case("path.run", OK, "/common/runs/x", "node1", fields={"run_dir": Path("/common/runs/x")}),
    Case("path.run", FAIL, "is not below the shared folder", "node1", fields={"run_dir": Path("/elsewhere/runs/x")}),
    Case("path.exists", NOTHING),
    Case("path.exists", OK, "paths", recipe={}),
    Case("path.exists", FAIL, "data.train: /common/train.parquet is not there, /common is", recipe={},
         data={"paths/data.train/value": {"exists": False, "parent": "/common"}}),
    Case("path.exists", FAIL, "a link to /gone", recipe={}, data={"paths/data.train/value": {"exists": False, "parent": "", "dangling": "/gone"}}),
    Case("path.exists", FAIL, "model.path: /common/model cannot be read", recipe={}, data={"paths/model.path/value/readable": False}),
    Case("path.exists", FAIL, "cannot be read (a: Permission denied)", recipe={}, data={"paths/model.path/value/unreadable": ["a: Permission denied"]}),
    Case("path.exists", FAIL, "no answer within 12 s", recipe={}, data={"paths/model.path": {"error": "no answer within 12 s"}}),
    Case("path.exists", OK, "on no host yet: env CACHE", recipe={"env": {"CACHE": "/common/cache"}}, everywhere=True,
         data={"paths/env CACHE/value": {"exists": False, "parent": "/common"}}),
    Case("path.exists", FAIL, "env CACHE: /common/cache is not there", recipe={"env": {"CACHE": "/common/cache"}},
         data={"paths/env CACHE/value": {"exists": False, "parent": "/common"}}),
    Case("path.same", OK, "by name, size and sampled content", recipe={}),
    Case("path.same", NOTHING),
    Case("path.same", FAIL, "b has the same size and other content", recipe={}, data={"paths/data.val/value/sampled": {"a": "aa", "b": "b2"}}),
    Case("path.same", FAIL, "b has 21 bytes, there 20 bytes", recipe={},
         data={"paths/data.val/value/listed": {"a": 10, "b": 21}, "paths/data.val/value/names": "other"}),
    Case("path.same", FAIL, "b has no such file, there 20 bytes", recipe={}, data={"paths/data.val/value/listed": {"a": 10}, "paths/data.val/value/names": "other"}),
    Case("path.same", FAIL, "900 files of 30 bytes, there 2 of 30", recipe={},
         data={"paths/data.val/value/listed": None, "paths/data.val/value/names": "other", "paths/data.val/value/files": 900}),
    Case("path.mount", OK, "/common is nfs4 filer:/export", recipe={}),
    Case("path.mount", NOTHING, host="node1", recipe={}),
    Case("path.mount", WARN, "data.val on ext4 /dev/sda1, on node1 on nfs4 filer:/export", recipe={},
         data={"paths/data.val/value/mount": {"kind": "ext4", "source": "/dev/sda1", "device": "8:1", "point": "/", "root": "/"}}),
    Case("version.site", OK, "/opt/verl-musa/bin/python"),
    Case("version.site", FAIL, "No such file", facts=SITE_MISSING),
    Case("version.site", FAIL, "No module named 'verl_musa'", facts={"site/own": ..., "site/own_error": "ModuleNotFoundError: No module named 'verl_musa'"}),
    Case("version.site", UNKNOWN, "no answer within 18 s", facts=_gone("site")),
    Case("version.python", OK, "3.11.2"),
    Case("version.python", FAIL, "3.11.9, but 3.11.2 on most (3.11.2: node1, node3; 3.11.9: node2)", facts={"site/python": "3.11.9"}),
    Case("version.python", NOTHING, facts=SITE_MISSING),
    Case("version.python", NOTHING, facts=_gone("site")),
    Case("version.driver", OK, "3.3.8-server"),
    Case("version.driver", FAIL, "3.3.5", facts={"site/own/env/versions/driver/value": "3.3.5"}),
    Case("version.driver", FAIL, "not there, but 3.3.8-server on most", facts={"site/own/env/versions/driver/value": None}),
    Case("version.driver", UNKNOWN, "no host says", facts={"site/own/env/versions/driver/value": None}, everywhere=True),
    Case("version.driver", NOTHING, facts={"site/own/env/versions/driver/value": None}, everywhere=True, recipe={}),
    Case("version.sdk", OK), Case("version.sdk", FAIL, "5.2.0", facts={"site/own/env/versions/musa-sdk/value": "5.2.0"}),
    Case("version.mccl", OK), Case("version.mccl", FAIL, "2.99", facts={"site/own/env/versions/mccl/value": "2.99"}),
    Case("version.torch", OK), Case("version.torch", FAIL, "2.7.1", facts={"site/packages/torch": "2.7.1"}),
    Case("version.torch-musa", OK), Case("version.torch-musa", FAIL, "simulator", facts={"site/own/env/versions/torch_musa/value": "simulator"}),
    Case("version.verl", OK), Case("version.verl", FAIL, "0.8.0", facts={"site/packages/verl": "0.8.0"}),
    Case("version.megatron", OK, "0.16.1"), Case("version.megatron", FAIL, "0.18.0", facts={"site/own/extras/megatron-core": "0.18.0"}),
    Case("version.sglang", OK), Case("version.sglang", FAIL, "0.5.12", facts={"site/packages/sglang": "0.5.12"}),
    Case("version.ray", OK), Case("version.ray", FAIL, "2.57.0", facts={"site/packages/ray": "2.57.0"}),
    Case("version.ray", FAIL, "not installed on any host", facts={"site/packages/ray": ...}, everywhere=True, recipe={}),
    Case("version.ray", OK, "not installed on any host", facts={"site/packages/ray": ...}, everywhere=True),
    Case("version.verl-musa", OK), Case("version.verl-musa", FAIL, "edited", facts={"site/own/sources": "edited"}),
    Case("version.patches", OK), Case("version.patches", FAIL, "5e7", facts={"site/own/series": "0the5"}),
    Case("version.image", OK, "image sha256:aaaaaaaaaaaaaaaa"), Case("version.image", FAIL, "sha256:bbbb", facts={"site/image/sha256": "b" * 64}),
    Case("version.packages", OK, "packages as on node1"),
    Case("version.packages", FAIL, "1 differ from node1's: numpy 2.1.0 -> 1.26.0", facts={"site/packages/numpy": "1.26.0"}),
    Case("device.count", OK, "2 by mthreads-gmi"),
    Case("device.count", FAIL, "1 by mthreads-gmi, 2 wanted", facts={"site/own/env/devices/list": [{"index": 0}]}, recipe={"replace": REAL}),
    Case("device.count", UNKNOWN, "no tool says (not on PATH)", facts={"site/own/env/devices/list": None, "site/own/env/devices/notes": ["not on PATH"]}),
    Case("device.count", NOTHING, recipe={}),
    Case("device.count", NOTHING, facts=SITE_MISSING),
    Case("device.slots", NOTHING, recipe={}),
    Case("device.slots", OK, "slots=8, 2 used", fields={"slots": 8}, recipe={}),
    Case("device.slots", FAIL, "slots=1, the recipe uses 2", fields={"slots": 1}, recipe={}),
    Case("device.simulated", NOTHING),
    Case("device.simulated", OK, "2 by musa-sim 0.1.0", recipe={}),
    Case("device.simulated", FAIL, "musa-sim is not installed", facts={"site/packages/musa-sim": ...}, recipe={}),
    Case("device.simulated", FAIL, "MUSA_SIM_DEVICES=4, but cluster.devices_per_node is 2", recipe={"env": {"MUSA_SIM_DEVICES": "4"}}),
    Case("device.simulated", NOTHING, facts=SITE_MISSING, recipe={}),
    Case("device.memory", OK, "2 devices, at most 300 MiB used"),
    Case("device.memory", FAIL, "in use already: 1: 60000 of 81920 MiB", facts={"site/own/env/devices/list/1/memory_used_mib": 60000}),
    Case("device.memory", UNKNOWN, "none says", facts={"site/own/env/devices/list": [{"index": 0, "memory_used_mib": None, "memory_total_mib": None}]}),
    Case("device.memory", NOTHING, recipe={}),
    Case("device.holders", OK, "nobody holds 2 device files"),
    Case("device.holders", WARN, "1 processes have them open: 99 python train.py",
         facts={"device/holders": [{"pid": 99, "command": "python train.py", "nodes": ["/dev/mtgpu.0"]}]}),
    Case("device.holders", UNKNOWN, "no device files", facts={"device/nodes": []}),
    Case("device.holders", NOTHING, recipe={}),
)  # fmt: skip


def _view(case: Case, make_view: MakeView, make_resolved: MakeResolved) -> View:
    hosts = [f"node{number}" for number in range(1, case.count + 1)] if case.everywhere else [case.host]
    fields = dict(case.fields)
    slots = fields.pop("slots", None)
    if fields.get("mesh") == "broken":
        fields["mesh"] = Mesh({}, {case.host: "exit code 255"})
    view = make_view(
        case.count,
        site=case.site,
        resolved=None if case.recipe is None else make_resolved(**case.recipe),
        facts=dict.fromkeys(hosts, case.facts),
        mesh=dict.fromkeys(hosts, case.mesh) if case.mesh else None,
        data=dict.fromkeys(hosts, case.data) if case.data else None,
    )
    view = replace(view, **fields)
    return (
        view
        if slots is None
        else replace(view, hosts=tuple(replace(host, slots=slots) for host in view.hosts))
    )


def _results(view: View, check: str) -> dict[str, Result]:
    chosen = tuple(one for one in CHECKS if one.name == check)
    assert chosen, check
    return {result.host: result for result in check_hosts(chosen, view, view.answering)}


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.check}-{case.status or 'nothing'}-{case.says[:24]}"
)
def test_outcome(case: Case, make_view: MakeView, make_resolved: MakeResolved) -> None:
    found = _results(_view(case, make_view, make_resolved), case.check)
    if case.status is NOTHING:
        assert case.host not in found, found.get(case.host)
        return
    result = found[case.host]
    assert result.status is case.status, result
    assert case.says in result.evidence, result
    assert bool(result.fix) == (case.status is not OK), result
    if not case.everywhere and case.facts and case.check.startswith("version."):
        assert {one.status for name, one in found.items() if name != case.host} <= {OK}, (
            "only the odd one out is to blame"
        )


def test_every_check_has_a_test_of_what_it_can_say() -> None:
    """Beside the cases here, what calls between hosts say is in test_mesh.py."""
    seen = {(case.check, case.status) for case in CASES}
    for check in CHECKS:
        statuses = {status for name, status in seen if name == check.name}
        assert OK in statuses, f"{check.name} is never OK in a test"
        assert statuses & {WARN, FAIL} or check.name in {"net.reach", "net.source", "net.transfer"}, (
            f"{check.name} never finds anything in a test"
        )


def test_of_two_hosts_that_differ_the_head_is_the_measure(make_view: MakeView) -> None:
    found = _results(make_view(2, facts={"node1": {"site/packages/ray": "2.57.0"}}), "version.ray")
    assert (found["node1"].status, found["node2"].status) == (OK, FAIL)


def test_of_several_the_odd_one_is_to_blame_even_if_it_is_the_head(make_view: MakeView) -> None:
    found = _results(make_view(3, facts={"node1": {"site/packages/ray": "2.57.0"}}), "version.ray")
    assert [found[f"node{number}"].status for number in (1, 2, 3)] == [FAIL, OK, OK]


def test_a_host_alone_with_its_shared_folder_is_named_and_the_others_say_whom_they_miss(
    make_view: MakeView,
) -> None:
    others = {"canary/value/missing": ["node3"]}
    view = make_view(
        3, data={"node1": others, "node2": others, "node3": {"canary/value/missing": ["node1", "node2"]}}
    )
    found = _results(view, "path.shared")
    assert "and its own appear nowhere" in found["node3"].evidence
    assert "files of node3 do not appear here" in found["node1"].evidence


def test_ipv6(make_view: MakeView) -> None:
    changes = {
        f"node{number}": {"net/interfaces/eth1/addresses": [{"address": f"2001:db8::{number}", "prefix": 64}]}
        for number in (1, 2, 3)
    }
    view = make_view(
        3, site={"networks": {"management": "192.0.2.0/24", "training": "2001:db8::/64"}}, facts=changes
    )
    assert view.addresses["node2"] == "2001:db8::2"
    for check in ("net.address", "net.management", "net.subnet"):
        assert _results(view, check)["node2"].status is OK


def test_a_check_that_breaks_is_unknown_and_says_so(make_view: MakeView) -> None:
    view = make_view(2, facts={"node2": {"host/limits": 7}})
    result = _results(view, "host.nofile")["node2"]
    assert result.status is UNKNOWN
    assert "the check itself failed" in result.evidence
