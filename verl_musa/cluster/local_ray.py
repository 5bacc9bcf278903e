"""A Ray of this run's own on this host: sized to fit, started with bounded waits, private to the run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_musa.cluster.host import GIB, available_memory, check_port, free_ports
from verl_musa.cluster.jobs_api import JobsApi, RayApiError
from verl_musa.cluster.logs import tail
from verl_musa.cluster.processes import TAG
from verl_musa.errors import HostError

MIB = 1024**2
# A unix socket's path has at most 107 bytes; Ray appends up to 74 ("/session_<date>_<time>_<us>_<pid>/sockets/...").
LONGEST_TEMP_DIR = 107 - 74
# Ray gives up far too early on a loaded host: these are the waits that were seen to carry it through.
WAITS = {
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "180",
    "RAY_raylet_start_wait_time_s": "900",
    "RAY_worker_register_timeout_seconds": "900",
}
# Where Ray's autoscaler and dashboard serve their own metrics: a dashboard that is told to listen on the latter dies.
METRIC_PORTS = frozenset({44217, 44227})
# Settings of the calling shell that would send this run's processes to another Ray.
FOREIGN = (
    "RAY_ADDRESS",
    "RAY_API_SERVER_ADDRESS",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "RAY_NAMESPACE",
    "RAY_TMPDIR",
)
_DASHBOARD_DIED = re.compile(r"Module \w+ failed to start|[Tt]he dashboard on node \S+ failed")


@dataclass(frozen=True)
class RayPlan:
    """Sizes and addresses of the Ray to start; ports are TCP ports on this host, memory is in bytes."""

    temp_dir: Path
    port: int
    dashboard_port: int
    client_port: int
    agent_port: int
    num_cpus: int
    num_gpus: int
    object_store_bytes: int

    @property
    def url(self) -> str:
        """The dashboard's address."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    def command(self) -> list[str]:
        """The command that starts this Ray and stays in the foreground as its parent."""
        options = {
            "port": self.port,
            "dashboard-host": "127.0.0.1",
            "dashboard-port": self.dashboard_port,
            "dashboard-agent-listen-port": self.agent_port,
            "ray-client-server-port": self.client_port,
            "node-ip-address": "127.0.0.1",
            "num-cpus": self.num_cpus,
            "num-gpus": self.num_gpus,
            "object-store-memory": self.object_store_bytes,
            # Whatever is free: Ray's own default, 10002 to 19999, is the same for every Ray of a host, and two of them meet there.
            "min-worker-port": 0,
            "max-worker-port": 0,
            "temp-dir": self.temp_dir,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        return [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
            *flags,
        ]


def object_store_bytes() -> int:
    """Size of Ray's object store: a sixteenth of the free memory, at least 256 MiB, at most 1 GiB."""
    return int(max(256 * MIB, min(GIB, available_memory() // 16)))


def make_temp_dir() -> Path:
    """A fresh short folder for Ray's sockets and logs, below the system's temporary folder.

    Raises:
        HostError: the temporary folder's path is too long for a unix socket.
    """
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) + len("/vm-12345678") > LONGEST_TEMP_DIR:
        raise HostError(
            "the path of the temporary folder is too long for Ray's sockets",
            where=str(parent),
            found=f"{len(str(parent))} characters",
            expected=f"at most {LONGEST_TEMP_DIR - len('/vm-12345678')}",
            fix="set TMPDIR to a shorter path",
        )
    return Path(tempfile.mkdtemp(prefix="vm-", dir=parent))


def dashboard_failure(session: Path | None) -> str | None:
    """The line in which Ray's dashboard says that it gave up starting; None where it does not.

    ``ray start`` does not notice: it calls the runtime started, and nothing ever answers on the dashboard's port.
    """
    logs = sorted((session / "logs").glob("dashboard*")) if session else []
    for path in logs:
        line = next((line for line in tail(path, 60).splitlines() if _DASHBOARD_DIED.search(line)), None)
        if line is not None:
            return line.strip()
    return None


def plan_ray(
    *,
    num_cpus: int,
    num_gpus: int,
    temp_dir: Path,
    port: int | None = None,
    dashboard_port: int | None = None,
) -> RayPlan:
    """Choose sizes and ports. Ports that the user asked for are checked, the others are free ones.

    Raises:
        HostError: an asked-for port is taken.
    """
    if port is not None:
        check_port(port, "--ray-port")
    if dashboard_port is not None:
        check_port(dashboard_port, "--dashboard-port")
    spare = [number for number in free_ports(4 + len(METRIC_PORTS)) if number not in METRIC_PORTS]
    return RayPlan(
        temp_dir=temp_dir,
        port=port or spare[0],
        dashboard_port=dashboard_port or spare[1],
        client_port=spare[2],
        agent_port=spare[3],
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        object_store_bytes=object_store_bytes(),
    )


def ray_environment(
    run_id: str, extra: Mapping[str, str], base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment that every process of the run inherits from Ray's own processes."""
    inherited = dict(os.environ if base is None else base)
    for name in FOREIGN:
        inherited.pop(name, None)
    direct = {"127.0.0.1", "localhost", *filter(None, inherited.get("no_proxy", "").split(","))}
    return {
        **inherited,
        "no_proxy": ",".join(sorted(direct)),
        "NO_PROXY": ",".join(sorted(direct)),
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        **WAITS,
        **extra,
        TAG: run_id,
    }


class LocalRay:
    """A started Ray.

    Args:
        plan: its sizes and addresses.
        process: the foreground ``ray start`` that is the parent of Ray's processes.
        log: where its output goes.
    """

    def __init__(self, plan: RayPlan, process: subprocess.Popen[bytes], log: Path) -> None:
        self.plan = plan
        self.api = JobsApi(plan.url)
        self.session_dir: Path | None = None
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """The pid of ``ray start``."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """The exit code of ``ray start`` once Ray is gone, else None."""
        return self._process.poll()

    def wait_ready(self, *, timeout_s: float, pause: Callable[[float], None] = time.sleep) -> None:
        """Wait until the dashboard answers and the node offers the planned devices.

        Raises:
            HostError: Ray ended or did not become ready within ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        seen = "no answer yet"
        while time.monotonic() < deadline:
            if (code := self.exit_code()) is not None:
                raise self._failure(f"Ray ended with code {code} while it started")
            if (said := dashboard_failure(self._started_session())) is not None:
                raise self._failure(f"Ray's dashboard died at its start: {said}")
            try:
                version = self.api.version()
                self.session_dir = self.plan.temp_dir / str(version["session_name"])
                nodes = [node for node in self.api.nodes() if node.get("state") == "ALIVE"]
                gpus = sum(int(node.get("resources_total", {}).get("GPU", 0)) for node in nodes)
                if nodes and gpus == self.plan.num_gpus:
                    return
                seen = f"{len(nodes)} living nodes with {gpus} devices"
            except RayApiError as error:
                seen = str(error)
            pause(0.5)
        raise self._failure(f"Ray was not ready within {timeout_s:.0f} s ({seen})")

    def _started_session(self) -> Path | None:
        found = sorted(self.plan.temp_dir.glob("session_[0-9]*"))
        return found[-1] if found else None

    def _failure(self, message: str) -> HostError:
        return HostError(
            message,
            where=platform.node(),
            found="\n" + tail(self._log, 15),
            expected=f"{self.plan.url}/api/version answers, {self.plan.num_gpus} devices offered",
            fix="look into the log above and the logs folder of the run; on a loaded host, try again",
        )


def start_ray(plan: RayPlan, *, environment: Mapping[str, str], log: Path, cwd: Path) -> LocalRay:
    """Start ``ray start --head --block`` in a session of its own and return at once."""
    with log.open("ab") as stream:
        process = subprocess.Popen(
            plan.command(),
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C of the terminal reaches the runner only, which then ends Ray in order
        )
    return LocalRay(plan, process, log)
