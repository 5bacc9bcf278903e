"""The patch series of a run: refused on drift before the start, gathered from every process at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_musa.errors import HostError, JobFailedError
from verl_musa.patching.model import PatchError
from verl_musa.patching.verify import Report, Row, Status
from verl_musa.recipe import Recipe, load_recipe
from verl_musa.run import patches
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import RunRecord

RECIPE = load_recipe(str(Path(__file__).parents[1] / "fixtures" / "fake_recipe"))


def report(*rows: Row) -> Report:
    return Report("series", rows, (), {})


DRIFTED = Row(
    "verl-mfu-s5000",
    "verl.utils:f",
    "verl",
    "0.9.2",
    Status.DRIFT,
    where="flops.py:3",
    found="aa",
    expected=("bb",),
)


@pytest.fixture
def variables() -> dict[str, str]:
    return patches.activation(RECIPE, ())


def write_record(run: RunDirectory, plan: str, *, pid: int = 7, **changes: object) -> None:
    run.patches.mkdir(exist_ok=True)
    record = {"schema": 1, "series": "s", "plan": plan, "applied": {}, "skipped": {}, "drift": {}, "refused": [],
              "missed": [], "host": "here", "pid": pid, "parent": 1, "program": "worker", **changes}  # fmt: skip
    (run.patches / f"here-{pid}.json").write_text(json.dumps(record))


def test_nothing_drifted_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[object] = []

    def verify(series: object) -> Report:
        looked_at.append(series)
        return report()

    monkeypatch.setattr(patches, "verify", verify)
    patches.refuse_drift(())
    assert len(looked_at) == 1


def test_drift_is_refused_with_the_place_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "verify", lambda _series: report(DRIFTED))
    with pytest.raises(HostError) as caught:
        patches.refuse_drift(())
    text = str(caught.value)
    for part in ("flops.py:3", "verl 0.9.2", "aa", "bb", "--allow-drift verl-mfu-s5000"):
        assert part in text


def test_drift_can_be_let_through_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "verify", lambda _series: report(DRIFTED))
    patches.refuse_drift(("verl-mfu-s5000",))
    with pytest.raises(HostError):
        patches.refuse_drift(("another",))


def test_an_unknown_patch_cannot_be_let_through() -> None:
    with pytest.raises(PatchError):
        patches.activation(RECIPE, ("no-such-patch",))


def test_what_the_workers_applied_goes_into_the_record(
    run: RunDirectory, record: RunRecord, variables: dict[str, str]
) -> None:
    entry = {"distribution": "verl", "version": "0.9.1", "targets": {"verl.utils:f": "bb"}}
    write_record(run, patches.plan_digest(variables), applied={"verl-mfu-s5000": entry})
    patches.collect(run, record, variables)
    assert record.patches is not None
    assert record.patches["applied"] == {"verl-mfu-s5000": entry}
    assert record.patches["processes"] == 1


def test_a_worker_with_another_plan_fails_the_run(
    run: RunDirectory, record: RunRecord, variables: dict[str, str]
) -> None:
    write_record(run, "another plan")
    with pytest.raises(JobFailedError, match="same patches") as caught:
        patches.collect(run, record, variables)
    assert "here:7" in str(caught.value)
    assert record.patches is not None


def test_a_refusal_in_a_worker_fails_the_run(
    run: RunDirectory, record: RunRecord, variables: dict[str, str]
) -> None:
    write_record(run, patches.plan_digest(variables), refused=["verl-mfu-s5000 does not fit"])
    with pytest.raises(JobFailedError, match="does not fit"):
        patches.collect(run, record, variables)


def test_the_recipe_decides_for_which_devices_the_series_is(variables: dict[str, str]) -> None:
    hardware = patches.activation(_hardware(), ())
    assert patches.plan_digest(hardware) != patches.plan_digest(variables)


def _hardware() -> Recipe:
    return RECIPE.model_copy(update={"device": RECIPE.device.model_copy(update={"simulated": False})})


def test_a_patch_that_is_left_out_by_hand_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patches.left_out(patches.activation(RECIPE, ())) == []
    monkeypatch.setenv(patches.OFF_ENV, "verl-mfu-s5000,verl-ray-noset-musa")
    variables = patches.activation(RECIPE, ())
    assert patches.left_out(variables) == ["verl-mfu-s5000", "verl-ray-noset-musa"]
    monkeypatch.setenv(patches.OFF_ENV, "no-such-patch")
    with pytest.raises(PatchError, match="no such patch"):
        patches.activation(RECIPE, ())
