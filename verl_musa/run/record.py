"""``run.json``: what a run was made from, how it went and how it ended."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verl_musa.errors import RunError
from verl_musa.fileio import write_json

Status = Literal["created", "preparing", "running", "succeeded", "failed", "interrupted"]
GOING_ON = frozenset({"created", "preparing", "running"})
"""A run with such a status has not ended, or was cut short without a word."""
MASK = "***"
_SECRET = re.compile(
    r"(token|secret|password|passwd|credential|api_?key|access_?key|private_?key)s?$", re.IGNORECASE
)
_SECRET_VARIABLE = re.compile(rf"{_SECRET.pattern}|key$", re.IGNORECASE)


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, validate_by_name=True)


class RecipeFacts(_Part):
    """Which recipe."""

    name: str
    version: str
    folder: str
    variants: list[str] = []


class GitFacts(_Part):
    """The checkout that the recipe lies in."""

    commit: str
    dirty: bool


class DeviceFacts(_Part):
    """Where the workers proved to run; ``count`` is the number asked for over all hosts.

    ``pools``: how many of them each pool gets, where trainer and rollout do not share them.
    """

    type: str
    simulated: bool
    count: int
    pools: dict[str, int] = {}
    proven: bool = False
    workers: list[dict[str, Any]] = []
    mccl_calls: dict[str, int] = {}


class ProcessFacts(_Part):
    """A process that outlives a moment: its pid and start time in seconds since the epoch."""

    pid: int
    started: float


class RayFacts(_Part):
    """The Ray of an attempt."""

    temp_dir: str
    port: int
    dashboard_port: int
    num_gpus: int
    num_cpus: int
    object_store_bytes: int


class OverrideFacts(_Part):
    """One override and where it was written."""

    key: str
    value: Any
    origin: str


class GateFacts(_Part):
    """The correctness gate; ``mode`` is before, only or off. ``ran``: whether the job got as far as its verdicts."""

    mode: str
    ran: bool = False
    exit_code: int | None = None
    counts: dict[str, int] = {}
    failed: list[str] = []
    seconds: float | None = None


class LockFacts(_Part):
    """How the run stands with its recipe's lock; ``why``: the reason where it is unlocked.

    ``items``: status of each item; ``unlocked``: the reason given for each item that was let through.
    """

    status: Literal["locked", "unlocked"]
    why: str = ""
    sha256: str = ""
    items: dict[str, str] = {}
    unlocked: dict[str, str] = {}


class ImageFacts(_Part):
    """What the run was made in: ``image`` or ``environment``, with the hash of its content."""

    kind: str
    sha256: str


class HostFacts(_Part):
    """A host of an attempt on several hosts: its name, where ssh goes, and its address and interface in the training network."""

    name: str
    ssh: str
    address: str
    interface: str
    hostname: str
    head: bool = False


class ClusterFacts(_Part):
    """The hosts of a run on several hosts.

    ``hosts``: those that may be used, in order and with their slots as a hostfile has them; those beyond ``nodes`` are spares.
    ``shared``: the folder that all of them see.
    """

    nodes: int
    devices_per_node: int
    hosts: list[str]
    head: str
    site: str
    shared: str
    url: str = ""
    retries: int = 0


class Attempt(_Part):
    """One start of the run; a resumed run has several.

    ``hosts``: of a run on several hosts, those that it ran on; ``lost``: host -> why it was lost; ``rejected``: a sentence for
    each checkpoint that it could have gone on from, but for what is wrong with it.
    """

    number: int
    started_at: str
    ended_at: str | None = None
    resumed_from_step: int = 0
    status: Status = "created"
    exit_reason: str | None = None
    runner: ProcessFacts
    ray: RayFacts | None = None
    submission_id: str | None = None
    hosts: list[HostFacts] = []
    lost: dict[str, str] = {}
    rejected: list[str] = []

    @property
    def metrics_name(self) -> str:
        """Name, below the logs folder, of the file that verl logs to in this attempt."""
        return f"metrics-attempt-{self.number}.jsonl"


class RunRecord(_Part):
    """The whole of ``run.json``."""

    schema_version: Annotated[Literal[1], Field(alias="schema")] = 1
    run_id: str
    status: Status
    exit_reason: str | None = None
    recipe: RecipeFacts
    created_at: str
    ended_at: str | None = None
    seed: int
    device: DeviceFacts
    host: str
    python: str
    versions: dict[str, str]
    git: GitFacts | None
    sets: list[str]
    overrides: list[OverrideFacts]
    total_steps: int | None = None
    patches: dict[str, Any] | None = None
    gate: GateFacts | None = None
    lock: LockFacts | None = None
    image: ImageFacts | None = None
    cluster: ClusterFacts | None = None
    attempts: list[Attempt]
    summary: dict[str, Any] | None = None

    @property
    def attempt(self) -> Attempt:
        """The latest attempt."""
        return self.attempts[-1]

    def set_status(self, status: Status, reason: str | None = None) -> None:
        """Note a status here and in the latest attempt; an end gets its time and reason."""
        self.status = self.attempt.status = status
        if status in {"succeeded", "failed", "interrupted"}:
            self.ended_at = self.attempt.ended_at = now()
            self.exit_reason = self.attempt.exit_reason = reason

    def save(self, path: Path) -> None:
        """Write the record, atomically."""
        write_json(path, self.model_dump(mode="json", by_alias=True))


def load_record(path: Path) -> RunRecord:
    """Read a ``run.json``.

    Raises:
        RunError: it is missing, unreadable or of another schema.
    """
    try:
        return RunRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        found = (
            "; ".join(e["msg"] + " at " + ".".join(map(str, e["loc"])) for e in error.errors()[:3])
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise RunError(
            "this run's record cannot be read",
            where=str(path),
            found=found,
            expected="a run.json of schema 1",
            fix="use the version of verl-musa that made the run, or start a new run",
        ) from error


def is_secret(name: str) -> bool:
    """Whether a config key (its last part) is named like a secret."""
    return bool(_SECRET.search(name.rpartition(".")[2]))


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable is named like a secret."""
    return bool(_SECRET_VARIABLE.search(name))


def masked_value(name: str, value: Any) -> Any:
    """``value``, or a mask when the config key ``name`` is named like a secret."""
    return MASK if is_secret(name) and isinstance(value, str) and value else value


def masked_set(text: str) -> str:
    """A ``key=value`` with the value of a secret masked."""
    key, equals, value = text.partition("=")
    return f"{key}{equals}{masked_value(key, value)}"


def masked_environment(runtime_env: dict[str, Any]) -> dict[str, Any]:
    """A copy of a Ray ``runtime_env`` with the values of secret variables masked."""
    variables = runtime_env.get("env_vars", {})
    shown = {name: MASK if is_secret_variable(name) else value for name, value in variables.items()}
    return {**runtime_env, **({"env_vars": shown} if variables else {})}
