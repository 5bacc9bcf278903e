from __future__ import annotations

from typing import Any

import pytest

from verl_musa.device.gate_judge_weights import Weights, judge_lm_head, judge_weight_sync

NAMES = ("model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight")
REPLICAS = ("replica 0 rank 0", "replica 1 rank 0")


def text(name: str, version: int, shape: str = "4x4") -> str:
    return f"float32|{shape}|{name}-{version}"


def weights(version: int, **held: int) -> Weights:
    """All tensors at ``version``, those of a replica at ``held`` (``replica0`` or ``replica1``) where given."""
    trainer = {name: [[text(name, version)]] for name in NAMES}
    replicas = {
        place: {name: text(name, held.get(f"replica{number}", version)) for name in NAMES}
        for number, place in enumerate(REPLICAS)
    }
    return Weights(trainer, replicas)


BEFORE, DURING, AFTER = weights(0), weights(1), weights(0)


def put(state: Weights, name: str, place: str, value: str | None) -> Weights:
    """``state`` with another text for one tensor of one replica rank; None takes it away."""
    held = {where: dict(tensors) for where, tensors in state.replicas.items()}
    if value is None:
        del held[place][name]
    else:
        held[place][name] = value
    return Weights(state.trainer, held)


def test_tensors_that_follow_pass_with_a_count() -> None:
    found = judge_weight_sync(BEFORE, DURING, AFTER)
    assert found["status"] == "OK"
    assert found["evidence"].startswith("3 tensors, 2 replica ranks: 6 comparisons equal")


def test_one_stale_tensor_is_named_with_its_replica() -> None:
    stale = put(DURING, NAMES[1], REPLICAS[1], text(NAMES[1], 0))
    found = judge_weight_sync(BEFORE, stale, AFTER)
    assert found["status"] == "FAIL"
    assert found["evidence"] == (
        "1 did not change when the trainer's did (stale): model.layers.0.mlp.down_proj.weight (replica 1 rank 0)"
    )
    assert "load_weights" in found["fix"]


def test_a_tensor_with_wrong_values_is_named() -> None:
    found = judge_weight_sync(BEFORE, put(DURING, NAMES[0], REPLICAS[0], text(NAMES[2], 1)), AFTER)
    assert found["status"] == "FAIL"
    assert (
        "1 differ from the trainer's after a sync: model.embed_tokens.weight (replica 0 rank 0)"
        in found["evidence"]
    )


def test_a_tensor_that_was_wrong_before_the_first_step_is_named() -> None:
    first = put(BEFORE, NAMES[0], REPLICAS[0], text(NAMES[0], 7))
    last = put(AFTER, NAMES[0], REPLICAS[0], text(NAMES[0], 7))
    found = judge_weight_sync(first, DURING, last)
    assert found["status"] == "FAIL"
    assert "from the first sync on" in found["evidence"]


def test_a_tensor_that_does_not_come_back_is_named() -> None:
    found = judge_weight_sync(BEFORE, DURING, put(AFTER, NAMES[2], REPLICAS[0], text(NAMES[2], 1)))
    assert found["status"] == "FAIL"
    assert "did not come back" in found["evidence"]


def test_an_export_that_ignores_the_weights_is_named() -> None:
    during = Weights({**DURING.trainer, NAMES[0]: BEFORE.trainer[NAMES[0]]}, DURING.replicas)
    found = judge_weight_sync(BEFORE, during, AFTER)
    assert found["status"] == "FAIL"
    assert "1 did not change in the trainer's own export" in found["evidence"]


def test_weights_of_the_trainer_that_are_not_restored_fail_first() -> None:
    found = judge_weight_sync(BEFORE, DURING, DURING)
    assert found["status"] == "FAIL"
    assert "could not be restored" in found["evidence"]


def test_a_layout_of_its_own_counts_as_following() -> None:
    states = [put(state, NAMES[1], place, text("packed", version, "16"))
              for state, version in ((BEFORE, 0), (DURING, 1), (AFTER, 0)) for place in REPLICAS[:1]]  # fmt: skip
    found = judge_weight_sync(*states)
    assert found["status"] == "OK"
    assert "1 in a layout of their own changed with it" in found["evidence"]


def test_each_rank_must_hold_its_own_part() -> None:
    def halves(version: int, order: tuple[int, int]) -> Weights:
        name = NAMES[1]
        parts = [text(f"{name}/{rank}", version, "2x4") for rank in (0, 1)]
        places = {f"replica 0 rank {rank}": {name: parts[order[rank]]} for rank in (0, 1)}
        return Weights({name: [[text(name, version), part] for part in parts]}, places)

    right = [halves(version, (0, 1)) for version in (0, 1, 0)]
    assert judge_weight_sync(*right)["status"] == "OK"
    swapped = [halves(version, (1, 0)) for version in (0, 1, 0)]
    assert judge_weight_sync(*swapped)["status"] == "FAIL"


def test_tensors_that_are_not_there_are_unknown_but_for_a_tied_head() -> None:
    states = [
        put(state, NAMES[2], place, None) for state in (BEFORE, DURING, AFTER) for place in REPLICAS[:1]
    ]
    found = judge_weight_sync(*states)
    assert found["status"] == "UNKNOWN"
    assert "lm_head.weight (replica 0 rank 0)" in found["evidence"]
    tied = [Weights({**state.trainer, NAMES[2]: state.trainer[NAMES[0]]}, state.replicas) for state in states]
    without = [Weights(state.trainer, {REPLICAS[0]: state.replicas[REPLICAS[0]]}) for state in tied]
    assert judge_weight_sync(*without)["status"] == "OK"


def test_replicas_that_cannot_be_read_are_unknown() -> None:
    silent = Weights(BEFORE.trainer, {})
    found = judge_weight_sync(silent, Weights(DURING.trainer, {}), silent, missing="HTTP 404")
    assert found["status"] == "UNKNOWN"
    assert found["evidence"] == "HTTP 404"
    assert judge_weight_sync(silent, Weights(DURING.trainer, {}), silent)["status"] == "UNKNOWN"


# ---------------------------------------------------------------------- gate.lm-head


def with_head(state: Weights, kind: str) -> Weights:
    """``state`` whose trainer and replicas have an ``own`` or ``equal`` head, or none (``absent``)."""

    def change(tensors: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in tensors.items() if name != NAMES[2]}
        if kind == "absent":
            return rest
        return {**rest, NAMES[2]: tensors[NAMES[0] if kind == "equal" else NAMES[2]]}

    return Weights(change(state.trainer), {place: change(held) for place, held in state.replicas.items()})


@pytest.mark.parametrize(
    ("tied", "kind", "folder", "status"),
    [
        (False, "own", "own", "OK"),
        (False, "equal", "own", "FAIL"),
        (False, "absent", "own", "FAIL"),
        (False, "own", "absent", "FAIL"),
        (True, "absent", "absent", "OK"),
        (True, "equal", "absent", "OK"),
        (True, "own", "absent", "FAIL"),
        (True, "absent", "own", "FAIL"),
        (True, "absent", "", "OK"),
    ],
)
def test_the_head_is_what_the_config_says(tied: bool, kind: str, folder: str, status: str) -> None:
    found = judge_lm_head(with_head(BEFORE, kind), tied=tied, folder_head=folder)
    assert found["status"] == status
    assert f"tie_word_embeddings is {str(tied).lower()}" in found["evidence"]


def test_a_replica_that_lost_its_head_is_named() -> None:
    found = judge_lm_head(put(BEFORE, NAMES[2], REPLICAS[1], None), tied=False, folder_head="own")
    assert found["status"] == "FAIL"
    assert found["evidence"].endswith("but replica 1 rank 0 has no lm_head")


def test_an_unread_config_or_unknown_names_are_unknown() -> None:
    assert judge_lm_head(BEFORE, tied=None)["status"] == "UNKNOWN"
    odd = Weights({"decoder.weight": [["float32|1|a"]]}, {})
    assert judge_lm_head(odd, tied=False)["status"] == "UNKNOWN"
