from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_musa.cli import main

OOM = "2026-11-29 13:03:05,000 ERROR torch.OutOfMemoryError: MUSA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "x.log"
    path.write_text(OOM, encoding="utf-8")
    return path


def test_a_card_for_people_and_for_programs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triage", str(log)]) == 2
    out = capsys.readouterr().out
    assert out.startswith(
        "first cause\n  what     a device ran out of memory while it asked for 2.00 GiB  [MUSA, musa.out-of-memory]\n"
    )
    assert main(["triage", "--json", str(log)]) == 2
    card = json.loads(capsys.readouterr().out)
    assert (card["schema"], card["exit_code"], card["verdict"], card["rule"]) == (
        1,
        2,
        "FOUND",
        "musa.out-of-memory",
    )
    assert card["evidence"] == [{"file": "x.log", "line": 1, "text": OOM.strip()}]


def test_exit_codes(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("all is well\n")
    assert main(["triage", str(log)]) == 0
    assert "nothing abnormal found in 1 file" in capsys.readouterr().out
    log.write_text("ValueError: what is this\n")
    assert main(["triage", str(log)]) == 3
    assert capsys.readouterr().out.startswith("UNKNOWN")
    log.write_text("Job entrypoint command failed with exit code 1\n")
    assert main(["triage", str(log)]) == 2
    assert capsys.readouterr().out.startswith("only consequences")
    assert main(["triage", str(log.parent / "none" / "x")]) == 2
    assert "no such run, file or folder" in capsys.readouterr().err


def test_a_run_by_its_path_and_by_a_prefix_of_its_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "recipe" / "20260101T000000Z-abcdef"
    (folder / "logs").mkdir(parents=True)
    (folder / "run.json").write_text(
        '{"status": "failed", "exit_reason": "nothing has moved for 30 minutes"}'
    )
    (folder / "logs" / "x.log").write_text(OOM)
    for named in (str(folder), "20260101T0", folder.name):
        assert main(["triage", named, "--json", "--runs-dir", str(tmp_path / "runs")]) == 2
        card = json.loads(capsys.readouterr().out)
        assert (card["rule"], [one["rule"] for one in card["consequences"]]) == (
            "musa.out-of-memory",
            ["verl.stalled"],
        )
    assert main(["triage", "1999", "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "no run begins with '1999'" in capsys.readouterr().err


def test_clocks_on_the_command_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = log.parent / "192.0.2.9"
    host.mkdir()
    (host / "y.log").write_text("2026-11-29 13:03:35,000 ERROR OSError: [Errno 28] No space left on device\n")
    main(["triage", "--json", str(log), str(host.parent / "192.0.2.9")])
    assert json.loads(capsys.readouterr().out)["rule"] == "musa.out-of-memory"
    main(["triage", "--json", "--ahead", "192.0.2.9=60", str(log.parent)])
    assert json.loads(capsys.readouterr().out)["rule"] == "os.no-space"
    assert main(["triage", "--ahead", "192.0.2.9", str(log)]) == 2
    assert "expected HOST=SECONDS" in capsys.readouterr().err


def test_what_is_older_than_a_time_is_left_out(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (log.parent / "later.log").write_text(
        "2026-11-29 15:00:00,000 ERROR OSError: [Errno 28] No space left on device\n"
    )
    times = [log, log.parent / "later.log"]
    assert main(["triage", "--json", "--since", "2026-11-28T00:00:00+08:00", *map(str, times)]) == 2
    assert json.loads(capsys.readouterr().out)["rule"] == "musa.out-of-memory"
    assert main(["triage", "--json", "--since", "2026-12-31", *map(str, times)]) == 0
    assert "were left out" in json.loads(capsys.readouterr().out)["notes"][0]
    assert main(["triage", "--since", "yesterday", str(log)]) == 2
    assert "expected a time such as" in capsys.readouterr().err


def test_it_starts_without_heavy_packages(log: Path) -> None:
    script = (
        "import sys; from verl_musa.cli import main; main(['triage', sys.argv[1]]); "
        "print({'torch', 'ray', 'verl', 'pyarrow', 'omegaconf'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(log)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.stdout.splitlines()[-1] == "set()"
