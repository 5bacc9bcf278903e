from __future__ import annotations

import math
from dataclasses import replace

import pytest

from verl_musa.device import gate_judge as judge
from verl_musa.device.gate_judge import Call, Sample

EOS = 9
PROMPT = [1, 2, 3]
EXACT = {"trainer": "float32", "rollout": "float32"}
LOW = {"trainer": "bfloat16", "rollout": "bfloat16"}


def sample(response: list[int], *, prompt: int = 0, session: int = 0, shift: float = 0.0) -> Sample:
    scores = [-0.5 - 0.1 * place for place in range(len(response))]
    return Sample(
        key=f"gate0_{session}_0",
        prompt=prompt,
        prompt_ids=PROMPT,
        response_ids=response,
        mask=[1] * len(response),
        calls=[Call(PROMPT, response)],
        rollout=scores,
        trainer=[score + shift for score in scores],
    )


def reference(samples: list[Sample], shift: float = 0.0) -> list[list[float]]:
    return [[score + shift for score in one.rollout or []] for one in samples]


HEALTHY = [sample([4, 5, EOS]), sample([6, EOS], session=1), sample([4, 4, 4, 4], prompt=1)]


# ---------------------------------------------------------------------- gate.logprobs


def test_equal_log_probabilities_pass() -> None:
    found = judge.judge_logprobs(HEALTHY, dtypes=EXACT, reference={"float32": reference(HEALTHY)})
    assert found["status"] == "OK"
    assert "log_ppl_abs_diff 0.00e+00" in found["evidence"]
    assert "limit 1e-05 (fp32)" in found["evidence"]
    assert set(found) == {"check", "looks_at", "status", "evidence", "fix", "where"}


def test_a_rollout_that_differs_fails_in_float32_and_passes_in_bfloat16() -> None:
    apart = [replace(one, trainer=[score + 5e-4 for score in one.rollout or []]) for one in HEALTHY]
    values = {
        "float32": [one.trainer or [] for one in apart],
        "bfloat16": [one.trainer or [] for one in apart],
    }
    exact = judge.judge_logprobs(apart, dtypes=EXACT, reference=values)
    assert exact["status"] == "FAIL"
    assert "5.00e-04" in exact["evidence"]
    assert "weight" in exact["fix"]
    low = judge.judge_logprobs(apart, dtypes=LOW, reference=values)
    assert low["status"] == "OK"
    assert "limit 2e-03 (bfloat16)" in low["evidence"]


def test_a_model_that_trainer_and_rollout_share_wrongly_fails_against_the_reference() -> None:
    found = judge.judge_logprobs(HEALTHY, dtypes=EXACT, reference={"float32": reference(HEALTHY, 0.3)})
    assert found["status"] == "FAIL"
    assert "mean 3.00e-01" in found["evidence"]
    assert "QKV" in found["fix"]


def test_the_noise_of_the_dtype_widens_the_limit_and_is_shown() -> None:
    values = {"float32": reference(HEALTHY, 0.02), "bfloat16": reference(HEALTHY, 0.01)}
    assert judge.judge_logprobs(HEALTHY, dtypes=LOW, reference=values)["status"] == "OK"
    far = {"float32": reference(HEALTHY, 0.2), "bfloat16": reference(HEALTHY, 0.19)}
    found = judge.judge_logprobs(HEALTHY, dtypes=LOW, reference=far)
    assert found["status"] == "FAIL"
    assert "own in bfloat16: mean 1.00e-02" in found["evidence"]


def test_the_noise_of_the_dtype_is_allowed_between_trainer_and_rollout() -> None:
    values = {"float32": reference(HEALTHY, 0.01), "bfloat16": reference(HEALTHY, 0.006)}

    def judged(gap: float, dtypes: dict[str, str] = LOW) -> dict[str, str]:
        apart = [replace(one, trainer=[score + gap for score in one.rollout or []]) for one in HEALTHY]
        return judge.judge_logprobs(apart, dtypes=dtypes, reference=values)

    assert judged(0.011)["status"] == "OK"
    assert "limit 1e-02 (bfloat16)" in judged(0.011)["evidence"]
    assert judged(0.013)["status"] == "FAIL"
    assert judged(0.011, EXACT)["status"] == "FAIL"


def test_one_wrong_token_fails_although_its_sequence_averages_out() -> None:
    values = reference(HEALTHY)
    values[0][0] += 0.5
    values[0][1] -= 0.5
    found = judge.judge_logprobs(HEALTHY, dtypes=EXACT, reference={"float32": values})
    assert found["status"] == "FAIL"
    assert "prompt 0 sample 0" in found["evidence"]


def test_a_nan_is_never_equal() -> None:
    broken = [replace(HEALTHY[0], trainer=[math.nan, -0.6, -0.7]), *HEALTHY[1:]]
    found = judge.judge_logprobs(broken, dtypes=EXACT, reference={"float32": reference(broken)})
    assert found["status"] == "FAIL"
    assert "inf" in found["evidence"]


def test_what_cannot_be_compared_is_unknown() -> None:
    silent = [replace(one, rollout=None) for one in HEALTHY]
    found = judge.judge_logprobs(silent, dtypes=EXACT, reference={"float32": reference(HEALTHY)})
    assert found["status"] == "UNKNOWN"
    assert "calculate_log_probs" in found["evidence"]
    found = judge.judge_logprobs(HEALTHY, dtypes=EXACT, reference=None, reference_missing="too large")
    assert found["status"] == "UNKNOWN"
    assert "too large" in found["evidence"]
    assert judge.judge_logprobs([], dtypes=EXACT, reference=None)["status"] == "UNKNOWN"
    idle = [replace(one, calls=[]) for one in HEALTHY]
    assert judge.judge_logprobs(idle, dtypes=EXACT, reference=None)["status"] == "UNKNOWN"


def test_a_difference_that_fails_is_not_hidden_by_something_unknown() -> None:
    apart = [replace(one, trainer=[score + 0.1 for score in one.rollout or []]) for one in HEALTHY]
    assert judge.judge_logprobs(apart, dtypes=EXACT, reference=None)["status"] == "FAIL"


def test_tool_tokens_are_not_compared() -> None:
    one = with_tool()
    assert one.rollout is not None
    odd = replace(
        one,
        trainer=[
            score + (9.0 if made == 0 else 0.0) for score, made in zip(one.rollout, one.mask, strict=True)
        ],
    )
    found = judge.judge_logprobs([odd], dtypes=EXACT, reference={"float32": [list(one.rollout)]})
    assert found["status"] == "OK"


# ---------------------------------------------------------------------- gate.response-mask


def with_tool() -> Sample:
    """Two turns with three tool tokens (7) between them."""
    first, tool, second = [4, 5, EOS], [7, 7, 7], [6, EOS]
    response = first + tool + second
    return Sample(
        key="gate0_0_0",
        prompt=0,
        prompt_ids=PROMPT,
        response_ids=response,
        mask=[1, 1, 1, 0, 0, 0, 1, 1],
        calls=[Call(PROMPT, first), Call(PROMPT + first + tool, second)],
        rollout=[-0.1] * 8,
        trainer=[-0.1] * 8,
    )


def judge_mask(samples: list[Sample], length: int = 4, padded_ones: int = 0) -> judge.Finding:
    return judge.judge_response_mask(samples, eos_ids=[EOS], response_length=length, padded_ones=padded_ones)


def test_a_right_mask_passes() -> None:
    found = judge_mask(HEALTHY)
    assert found["status"] == "OK"
    assert found["evidence"] == "3 rollouts: 9 tokens trained on, 0 tool tokens left out, 2 ended by EOS"


def test_tool_tokens_left_out_pass_and_trained_on_fail() -> None:
    assert judge_mask([with_tool()], 16)["status"] == "OK"
    found = judge_mask([replace(with_tool(), mask=[1] * 8)], 16)
    assert found["status"] == "FAIL"
    assert "token 3 of 8 is trained on but not made by the model (3 tokens are wrong)" in found["evidence"]


def test_a_mask_shifted_by_one_fails() -> None:
    shifted = [replace(one, mask=[0, *one.mask[:-1]]) for one in HEALTHY]
    found = judge_mask(shifted)
    assert found["status"] == "FAIL"
    assert "token 0 of 3 is made by the model but left out" in found["evidence"]
    assert "3 of 3" in found["evidence"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(HEALTHY[0], calls=[]), "no request"),
        (replace(HEALTHY[0], mask=[1]), "1 mask entries for 3"),
        (replace(HEALTHY[0], response_ids=[4, 4, EOS]), "differs from what the rollout returned"),
        (sample([4, EOS, 5, EOS]), "2 tokens follow the first EOS"),
        (sample([4, 5]), "ends after 2 of 4 tokens without an EOS"),
    ],
)
def test_each_other_mistake_fails_with_its_reason(wrong: Sample, said: str) -> None:
    found = judge_mask([*HEALTHY, wrong])
    assert found["status"] == "FAIL"
    assert said in found["evidence"]


def test_ones_in_the_padding_fail() -> None:
    assert judge_mask(HEALTHY, padded_ones=2)["status"] == "FAIL"


def test_no_end_seen_is_a_warning_and_nothing_to_see_is_unknown() -> None:
    assert judge_mask([sample([4, 4, 4, 4])])["status"] == "WARN"
    assert judge_mask([])["status"] == "UNKNOWN"


# ---------------------------------------------------------------------- gate.chat-template


def judge_template(
    rendered: list[list[int]] | None,
    generation: list[list[int]],
    samples: list[Sample] = HEALTHY,
    limit: int = 99,
) -> judge.Finding:
    return judge.judge_chat_template(
        samples, rendered=rendered, generation_prompt=generation, missing="no tokenizer", prompt_length=limit
    )


def test_the_same_tokens_pass() -> None:
    found = judge_template([PROMPT, PROMPT], [[3], [3]])
    assert found["status"] == "OK"
    assert found["evidence"].startswith("2 prompts, 6 tokens")


def test_a_wrong_template_fails_with_the_place() -> None:
    found = judge_template([PROMPT, [1, 2, 8, 3]], [[3], [3]])
    assert found["status"] == "FAIL"
    assert "prompt 1: the rollout gets 3 tokens, the tokenizer's template gives 4" in found["evidence"]
    assert "from token 2 on" in found["evidence"]
    assert "custom_chat_template" in found["fix"]


def test_a_prompt_cut_by_verl_is_compared_as_cut() -> None:
    cut = [replace(one, prompt_ids=[2, 3], calls=[Call([2, 3], one.response_ids)]) for one in HEALTHY]
    assert judge_template([PROMPT, PROMPT], [[3], [3]], cut, limit=2)["status"] == "OK"


def test_a_missing_generation_prompt_fails_and_a_template_without_one_warns() -> None:
    assert judge_template([PROMPT, PROMPT], [[2], [2]])["status"] == "FAIL"
    assert judge_template([PROMPT, PROMPT], [[], []])["status"] == "WARN"


def test_nothing_rendered_or_nothing_sent_is_unknown() -> None:
    assert judge_template(None, [])["evidence"] == "no tokenizer"
    assert judge_template(None, [])["status"] == "UNKNOWN"
    assert judge_template([PROMPT], [[3]], [replace(HEALTHY[0], calls=[])])["status"] == "UNKNOWN"


def test_few_names_are_shown_of_many() -> None:
    assert judge.few(["a", "b"]) == "a, b"
    assert judge.few(list("abcde")) == "a, b, c and 2 more"
