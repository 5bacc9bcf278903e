"""Ray's HTTP interface: the Jobs API and the state API, with bounded waits and no proxy in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests

SUBMIT_S = 180.0
"""Bound of handing in a job: Ray starts processes before it answers, which takes long on a loaded host."""


class RayApiError(Exception):
    """Ray's dashboard did not answer, or answered with an error."""


@dataclass(frozen=True)
class Job:
    """One submitted job as Ray sees it."""

    status: str
    message: str
    exit_code: int | None

    @property
    def ended(self) -> bool:
        """Whether Ray is done with it."""
        return self.status in {"SUCCEEDED", "FAILED", "STOPPED"}


class JobsApi:
    """A client of one Ray dashboard.

    Args:
        url: such as ``http://127.0.0.1:8265``.
        timeout_s: bound of every single request.
    """

    def __init__(self, url: str, *, timeout_s: float = 20.0) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout_s
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the environment knows nothing of 127.0.0.1

    def _call(self, method: str, path: str, *, timeout_s: float | None = None, **options: Any) -> Any:
        bound = self._timeout if timeout_s is None else timeout_s
        try:
            answer = self._session.request(method, self.url + path, timeout=bound, **options)
        except requests.RequestException as error:
            raise RayApiError(f"{method} {path}: {error}") from error
        if not answer.ok:
            raise RayApiError(f"{method} {path}: HTTP {answer.status_code}: {answer.text[-2000:]}")
        try:
            return answer.json()
        except ValueError as error:
            raise RayApiError(f"{method} {path}: not JSON: {answer.text[:200]!r}") from error

    def version(self) -> dict[str, Any]:
        """What ``/api/version`` says: ``ray_version``, ``session_name`` and more."""
        return dict(self._call("GET", "/api/version"))

    def submit(
        self, entrypoint: str, *, submission_id: str, runtime_env: dict[str, Any], metadata: dict[str, str]
    ) -> str:
        """Hand in a job and return its submission id."""
        body = {
            "entrypoint": entrypoint,
            "submission_id": submission_id,
            "runtime_env": runtime_env,
            "metadata": metadata,
        }
        return str(self._call("POST", "/api/jobs/", json=body, timeout_s=SUBMIT_S)["submission_id"])

    def job(self, submission_id: str) -> Job:
        """The state of a submitted job."""
        answer = self._call("GET", f"/api/jobs/{submission_id}")
        return Job(
            status=str(answer["status"]),
            message=str(answer.get("message") or ""),
            exit_code=answer.get("driver_exit_code"),
        )

    def job_logs(self, submission_id: str) -> str:
        """The job's driver output so far."""
        return str(self._call("GET", f"/api/jobs/{submission_id}/logs")["logs"])

    def stop(self, submission_id: str) -> None:
        """Ask Ray to stop a job."""
        self._call("POST", f"/api/jobs/{submission_id}/stop")

    def actors(self) -> list[dict[str, Any]]:
        """Every actor, living or dead, with its death cause."""
        return self._state("actors")

    def nodes(self) -> list[dict[str, Any]]:
        """Every node with its state and total resources."""
        return self._state("nodes")

    def _state(self, what: str) -> list[dict[str, Any]]:
        answer = self._call("GET", f"/api/v0/{what}", params={"detail": "true", "limit": "10000"})
        if not answer.get("result"):
            raise RayApiError(f"GET /api/v0/{what}: {answer.get('msg')}")
        return list(answer["data"]["result"]["result"])
