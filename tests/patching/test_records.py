from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_musa._start import PLAN_ENV, split_plan
from verl_musa.patching.records import RUN_DIR_ENV, digest_plan, gather, record_folder

from .conftest import ADD_TEN, ANSWER, Lab

ASK = "import fakeup.core; fakeup.core.answer(); import os; print(os.getpid())"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def patched(lab: Lab) -> Lab:
    lab.patch("ten", ANSWER, ADD_TEN)
    return lab


def start(lab: Lab, run_dir: Path, code: str = ASK, **options: Any) -> tuple[str, str]:
    """Run one worker; return the plan it had and its output."""
    env = lab.env(**options)
    return env[PLAN_ENV], lab.run(code, {**env, RUN_DIR_ENV: str(run_dir)}).stdout


def test_each_process_writes_what_it_applied(patched: Lab, run_dir: Path) -> None:
    plan, output = start(patched, run_dir)
    (path,) = record_folder(run_dir).iterdir()
    record = json.loads(path.read_text())
    assert record["applied"] == {
        "fakeup-ten": {
            "distribution": "fakeup",
            "version": "1.0",
            "targets": {ANSWER: patched.fingerprint(ANSWER)},
        }
    }
    assert path.name == f"{record['host']}-{output.strip()}.json"
    assert record["plan"] == digest_plan(plan)
    assert (record["refused"], record["missed"], record["drift"]) == ([], [], {})


def test_nothing_is_written_outside_a_run_or_without_a_target(patched: Lab, run_dir: Path) -> None:
    patched.output(ASK)
    start(patched, run_dir, "import fakeup")
    assert not record_folder(run_dir).exists()


def test_processes_that_agree_give_no_problem(patched: Lab, run_dir: Path) -> None:
    patched.module("fakeup.other", "def answer():\n    return 1\n")
    patched.patch("other", "fakeup.other:answer", ADD_TEN)
    plan, _ = start(patched, run_dir)
    start(patched, run_dir, "import fakeup.other")
    found = gather(run_dir, plan=plan)
    assert found.problems == ()
    assert sorted(found.applied) == ["fakeup-other", "fakeup-ten"]
    assert found.processes == 2
    assert found.series == json.loads(split_plan(plan)[1])["series"]
    assert json.loads(json.dumps(found.as_json()))["problems"] == []


def test_a_worker_with_another_set_is_named(patched: Lab, run_dir: Path) -> None:
    plan, pid = start(patched, run_dir, off=())
    _, other = start(patched, run_dir, allow_drift=("fakeup-ten",))
    (problem,) = gather(run_dir, plan=plan).problems
    assert f":{other.strip()} (python): runs another plan" in problem
    assert pid.strip() not in problem


def test_a_worker_on_another_upstream_version_is_named(patched: Lab, run_dir: Path) -> None:
    plan, _ = start(patched, run_dir)
    patched.install("1.1")
    start(patched, run_dir)
    (problem,) = gather(run_dir, plan=plan).problems
    assert "fakeup-ten applied otherwise" in problem
    assert "1.1" in problem


def test_a_refusal_is_a_problem_even_if_the_worker_went_on(patched: Lab, run_dir: Path) -> None:
    patched.module("fakeup.core", "def answer():\n    return 2\n")
    plan, _ = start(
        patched, run_dir, "try:\n    import fakeup.core\nexcept Exception:\n    print('went on')\n"
    )
    (problem,) = gather(run_dir, plan=plan).problems
    assert "refused: " in problem
    assert "fakeup-ten" in problem


def test_drift_that_was_let_through_is_recorded(patched: Lab, run_dir: Path) -> None:
    patched.module("fakeup.core", "def answer():\n    return 2\n")
    plan, _ = start(patched, run_dir, allow_drift=("fakeup-ten",))
    found = gather(run_dir, plan=plan)
    assert found.problems == ()
    assert found.drift == {"fakeup-ten": {ANSWER: patched.fingerprint(ANSWER)}}


@pytest.mark.parametrize("last", ["fakeup.other", "fakeup.core"])
def test_a_target_imported_behind_the_hooks_back_is_a_problem(patched: Lab, run_dir: Path, last: str) -> None:
    patched.module("fakeup.other", "def answer():\n    return 1\n")
    patched.patch("other", "fakeup.other:answer", ADD_TEN)
    behind = (
        "from importlib.machinery import PathFinder\n"
        "sys.meta_path.insert(0, PathFinder)\n"
        "import fakeup.core\n"
        "sys.meta_path.remove(PathFinder)\n"
    )
    parts = [behind, "import fakeup.other\n"] if last == "fakeup.other" else ["import fakeup.other\n", behind]
    plan, _ = start(patched, run_dir, "import sys\n" + "".join(parts))
    (problem,) = gather(run_dir, plan=plan).problems
    assert "imported without the hook, so unpatched: fakeup.core" in problem


def test_a_required_process_without_a_record_is_a_problem(patched: Lab, run_dir: Path) -> None:
    plan, output = start(patched, run_dir)
    (record,) = record_folder(run_dir).iterdir()
    host = json.loads(record.read_text())["host"]
    required = [(host, int(output)), (host, 1)]
    assert gather(run_dir, plan=plan, required=required).problems == (
        f"{host}:1: applied no patch at all (its interpreter started without the hook)",
    )


def test_one_worker_skips_what_another_applies(patched: Lab, run_dir: Path) -> None:
    plan, _ = start(patched, run_dir)
    start(patched, run_dir)
    one, _ = sorted(record_folder(run_dir).iterdir())
    record = json.loads(one.read_text())
    record["applied"], record["skipped"] = {}, {"fakeup-ten": "already fixed"}
    one.write_text(json.dumps(record))
    (problem,) = gather(run_dir, plan=plan).problems
    assert "did not apply fakeup-ten, which others did: already fixed" in problem


@pytest.mark.parametrize(
    "damage", [lambda _: "{", lambda _: "[]", lambda text: text.replace('"host"', '"nost"')]
)
def test_a_damaged_record_is_a_problem(patched: Lab, run_dir: Path, damage: Callable[[str], str]) -> None:
    start(patched, run_dir)
    (path,) = record_folder(run_dir).iterdir()
    path.write_text(damage(path.read_text()))
    (problem,) = gather(run_dir).problems
    assert str(path) in problem


def test_no_record_at_all(run_dir: Path) -> None:
    found = gather(run_dir)
    assert (found.series, found.processes, found.applied, found.problems) == (None, 0, {}, ())


def test_a_record_that_cannot_be_written_stops_the_worker(patched: Lab, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = patched.run(ASK, {**patched.env(), RUN_DIR_ENV: str(tmp_path / "file")})
    assert result.returncode != 0
    assert "cannot be recorded" in result.stderr


def test_a_forked_child_writes_its_own_record(patched: Lab, run_dir: Path) -> None:
    patched.module("fakeup.other", "def answer():\n    return 1\n")
    patched.patch("other", "fakeup.other:answer", ADD_TEN)
    code = """
        import os, fakeup.core
        child = os.fork()
        if child == 0:
            import fakeup.other
            os._exit(0)
        os.waitpid(child, 0)
        """
    plan, _ = start(patched, run_dir, code)
    found = gather(run_dir, plan=plan)
    assert found.problems == ()
    assert (found.processes, sorted(found.applied)) == (2, ["fakeup-other", "fakeup-ten"])
