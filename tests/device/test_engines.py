"""What engines have in common: the proof before the model, the counters after each batch."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from verl_musa.device import engines, proof


class FakeEngine:
    """Notes what is called, as an engine of verl's would be."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def initialize(self) -> None:
        self.calls.append("initialize")

    def train_batch(self, data: str, **options: Any) -> str:
        self.calls.append(("train", data, options))
        return "trained"

    def infer_batch(self, data: str, **options: Any) -> str:
        self.calls.append(("infer", data, options))
        return "inferred"


class Whole(engines.Proven, FakeEngine):
    proof_role = "fake-language_model"


class Divided(Whole):
    def parallel_sizes(self) -> dict[str, int]:
        return {"tensor": 2}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    monkeypatch.setattr(proof, "prove", lambda role, *, parallel: made.append(("prove", role, parallel)))
    monkeypatch.setattr(proof, "write_counters", lambda: made.append("counters"))
    return made


def test_the_proof_comes_before_the_model(calls: list[Any]) -> None:
    Whole(calls).initialize()
    assert calls == [("prove", "fake-language_model", {}), "initialize"]


def test_the_sizes_of_the_groups_are_in_the_proof(calls: list[Any]) -> None:
    Divided(calls).initialize()
    assert calls[0] == ("prove", "fake-language_model", {"tensor": 2})


def test_a_failed_proof_builds_no_model(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(role: str, *, parallel: dict[str, int]) -> None:
        raise RuntimeError(f"{role} {parallel}")

    monkeypatch.setattr(proof, "prove", refuse)
    with pytest.raises(RuntimeError, match="fake-language_model"):
        Whole(calls).initialize()
    assert calls == []


def test_counters_are_written_after_each_batch(calls: list[Any]) -> None:
    engine = Whole(calls)
    assert engine.train_batch("a", loss_function=1) == "trained"
    assert engine.infer_batch("b") == "inferred"
    assert calls == [("train", "a", {"loss_function": 1}), "counters", ("infer", "b", {}), "counters"]
