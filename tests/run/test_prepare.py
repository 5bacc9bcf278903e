from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml

from verl_musa.cluster.local_ray import RayPlan
from verl_musa.errors import HostError, RecipeError, RunError
from verl_musa.run import RunOptions, prepare
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import load_record

FIXTURES = Path(__file__).parents[1] / "fixtures"
PLAN = RayPlan(Path("t"), 1, 2, 3, 4, num_cpus=8, num_gpus=2, object_store_bytes=5)


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    phase = note

    def step(self, step: int, total: int | None, data: dict[str, Any]) -> None:
        self.lines.append(f"{step} {total} {data}")

    def close(self) -> None:
        self.lines.append("closed")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    monkeypatch.syspath_prepend(str(FIXTURES))
    monkeypatch.setattr(prepare, "_check_contents", lambda *_: None)
    monkeypatch.setattr(prepare, "check_packages", lambda *_: {})
    return RunOptions(
        recipe=str(FIXTURES / "fake_recipe"), runs_dir=tmp_path / "runs", sets=("trainer.save_freq=2",)
    )


def written(options: RunOptions) -> prepare.Prepared:
    made = prepare.prepare(options, Notes())
    prepare.write_directory(made, PLAN)
    return made


def again(options: RunOptions, run: RunDirectory, **changes: Any) -> RunOptions:
    return RunOptions(
        **{"recipe": options.recipe, "runs_dir": options.runs_dir, "resume": run.path.name[:12], **changes}
    )


def ended(made: prepare.Prepared, step: int | None = None) -> RunDirectory:
    """Write the end of an attempt, with a checkpoint if there is a ``step``."""
    record = load_record(made.run.record)
    record.set_status("failed", "killed")
    record.save(made.run.record)
    if step is not None:
        folder = made.run.checkpoints / f"global_step_{step}"
        (folder / "actor").mkdir(parents=True)
        (folder / "actor" / "model.pt").write_text("x")
        (folder / "data.pt").write_text("x")
        (made.run.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))
    return made.run


def test_nothing_is_written_before_everything_is_checked(options: RunOptions) -> None:
    prepare.prepare(options, Notes())
    assert not options.runs_dir.exists()


def test_a_new_run_directory_holds_what_the_run_is_made_from(options: RunOptions) -> None:
    run = written(options).run
    assert run.path.parent == options.runs_dir / "fake_recipe"
    record = load_record(run.record)
    assert record.status == "created"
    assert record.attempt.runner.pid == os.getpid()
    assert record.sets == ["trainer.save_freq=2"]
    assert {o.key: o.origin for o in record.overrides}["trainer.save_freq"].startswith("--set")
    assert record.device.count == 2
    assert record.total_steps == 4
    config = yaml.safe_load(run.config.read_text())
    assert config["trainer"]["default_local_dir"] == str(run.checkpoints)
    assert config["trainer"]["logger"] == ["console", "file"]
    variables = yaml.safe_load(run.runtime_env.read_text())["env_vars"]
    assert variables["FAKE_SETTING"] == "1"
    assert variables["FAKE_API_KEY"] == "***"
    assert variables["VERL_MUSA_RUN_ID"] == run.path.name
    assert run.launch.stat().st_mode & 0o111
    assert run.metrics.read_text() == ""


@pytest.mark.parametrize(
    ("placement", "count", "pools"), [("colocated", 2, {}), ("split", 6, {"trainer": 2, "rollout": 4})]
)
def test_devices_are_counted_over_all_pools(placement: str, count: int, pools: dict[str, int]) -> None:
    config = {
        "trainer": {"nnodes": 1, "n_gpus_per_node": 2},
        "actor_rollout_ref": {"rollout": {"nnodes": 2, "n_gpus_per_node": 2}},
    }
    device = SimpleNamespace(type="musa", simulated=True)
    resolved: Any = SimpleNamespace(recipe=SimpleNamespace(device=device, placement=placement), config=config)
    facts = prepare._device(resolved)
    assert (facts.count, facts.pools) == (count, pools)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sets": ("trainer.no_such_key=1",)}, RecipeError, "no_such_key"),
        ({"ray_port": 80}, HostError, "--ray-port 80"),
        ({"resume": "20"}, RunError, "no run of this recipe"),
        ({"recipe": "no-such-recipe"}, RecipeError, "no-such-recipe"),
    ],
)
def test_bad_input_is_refused(
    options: RunOptions, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    plain = {"recipe": options.recipe, "runs_dir": options.runs_dir, **changes}
    with pytest.raises(error, match=message):
        prepare.prepare(RunOptions(**plain), Notes())
    assert not options.runs_dir.exists()


def test_a_host_without_memory_is_refused(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_musa.cluster.host.available_memory", lambda: 1000)
    with pytest.raises(HostError, match="not enough free memory"):
        prepare.prepare(options, Notes())


def test_a_resume_goes_on_after_the_last_whole_checkpoint(options: RunOptions) -> None:
    run = ended(written(options), step=2)
    (run.proofs / "actor-1.json").write_text(json.dumps({"pid": 1}))
    notes = Notes()
    made = prepare.prepare(again(options, run), notes)
    assert any("goes on at step 3" in line for line in notes.lines)
    assert made.record.attempt.number == 2
    assert made.record.attempt.resumed_from_step == 2
    assert made.record.sets == ["trainer.save_freq=2"]
    assert made.config["trainer"]["resume_from_path"] == str(run.checkpoints / "global_step_2")
    prepare.write_directory(made, PLAN)
    assert list(run.proofs.iterdir()) == []
    assert (run.logs / "proof-attempt-1" / "actor-1.json").exists()
    assert load_record(run.record).exit_reason is None
    # a third attempt compares with what the second one wrote
    ended(made)
    assert prepare.prepare(again(options, run), Notes()).record.attempt.number == 3


def test_a_resume_without_a_checkpoint_starts_again_and_says_so(options: RunOptions) -> None:
    run = ended(written(options))
    notes = Notes()
    made = prepare.prepare(again(options, run), notes)
    assert any("starts again from step 1" in line for line in notes.lines)
    assert made.config["trainer"]["resume_mode"] == "disable"


def test_a_resume_may_change_what_is_set_anew_and_nothing_else(
    options: RunOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended(written(options), step=2)
    made = prepare.prepare(again(options, run, sets=("trainer.total_training_steps=9",)), Notes())
    assert made.record.total_steps == 9
    assert made.record.sets == ["trainer.save_freq=2", "trainer.total_training_steps=9"]
    changed = tmp_path / "fake_recipe"
    changed.mkdir()
    for file in (FIXTURES / "fake_recipe").iterdir():
        (changed / file.name).write_text(file.read_text())
    (changed / "config.yaml").write_text("trainer.total_training_steps: 5\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        RunError, match=r"(?s)-trainer.total_training_steps: 4.*\+trainer.total_training_steps: 5"
    ):
        prepare.prepare(again(options, run, recipe=str(changed)), Notes())


def test_a_secret_has_to_be_given_again(options: RunOptions) -> None:
    secret = RunOptions(
        recipe=options.recipe, runs_dir=options.runs_dir, sets=("+trainer.hub_token=not-to-be-seen",)
    )
    run = ended(written(secret))
    shown = [path for path in run.path.glob("*") if path.is_file() and "not-to-be-seen" in path.read_text()]
    assert shown == [run.config]
    assert run.config.stat().st_mode & 0o077 == 0
    with pytest.raises(RunError, match=r"trainer\.hub_token is a secret"):
        prepare.prepare(again(options, run), Notes())
    prepare.prepare(again(options, run, sets=("+trainer.hub_token=not-to-be-seen",)), Notes())


def test_a_resume_of_a_living_run_is_refused(options: RunOptions) -> None:
    made = written(options)
    assert made.record.attempt.runner.started == pytest.approx(psutil.Process().create_time())
    with pytest.raises(RunError, match="still goes on"):
        prepare.prepare(again(options, made.run), Notes())


def test_what_an_earlier_attempt_left_running_is_ended_before_a_resume(options: RunOptions) -> None:
    run = ended(written(options))
    environment = {**os.environ, "VERL_MUSA_RUN_ID": run.path.name}
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment)
    try:
        prepare.prepare(again(options, run, dry_run=True), Notes())
        assert left.poll() is None
        notes = Notes()
        prepare.prepare(again(options, run), notes)
        assert left.wait(timeout=10) != 0
        assert any("ending 1 process(es)" in line for line in notes.lines)
    finally:
        left.kill()
        left.wait(timeout=10)


def with_variant(folder: Path, tmp_path: Path) -> Path:
    """A copy of the fake recipe that has a variant."""
    copy = tmp_path / "copy" / folder.name
    shutil.copytree(folder, copy)
    (copy / "variants").mkdir()
    (copy / "variants" / "often.yaml").write_text("summary: Saves often\nconfig: {trainer.save_freq: 1}\n")
    return copy


def test_a_resumed_run_keeps_its_variants(options: RunOptions, tmp_path: Path) -> None:
    folder = with_variant(Path(options.recipe), tmp_path)
    made = written(replace(options, recipe=str(folder), variants=("often",), sets=()))
    assert made.record.recipe.variants == ["often"]
    assert made.config["trainer"]["save_freq"] == 1
    run = ended(made)
    resumed = prepare.prepare(again(replace(options, recipe=str(folder)), run), Notes())
    assert resumed.recipe.variants == ("often",)
    assert resumed.config["trainer"]["save_freq"] == 1


def test_a_run_cannot_be_resumed_with_other_variants(options: RunOptions, tmp_path: Path) -> None:
    folder = with_variant(Path(options.recipe), tmp_path)
    run = ended(written(replace(options, recipe=str(folder))))
    with pytest.raises(RunError, match="other variants") as caught:
        prepare.prepare(again(replace(options, recipe=str(folder)), run, variants=("often",)), Notes())
    assert (caught.value.found, caught.value.expected) == ("none", "often")
