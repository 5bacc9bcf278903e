"""Bring hosts up and down: ``with up() as hosts``."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ci.engine import NoEngineError, engine
from ci.hosts.base import default_cache, install_in_ci, layered_image, light_image, light_root
from ci.hosts.docker import Docker
from ci.hosts.login import Plan, make_keys, write_login
from ci.hosts.model import IMAGE_PYTHON, Backend, Host, Hosts, Network, NoHostsError, Shape, Which
from ci.hosts.netns import Namespaces

IN_MEMORY = "8g"
"""Most that the light base and all that hosts write may take of memory."""

PLACES = 200
"""Sets of hosts that one machine may have at once."""


@dataclass(frozen=True, kw_only=True)
class _Wish:
    shape: Shape
    kind: str | None
    docker_host: str | None
    folder: Path
    cache: Path
    place: int


@contextmanager
def up(
    shape: Shape | None = None,
    *,
    kind: str | None = None,
    docker_host: str | None = None,
    folder: Path | None = None,
    cache: Path | None = None,
) -> Iterator[Hosts]:
    """Bring hosts up; end and remove them, and the engine if it was started for them, at the end.

    Args:
        shape: how many and how; None: four of the light base.
        kind: ``docker`` or ``netns``; None: an engine where there is one, else namespaces.
        docker_host: address of the engine to use, which is left running; None: the one of ``DOCKER_HOST`` if that is set, else one
            of our own.
        folder: for keys and files; None: a temporary one, removed at the end.
        cache: where the light base is kept.

    Raises:
        NoHostsError: neither can be had here; the text says why, of both.
    """
    install_in_ci()
    start = time.monotonic()
    with ExitStack() as stack:
        place = stack.enter_context(_place())
        if folder is None:
            folder = stack.enter_context(_folder(place))
        folder.mkdir(parents=True, exist_ok=True)
        stack.callback(_remove_own, folder)
        _remove_own(folder)
        wish = _Wish(shape=shape or Shape(), kind=kind, docker_host=docker_host, folder=folder,
                     cache=cache or default_cache(), place=place)  # fmt: skip
        hosts = _any(stack, wish)
        hosts.seconds = time.monotonic() - start
        yield hosts


def _in_memory(stack: ExitStack, path: Path) -> None:
    """Have the folder in memory, where that can be had: what hosts write need not survive them, and disks are slow."""
    path.mkdir(parents=True, exist_ok=True)
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None or os.geteuid() != 0:
        return
    command = [mount, "-t", "tmpfs", "-o", f"size={IN_MEMORY},mode=711", "verl-musa-hosts", str(path)]
    if subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0:
        away = [umount, "--lazy", str(path)]
        stack.callback(subprocess.run, away, check=False, capture_output=True, timeout=60)


def _any(stack: ExitStack, wish: _Wish) -> Hosts:
    """Hosts by the first way that works; what one that does not has made is removed before the next is tried."""
    reasons = []
    for kind, how in (("docker", _docker), ("netns", _namespaces)):
        if wish.kind not in {None, kind}:
            continue
        try:
            with ExitStack() as trial:
                backend, image = how(trial, wish)
                made = _bring_up(trial, wish, backend, image)
                stack.push(trial.pop_all())
                return made
        except (NoHostsError, NoEngineError) as error:
            reasons.append(f"{kind}: {error}")
        _remove_own(wish.folder)
    raise NoHostsError("; ".join(reasons) or f"kind is docker or netns, not {wish.kind}")


def _namespaces(stack: ExitStack, wish: _Wish) -> tuple[Namespaces, str]:
    image = wish.shape.image
    if image is not None and not Path(image).is_dir():
        raise NoHostsError(f"namespaces need the folder of a root file system, not the image {image}")
    _in_memory(stack, wish.folder / "namespaces")
    made = Namespaces(wish.folder / "namespaces", f"vmh{wish.place}")
    return made, str(light_root(wish.cache) if image is None else Path(image))


def _docker(stack: ExitStack, wish: _Wish) -> tuple[Docker, str]:
    address = wish.docker_host or os.environ.get("DOCKER_HOST")
    if address is None:
        if os.geteuid() != 0:
            raise NoHostsError("starting dockerd takes root; set DOCKER_HOST for an engine that runs")
        if wish.shape.image is None:
            _in_memory(stack, wish.folder / "engine")
        address = stack.enter_context(engine(wish.folder / "engine"))
    made, image = Docker(address, f"vmh{wish.place}"), wish.shape.image
    if image is None:
        return made, light_image(made.call, wish.cache)
    return made, layered_image(made.call, image, wish.cache)


def _bring_up(stack: ExitStack, wish: _Wish, backend: Docker | Namespaces, image: str) -> Hosts:
    networks = make_networks(wish.place)
    hosts = make_hosts(wish.shape.count, networks, backend)
    keys = make_keys(wish.folder / "login", [host.name for host in hosts])
    shared = wish.shape.shared or wish.folder / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    stack.callback(backend.close)
    python = wish.shape.python or (None if wish.shape.image is None else Path(IMAGE_PYTHON))
    backend.up(Plan(wish.shape, image, hosts, networks, keys, shared, python))
    write_login(keys, hosts, networks, python)
    made = Hosts(hosts, networks, keys.folder, shared, backend, wish.shape)
    made.wait_for_ssh()
    return made


def make_networks(place: int) -> dict[Which, Network]:
    """The two networks of a place; the management network first, since the first is ``eth0``."""
    found: dict[Which, Network] = {}
    names: tuple[Which, Which] = ("management", "training")
    for index, which in enumerate(names):
        found[which] = Network(
            which,
            ipaddress.IPv4Network(f"10.{201 + index}.{place}.0/24"),
            ipaddress.IPv6Network(f"fd00:{201 + index}:{place}::/64"),
            f"eth{index}",
            f"vmh{place}{which[0]}",
        )
    return found


def make_hosts(count: int, networks: dict[Which, Network], backend: Backend) -> tuple[Host, ...]:
    """``host1`` to ``hostN`` with their addresses."""
    first, second = networks["management"], networks["training"]
    return tuple(
        Host(
            f"host{number}",
            number,
            first.address(number),
            second.address(number),
            first.address6(number),
            second.address6(number),
            backend,
        )
        for number in range(1, count + 1)
    )


@contextmanager
def _place() -> Iterator[int]:
    """A number for this set of hosts that no other on this machine has, also while others start."""
    root = Path(tempfile.gettempdir()) / "verl-musa-hosts"
    root.mkdir(exist_ok=True)
    taken = subprocess.run(
        [shutil.which("ip") or "/sbin/ip", "-o", "link"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    ).stdout
    for number in range(PLACES):
        mark = root / str(number)
        try:
            mark.mkdir()
        except FileExistsError:
            if not _abandoned(mark):
                continue
        (mark / "pid").write_text(str(os.getpid()))
        if f"vmh{number}m" in taken:
            continue
        try:
            yield number
        finally:
            shutil.rmtree(mark, ignore_errors=True)
        return
    raise NoHostsError(f"{root} has marks of {PLACES} sets of hosts")


def _abandoned(mark: Path) -> bool:
    """Whether the process that made a mark is gone."""
    try:
        pid = int((mark / "pid").read_text())
    except (OSError, ValueError):
        return False
    return not Path(f"/proc/{pid}").exists()


def _remove_own(folder: Path) -> None:
    """Remove what a set of hosts leaves behind; the shared folder stays."""
    for name in ("login", "engine", "namespaces"):
        shutil.rmtree(folder / name, ignore_errors=True)


@contextmanager
def _folder(place: int) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=f"hosts{place}-"))
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(path)
