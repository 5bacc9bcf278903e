"""``verl-musa run`` on several hosts, up to its supervisor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_musa.checks import Result, Status
from verl_musa.errors import HostError, RunError
from verl_musa.recipe import load_recipe
from verl_musa.run import RunOptions, several, supervise
from verl_musa.run.directory import RunDirectory
from verl_musa.run.phases import tell_results
from verl_musa.run.record import ClusterFacts, RunRecord

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = str(RECIPES / "qwen3-tiny-dense")
FAKE = str(Path(__file__).parents[1] / "fixtures" / "fake_recipe")


class Shown:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    phase = note

    def step(self, *_: Any) -> None: ...

    def close(self) -> None: ...


def result(status: Status, host: str = "node2") -> Result:
    return Result(
        check="net.mtu",
        looks_at="MTU of the interface",
        status=status,
        evidence="1500, others 9000",
        fix="set it",
        host=host,
    )


Start = Callable[..., tuple[RunDirectory | None, list[str], Shown]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts the tiny recipe on two hosts; returns the run, what was done in order, and what was shown."""
    (tmp_path / "site.yaml").write_text(f"shared: {tmp_path}\nhead: a\nhosts: [{{name: a}}, {{name: b}}]\n")
    done: list[str] = []
    run = RunDirectory(tmp_path / "runs" / "x" / "run-1")
    run.create()

    def step(name: str, value: Any = None) -> Callable[..., Any]:
        def did(*_: Any, **__: Any) -> Any:
            done.append(name)
            return value

        return did

    monkeypatch.setattr(several, "ensure_assets", step("assets"))
    monkeypatch.setattr("verl_musa.run.plan_view.check", step("check"))
    monkeypatch.setattr("verl_musa.run.plan_view.plan_lines", lambda _: ["the plan"])
    monkeypatch.setattr(several, "take_down", step("leftovers", {}))
    monkeypatch.setattr(several, "software_of", step("software"))
    monkeypatch.setattr(several, "prepare", step("prepare", SimpleNamespace(run=run, resolved=None)))
    monkeypatch.setattr(several, "write_directory", step("directory"))
    monkeypatch.setattr(
        several, "look", step("preflight", SimpleNamespace(results=[result(Status.OK)], clocks={}))
    )
    monkeypatch.setattr(several, "write_clocks", step("clocks"))
    monkeypatch.setattr(several, "Ssh", lambda _: None)
    launched: list[RunOptions] = []

    def launch(_: RunDirectory, options: RunOptions) -> None:
        launched.append(options)
        done.append("supervisor")

    monkeypatch.setattr(several, "launch", launch)

    def go(**changes: Any) -> tuple[RunDirectory | None, list[str], Shown]:
        shown = Shown()
        options = RunOptions(recipe=TINY, site=tmp_path / "site.yaml", nodes=2, devices_per_node=1, **changes)
        found = several.start(options, load_recipe(TINY), shown)
        for one in launched:  # a supervisor works from elsewhere
            assert one.runs_dir.is_absolute()
            assert Path(one.recipe) == RECIPES / "qwen3-tiny-dense"
        return found, done, shown

    return go


def test_everything_is_looked_at_before_anything_is_written(start: Start) -> None:
    run, done, shown = start()
    assert run is not None
    assert done == [
        "assets",
        "check",
        "software",
        "prepare",
        "preflight",
        "directory",
        "clocks",
        "supervisor",
    ]
    assert "the plan" in shown.lines
    assert "preflight: 1 checks, 0 not OK" in shown.lines


def test_a_dry_run_shows_the_plan_and_starts_nothing(start: Start) -> None:
    run, done, shown = start(dry_run=True)
    assert run is None
    assert done == ["assets", "check"]
    assert shown.lines[-1] == "the plan"


def test_a_preflight_that_fails_writes_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = SimpleNamespace(results=[result(Status.WARN, "node1"), result(Status.FAIL)], clocks={})
    monkeypatch.setattr(several, "look", lambda *_, **__: bad)
    with pytest.raises(HostError, match=r"preflight: 1 checks failed, first net.mtu") as caught:
        start()
    assert (caught.value.where, caught.value.found, caught.value.fix) == (
        "node2",
        "1500, others 9000",
        "set it",
    )


def test_results_that_are_not_ok_are_shown_by_host() -> None:
    shown = Shown()
    tell_results("probe", [result(Status.OK), result(Status.WARN), result(Status.UNKNOWN, "node3")], shown)
    assert shown.lines == [
        "WARN node2 net.mtu: 1500, others 9000 -> set it",
        "UNKNOWN node3 net.mtu: 1500, others 9000 -> set it",
        "probe: 3 checks, 2 not OK",
    ]


def test_which_runs_go_over_ssh(
    run: RunDirectory, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERL_MUSA_SITE", raising=False)
    assert several.several(RunOptions(recipe=TINY)) is None
    found = several.several(RunOptions(recipe=TINY, hosts=("a", "b")))
    assert found is not None
    assert found[1].name == "qwen3-tiny-dense"
    resumed = RunOptions(recipe=FAKE, resume=run.path.name, runs_dir=tmp_path / "runs")
    assert several.several(resumed) is None
    record.cluster = ClusterFacts(nodes=2, devices_per_node=1, hosts=["a", "b"], head="a", site="", shared="")
    record.save(run.record)
    found = several.several(resumed)
    assert found is not None
    assert found[0].resume == str(run.path)
    with pytest.raises(RunError, match="no run begins"):
        several.several(RunOptions(recipe=FAKE, resume="2099", runs_dir=tmp_path / "runs"))


@pytest.mark.parametrize(
    ("module", "device"), [("verl.trainer.main_ppo", "musa"), ("fake_trainer.main", None)]
)
def test_the_probe_asks_for_what_the_job_needs(
    monkeypatch: pytest.MonkeyPatch, module: str, device: str | None
) -> None:
    wishes: list[Any] = []

    def look(_api: object, wish: Any, _say: object) -> list[Result]:
        wishes.append(wish)
        return []

    monkeypatch.setattr(supervise, "look_afterwards", look)
    monkeypatch.setattr(supervise, "job_runtime_env", lambda *_: {"env_vars": {"A": "1"}})
    recipe = SimpleNamespace(
        device=SimpleNamespace(type="musa", simulated=True), trainer=SimpleNamespace(module=module)
    )
    prepared = SimpleNamespace(recipe=recipe, resolved=None, run=SimpleNamespace(path=Path("run-1")))
    members = [SimpleNamespace(name=f"node{n}", address=f"198.51.100.{n}") for n in (1, 2)]
    cluster = SimpleNamespace(members=members, num_gpus=4, url="http://192.0.2.1:8265")
    supervise.probe(cluster, prepared, {}, Shown(), "/opt/python")  # type: ignore[arg-type]
    (wish,) = wishes
    assert dict(wish.hosts) == {"node1": "198.51.100.1", "node2": "198.51.100.2"}
    assert (wish.devices, wish.backend, wish.device, wish.simulated, wish.python) == (
        4,
        "gloo",
        device,
        True,
        "/opt/python",
    )
