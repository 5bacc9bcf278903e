from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from verl_musa.errors import RunError
from verl_musa.recipe import dump_config, load_recipe
from verl_musa.run.directory import RunDirectory
from verl_musa.run.manifest import write_manifest
from verl_musa.run.record import ProcessFacts, RunRecord
from verl_musa.run.resume import (
    TRACKER,
    Checkpoint,
    check_resumable,
    check_same_config,
    find_checkpoint,
    manifests,
)

RECIPE = load_recipe(str(Path(__file__).parents[1] / "fixtures" / "fake_recipe"))


def save(folder: Path, step: int, *, tracker: bool = True, world: int = 2) -> Path:
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    for kind in ("model", "optim", "extra_state"):
        for rank in range(world):
            (actor / f"{kind}_world_size_{world}_rank_{rank}.pt").write_text("x")
    (actor.parent / "data.pt").write_text("x")
    if tracker:
        (folder / TRACKER).write_text(str(step))
    return actor.parent


def test_the_last_whole_checkpoint_is_taken(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path) == (None, [])
    save(tmp_path, 2)
    save(tmp_path, 10)
    save(tmp_path, 12, tracker=False)
    (tmp_path / "global_step_x").mkdir()
    found, problems = find_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.path) == (10, tmp_path / "global_step_10")
    assert problems == ["checkpoint of step 12 ignored: verl had not finished writing it"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "data.pt").unlink(), "no data.pt"),
        (lambda path: (path / "actor" / "model_world_size_2_rank_1.pt").unlink(), "no model of rank 1"),
        (
            lambda path: (path / "actor" / "optim_world_size_2_rank_0.pt").write_text(""),
            "optim_world_size_2_rank_0.pt is",
        ),
        (lambda path: [file.unlink() for file in (path / "actor").iterdir()], "no actor state"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_ignored_and_said(
    tmp_path: Path, damage: object, said: str
) -> None:
    save(tmp_path, 2)
    damage(save(tmp_path, 4))  # type: ignore[operator]
    found, problems = find_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 2
    assert len(problems) == 1
    assert said in problems[0]


def test_a_checkpoint_whose_hash_differs_is_rejected_and_an_earlier_one_taken(tmp_path: Path) -> None:
    for step in (2, 4):
        write_manifest(save(tmp_path, step))
    found, problems = find_checkpoint(tmp_path)
    assert found == Checkpoint(4, tmp_path / "global_step_4", hashed=True)
    assert problems == []
    (tmp_path / "global_step_4" / "actor" / "model_world_size_2_rank_1.pt").write_text("y")
    found, problems = find_checkpoint(tmp_path)
    assert found == Checkpoint(2, tmp_path / "global_step_2", hashed=True)
    (problem,) = problems
    assert problem.startswith(
        "checkpoint of step 4 ignored: actor/model_world_size_2_rank_1.pt is not what was written"
    )


def test_hashes_are_taken_of_what_verl_has_finished_only(tmp_path: Path) -> None:
    save(tmp_path, 2)
    save(tmp_path, 4)
    save(tmp_path, 6, tracker=False)
    manifests(tmp_path, lambda _: None).finish(timeout_s=20)
    assert [path.parent.name for path in sorted(tmp_path.glob("*/verl-musa-manifest.json"))] == [
        "global_step_2",
        "global_step_4",
    ]


def save_megatron(folder: Path, step: int, *roles: str) -> Path:
    """What verl's Megatron engine leaves on two devices, with its optimizer and the weights in Hugging Face layout."""
    for role in roles:
        path = folder / f"global_step_{step}" / role
        for kind in ("optimizer", "extra"):
            shards = path / kind / "dist_ckpt"
            shards.mkdir(parents=True)
            for name in (".metadata", "metadata.json", "common.pt", "__0_0.distcp", "__1_0.distcp"):
                (shards / name).write_text("x")
        (path / "model" / "dist_ckpt").mkdir(
            parents=True
        )  # made by verl, and empty where weights are not saved there
        (path / "model" / "huggingface").mkdir()
        (path / "model" / "huggingface" / "model.safetensors").write_text("x")
        (path / "ckpt_contents.json").write_text("{}")
    (folder / f"global_step_{step}" / "data.pt").write_text("x")
    (folder / TRACKER).write_text(str(step))
    return folder / f"global_step_{step}"


def test_a_whole_checkpoint_of_megatrons_is_taken(tmp_path: Path) -> None:
    path = save_megatron(tmp_path, 3, "actor", "critic")
    found, problems = find_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.path, problems) == (3, path, [])


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("actor/ckpt_contents.json", "actor: no ckpt_contents.json"),
        ("critic/ckpt_contents.json", "critic: no ckpt_contents.json"),
        ("actor/optimizer/dist_ckpt/metadata.json", "actor: no metadata.json in optimizer/dist_ckpt"),
        ("actor/extra/dist_ckpt/.metadata", "actor: no .metadata in extra/dist_ckpt"),
        ("actor/optimizer/dist_ckpt/*.distcp", "actor: no *.distcp in optimizer/dist_ckpt"),
    ],
)
def test_a_checkpoint_of_megatrons_that_is_not_whole_is_ignored(tmp_path: Path, lost: str, said: str) -> None:
    save_megatron(tmp_path, 2, "actor", "critic")
    for path in save_megatron(tmp_path, 4, "actor", "critic").glob(lost):
        path.unlink()
    found, problems = find_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 2
    assert len(problems) == 1
    assert said in problems[0]


def test_without_a_tracker_nothing_is_whole(tmp_path: Path) -> None:
    save(tmp_path, 2, tracker=False)
    assert find_checkpoint(tmp_path)[0] is None


def test_a_run_that_still_goes_on_is_refused(run: RunDirectory, record: RunRecord) -> None:
    check_resumable(record, run, RECIPE)
    me = psutil.Process()
    record.attempt.runner = ProcessFacts(pid=me.pid, started=me.create_time())
    with pytest.raises(RunError, match="still goes on") as caught:
        check_resumable(record, run, RECIPE)
    assert f"process {me.pid} on here" in str(caught.value)
    record.set_status("failed", "x")
    check_resumable(record, run, RECIPE)


def test_a_run_of_another_version_is_refused(run: RunDirectory, record: RunRecord) -> None:
    record.recipe.version = "0.0.9"
    with pytest.raises(RunError, match="another recipe or version") as caught:
        check_resumable(record, run, RECIPE)
    assert "fake_recipe 0.0.9" in str(caught.value)


def test_another_config_is_refused_with_a_diff(run: RunDirectory) -> None:
    old = {
        "trainer": {"save_freq": 2, "resume_mode": "auto", "n": {"a": 1}},
        "lr": "1e-6",
        "ref": "${trainer.save_freq}",
    }
    run.config.write_text(dump_config(old))
    new = {**old, "trainer": {"save_freq": 3, "resume_mode": "resume_path", "n": {"a": 2}}}
    check_same_config(run, old, set())
    check_same_config(run, new, {"trainer.save_freq", "trainer.n"})
    with pytest.raises(RunError, match="no longer gives the config") as caught:
        check_same_config(run, new, {"trainer.n"})
    message = str(caught.value)
    assert "-trainer.save_freq: 2" in message
    assert "+trainer.save_freq: 3" in message
    assert "trainer.n" not in message
    assert "resume_mode" not in message
