"""Faults of ssh and of what a session finds there: limits, environment, clock, Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ci.hosts.model import Host

# Ends the sshd that listens, not the sessions of it; then starts another as the arguments say. Bounded by 5 s.
_RESTART = """
pid=$(cat /run/sshd.pid); kill -9 "$pid"
i=0; while kill -0 "$pid" 2>/dev/null && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done
rm -f /run/sshd.pid
"$@"
i=0; while [ ! -s /run/sshd.pid ] && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done
[ -s /run/sshd.pid ]
"""
SSHD = "/usr/sbin/sshd"
BASHRC = "/root/.bashrc"  # verl-musa: ignore[path.machine] inside a host that is made here
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def restart_sshd(host: Host, prefix: Sequence[str] = (), options: Sequence[str] = ()) -> None:
    """Put another sshd in the place of the one that listens."""
    host.sh(_RESTART, *prefix, SSHD, *options)


@contextmanager
def sshd(host: Host, *, prefix: Sequence[str] = (), options: Sequence[str] = ()) -> Iterator[None]:
    """An sshd started under ``prefix`` with ``options``, whose sessions inherit what that brings."""
    restart_sshd(host, prefix, options)
    try:
        yield
    finally:
        restart_sshd(host)


@contextmanager
def low_ulimit(host: Host, limit: str, value: int) -> Iterator[None]:
    """Sessions may open few files (``nofile``), start few processes (``nproc``) or lock little memory (``memlock``): Ray dies under load."""
    with sshd(host, prefix=("prlimit", f"--{limit}={value}:{value}")):
        yield


@contextmanager
def low_pids(host: Host, limit: int, normal: int = 20000) -> Iterator[None]:
    """The host's control group allows few processes and threads: "Resource temporarily unavailable" once workers start."""
    host.backend.limit_pids(host.name, limit)
    try:
        yield
    finally:
        host.backend.limit_pids(host.name, normal)


@contextmanager
def environment(host: Host, values: Mapping[str, str]) -> Iterator[None]:
    """Sessions on this host have further variables: what a line in ``/etc/environment`` does."""
    words = " ".join(f'{name}="{value}"' for name, value in values.items())
    with sshd(host, options=("-o", f"SetEnv={words}")):
        yield


@contextmanager
def proxy(host: Host, address: str = "http://192.0.2.9:3128") -> Iterator[None]:
    """A proxy in the environment takes the cluster's own HTTP: submitting a job fails with an error of a machine nobody asked."""
    with environment(host, {"http_proxy": address, "https_proxy": address}):
        yield


@contextmanager
def clock_skew(host: Host, seconds: int) -> Iterator[None]:
    """The host's clock is this far off: logs cannot be put in order, tokens expire; no NTP.

    Kernels share one clock among containers, so what is shifted is what programs of ssh sessions get when they ask the C library for
    the time (libfaketime): ``date`` and Python see it, the dates of files do not, and neither does what sshd did not start.
    """
    values = {"LD_PRELOAD": FAKETIME, "FAKETIME": f"{seconds:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with environment(host, values):
        yield


@contextmanager
def wrong_key(host: Host) -> Iterator[None]:
    """The user's key is not accepted: "Permission denied (publickey)"; a host that was set up anew."""
    host.sh('mv "$1" "$1.before"', "/etc/ssh/hosts_authorized")
    try:
        yield
    finally:
        host.sh('mv "$1.before" "$1"', "/etc/ssh/hosts_authorized")


@contextmanager
def host_key_changed(host: Host) -> Iterator[None]:
    """The host has another key than the one known: "Host key verification failed"; installed anew, or not the machine one thinks."""
    path = "/etc/ssh/hosts_key"
    host.sh('mv "$1" "$1.before"; ssh-keygen -q -t ed25519 -N "" -f "$1"', path)
    restart_sshd(host)
    try:
        yield
    finally:
        host.sh('mv "$1.before" "$1"; rm "$1.pub"', path)
        restart_sshd(host)


@contextmanager
def sshd_hangs(host: Host) -> Iterator[None]:
    """A connection of ssh is made and gets no answer: a machine out of memory, or with a dead disk under its root."""
    pid = host.run(["cat", "/run/sshd.pid"]).strip()
    host.run(["kill", "-STOP", pid])
    try:
        yield
    finally:
        host.run(["kill", "-CONT", pid])


@contextmanager
def sshd_stopped(host: Host) -> Iterator[None]:
    """Connection refused: no sshd runs, or on another port."""
    pid = host.run(["cat", "/run/sshd.pid"]).strip()
    host.run(["kill", pid])
    try:
        yield
    finally:
        host.run([SSHD])


@contextmanager
def python_missing(host: Host, python: str = "/usr/bin/python3") -> Iterator[None]:
    """There is no python3: a minimal installation, or another path."""
    host.sh('mv "$1" "$1.before"', python)
    try:
        yield
    finally:
        host.sh('mv "$1.before" "$1"', python)


@contextmanager
def noisy_login(host: Host, text: str = "Welcome to this cluster") -> Iterator[None]:
    """Every command's output begins with a greeting: a ``.bashrc`` that prints, also where nobody reads; breaks what parses output."""
    script = 'touch "$2"; cp "$2" "$2.before"; { printf "echo %s\\n" "$1"; cat "$2.before"; } > "$2"'
    host.sh(script, f"'{text}'", BASHRC)
    try:
        yield
    finally:
        host.sh('mv "$1.before" "$1"', BASHRC)
