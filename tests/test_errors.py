from __future__ import annotations

import pytest

from verl_musa.errors import HostError, JobFailedError, RecipeError, VerlMusaError


def test_message_names_place_found_expected_and_next_step() -> None:
    error = RecipeError(
        "unknown key 'modle'", where="recipe.yaml:3", found="modle", expected="model", fix="rename it"
    )
    assert str(error).splitlines() == [
        "recipe.yaml:3: unknown key 'modle'",
        "  found:     modle",
        "  expected:  model",
        "  next step: rename it",
    ]


def test_missing_details_leave_no_empty_lines() -> None:
    assert str(HostError("no memory")) == "no memory"


@pytest.mark.parametrize(
    ("kind", "code"), [(VerlMusaError, 2), (RecipeError, 2), (HostError, 2), (JobFailedError, 1)]
)
def test_exit_codes(kind: type[VerlMusaError], code: int) -> None:
    assert kind("x").exit_code == code
