"""GSM8K's whole way: prepared, checked, and trained on for 20 steps on the simulated device, with the reward of the big recipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli, metrics_of, processes_of, record_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        not (Path(__file__).parents[3] / "shared" / "data" / "gsm8k").is_dir(),
        reason="../shared/data/gsm8k is not here",
    ),
]

SOURCE = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
RECIPE = "qwen3-tiny-dense@gsm8k"
STEPS = 20


def verl_musa(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("verl-musa")), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=900, env=dict(os.environ)
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site.yaml that names the prepared data."""
    data = tmp_path / "gsm8k"
    files = ("--train", str(SOURCE / "train-1500.jsonl"), "--val", str(SOURCE / "test.jsonl"))
    done = verl_musa("data", "prepare", "gsm8k", *files, "--out", str(data))
    assert done.returncode == 0, done.stderr
    file = tmp_path / "site.yaml"
    file.write_text(f"schema: 1\nvalues: {{gsm8k: {data}}}\n", encoding="utf-8")
    return file


def rollouts(run_dir: Path) -> list[list[dict[str, Any]]]:
    """What was sampled at each step: prompt, response, ground truth and score."""
    files = sorted((run_dir / "rollouts").glob("*.jsonl"), key=lambda file: int(file.stem))
    return [[json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] for file in files]


def right(response: str, truth: str) -> bool:
    """An independent judgement, for what this model says: a boxed whole number."""
    found = re.findall(r"\\boxed\{(-?\d+)\}", response)
    return bool(found) and found[-1] == truth


def test_gsm8k_is_prepared_checked_and_trained_on(cli: Cli, site: Path) -> None:
    done = verl_musa("data", "check", "--recipe", RECIPE, "--site", str(site), "--json")
    checked = json.loads(done.stdout)
    statuses = {check["check"]: check["status"] for check in checked["checks"]}
    assert (
        statuses.pop("data.length") == "WARN"
    )  # some prompts are longer than this recipe takes, and are left out
    assert set(statuses.values()) == {"OK"}, checked
    assert done.returncode == 0

    assert cli.run(RECIPE, "--site", str(site)) == 0
    (run_dir,) = cli.run_dirs()
    record, metrics = record_of(run_dir), metrics_of(run_dir)
    assert record["status"] == "succeeded"
    assert (record["device"]["type"], record["device"]["simulated"]) == ("musa", True)
    assert [row["step"] for row in metrics] == list(range(1, STEPS + 1))
    assert max(row["data"]["training/rollout_probs_diff_max"] for row in metrics) < 1e-5
    assert any(name.startswith("val-core/openai/gsm8k/") for name in metrics[-1]["data"])

    sampled = rollouts(run_dir)
    assert len(sampled) == STEPS
    scores = [[row["score"] for row in step] for step in sampled]
    assert scores == [[float(right(row["output"], row["gts"])) for row in step] for step in sampled]
    # The model guesses small numbers, and some answers are small numbers.
    assert sum(map(sum, scores)) > 0
    for step, row in zip(scores, metrics, strict=True):
        assert row["data"]["critic/score/mean"] == pytest.approx(sum(step) / len(step), abs=1e-6)
    assert processes_of(run_dir) == []
