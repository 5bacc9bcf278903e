"""The whole look, with hosts that this machine plays: what it asks, what it writes, and hosts that do not answer."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tests.cluster.preflight.conftest import MakeRecipe, MakeResolved
from verl_musa.checks import Result, Status, to_json
from verl_musa.cli import main
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight import Bounds, check_ids, look, phases, probe, render, run_preflight
from verl_musa.cluster.preflight.check_host import ssh_finding
from verl_musa.cluster.preflight.program import ARGV
from verl_musa.cluster.preflight.view import Clock
from verl_musa.cluster.ssh import Done
from verl_musa.diagnose.triage_sources import clocks_of
from verl_musa.errors import HostError
from verl_musa.recipe import Site

QUICK = Bounds(facts=40.0, calls=2.0, files=3.0, start=2.0)


class Here:
    """Every host is this machine: the probe runs for real. ``gone`` fail as ssh does."""

    def __init__(self, gone: dict[str, str] | None = None) -> None:
        self.gone = gone or {}
        self.argv: list[tuple[str, tuple[str, ...]]] = []

    def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
        self.argv.append((host.name, tuple(argv)))
        if host.name in self.gone:
            return Done(host.name, 255, b"", self.gone[host.name], 0.1)
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, *argv[1:]], input=stdin, capture_output=True, timeout=timeout_s, check=False
        )
        return Done(
            host.name,
            done.returncode,
            b"motd\n" + done.stdout,
            done.stderr.decode(),
            time.monotonic() - start,
        )


def _site(tmp_path: Path, **more: Any) -> Site:
    return Site.model_validate(
        {"shared": str(tmp_path), "python": sys.executable, "networks": {"training": "lo"}, **more}
    )


def _hosts(count: int) -> tuple[Host, ...]:
    return tuple(Host(f"node{number}", "127.0.0.1", number == 1) for number in range(1, count + 1))


def test_one_host_for_real(tmp_path: Path, make_resolved: MakeResolved) -> None:
    remote = Here()
    said: list[str] = []
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    found = look(_site(tmp_path), _hosts(1), make_resolved(), remote, said.append, run_dir=run, bounds=QUICK)
    by_check = {result.check: result for result in found.results}
    assert set(by_check) <= set(check_ids())
    assert by_check["host.ssh"].status is Status.OK
    assert by_check["path.exists"].status is Status.FAIL, "its model is not there"
    assert by_check["version.site"].status is Status.OK
    assert by_check["lock.entry"].status in {Status.WARN, Status.UNKNOWN}
    assert all(argv == ARGV for _, argv in remote.argv)
    assert len(remote.argv) == 2
    assert found.addresses == {"node1": "127.0.0.1"}
    assert said[0] == "asking 1 hosts"
    assert (
        json.loads((run / "logs" / "clocks.json").read_text(encoding="utf-8"))["hosts"]["node1"]["ahead_s"]
        == 0
    )
    assert not list(tmp_path.glob(".verl-musa-*"))


def test_clocks_are_such_as_triage_reads(tmp_path: Path) -> None:
    from verl_musa.cluster.preflight import write_clocks

    file = tmp_path / "logs" / "clocks.json"
    write_clocks(file, {"node1": Clock(0.0, 0.0, 0), "node2": Clock(-1.25, 0.1, 28800)})
    value = json.loads(file.read_text(encoding="utf-8"))
    assert value["schema"] == 1
    clocks = clocks_of(value["hosts"], str(file))
    assert (clocks["node2"].ahead, clocks["node2"].zone) == (-1.25, 28800)


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("root@192.0.2.1: Permission denied (publickey).", "authorized_keys"),
        ("Host key verification failed.", "confirm the host's key"),
        ("ssh: connect to host 192.0.2.1 port 22: No route to host", "the host is up"),
        ("ssh: connect to host 192.0.2.1 port 22: Connection refused", "sshd does not listen"),
        ("ssh: connect to host 192.0.2.1 port 22: Connection timed out", "firewall drops"),
        ("ssh: Could not resolve hostname node2: Name or service not known", "give the host an address"),
        ("Error response from daemon: No such container: x", "start the container"),
        ("something else", "ssh HOST true"),
    ],
)
def test_each_way_in_which_ssh_fails_has_its_advice(said: str, fix: str) -> None:
    found = ssh_finding(Host("node2", "192.0.2.1"), Done("node2", 255, b"", said, 1.0))
    assert found.status is Status.FAIL
    assert said in found.evidence
    assert fix in found.fix


def test_a_host_that_does_not_answer_is_told_once_and_the_others_are_looked_at(tmp_path: Path) -> None:
    found = look(_site(tmp_path), _hosts(2), None, Here({"node2": "Connection refused"}), bounds=QUICK)
    own = [result for result in found.results if result.host == "node2"]
    assert [(one.check, one.status) for one in own] == [("host.ssh", Status.FAIL)]
    assert {"host.nofile", "net.address", "ray.ports", "path.shared"} <= {
        result.check for result in found.results if result.host == "node1"
    }


def test_ssh_that_works_and_a_probe_that_does_not(tmp_path: Path) -> None:
    class Mute:
        def __init__(self, done: Done) -> None:
            self.done = done

        def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:  # noqa: ARG002
            return self.done

    for done, says, fix in (
        (
            Done("node1", 127, b"", "bash: python3: command not found", 1.0),
            "exit code 127",
            "install python3",
        ),
        (Done("node1", None, b"", "", 22.0), "no end within 22 s", "hangs or is overloaded"),
        (Done("node1", 0, b"Your password has expired\n", "", 1.0), "the probe gave no answer", "python3 -V"),
    ):
        (result,) = run_preflight(_site(tmp_path), _hosts(1), None, Mute(done))
        assert (result.status, says in result.evidence, fix in result.fix) == (Status.FAIL, True, True)


def test_the_head_must_be_first(tmp_path: Path) -> None:
    hosts = (Host("b", "b"), Host("a", "a", head=True))
    for wrong in (hosts, ()):
        with pytest.raises(HostError, match="the head first"):
            look(_site(tmp_path), wrong, None, Here())


def _result(status: Status, host: str, evidence: str = "seen", check: str = "net.mtu") -> Result:
    return Result(
        check=check,
        looks_at="x",
        status=status,
        evidence=evidence,
        fix="" if status is Status.OK else "mend it",
        host=host,
    )


def _shown(results: list[Result]) -> str:
    text = io.StringIO()
    render(results, Console(file=text, width=200))
    return text.getvalue()


def test_the_table_has_a_column_for_each_of_a_few_hosts() -> None:
    text = _shown(
        [
            _result(Status.OK, "a"),
            _result(Status.FAIL, "b", "1500"),
            _result(Status.OK, "", check="lock.entry"),
        ]
    )
    head, _, row, lock = text.splitlines()[:4]
    assert head.split("┃")[1].strip() == "a"
    assert [cell.strip() for cell in row.split("│")] == ["net.mtu", "ok", "FAIL"]
    assert [cell.strip() for cell in lock.split("│")] == ["lock.entry", "ok", "-"]
    assert "FAIL net.mtu on b: 1500\n  -> mend it" in text
    assert "2 checks on 2 hosts: 2 OK, 1 FAIL" in text


def test_of_many_hosts_those_that_are_not_ok_are_named() -> None:
    results = [_result(Status.OK if number != 17 else Status.WARN, f"n{number}") for number in range(40)]
    row = _shown(results).splitlines()[2]
    assert [cell.strip() for cell in row.split("│")] == ["net.mtu", "39", "n17", "", ""]


def test_findings_alike_are_told_together() -> None:
    everywhere = _shown([_result(Status.FAIL, name) for name in ("a", "b", "c")])
    assert everywhere.count("mend it") == 1
    assert "FAIL net.mtu on all hosts: seen" in everywhere
    different = _shown([_result(Status.FAIL, f"n{number}", f"seen {number}") for number in range(30)])
    assert different.count("mend it") == 4
    assert "FAIL net.mtu: 26 more of the kind (--json has all)" in different


def test_json_has_the_host_only_where_there_is_one() -> None:
    value = to_json([_result(Status.OK, "a"), _result(Status.OK, "")])
    assert value["checks"][0]["host"] == "a"
    assert "host" not in value["checks"][1]


def test_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "verl_musa.cluster.ssh.Ssh", lambda _: Here({"b": "ssh: connect: Connection refused"})
    )
    file = tmp_path / "site.yaml"
    file.write_text(
        f"schema: 1\nshared: {tmp_path}\npython: {sys.executable}\nnetworks: {{training: lo}}\nhead: a\nhosts: [{{name: a}}, {{name: b}}]\n",
        encoding="utf-8",
    )
    assert main(["preflight", "--site", str(file), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 2
    (failed,) = [one for one in found["checks"] if one["host"] == "b"]
    assert (failed["check"], failed["status"]) == ("host.ssh", "FAIL")
    assert main(["preflight", "--site", str(file), "--hosts", "b"]) == 2
    assert "sshd does not listen" in capsys.readouterr().out
    assert main(["preflight", "--site", str(file), "--hosts", "x"]) == 2
    assert "which the site does not know" in capsys.readouterr().err
    assert main(["preflight", "--site", str(file), "--nodes", "3"]) == 2
    assert "3 hosts are needed and 2 are known" in capsys.readouterr().err
    assert main(["preflight", "no-such-recipe", "--site", str(file)]) == 2
    assert "no recipe 'no-such-recipe'" in capsys.readouterr().err


@pytest.mark.parametrize(("took", "start"), [(0.4, 3.0), (4.0, 6.0), (60.0, 15.0)])
def test_later_phases_wait_for_the_host_that_starts_last(took: float, start: float) -> None:
    class Slow:
        def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
            assert argv
            assert stdin
            assert timeout_s > 0
            now = time.time()
            answer = {"began": now, "ended": now + 1.0, "parts": {}}
            seconds = 1.0 + (took if host.name == "node2" else 0.1)
            return Done(host.name, 0, f"{probe.MARK}{json.dumps(answer)}\n".encode(), "", seconds)

    asking = phases.Asking(Site(), _hosts(2), Slow(), Bounds(), lambda _: None)
    facts = phases.gather_facts(asking, sys.executable)
    assert phases.start_of(Bounds(), facts) == pytest.approx(start)


def test_a_recipe_is_looked_at_in_the_size_that_a_run_would_have(
    tmp_path: Path,
    make_recipe: MakeRecipe,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def look_at(site: Site, hosts: Sequence[Host], resolved: Any, *_: Any, **__: Any) -> Any:
        seen.append((site, [host.name for host in hosts], resolved))
        return SimpleNamespace(results=[])

    monkeypatch.setattr("verl_musa.cluster.preflight.look", look_at)
    file = tmp_path / "site.yaml"
    file.write_text(
        f"schema: 1\nshared: {tmp_path}\nhead: a\nhosts: [{{name: a}}, {{name: b}}, {{name: c}}]\n",
        encoding="utf-8",
    )
    recipe = str(make_recipe(runtime_env='env_vars: {MUSA_SIM_DEVICES: "2", GLOO_SOCKET_IFNAME: lo}\n'))
    main(["preflight", recipe, "--site", str(file), "--json"])
    main(["preflight", recipe, "--site", str(file), "--hosts", "a,b", "--devices-per-node", "1", "--json"])
    (_, first, _), (_, second, resolved) = seen
    assert (first, second) == (["a"], ["a", "b"]), "as many as the recipe wants, or all that are named"
    assert (resolved.recipe.cluster.nodes, resolved.recipe.cluster.devices_per_node) == (2, 1)
    assert resolved.runtime_env["env_vars"]["MUSA_SIM_DEVICES"] == "1"
    assert "GLOO_SOCKET_IFNAME" not in resolved.runtime_env["env_vars"], "each host's Ray sets its own"
    assert '"lock.entry"' in capsys.readouterr().out
