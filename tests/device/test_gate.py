from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from verl_musa.device import gate
from verl_musa.device import gate_judge as judge
from verl_musa.device.expect import RUN_DIR_ENV


@pytest.fixture(autouse=True)
def _run_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    monkeypatch.delenv(gate.GATE_ENV, raising=False)


def trainer_module() -> Any:
    module: Any = ModuleType("trainer_base")

    class PPOTrainer:
        def __init__(self, step: int = 0) -> None:
            self.global_steps = step
            self.trained = False

        def fit(self, agent_loop_manager: Any) -> str:
            self.trained = True
            return f"trained with {agent_loop_manager}"

    module.PPOTrainer = PPOTrainer
    return module


def written(tmp_path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((tmp_path / "logs" / "gate.json").read_text())
    return report


def test_nothing_is_wrapped_where_no_gate_is_asked_for() -> None:
    module = trainer_module()
    fit = module.PPOTrainer.fit
    gate.install(module)
    assert module.PPOTrainer.fit is fit


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gate.GATE_ENV, "yes")
    with pytest.raises(ValueError, match="expected before or only"):
        gate.asked()


@pytest.mark.parametrize(("mode", "trains"), [("before", True), ("only", False)])
def test_training_follows_the_gate_or_is_left_out(
    mode: str, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gate.GATE_ENV, mode)
    seen: list[Any] = []
    monkeypatch.setattr(gate, "run", lambda *arguments: seen.append(arguments))
    module = trainer_module()
    gate.install(module)
    trainer = module.PPOTrainer()
    assert trainer.fit("manager") == ("trained with manager" if trains else None)
    assert trainer.trained is trains
    assert seen == [(trainer, "manager")]


def test_a_resumed_run_goes_on_without_the_gate_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gate.GATE_ENV, "before")
    module = trainer_module()
    gate.install(module)
    trainer = module.PPOTrainer(step=4)
    trainer.fit("manager")
    assert trainer.trained
    assert written(tmp_path)["skipped"] == "the run goes on after step 4"


class Examination:
    """Stands in for the pass over the job."""

    status = "OK"

    def __init__(self, *_: Any) -> None:
        pass

    def examine(self) -> tuple[list[judge.Finding], dict[str, Any]]:
        return [judge.finding(judge.LM_HEAD, self.status, "seen", "mend")], {"tensors": 3}


@contextmanager
def no_reference(_trainer: Any) -> Iterator[str]:
    yield "none in this test"


@pytest.fixture
def _faked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verl")
    monkeypatch.setattr(gate, "_Examination", Examination)
    monkeypatch.setattr(gate, "_reference", no_reference)
    monkeypatch.delenv("VERL_MUSA_TEST_PLANT", raising=False)


@pytest.mark.usefixtures("_faked")
def test_verdicts_and_figures_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate.run(SimpleNamespace(), None)
    report = written(tmp_path)
    assert report["checks"][0]["status"] == "OK"
    assert report["figures"]["tensors"] == 3
    assert report["figures"]["seconds"] >= 0
    assert "gate: OK      gate.lm-head: seen" in capsys.readouterr().out


@pytest.mark.usefixtures("_faked")
def test_a_failed_check_stops_a_training_but_not_a_gate_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Examination, "status", "FAIL")
    monkeypatch.setenv(gate.GATE_ENV, "before")
    with pytest.raises(gate.GateFailedError, match=r"gate\.lm-head failed: seen"):
        gate.run(SimpleNamespace(), None)
    assert written(tmp_path)["checks"][0]["status"] == "FAIL"
    monkeypatch.setenv(gate.GATE_ENV, "only")
    gate.run(SimpleNamespace(), None)


def config(**actor: Any) -> Any:
    class Node(dict):  # type: ignore[type-arg]
        __getattr__ = dict.__getitem__

    def wrap(value: Any) -> Any:
        return (
            Node({name: wrap(inner) for name, inner in value.items()}) if isinstance(value, dict) else value
        )

    return wrap({"actor": actor, "rollout": {"dtype": "bfloat16"}})


@pytest.mark.parametrize(
    ("actor", "expected"),
    [
        ({"strategy": "fsdp2", "fsdp_config": {"mixed_precision": {"param_dtype": "fp32"}}}, "float32"),
        ({"strategy": "fsdp2", "fsdp_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"strategy": "fsdp", "fsdp_config": {"mixed_precision": None, "dtype": "float16"}}, "float16"),
        ({"strategy": "fsdp"}, "bfloat16"),
        ({"strategy": "megatron", "megatron": {"dtype": "float32"}}, "float32"),
        ({"strategy": "megatron", "megatron": {}}, "bfloat16"),
    ],
)
def test_the_dtypes_are_read_from_the_config(actor: dict[str, Any], expected: str) -> None:
    assert gate.dtypes(config(**actor)) == {"trainer": expected, "rollout": "bfloat16"}


def test_planting_is_refused_on_a_real_device_and_for_unknown_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verl")
    from verl_musa.device import gate_plant

    monkeypatch.delenv(gate_plant.PLANT_ENV, raising=False)
    assert gate_plant.asked() == []
    monkeypatch.setenv(gate_plant.PLANT_ENV, "stale-tensor,lost-lm-head")
    monkeypatch.setattr(gate_plant, "get_platform", lambda: SimpleNamespace(simulated=False))
    with pytest.raises(RuntimeError, match="test switch of the simulator"):
        gate_plant.asked()
    monkeypatch.setattr(gate_plant, "get_platform", lambda: SimpleNamespace(simulated=True))
    assert gate_plant.asked() == ["stale-tensor", "lost-lm-head"]
    monkeypatch.setenv(gate_plant.PLANT_ENV, "typo")
    with pytest.raises(RuntimeError, match="found typo"):
        gate_plant.asked()
