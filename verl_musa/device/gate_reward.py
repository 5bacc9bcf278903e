"""Golden pairs of a reward that asks a served model: scored in the job, by verl's own reward workers.

The runner writes them to ``<run directory>/logs/gate-golden.json``, where the reward cannot be scored without the job.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verl_musa.device.gate_judge import REWARD, Finding, finding

FILE = "gate-golden.json"
SCORE_S = 300.0


def cases(logs: Path) -> list[dict[str, Any]]:
    """The calls to make; none where the runner wrote none.

    Each has ``prompt``, ``response``, ``kind`` (right or wrong), ``low``, ``high``, ``data_source``, ``ground_truth`` and
    ``extra_info``.
    """
    path = logs / FILE
    if not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def score(trainer: Any, wanted: list[dict[str, Any]]) -> list[float]:
    """Scores of the calls, in order.

    Raises:
        RuntimeError: this trainer has no reward workers to ask while it rolls out.
    """
    import ray

    handles = trainer.reward_loop_manager.reward_loop_worker_handles
    if not handles:
        raise RuntimeError("a colocated reward model is asked after the rollout only")
    pending = [
        handles[place % len(handles)].compute_score.remote(_batch(trainer.tokenizer, case))
        for place, case in enumerate(wanted)
    ]
    return [float(result["reward_score"]) for result in ray.get(pending, timeout=SCORE_S)]


def _batch(tokenizer: Any, case: dict[str, Any]) -> Any:
    """One row as the agent loop hands it to a reward worker."""
    import numpy as np
    import torch
    from tensordict import TensorDict
    from verl import DataProto

    prompt, response = (
        torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]], dtype=torch.int64)
        for text in (case["prompt"], case["response"])
    )
    whole = torch.cat([prompt, response], dim=1)
    tensors = {
        "prompts": prompt,
        "responses": response,
        "input_ids": whole,
        "attention_mask": torch.ones_like(whole),
    }
    objects = {
        "data_source": case["data_source"],
        "reward_model": {"style": "rule", "ground_truth": case["ground_truth"]},
        "extra_info": dict(case["extra_info"]),
        "raw_prompt": [{"role": "user", "content": case["prompt"]}],
    }
    columns = {}
    for name, value in objects.items():
        columns[name] = np.empty(1, dtype=object)
        columns[name][0] = value
    return DataProto(batch=TensorDict(tensors, batch_size=1), non_tensor_batch=columns)


def judge_reward(wanted: list[dict[str, Any]], scores: list[float]) -> Finding:
    """Each score lies between its bounds."""
    for case, value in zip(wanted, scores, strict=True):
        if not case["low"] <= value <= case["high"]:
            return finding(
                REWARD,
                "FAIL",
                f"the {case['kind']} response {case['response']!r} to {case['prompt']!r} (ground truth "
                f"{case['ground_truth']!r}) scores {value:g}, expected {case['low']:g} to {case['high']:g}",
                "correct the reward function, the served model, the ground truth of the data, or the golden pair",
            )
    by_kind = {
        kind: [value for case, value in zip(wanted, scores, strict=True) if case["kind"] == kind]
        for kind in ("right", "wrong")
    }
    spans = ", ".join(f"{kind} {min(v):.3g} to {max(v):.3g}" for kind, v in by_kind.items() if v)
    return finding(REWARD, "OK", f"{len(scores)} responses scored by the job's reward workers: {spans}")


def check(trainer: Any, logs: Path) -> list[Finding]:
    """The finding, if there is anything to score in the job."""
    wanted = cases(logs)
    if not wanted:
        return []
    try:
        scores = score(trainer, wanted)
    except Exception as error:  # noqa: BLE001 - a check that breaks is UNKNOWN, and hides no other
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"
        return [
            finding(REWARD, "UNKNOWN", f"the golden pairs could not be scored: {said}", "see the job's log")
        ]
    return [judge_reward(wanted, scores)]
