"""Preflight on four hosts that are really there: nothing wrong is found where nothing is, and each fault by its host and cause."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from ci.hosts import Host, Hosts, NoHostsError, Shape, faults, up
from ci.hosts.table import bound, note
from verl_musa.checks import Result, Status
from verl_musa.cluster.hosts import hosts_of
from verl_musa.cluster.preflight import Preflight, look
from verl_musa.cluster.ssh import Ssh
from verl_musa.recipe import Resolved, Site, load_recipe, load_site, resolve

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
HEAD, VICTIM = 0, 2

RECIPE = """\
schema: 1
name: four
version: 0.1.0
summary: Four hosts for a preflight
image: sim
device: {type: musa, simulated: true}
model: {path: "${recipe.dir}/model", architecture: Qwen3ForCausalLM}
data: {train: ["${recipe.dir}/train.parquet"], val: ["${recipe.dir}/val.parquet"]}
reward: {file: reward.py, function: compute_score}
cluster: {nodes: 4, devices_per_node: 1, cpus_per_node: 4, host_memory_gib: 1}
network: {profile: tcp, interface: eth1}
seed: 17
"""
CONFIG = "algorithm.adv_estimator: grpo\ndata.train_batch_size: 8\n"


@dataclass(frozen=True)
class Place:
    """Hosts that are up, what runs on them, and the site that names them."""

    hosts: Hosts
    site: Site
    resolved: Resolved
    folder: Path

    def look(self, site: Site | None = None) -> Preflight:
        chosen = site or self.site
        return look(chosen, hosts_of(chosen), self.resolved, Ssh(chosen), hold_lock=False)

    @property
    def data(self) -> str:
        return str(self.folder / "four" / "train.parquet")


def _recipe(folder: Path) -> None:
    folder.mkdir()
    (folder / "model").mkdir()
    for name, text in (
        ("recipe.yaml", RECIPE),
        ("config.yaml", CONFIG),
        ("reward.py", "def compute_score(**_):\n    return 0.0\n"),
    ):
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("train.parquet", "val.parquet", "model/config.json", "model/model.safetensors"):
        (folder / name).write_bytes(name.encode() * 1000)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # faults cover /tmp
    _recipe(folder / "four")
    mounts = (Path(sys.prefix), Path(sys.base_prefix), ROOT, folder)
    shape = Shape(count=4, mounts=mounts, environment=(("PYTHONPATH", str(ROOT)),))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        try:
            hosts = stack.enter_context(up(shape, kind=os.environ.get("VERL_MUSA_HOSTS_KIND")))
        except NoHostsError as error:
            pytest.skip(f"no hosts were brought up: {error}")
        content = yaml.safe_load(hosts.site.read_text(encoding="utf-8"))
        content["python"] = sys.executable
        file = folder / "site.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        site = load_site(file)
        resolved = resolve(load_recipe(str(folder / "four")), run_dir=folder / "run", site=site)
        yield Place(hosts, site, resolved, folder)


def _bad(found: Preflight) -> list[Result]:
    return [result for result in found.results if result.status in {Status.FAIL, Status.UNKNOWN}]


def _told(results: list[Result]) -> str:
    return "\n".join(f"{one.status} {one.check} {one.host}: {one.evidence} -> {one.fix}" for one in results)


def test_nothing_wrong_is_found_where_nothing_is(place: Place) -> None:
    start = time.monotonic()
    found = place.look()
    odd = [result for result in found.results if result.status is not Status.OK]
    assert not odd, _told(odd)
    assert time.monotonic() - start < bound()
    assert set(found.addresses.values()) == {host.training for host in place.hosts.hosts}
    assert all(abs(clock.ahead) < 1 for clock in found.clocks.values())
    assert {result.host for result in found.results} == {host.name for host in place.hosts.hosts}
    assert not list(place.hosts.shared.glob(".verl-musa-*")), "the canary is gone"


@dataclass(frozen=True)
class Fault:
    """A fault, and what preflight must say of it.

    Attributes:
        name: for people.
        make: what puts it there.
        check: the check that must find it.
        says: words of its evidence.
        host: index of the host that must be named.
        status: how bad it is.
        beside: checks that may also fail, of whatever host.
        site: fields of the site that are changed.
    """

    name: str
    make: Callable[[Place], AbstractContextManager[object]]
    check: str
    says: str
    host: int = VICTIM
    status: Status = Status.FAIL
    beside: tuple[str, ...] = ()
    site: Callable[[dict[str, object]], None] | None = field(default=None)


def _victim(
    make: Callable[[Host], AbstractContextManager[object]],
) -> Callable[[Place], AbstractContextManager[object]]:
    return lambda place: make(place.hosts[VICTIM])


def _nothing(_: Place) -> AbstractContextManager[object]:
    return ExitStack()


def _training(index: int, address: str) -> Callable[[dict[str, object]], None]:
    def change(content: dict[str, object]) -> None:
        hosts = content["hosts"]
        assert isinstance(hosts, list)
        hosts[index]["training"] = address

    return change


def _other_ray(place: Place) -> AbstractContextManager[object]:
    """A process that looks like another cluster's control store, on the port of ours."""
    stack = ExitStack()
    code = "import socket,time; s=socket.socket(); s.setsockopt(1,2,1); s.bind(('0.0.0.0',6379)); s.listen(); time.sleep(200)"
    argv = ["bash", "-c", f'exec -a "/opt/ray/gcs_server --gcs_server_port=6379" python3 -c "{code}"']
    stack.enter_context(faults.started(place.hosts[HEAD], argv))
    time.sleep(0.5)
    return stack


SHIFTED = (
    "version.site",
    "version.mccl",
    "version.torch-musa",
    "version.megatron",
    "version.verl-musa",
    "version.patches",
)
"""The library that shifts the clock makes waits with a bound fail in the job's Python, which is its own fault and not the clock's."""

FAULTS = (
    # First: where hosts are namespaces, an sshd that was started anew is no longer in its host's control group.
    Fault("low pids.max", _victim(lambda host: faults.low_pids(host, 500)), "host.pids", "500"),
    Fault("wrong key", _victim(faults.wrong_key), "host.ssh", "Permission denied"),
    Fault("host key changed", _victim(faults.host_key_changed), "host.ssh", "erification failed"),
    Fault("sshd hangs", _victim(faults.sshd_hangs), "host.ssh", "timed out"),
    Fault("sshd stopped", _victim(faults.sshd_stopped), "host.ssh", "refused"),
    Fault("unreachable", _victim(faults.unreachable), "host.ssh", "timed out"),
    Fault("killed host", lambda place: faults.killed_host(place.hosts, place.hosts[VICTIM]), "host.ssh", "connect to host"),
    Fault("python missing", _victim(faults.python_missing), "host.ssh", "python3"),
    Fault("low nofile", _victim(lambda host: faults.low_ulimit(host, "nofile", 1024)), "host.nofile", "1,024"),
    Fault("low nproc", _victim(lambda host: faults.low_ulimit(host, "nproc", 2000)), "host.nproc", "2,000"),
    Fault("clock skew", _victim(lambda host: faults.clock_skew(host, 90)), "host.clock", "+90", beside=SHIFTED),
    Fault("clock behind", _victim(lambda host: faults.clock_skew(host, -90)), "host.clock", "-90", beside=SHIFTED),
    Fault("full disk", _victim(lambda host: faults.full_disk(host, "/tmp")), "host.space", "/tmp", beside=("host.inodes",)),  # noqa: S108
    Fault("no inodes", _victim(lambda host: faults.no_inodes(host, "/tmp")), "host.inodes", "/tmp"),  # noqa: S108
    Fault("small /dev/shm", _victim(faults.small_shm), "host.shm", "0.01 GiB"),
    Fault("proxy", _victim(faults.proxy), "net.proxy", "http_proxy=http://192.0.2.9:3128"),
    Fault("RAY_ADDRESS elsewhere", _victim(lambda host: faults.environment(host, {"RAY_ADDRESS": "192.0.2.77:6379"})), "ray.mixed", "192.0.2.77"),
    Fault("port dropped on the head", lambda place: faults.port_drop(place.hosts[HEAD], "6379"), "net.reach", "no answer", HEAD, beside=("ray.head",)),
    Fault("port rejected on the head", lambda place: faults.port_reject(place.hosts[HEAD], "6379"), "net.reach", "rejected", HEAD, beside=("ray.head",)),
    Fault("workers' ports dropped", _victim(lambda host: faults.port_drop(host, "20000-24999")), "net.reach", "20000"),
    Fault("object manager rejected", _victim(lambda host: faults.port_reject(host, "6381")), "net.reach", "6381 (Ray object_manager)"),
    Fault("one way", lambda place: faults.one_way(place.hosts[VICTIM], place.hosts.others(place.hosts[VICTIM])), "net.reach", "incoming: no answer"),
    Fault("large packets lost", _victim(faults.large_packets_lost), "net.transfer", "small messages pass"),
    Fault("slow link", _victim(faults.slow_link), "net.transfer", "MB/s", status=Status.WARN),
    Fault("training interface down", _victim(faults.interface_down), "net.interface", "eth1", beside=("net.reach", "net.route", "net.address", "net.source", "host.clock")),
    Fault("interface renamed", _victim(lambda host: faults.interface_renamed(host, "eth9")), "net.ifname", "eth1 names none", beside=("net.interface",)),
    Fault("other MTU", _victim(lambda host: faults.mtu_differs(host, 1400)), "net.mtu", "1400", beside=("net.transfer",)),
    Fault("wrong route", lambda place: faults.wrong_route(place.hosts[VICTIM], place.hosts[HEAD]), "net.route", "not from", beside=("net.source", "net.reach")),
    Fault("name resolves differently", lambda place: faults.name_resolves_differently(place.hosts[VICTIM], "host2", "192.0.2.99"), "net.names", "192.0.2.99"),
    Fault("second NIC registered", _nothing, "net.management", "management network", site=_training(VICTIM, "{management}"), beside=("net.subnet", "net.ifname", "net.interface", "net.route", "net.source")),
    Fault("head on the second NIC", _nothing, "ray.head", "management network", HEAD, site=_training(HEAD, "{management}"), beside=("net.management", "net.subnet", "net.ifname", "net.interface", "net.route", "net.source")),
    Fault("wrong head address", _nothing, "net.address", "192.0.2.55", HEAD, site=_training(HEAD, "192.0.2.55"), beside=("net.route", "net.reach", "net.ifname", "ray.head")),
    Fault("port taken", lambda place: faults.port_taken(place.hosts[HEAD], 8265), "ray.ports", "8265 (dashboard)", HEAD),
    Fault("stale cluster", _other_ray, "ray.stale", "gcs_server", HEAD, beside=("ray.ports",)),
    Fault("missing path", lambda place: faults.missing_path(place.hosts[VICTIM], place.data), "path.exists", "train.parquet", beside=("path.same",)),
    Fault("different file", lambda place: faults.different_file(place.hosts[VICTIM], place.data), "path.same", "train.parquet", beside=("path.mount",)),
    Fault("unshared folder", _victim(faults.unshared_root), "path.shared", "its own appear nowhere", beside=("path.shared",)),
    Fault("read-only folder", _victim(faults.read_only), "path.shared", "Read-only"),
    Fault("other ray", _victim(lambda host: faults.other_version(host, "ray", "2.57.0", python=sys.executable)), "version.ray", "2.57.0", beside=("version.packages", "version.image")),
    Fault("other torch", _victim(lambda host: faults.other_version(host, "torch", "2.11.0", python=sys.executable)), "version.torch", "2.11.0", beside=("version.packages", "version.image")),
    Fault("other python", _victim(lambda host: faults.other_python(host, "3.11.2", python=sys.executable)), "version.python", "3.11.2"),
    Fault("edited verl-musa", _victim(lambda host: faults.changed_file(host, str(ROOT / "verl_musa/errors.py"), "# edited\n")), "version.verl-musa", "on most"),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_named_with_its_host_within_30_s(place: Place, fault: Fault) -> None:
    site = place.site
    if fault.site is not None:
        assert site.source is not None
        text = site.source.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
        fault.site(content)
        file = place.folder / "other-site.yaml"
        management = place.hosts[fault.host].management
        file.write_text(yaml.safe_dump(content).replace("'{management}'", management), encoding="utf-8")
        site = load_site(file)
    with fault.make(place):
        start = time.monotonic()
        found = place.look(site)
        took = time.monotonic() - start
    name = place.hosts[fault.host].name
    told = _told([result for result in found.results if result.status is not Status.OK])
    named = [
        r for r in found.results if r.check == fault.check and r.host == name and r.status is fault.status
    ]
    assert named, told or "nothing found"
    assert fault.says in named[0].evidence, told
    assert named[0].fix, told
    others = [
        r for r in _bad(found) if (r.check, r.host) != (fault.check, name) and r.check not in fault.beside
    ]
    assert not others, told
    assert took < bound()
    note(fault.name, named[0].check, name, took, named[0].evidence)


def test_a_noisy_login_is_no_fault(place: Place) -> None:
    with faults.noisy_login(place.hosts[VICTIM]):
        found = place.look()
    assert not _bad(found), _told(_bad(found))
