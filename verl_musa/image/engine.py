"""The Docker Engine at hand, by its command line: BuildKit where a client can do it, else the legacy builder."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from verl_musa.errors import ImageError

Progress = Callable[[str], None]

DOCKER_ENV = "VERL_MUSA_DOCKER"
"""Path of the docker command to use, where several are installed."""

ASK_S = 60.0
MOVE_S = 3600.0
BUILD_S = 7200.0
TAIL = 20


class StepFailedError(ImageError):
    """A step of a build failed; its log is kept."""


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    what: str,
    limit: float,
    env: Mapping[str, str] | None = None,
    each: Callable[[str], None] | None = None,
) -> None:
    """Run ``command`` with its output appended to ``log``; ``each`` is called with every line.

    Raises:
        StepFailedError: it failed or ran past ``limit`` seconds; the message holds the log's last lines.
    """
    with (
        log.open("a", encoding="utf-8") as stream,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=None if env is None else dict(env),
        ) as process,
    ):
        stream.write(f"--- {what}: {' '.join(command)}\n")
        watchdog = threading.Timer(limit, process.kill)
        watchdog.start()
        try:
            for line in process.stdout or ():
                stream.write(line)
                stream.flush()
                if each is not None:
                    each(line.rstrip())
            code = process.wait(timeout=limit)
        finally:
            watchdog.cancel()
            if process.poll() is None:
                process.kill()
    if code != 0:
        tail = "\n".join(f"    | {line}" for line in log.read_text(errors="replace").splitlines()[-TAIL:])
        raise StepFailedError(
            f"step {what!r} failed (exit {code})",
            where=str(log),
            found=f"its last lines were\n{tail}",
            expected="exit 0",
            fix="read the log; it is kept",
        )


@dataclass(frozen=True)
class Engine:
    """One docker client and the engine that it talks to.

    Attributes:
        command: the client.
        version: of the engine.
        builder: ``buildkit`` or ``legacy``.
    """

    command: str
    version: str
    builder: str

    def build(self, context: Path, arguments: Sequence[str], log: Path, each: Callable[[str], None]) -> None:
        """Build ``context/Dockerfile`` without a network.

        Raises:
            StepFailedError: a step failed.
        """
        progress = ["--progress=plain"] if self.builder == "buildkit" else []
        command = [self.command, "build", *progress, "--network", "none", *arguments, str(context)]
        env = {**os.environ, "DOCKER_BUILDKIT": "1" if self.builder == "buildkit" else "0"}
        run_logged(command, log, what="build", limit=BUILD_S, env=env, each=each)

    def has(self, reference: str) -> bool:
        """Whether the engine holds that image."""
        return self._ask("image", "inspect", "--format", "{{.Id}}", reference).returncode == 0

    def image_id(self, reference: str) -> str:
        """``sha256:…`` of an image.

        Raises:
            ImageError: the engine has none of that name.
        """
        return str(self.inspect(reference)["Id"])

    def inspect(self, reference: str) -> dict[str, Any]:
        """What the engine knows of an image.

        Raises:
            ImageError: the engine has none of that name.
        """
        asked = self._ask("image", "inspect", reference)
        if asked.returncode != 0:
            raise ImageError(
                "the engine has no such image",
                where=reference,
                found=asked.stderr.strip(),
                expected="a name or id that `docker images` lists",
                fix="build it: nox -s build_image, or load it: verl-musa image load",
            )
        found: dict[str, Any] = json.loads(asked.stdout)[0]
        return found

    def tag(self, reference: str, name: str) -> None:
        """Give an image another name."""
        self._need("tag", reference, name)

    def pull(self, reference: str, log: Path) -> None:
        """Pull by digest."""
        run_logged([self.command, "pull", reference], log, what="pull", limit=MOVE_S)

    def import_tar(self, tar: Path, tag: str, log: Path) -> None:
        """Make an image of one layer of a root file system's tar."""
        run_logged([self.command, "import", str(tar), tag], log, what="import", limit=MOVE_S)

    def load(self, tar: Path, log: Path) -> str:
        """Load a tar of ``docker save``; return the reference or id that it brought."""
        lines: list[str] = []
        run_logged(
            [self.command, "load", "--input", str(tar)], log, what="load", limit=MOVE_S, each=lines.append
        )
        loaded = [line.partition(": ")[2] for line in lines if line.startswith("Loaded image")]
        if len(loaded) != 1:
            raise ImageError("not a tar of one image", where=str(tar), found=", ".join(loaded) or "no image")
        return loaded[0]

    def save(self, reference: str, tar: Path) -> None:
        """Write an image as a tar."""
        self._need("save", "--output", str(tar), reference, limit=MOVE_S)

    def run(
        self, reference: str, arguments: Sequence[str], *, limit: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a new container without a network; the container is removed."""
        return self._ask("run", "--rm", "--network", "none", "--init", reference, *arguments, limit=limit)

    @contextmanager
    def export(self, reference: str) -> Iterator[IO[bytes]]:
        """The whole file system of an image, as a tar to read from.

        Raises:
            ImageError: the engine cannot make a container of it.
        """
        container = self._need("create", "--network", "none", reference, "true").stdout.strip()
        try:
            process = subprocess.Popen([self.command, "export", container], stdout=subprocess.PIPE)
            try:
                if process.stdout is None:
                    raise AssertionError("a process with a pipe has one")
                yield process.stdout
                process.stdout.close()
                process.wait(timeout=ASK_S)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        finally:
            self._ask("rm", "--force", container)

    def read(self, reference: str, path: str) -> dict[str, bytes]:
        """The files of a folder of an image, by name; empty where it has no such folder."""
        container = self._need("create", "--network", "none", reference, "true").stdout.strip()
        try:
            done = subprocess.run(
                [self.command, "cp", f"{container}:{path}/.", "-"],
                capture_output=True,
                check=False,
                timeout=ASK_S,
            )
        finally:
            self._ask("rm", "--force", container)
        found: dict[str, bytes] = {}
        if done.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
                for member in tar:
                    stream = tar.extractfile(member)
                    if stream is not None:
                        found[member.name.removeprefix("./")] = stream.read()
        return found

    def remove(self, reference: str) -> bool:
        """Remove an image; False where something still needs it."""
        return self._ask("rmi", reference).returncode == 0

    def _ask(self, *arguments: str, limit: float = ASK_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.command, *arguments], capture_output=True, text=True, check=False, timeout=limit
        )

    def _need(self, *arguments: str, limit: float = ASK_S) -> subprocess.CompletedProcess[str]:
        done = self._ask(*arguments, limit=limit)
        if done.returncode != 0:
            raise ImageError(
                f"docker {arguments[0]} failed", where=arguments[-1], found=done.stderr.strip() or done.stdout
            )
        return done


def find_engine() -> Engine:
    """The engine at hand, through the client that can do most.

    Raises:
        ImageError: no client, or no engine answers.
    """
    commands = _clients()
    answers = [(command, *_version(command)) for command in commands]
    alive = [(command, server) for command, server, _ in answers if server]
    for builder in ("buildkit", "legacy"):
        for command, server in alive:
            if builder == "legacy" or _has_buildkit(command):
                return Engine(command, server, builder)
    raise ImageError(
        "no Docker Engine answers",
        where=os.environ.get("DOCKER_HOST", "the default socket"),
        found="; ".join(f"{command}: {problem}" for command, _, problem in answers) or "no docker command",
        expected="an engine that this user may talk to",
        fix="start it (`systemctl start docker`), install it (Debian: apt-get install docker.io), or set DOCKER_HOST",
    )


def _clients() -> list[str]:
    named = os.environ.get(DOCKER_ENV)
    if named:
        return [named]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = [path for folder in folders if (path := shutil.which("docker", path=folder))]
    return list(dict.fromkeys(found))


def _version(command: str) -> tuple[str, str]:
    """(engine's version, "") or ("", why it does not answer)."""
    try:
        asked = subprocess.run(
            [command, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=ASK_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if asked.returncode == 0:
        return asked.stdout.strip(), ""
    return "", (asked.stderr.strip().splitlines() or ["no answer"])[-1]


def _has_buildkit(command: str) -> bool:
    """Clients before 23 have BuildKit in them, later ones in their component buildx."""
    if subprocess.run([command, "buildx", "version"], capture_output=True, check=False, timeout=ASK_S).returncode == 0:  # fmt: skip
        return True
    asked = subprocess.run(
        [command, "version", "--format", "{{.Client.Version}}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=ASK_S,
    )
    major = asked.stdout.partition(".")[0].strip()
    return major.isdigit() and 18 < int(major) < 23  # noqa: PLR2004  (19.03 brought it, 23 moved it out)
