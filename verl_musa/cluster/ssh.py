"""Commands on other hosts over the system's ssh: argument lists, a bound on each, all hosts at once.

The user's own ssh configuration holds (jump hosts, keys), but for what ``site.yaml`` sets.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from verl_musa.cluster.hosts import Host
from verl_musa.errors import HostError
from verl_musa.recipe.site import Site

AT_ONCE = 64
"""Connections that are open at once."""

SSH_FAILED = 255
"""Exit code of ssh itself; a command's own 255 cannot be told apart from it."""


@dataclass(frozen=True)
class Done:
    """What became of a command on a host.

    Attributes:
        host: the host's name.
        code: exit code; None where the bound ran out.
        stdout: what it wrote.
        stderr: what it, or ssh, wrote to standard error.
        seconds: how long it took.
    """

    host: str
    code: int | None
    stdout: bytes
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended with 0."""
        return self.code == 0

    @property
    def unreachable(self) -> bool:
        """Whether ssh itself failed."""
        return self.code == SSH_FAILED

    def why(self) -> str:
        """One line about a failure."""
        if self.code is None:
            return f"no end within {self.seconds:.0f} s"
        said = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return f"exit code {self.code}" + (f": {said[-1][:300]}" if said else "")


class Remote(Protocol):
    """Runs commands on hosts."""

    def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
        """Run ``argv`` on ``host``; never raises for what happens there."""
        ...


def run_all(
    remote: Remote,
    hosts: Iterable[Host],
    argv: Sequence[str] | Callable[[Host], Sequence[str]],
    *,
    stdin: bytes | Callable[[Host], bytes] = b"",
    timeout_s: float,
    seen: Callable[[Done], None] = lambda _: None,
) -> dict[str, Done]:
    """Run a command on all hosts at once.

    Args:
        remote: how they are reached.
        hosts: the hosts.
        argv: the command, or what makes it for a host.
        stdin: its input, or what makes it for a host.
        timeout_s: bound of each host in seconds.
        seen: told of each host as it is done.

    Returns:
        What became of it, by the host's name, in the order of ``hosts``.
    """
    all_hosts = list(hosts)

    def one(host: Host) -> Done:
        command = argv(host) if callable(argv) else argv
        return remote.run(host, command, stdin=stdin(host) if callable(stdin) else stdin, timeout_s=timeout_s)

    found: dict[str, Done] = {}
    pool = ThreadPoolExecutor(max_workers=min(AT_ONCE, max(1, len(all_hosts))))
    try:
        for future in as_completed([pool.submit(one, host) for host in all_hosts]):
            done = future.result()
            found[done.host] = done
            seen(done)
    except BaseException:
        pool.shutdown(
            wait=False, cancel_futures=True
        )  # an interrupt does not wait for hosts; each has its own bound
        raise
    pool.shutdown()
    return {host.name: found[host.name] for host in all_hosts}


class Ssh:
    """The system's ssh, as a site sets it.

    Args:
        site: the site.
        environment: of the ssh process; None: this process's.

    Raises:
        HostError: there is no ssh program.
    """

    def __init__(self, site: Site, environment: Mapping[str, str] | None = None) -> None:
        program = shutil.which("ssh")
        if program is None:
            raise HostError("no ssh program is installed", found="none on PATH", expected="OpenSSH's client",
                            fix="install it (Debian: apt-get install openssh-client)")  # fmt: skip
        self._site = site
        self._environment = None if environment is None else dict(environment)
        self._program = program

    def command(self, host: Host, argv: Sequence[str]) -> list[str]:
        """The whole argument list that runs ``argv`` on ``host``, in the site's container if it has one."""
        settings, site = self._site.ssh, self._site
        options = [
            "BatchMode=yes",
            f"ConnectTimeout={settings.connect_seconds}",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            "LogLevel=ERROR",
            "ForwardX11=no",
            "ForwardAgent=no",
            "PermitLocalCommand=no",
            "ClearAllForwardings=yes",
        ]
        if settings.known_hosts is not None:
            options.append(f"UserKnownHostsFile={_quoted(settings.known_hosts)}")
        command = [self._program, "-T"]
        if settings.config is not None:
            command += ["-F", str(Path(settings.config).expanduser())]
        if settings.key is not None:
            command += ["-i", str(Path(settings.key).expanduser())]
            options.append("IdentitiesOnly=yes")
        for option in options:
            command += ["-o", option]
        if settings.port is not None:
            command += ["-p", str(settings.port)]
        if settings.user is not None:
            command += ["-l", settings.user]
        inner = list(argv)
        if site.container != "bare":
            inner = [site.engine, "exec", "-i", site.container, *inner]
        # ssh joins its arguments with blanks and the far shell splits them again: quoted, they arrive as they are.
        return [*command, "--", host.address, shlex.join(inner)]

    def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
        """Run ``argv`` on ``host``. After ``timeout_s`` seconds ssh is ended; what it started may go on there."""
        start = time.monotonic()
        process = subprocess.Popen(
            self.command(host, argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # a Ctrl-C of the terminal is for the runner to handle
        )
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a ProxyCommand of the user's, too
            out, err = process.communicate()
            code = None
        seconds = time.monotonic() - start
        return Done(host.name, code, out, err.decode("utf-8", "replace"), seconds)


def _quoted(path: str) -> str:
    """A file name as one word of an ssh option."""
    whole = str(Path(path).expanduser())
    return '"' + whole.replace("\\", "\\\\").replace('"', '\\"') + '"'
