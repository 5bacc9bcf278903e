"""``verl-musa site check``: each check with each outcome, and mistakes by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_musa.checks import Status
from verl_musa.cli import main
from verl_musa.cluster.site_check import check_site

GOOD: dict[str, Any] = {
    "schema": 1,
    "shared": "/common",
    "head": "a",
    "hosts": [{"name": "a", "address": "192.0.2.1", "training": "198.51.100.1"}, {"name": "b", "address": "192.0.2.2", "training": "198.51.100.2"}],
    "networks": {"management": "192.0.2.0/24", "training": "198.51.100.0/24"},
}  # fmt: skip
OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL


def _file(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "site.yaml"
    content = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return file


def test_a_good_site(tmp_path: Path) -> None:
    results = check_site(_file(tmp_path))
    assert {result.status for result in results} == {OK}
    assert [result.check for result in results] == [
        "site.schema",
        "site.hosts",
        "site.addresses",
        "site.networks",
        "site.ports",
        "site.ssh",
        "site.shared",
    ]


def _hosts(*entries: tuple[str, str, str | None]) -> list[dict[str, str]]:
    return [
        {"name": name, "address": address, **({"training": training} if training else {})}
        for name, address, training in entries
    ]


@pytest.mark.parametrize(
    ("check", "changes", "status", "says"),
    [
        ("site.hosts", {"head": None}, FAIL, "the head is not named"),
        ("site.hosts", {"hosts": None}, FAIL, "no hosts are known"),
        ("site.addresses", {"hosts": _hosts(("a", "192.0.2.1", None), ("b", "192.0.2.1", None))}, FAIL, "ssh goes to the same place twice: 192.0.2.1 (a, b)"),
        ("site.addresses", {"hosts": _hosts(("a", "2001:db8::1", None), ("b", "2001:DB8:0::1", None))}, FAIL, "the same place twice"),
        ("site.addresses", {"hosts": _hosts(("a", "x", "198.51.100.1"), ("b", "y", "198.51.100.1"))}, FAIL, "training address the same place twice"),
        ("site.addresses", {"hosts": _hosts(("a", "x", "198.51.100.1"), ("b", "y", "2001:db8::2"))}, FAIL, "of both kinds: a IPv4, b IPv6"),
        ("site.addresses", {"hosts": _hosts(("a", "x", "127.0.0.1"), ("b", "y", "198.51.100.2"))}, FAIL, "of a is the loopback"),
        ("site.networks", {"networks": {"management": "192.0.2.0/24", "training": "192.0.0.0/16"}}, FAIL, "overlap"),
        ("site.networks", {"networks": {"management": "198.51.100.0/24", "training": "198.51.100.0/24"}}, WARN, "are one"),
        ("site.networks", {"networks": {"training": "203.0.113.0/24"}}, FAIL, "a: training address 198.51.100.1 is not in 203.0.113.0/24"),
        ("site.networks", {"networks": {"management": "198.51.100.0/24"}}, FAIL, "is in the management network"),
        ("site.networks", {"networks": None, "hosts": _hosts(("a", "x", None), ("b", "y", None))}, WARN, "no training network"),
        ("site.networks", {"networks": {"management": "eth0", "training": "eth1"}}, OK, "management eth0, training eth1"),
        ("site.ports", {"ray": {"metrics": 44217}}, FAIL, "ray.metrics is 44217, where Ray serves its own metrics"),
        ("site.ports", {"ssh": {"port": 6380}}, FAIL, "ray.node_manager is 6380, the port of sshd"),
        ("site.ports", {"ssh": {"port": 21000}}, FAIL, "holds a port of sshd"),
        ("site.ports", {"ray": {"port": 8265, "dashboard": 6379}}, FAIL, "these look swapped"),
        ("site.ports", {"ray": {"workers": [30000, 40000]}}, WARN, "reaches into 32768-60999"),
        ("site.ssh", {"ssh": {"key": "/nonexistent/key"}}, FAIL, "ssh.key: no file /nonexistent/key"),
        ("site.ssh", {"ssh": {"config": "/nonexistent/config"}}, FAIL, "ssh.config: no file"),
        ("site.shared", {"shared": None}, FAIL, "no shared folder"),
        ("site.shared", {"shared": None, "hosts": GOOD["hosts"][:1]}, OK, "one host"),
    ],
)  # fmt: skip
def test_outcome(tmp_path: Path, check: str, changes: dict[str, Any], status: Status, says: str) -> None:
    result = next(one for one in check_site(_file(tmp_path, **changes)) if one.check == check)
    assert result.status is status, result
    assert says in result.evidence
    assert bool(result.fix) == (status is not OK)


def test_a_key_that_others_may_read(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("x", encoding="utf-8")
    key.chmod(0o644)
    file = _file(tmp_path, ssh={"key": str(key)})
    found = next(one for one in check_site(file) if one.check == "site.ssh")
    assert (found.status, found.fix) == (FAIL, f"chmod 600 {key}")
    key.chmod(0o600)
    assert next(one for one in check_site(file) if one.check == "site.ssh").status is OK


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("schema: 1\nshraed: /x\n", 2, "unknown key 'shraed'"),
        ("schema: 1\nshared: x\n", 2, "wrong value for 'shared'"),
        ("schema: 1\nhosts:\n  - {name: a}\n  - {name: 'b; rm -rf x'}\n", 4, "must be a host name"),
        ("schema: 1\nray:\n  port: 6380\n", 2, "taken by another of these ports"),
        ("schema: 2\n", 1, "schema"),
        ("schema: 1\nhosts: [{name: a}, {name: a}]\n", 1, "hosts names a twice"),
        ("schema: 1\nhead: x\nhosts: [{name: a}]\n", 1, "head x is none of the hosts"),
        ("schema: 1\nhostfile: f\nhosts: [{name: a}]\n", 1, "hosts and hostfile both name hosts"),
        ("schema: [\n", 2, ""),
    ],
)
def test_mistakes_by_file_and_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text, encoding="utf-8")
    (result,) = check_site(file)
    assert (result.check, result.status) == ("site.schema", FAIL)
    assert result.where.startswith(f"{file}:{line}") or result.where == str(file), result
    assert says in result.evidence + result.fix


def test_a_mistake_in_the_hostfile(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a\nb slots=eight\n", encoding="utf-8")
    results = check_site(_file(tmp_path, hosts=None, hostfile="hostfile"))
    assert (results[-1].check, results[-1].status) == ("site.hosts", FAIL)
    assert results[-1].where == f"{tmp_path}/hostfile:2"


def test_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = _file(tmp_path)
    assert main(["site", "check", "--site", str(file)]) == 0
    assert "head a, then b" in capsys.readouterr().out
    assert main(["site", "check", "--site", str(file), "--hosts", "b,a", "--head", "b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 0
    assert any(one["evidence"] == "head b, then a" for one in found["checks"])
    assert main(["site", "check", "--site", str(file), "--hosts", "c"]) == 2
    assert "which the site does not know" in capsys.readouterr().out.replace("\n", " ")


def test_no_site_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERL_MUSA_SITE", raising=False)
    results = check_site(None)
    assert [(one.check, one.status) for one in results] == [("site.schema", WARN), ("site.hosts", FAIL)]
