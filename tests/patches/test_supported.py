"""The series fits what is installed here, and every version of every upstream that it says it supports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 1800
START = "import sys; from verl_musa.cli import main; raise SystemExit(main(sys.argv[1:]))"
COULD_NOT_CHECK = 2


def verify(aside: Any, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, "patches", "verify", "--json", *options],
        env={**os.environ, "PYTHONPATH": aside.python_path(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_the_series_fits_what_is_installed(aside: Any) -> None:
    result = verify(aside)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert json.loads(result.stdout)["ok"] is True


@pytest.mark.integration
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_series_fits_every_supported_version(aside: Any) -> None:
    """Downloads them. Without a network it says what could not be checked, and nothing is claimed."""
    result = verify(aside, "--supported")
    report = json.loads(result.stdout)
    drifted = [row for row in report["rows"] if row["status"] == "drift"]
    assert not drifted
    if result.returncode == COULD_NOT_CHECK:
        unchecked = {
            f"{row['distribution']}=={row['version']}"
            for row in report["rows"]
            if row["status"] == "not checked"
        }
        pytest.skip(f"could not be downloaded, so not checked: {', '.join(sorted(unchecked))}")
    assert result.returncode == 0, result.stderr[-3000:]
