"""A Docker Engine of this process's own, for tests and CI: started with its own folder and socket, ended by its own pid.

python ci/engine.py FOLDER -- COMMAND...    # runs COMMAND with DOCKER_HOST set
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0


class NoEngineError(Exception):
    """No engine can be started here; the text says why."""


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """Start ``dockerd`` with everything of it below ``folder``; yield the address for ``DOCKER_HOST``.

    It gets no bridge and writes no firewall rule: builds run without a network, containers with ``--network none`` or ``host``.

    Raises:
        NoEngineError: it is not installed, or does not come up within a minute.
    """
    program = shutil.which("dockerd") or shutil.which("dockerd", path="/usr/sbin:/usr/bin")
    if program is None:
        raise NoEngineError("dockerd is not installed (Debian: apt-get install docker.io)")
    folder.mkdir(parents=True, exist_ok=True)
    address = f"unix://{folder / 'docker.sock'}"
    command = [program, "--host", address, "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
               "--pidfile", str(folder / "docker.pid"), "--iptables=false", "--ip-forward=false", "--bridge=none"]  # fmt: skip
    log = folder / "dockerd.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
    try:
        _wait(process, address, log)
        yield address
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        asked = subprocess.run(
            [
                shutil.which("docker") or "/usr/bin/docker",
                "--host",
                address,
                "version",
                "--format",
                "{{.Server.Version}}",
            ],
            capture_output=True,
            check=False,
            timeout=START_LIMIT_S,
        )
        if asked.returncode == 0:
            return
        time.sleep(0.5)
    tail = " | ".join(log.read_text(errors="replace").splitlines()[-3:])
    raise NoEngineError(f"dockerd does not come up: {tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the engine: politely first, since it then ends its own containerd."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=STOP_LIMIT_S)


def main() -> int:
    """Run the command line's command beside an engine."""
    folder, separator, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    if separator != "--" or not command:
        raise SystemExit(__doc__)
    try:
        with engine(Path(folder).resolve()) as address:
            done = subprocess.run(command, env={**os.environ, "DOCKER_HOST": address}, check=False)
            return done.returncode
    except NoEngineError as error:
        raise SystemExit(f"no Docker Engine: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
