from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from verl_musa.cluster.fleet import MARK, Fleet
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.ssh import Done

Answers = Callable[[str, str, Mapping[str, Any]], Any]


@dataclass
class AgentRemote:
    """Hosts whose agents answer what ``answers(host, verb, request)`` returns: JSON, bytes as they are, or an exit code of ssh."""

    answers: Answers
    calls: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)

    def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
        assert timeout_s > 0
        assert argv[1:3] == ["-m", "verl_musa.cluster.agent"]
        verb, request = argv[3], json.loads(stdin)
        self.calls.append((host.name, verb, request))
        answer = self.answers(host.name, verb, request)
        if isinstance(answer, int):
            return Done(host.name, answer, b"", "ssh: No route to host\n", 0.1)
        raw = answer if isinstance(answer, bytes) else f"Welcome!\n{MARK}{json.dumps(answer)}\n".encode()
        return Done(host.name, 0, raw, "", 0.1)

    def verbs(self) -> list[tuple[str, str]]:
        return [(host, verb) for host, verb, _ in self.calls]


MakeFleet = Callable[[Answers], tuple[Fleet, AgentRemote]]


@pytest.fixture
def make_fleet() -> MakeFleet:
    def make(answers: Answers) -> tuple[Fleet, AgentRemote]:
        remote = AgentRemote(answers)
        return Fleet(remote, "/opt/python"), remote

    return make
