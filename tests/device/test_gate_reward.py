from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl_musa.device import gate_reward


def case(kind: str = "right", low: float = 0.7, high: float = 1.0, response: str = "42") -> dict[str, Any]:
    return {
        "prompt": "17 + 25 = ?",
        "response": response,
        "kind": kind,
        "low": low,
        "high": high,
        "data_source": "sums",
        "ground_truth": "42",
        "extra_info": {"question": "17 + 25 = ?"},
    }


def test_scores_within_their_bounds_pass_with_their_span() -> None:
    found = gate_reward.judge_reward([case(), case("wrong", 0.0, 0.3)], [0.9, 0.1])
    assert found["status"] == "OK"
    assert found["check"] == "gate.reward"
    assert found["evidence"].endswith("right 0.9 to 0.9, wrong 0.1 to 0.1")


def test_a_score_outside_its_bounds_is_named() -> None:
    found = gate_reward.judge_reward([case(), case("wrong", 0.0, 0.3, "24")], [0.9, 0.8])
    assert found["status"] == "FAIL"
    assert (
        "the wrong response '24' to '17 + 25 = ?' (ground truth '42') scores 0.8, expected 0 to 0.3"
        in found["evidence"]
    )


def test_nothing_is_checked_where_the_runner_handed_nothing_over(tmp_path: Path) -> None:
    assert gate_reward.check(SimpleNamespace(), tmp_path) == []


def test_a_job_without_reward_workers_leaves_it_unknown(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / gate_reward.FILE).write_text(json.dumps([case()]))
    trainer = SimpleNamespace(reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=None))
    (found,) = gate_reward.check(trainer, tmp_path)
    assert found["status"] == "UNKNOWN"
    assert "colocated reward model" in found["evidence"]


class Tokenizer:
    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}


def test_the_pairs_go_to_the_reward_workers_in_turn_as_verl_hands_rows_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verl")
    import ray

    monkeypatch.setattr(ray, "get", lambda value, timeout: value)  # noqa: ARG005
    rows: list[tuple[int, Any]] = []

    def worker(number: int) -> Any:
        def compute(data: Any) -> dict[str, float]:
            rows.append((number, data[0]))
            return {"reward_score": 0.9}

        return SimpleNamespace(compute_score=SimpleNamespace(remote=compute))

    manager = SimpleNamespace(reward_loop_worker_handles=[worker(0), worker(1)])
    trainer = SimpleNamespace(reward_loop_manager=manager, tokenizer=Tokenizer())
    (tmp_path / gate_reward.FILE).write_text(json.dumps([case(), case(response=" 42"), case()]))
    (found,) = gate_reward.check(trainer, tmp_path)
    assert found["status"] == "OK"
    assert [number for number, _ in rows] == [0, 1, 0]
    row = rows[1][1]
    assert row.batch["responses"].tolist() == [32, 52, 50]
    assert row.batch["attention_mask"].shape[0] == row.batch["prompts"].shape[0] + 3
    assert row.non_tensor_batch["reward_model"]["ground_truth"] == "42"
    assert row.non_tensor_batch["extra_info"] == {"question": "17 + 25 = ?"}
