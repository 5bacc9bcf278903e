from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_musa.checks import Status
from verl_musa.cli import main
from verl_musa.errors import ImageError
from verl_musa.image import current
from verl_musa.image import lock as locks
from verl_musa.image.environment import Distribution, Environment
from verl_musa.image.lock import check_lock, make_entry, parse_unlocked, require, write_entry
from verl_musa.patching import load_series
from verl_musa.recipe import Resolved, Site, load_recipe, resolve
from verl_musa.run import RunOptions, prepare
from verl_musa.run.record import load_record
from verl_musa.run.report import write_report

FIXTURES = Path(__file__).parents[1] / "fixtures"


@dataclass
class Place:
    """A recipe with everything that its lock is about."""

    recipe: Path
    conversion: Path
    distributions: dict[str, Distribution]

    def resolved(self, *sets: str) -> Resolved:
        return resolve(
            load_recipe(str(self.recipe)), run_dir=self.recipe.parent / "run", site=Site(), sets=sets
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.syspath_prepend(str(FIXTURES))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe, conversion = tmp_path / "recipes" / "fake_recipe", tmp_path / "converted"
    shutil.copytree(FIXTURES / "fake_recipe", recipe)
    (recipe / "model").mkdir()
    (recipe / "model" / "config.json").write_text("{}")
    (recipe / "model" / "model.safetensors").write_bytes(b"weights")
    for name in ("train", "val"):
        pq.write_table(pa.table({"prompt": ["a", "b"]}), recipe / f"{name}.parquet")
    conversion.mkdir()
    (conversion / "conversion.json").write_text('{"schema": 1, "tensors": {"a": "1"}}')
    with (recipe / "config.yaml").open("a") as stream:
        stream.write(f"+fake.dist_checkpointing_path: {conversion}\n")
    distributions = {
        name: Distribution(name, "1.0", "main", name * 8) for name in ("verl", "torch", "ray", "pytest")
    }
    monkeypatch.setattr(
        current, "current_environment", lambda: Environment(distributions, {}, {}, {"main": "site"})
    )
    monkeypatch.setattr("verl_musa.image.environment._requires", lambda _: [])
    return Place(recipe, conversion, distributions)


def locked(place: Place) -> None:
    resolved = place.resolved()
    write_entry(resolved.recipe, make_entry(resolved, Site()))


def other_image(place: Place, _: pytest.MonkeyPatch) -> None:
    place.distributions["torch"] = replace(place.distributions["torch"], version="2.0")


def other_patches(_: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    series = load_series()
    monkeypatch.setattr(locks, "load_series", lambda: replace(series, digest="another"))


def other_conversion(place: Place, _: pytest.MonkeyPatch) -> None:
    (place.conversion / "conversion.json").write_text('{"schema": 1, "tensors": {"a": "2"}}')


def other_model(place: Place, _: pytest.MonkeyPatch) -> None:
    (place.recipe / "model" / "model.safetensors").write_bytes(b"Weights")


def other_data(place: Place, _: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"prompt": ["a", "b", "c"]}), place.recipe / "train.parquet")


def other_config(place: Place, _: pytest.MonkeyPatch) -> None:
    file = place.recipe / "config.yaml"
    file.write_text(file.read_text().replace("total_training_steps: 4", "total_training_steps: 5"))


MISMATCHES: dict[str, tuple[Callable[[Place, pytest.MonkeyPatch], None], str]] = {
    "image": (other_image, "torch: 1.0 torchtorchtorcht -> 2.0 torchtorchtorcht"),
    "patches": (other_patches, "-> another"),
    "conversion": (other_conversion, "converted: "),
    "model": (other_model, "model files model.safetensors: "),
    "data": (other_data, "train.parquet rows: 2 -> 3"),
    "config": (other_config, "trainer.total_training_steps: 4 -> 5"),
}


@pytest.fixture
def run(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., prepare.Prepared]:
    """What ``verl-musa run`` does before anything is started."""
    monkeypatch.setattr(prepare, "_check_contents", lambda *_: None)
    monkeypatch.setattr(prepare, "_check_host", lambda *_: None)

    class Notes:
        def note(self, text: str) -> None:
            assert text

        phase = note

        def step(self, step: int, total: int | None, data: dict[str, Any]) -> None:
            raise AssertionError((step, total, data))

        def close(self) -> None:
            return None

    def start(*unlocked: str) -> prepare.Prepared:
        options = RunOptions(
            recipe=str(place.recipe), runs_dir=tmp_path / "runs", gate="off", unlocked=unlocked
        )
        return prepare.prepare(options, Notes())

    return start


def test_a_run_of_what_was_locked_is_locked(place: Place, run: Callable[..., prepare.Prepared]) -> None:
    locked(place)
    record = run().record
    assert record.lock is not None
    assert (record.lock.status, record.lock.unlocked) == ("locked", {})
    assert record.lock.items == dict.fromkeys(locks.ITEMS, "OK")


@pytest.mark.parametrize("item", MISMATCHES)
def test_a_run_of_anything_else_is_refused_and_what_differs_is_named(
    place: Place, run: Callable[..., prepare.Prepared], monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    locked(place)
    change, seen = MISMATCHES[item]
    change(place, monkeypatch)
    with pytest.raises(
        ImageError, match=f"is not what its lock says: {item}$|is not what its lock says: {item}\n"
    ) as caught:
        run()
    assert seen in str(caught.value)
    assert f"--unlocked {item}=" in str(caught.value)
    assert str(place.recipe / "recipe.lock") in str(caught.value)


@pytest.mark.parametrize("item", MISMATCHES)
def test_the_command_refuses_and_leaves_no_run(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    item: str,
) -> None:
    monkeypatch.setattr(prepare, "_check_contents", lambda *_: None)
    monkeypatch.setattr(prepare, "_check_host", lambda *_: None)
    command = ["run", str(place.recipe), "--no-gate", "--dry-run", "--runs-dir", str(tmp_path / "runs")]
    locked(place)
    assert main(command) == 0, "as locked it would start"
    runs = sorted((tmp_path / "runs").glob("*/*"))
    MISMATCHES[item][0](place, monkeypatch)
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"fake_recipe is not what its lock says: {item}\n" in said
    assert MISMATCHES[item][1] in said
    assert sorted((tmp_path / "runs").glob("*/*")) == runs


@pytest.mark.parametrize("item", MISMATCHES)
def test_an_item_can_be_let_through_by_name_and_the_run_says_so(
    place: Place, run: Callable[..., prepare.Prepared], monkeypatch: pytest.MonkeyPatch, item: str
) -> None:
    locked(place)
    MISMATCHES[item][0](place, monkeypatch)
    other = next(name for name in locks.ITEMS if name != item)
    with pytest.raises(ImageError, match=item):
        run(f"{other}=not this one")
    prepared = run(f"{item}=tried by hand")
    lock = prepared.record.lock
    assert lock is not None
    assert (lock.status, lock.unlocked, lock.items[item]) == ("unlocked", {item: "tried by hand"}, "WARN")
    prepared.run.create()
    prepared.record.save(prepared.run.record)
    assert load_record(prepared.run.record).lock == lock
    write_report(prepared.run, prepared.record)
    assert f"{item}: tried by hand" in prepared.run.report.read_text()


def test_several_differences_are_named_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    locked(place)
    other_data(place, monkeypatch)
    other_config(place, monkeypatch)
    resolved = place.resolved()
    with pytest.raises(ImageError, match="data, config"):
        require(check_lock(resolved, Site(), {}), resolved.recipe)


def test_a_recipe_without_a_lock_runs_and_the_run_says_so(
    place: Place, run: Callable[..., prepare.Prepared]
) -> None:
    lock = run().record.lock
    assert lock is not None
    assert (lock.status, lock.why) == ("unlocked", "no recipe.lock")
    locked(place)
    file = place.recipe / "recipe.lock"
    file.write_text(file.read_text().replace('"fake_recipe": {', '"fake_recipe@other": {'))
    lock = run().record.lock
    assert lock is not None
    assert lock.why == "recipe.lock has no entry for fake_recipe"


def test_an_override_on_the_command_line_is_another_config(place: Place) -> None:
    locked(place)
    checked = check_lock(place.resolved("trainer.save_freq=2"), Site(), {})
    assert [result.check for result in checked.failed] == ["lock.config"]
    assert "trainer.save_freq: -1 -> 2" in checked.failed[0].evidence


def test_packages_that_no_job_needs_do_not_count(place: Place) -> None:
    locked(place)
    place.distributions["pytest"] = replace(place.distributions["pytest"], version="2.0")
    assert not check_lock(place.resolved(), Site(), {}).failed


def test_a_lock_holds_on_another_machine(place: Place, tmp_path: Path) -> None:
    locked(place)
    moved = tmp_path / "elsewhere" / "fake_recipe"
    shutil.copytree(place.recipe, moved)
    checked = check_lock(replace(place, recipe=moved).resolved(), Site(), {})
    assert [result.status for result in checked.results] == [Status.OK] * len(locks.ITEMS)
    assert str(tmp_path / "recipes") not in (moved / "recipe.lock").read_text()


def test_a_secret_of_the_config_is_held_but_not_written_down(place: Place) -> None:
    with (place.recipe / "config.yaml").open("a") as stream:
        stream.write("+fake.api_key: opensesame\n")
    locked(place)
    assert "opensesame" not in (place.recipe / "recipe.lock").read_text()
    file = place.recipe / "config.yaml"
    file.write_text(file.read_text().replace("opensesame", "closesesame"))
    checked = check_lock(place.resolved(), Site(), {})
    assert [result.evidence for result in checked.failed] == ["a value that is not written down"]


@pytest.mark.parametrize("text", ["config", "config=", "config= ", "colour=red", ""])
def test_letting_through_needs_a_known_name_and_a_reason(text: str) -> None:
    with pytest.raises(ImageError, match="by name and with a reason"):
        parse_unlocked([text])


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read"), ("[]", "another version"), ('{"schema": 2, "recipes": {}}', "another version"),
     ('{"schema": 1, "recipes": {"fake_recipe": {"image": 1}}}', "not whole")],
)  # fmt: skip
def test_a_broken_lock_is_refused_not_ignored(place: Place, content: str, message: str) -> None:
    (place.recipe / "recipe.lock").write_text(content)
    with pytest.raises(ImageError, match=message):
        check_lock(place.resolved(), Site(), {})


@pytest.mark.parametrize("gone", ["model", "val.parquet", "conversion"])
def test_files_that_are_not_there_are_named(place: Place, gone: str) -> None:
    locked(place)
    if gone == "conversion":
        (place.conversion / "conversion.json").unlink()
    elif gone == "model":
        shutil.rmtree(place.recipe / "model")
    else:
        (place.recipe / gone).unlink()
    with pytest.raises(ImageError) as caught:
        check_lock(place.resolved(), Site(), {})
    assert gone in str(caught.value)


def test_entries_of_other_variants_stay(place: Place) -> None:
    locked(place)
    file = place.recipe / "recipe.lock"
    content = json.loads(file.read_text())
    content["recipes"]["fake_recipe@other"] = content["recipes"]["fake_recipe"]
    file.write_text(json.dumps(content))
    locked(place)
    assert sorted(json.loads(file.read_text())["recipes"]) == ["fake_recipe", "fake_recipe@other"]
