from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa.env._host import VARIABLES, host_facts


def facts(root: Path) -> dict[str, str]:
    return {fact.name: fact.shown for fact in host_facts(root)}


def test_this_host() -> None:
    found = {fact.name: fact for fact in host_facts()}
    for name in (
        "os",
        "kernel",
        "cpus",
        "memory",
        "limit: open files",
        "limit: processes",
        "limit: locked memory",
    ):
        assert found[name].state == "known", name
    assert all(fact.source for fact in found.values())


def test_container_limits(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nmodel name\t: A CPU\n", encoding="utf-8")
    (group / "cpu.max").write_text("150000 100000\n", encoding="utf-8")
    (group / "memory.max").write_text(f"{8 * 2**30}\n", encoding="utf-8")
    found = facts(tmp_path)
    assert (found["cpu model"], found["cpu quota"], found["memory limit"]) == (
        "A CPU",
        "1.50 CPUs",
        "8.0 GiB",
    )
    assert found["shared memory"].startswith("unknown: No such file")
    (group / "cpu.max").write_text("max 100000\n", encoding="utf-8")
    (group / "memory.max").write_text("max\n", encoding="utf-8")
    assert (facts(tmp_path)["cpu quota"], facts(tmp_path)["memory limit"]) == ("none", "none")


def test_nothing_to_read(tmp_path: Path) -> None:
    found = {fact.name: fact.state for fact in host_facts(tmp_path)}
    assert (found["cpu model"], found["cpu quota"], found["memory limit"]) == ("unknown", "absent", "absent")


def test_only_named_variables_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    monkeypatch.setenv("SECRET_TOKEN", "do-not-show")
    found = {fact.name: fact for fact in host_facts()}
    assert found["$MUSA_VISIBLE_DEVICES"].value == "0,1"
    assert found["$VERL_PLATFORM"].state == "absent"
    assert {name for name in found if name.startswith("$")} == {f"${name}" for name in VARIABLES}
    assert "do-not-show" not in str(found)
