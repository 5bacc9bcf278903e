"""The gate's verdicts: plain numbers in, findings out. Imports nothing of verl, Ray or torch.

A finding is a mapping with the keys of one check in the project's results: ``check``, ``looks_at``, ``status`` (OK, WARN,
FAIL or UNKNOWN), ``evidence``, ``fix`` and ``where``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Finding = dict[str, str]

LOGPROBS, WEIGHT_SYNC, RESPONSE_MASK = "gate.logprobs", "gate.weight-sync", "gate.response-mask"
CHAT_TEMPLATE, LM_HEAD, REWARD = "gate.chat-template", "gate.lm-head", "gate.reward"

LOOKS_AT = {
    LOGPROBS: "log-probabilities of fresh rollouts: trainer against rollout, and against Hugging Face on the CPU",
    WEIGHT_SYNC: "every weight on every rollout replica, before, with and after a perturbation of the trainer's",
    RESPONSE_MASK: "which tokens of fresh rollouts are trained on",
    CHAT_TEMPLATE: "the prompt tokens that the rollout gets, against the tokenizer's own chat template",
    LM_HEAD: "the output projection of config, model folder, trainer and rollout: tied to the embedding or its own",
    REWARD: "the reward function on golden pairs, by the job's reward workers",
}

SHOWN = 3
"""How many of several equal problems are named."""


def finding(check: str, status: str, evidence: str, fix: str = "", where: str = "") -> Finding:
    """One finding."""
    return {
        "check": check,
        "looks_at": LOOKS_AT[check],
        "status": status,
        "evidence": evidence,
        "fix": fix,
        "where": where,
    }


def few(names: Sequence[str]) -> str:
    """The first of ``names``, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


@dataclass(frozen=True)
class Call:
    """One request that the agent loop made of the rollout server.

    Attributes:
        prompt_ids: token ids sent.
        token_ids: token ids that came back.
    """

    prompt_ids: list[int]
    token_ids: list[int]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One trajectory as the trainer gets it.

    Attributes:
        key: verl's key of it.
        prompt: index of its prompt among the gate's prompts.
        prompt_ids: token ids of the prompt.
        response_ids: token ids of the response, those of tools included.
        mask: verl's response mask, one number a response token.
        calls: the requests that it came from, in order; empty where none was found.
        rollout: the rollout's log-probability of each response token, None where it gave none.
        trainer: the trainer's.
    """

    key: str
    prompt: int
    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    calls: list[Call]
    rollout: list[float] | None = None
    trainer: list[float] | None = None

    @property
    def name(self) -> str:
        """How the sample is named to people."""
        return f"prompt {self.prompt} sample {self.key.rsplit('_', 2)[-2]}" if "_" in self.key else self.key

    def generated(self) -> list[int]:
        """1 for each response token that the model itself made, by the recorded requests; else 0."""
        expected = [0] * len(self.response_ids)
        for call in self.calls:
            start = len(call.prompt_ids) - len(self.prompt_ids)
            for place in range(start, min(start + len(call.token_ids), len(expected))):
                if place >= 0:
                    expected[place] = 1
        return expected


@dataclass(frozen=True)
class Difference:
    """How far two sets of log-probabilities lie apart, over the tokens that the model made.

    Attributes:
        log_ppl_abs: mean over the sequences of the absolute difference of their mean log-probabilities, which is
            verl's ``rollout_corr/log_ppl_abs_diff``.
        mean_abs: mean absolute difference of a token.
        max_abs: largest one.
        tokens: how many tokens were compared.
        worst: name of the sample that holds the largest difference.
    """

    log_ppl_abs: float
    mean_abs: float
    max_abs: float
    tokens: int
    worst: str


def difference(
    samples: Sequence[Sample], first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]
) -> Difference | None:
    """Compare two sets of log-probabilities, one sequence a sample; None where the model made no token at all."""
    sequences: list[float] = []
    total, largest, tokens, worst = 0.0, -1.0, 0, ""
    for sample, ours, theirs in zip(samples, first, second, strict=True):
        gaps = [a - b for a, b, made in zip(ours, theirs, sample.generated(), strict=True) if made]
        if not gaps:
            continue
        # A NaN must not get lost in a maximum: it counts as an infinite difference.
        sizes = [abs(gap) if gap == gap else float("inf") for gap in gaps]  # noqa: PLR0124 - true for all but NaN
        sequences.append(sum(gaps) / len(gaps) if max(sizes) < float("inf") else float("inf"))
        total, tokens = total + sum(sizes), tokens + len(sizes)
        if max(sizes) > largest:
            largest, worst = max(sizes), sample.name
    if not tokens:
        return None
    mean_sequence = sum(abs(value) for value in sequences) / len(sequences)
    return Difference(mean_sequence, total / tokens, largest, tokens, worst)


@dataclass(frozen=True)
class Limits:
    """Largest differences that pass; the source of each is in docs/gate.md.

    Attributes:
        log_ppl_abs: trainer against rollout.
        reference_mean: trainer against Hugging Face in float32, mean of a token.
        reference_max: the same, largest of any token.
    """

    log_ppl_abs: float
    reference_mean: float
    reference_max: float


FP32 = Limits(log_ppl_abs=1e-5, reference_mean=1e-5, reference_max=1e-3)
LOW = Limits(log_ppl_abs=2e-3, reference_mean=2e-3, reference_max=0.1)
# How far a low-precision trainer may lie from float32, and from a rollout, in multiples of how far Hugging Face itself lies from
# float32 in that dtype. Few tokens round less evenly than many: with short responses 2e-3 is less than the rounding alone.
NOISE_MEAN, NOISE_MAX = 3.0, 5.0


@dataclass(frozen=True)
class Noise:
    """How far Hugging Face in a low precision lies from Hugging Face in float32, and how a message says so."""

    log_ppl_abs: float = 0.0
    mean_abs: float = 0.0
    max_abs: float = 0.0
    shown: str = ""


def rounding(samples: Sequence[Sample], reference: Mapping[str, Sequence[Sequence[float]]] | None) -> Noise:
    """The noise on these samples; none where there is no reference, or all of it is in float32."""
    noise = Noise()
    for dtype, values in (reference or {}).items():
        own = (
            None
            if dtype == "float32" or reference is None
            else difference(samples, values, reference["float32"])
        )
        if own is not None:
            noise = Noise(
                max(noise.log_ppl_abs, own.log_ppl_abs),
                max(noise.mean_abs, own.mean_abs),
                max(noise.max_abs, own.max_abs),
                f" (Hugging Face's own in {dtype}: mean {own.mean_abs:.2e}, max {own.max_abs:.2e})",
            )
    return noise


def judge_logprobs(
    samples: Sequence[Sample],
    *,
    dtypes: Mapping[str, str],
    reference: Mapping[str, Sequence[Sequence[float]]] | None,
    reference_missing: str = "",
) -> Finding:
    """Trainer against rollout, and trainer against Hugging Face.

    Args:
        samples: the rollouts, with the trainer's log-probabilities.
        dtypes: what ``trainer`` and ``rollout`` compute in, by torch's names without ``torch.``.
        reference: Hugging Face's log-probabilities by dtype, ``float32`` among them; None where there are none.
        reference_missing: why there are none.
    """
    exact = set(dtypes.values()) == {"float32"}
    limits, kind = (FP32, "fp32") if exact else (LOW, " and ".join(sorted(set(dtypes.values()))))
    trainer = [sample.trainer for sample in samples if sample.trainer is not None]
    if len(trainer) != len(samples) or not samples:
        return finding(LOGPROBS, "UNKNOWN", "the trainer gave no log-probabilities", "see the job's log")
    evidence: list[str] = []
    problems: list[str] = []
    unknown: list[str] = []
    noise = Noise() if exact else rounding(samples, reference)
    rollout = [sample.rollout for sample in samples if sample.rollout is not None]
    if len(rollout) == len(samples):
        gap = difference(samples, trainer, rollout)
        if gap is None:
            return finding(
                LOGPROBS, "UNKNOWN", "no response holds a token that the model made", "see gate.response-mask"
            )
        limit = max(limits.log_ppl_abs, NOISE_MEAN * noise.log_ppl_abs)
        evidence.append(
            f"trainer against rollout: log_ppl_abs_diff {gap.log_ppl_abs:.2e}, of a token at most {gap.max_abs:.2e}, "
            f"{gap.tokens} tokens, limit {limit:.0e} ({kind})"
        )
        if not gap.log_ppl_abs <= limit:
            problems.append(
                "compare rollout and trainer: weights that did not arrive (gate.weight-sync), dtype, kernels"
            )
    else:
        unknown.append(
            "the rollout gave no log-probabilities: set actor_rollout_ref.rollout.calculate_log_probs"
        )
    if reference is None:
        unknown.append(f"not compared with Hugging Face: {reference_missing}")
    else:
        text, bad = _against_reference(samples, trainer, reference["float32"], limits, noise)
        evidence.append(text)
        if bad:
            problems.append(
                "the trainer computes another model than Hugging Face: check the weight conversion (QKV order, "
                "lm_head, tied embeddings) and the attention settings"
            )
    shown = "; ".join([*evidence, *unknown])
    if problems:
        return finding(LOGPROBS, "FAIL", shown, "; ".join(problems))
    return (
        finding(LOGPROBS, "UNKNOWN", shown, "see the evidence") if unknown else finding(LOGPROBS, "OK", shown)
    )


def _against_reference(
    samples: Sequence[Sample],
    trainer: Sequence[Sequence[float]],
    exact: Sequence[Sequence[float]],
    limits: Limits,
    noise: Noise,
) -> tuple[str, bool]:
    """The evidence, and whether the difference is too large."""
    gap = difference(samples, trainer, exact)
    if gap is None:
        return "no token to compare with Hugging Face", False
    mean = max(limits.reference_mean, NOISE_MEAN * noise.mean_abs)
    largest = max(limits.reference_max, NOISE_MAX * noise.max_abs)
    text = (
        f"trainer against Hugging Face in fp32: mean {gap.mean_abs:.2e}, max {gap.max_abs:.2e} in {gap.worst}, "
        f"limits {mean:.0e} and {largest:.0e}{noise.shown}"
    )
    return text, not (gap.mean_abs <= mean and gap.max_abs <= largest)


def judge_response_mask(
    samples: Sequence[Sample], *, eos_ids: Sequence[int], response_length: int, padded_ones: int = 0
) -> Finding:
    """Exactly the tokens that the model made are trained on, up to and with the first end-of-sequence token.

    Args:
        samples: the rollouts.
        eos_ids: token ids that end a response.
        response_length: longest response that the gate asked for.
        padded_ones: ones of the mask that lie in the padding of verl's padded batch.
    """
    problems: list[str] = []
    ended = 0
    for sample in samples:
        problem = _mask_problem(sample) or _eos_problem(sample, eos_ids, response_length)
        if problem:
            problems.append(f"{sample.name}: {problem}")
        ended += any(call.token_ids and call.token_ids[-1] in eos_ids for call in sample.calls[-1:])
    if padded_ones:
        problems.append(f"{padded_ones} padding tokens are in the mask")
    if problems:
        return finding(
            RESPONSE_MASK,
            "FAIL",
            f"{len(problems)} of {len(samples)} rollouts are wrong; {problems[0]}",
            "check the agent loop's response_mask, and the eos_token_id of tokenizer and generation_config.json",
        )
    if not samples:
        return finding(RESPONSE_MASK, "UNKNOWN", "no rollout to look at", "see the job's log")
    made = sum(sum(sample.mask) for sample in samples)
    others = sum(len(sample.mask) for sample in samples) - made
    text = f"{len(samples)} rollouts: {made} tokens trained on, {others} tool tokens left out, {ended} ended by EOS"
    if not ended:
        return finding(
            RESPONSE_MASK,
            "WARN",
            f"{text}: how an end is handled was not seen",
            "look at a response by hand: does the model ever end one within the response length?",
        )
    return finding(RESPONSE_MASK, "OK", text)


def _mask_problem(sample: Sample) -> str:
    if not sample.calls:
        return "no request to the rollout gave these prompt and response tokens"
    if len(sample.mask) != len(sample.response_ids):
        return f"{len(sample.mask)} mask entries for {len(sample.response_ids)} response tokens"
    for call in sample.calls:
        start = len(call.prompt_ids) - len(sample.prompt_ids)
        here = sample.response_ids[start : start + len(call.token_ids)]
        if start < 0 or here != call.token_ids[: len(here)]:
            return f"the response differs from what the rollout returned, from token {max(start, 0)} on"
    expected = sample.generated()
    if sample.mask != expected:
        first = next(i for i, (a, b) in enumerate(zip(sample.mask, expected, strict=True)) if a != b)
        kind = "made by the model but left out" if expected[first] else "trained on but not made by the model"
        wrong = sum(a != b for a, b in zip(sample.mask, expected, strict=True))
        return f"token {first} of {len(expected)} is {kind} ({wrong} tokens are wrong)"
    return ""


def _eos_problem(sample: Sample, eos_ids: Sequence[int], response_length: int) -> str:
    for call in sample.calls:
        ends = [place for place, token in enumerate(call.token_ids) if token in eos_ids]
        if ends and ends[0] != len(call.token_ids) - 1:
            behind = len(call.token_ids) - 1 - ends[0]
            return f"{behind} tokens follow the first EOS, at token {ends[0]}"
    last = sample.calls[-1].token_ids
    whole = len(sample.response_ids) >= response_length
    if not whole and (not last or last[-1] not in eos_ids):
        return f"it ends after {len(sample.response_ids)} of {response_length} tokens without an EOS"
    return ""


def judge_chat_template(
    samples: Sequence[Sample],
    *,
    rendered: Sequence[Sequence[int]] | None,
    generation_prompt: Sequence[Sequence[int]] = (),
    missing: str = "",
    prompt_length: int = 1 << 62,
) -> Finding:
    """The prompts sent are the tokenizer's chat template, applied by Hugging Face to the raw messages.

    Args:
        samples: the rollouts.
        rendered: token ids of each prompt by Hugging Face; None where it could not render them.
        generation_prompt: token ids that the template adds for the answer's beginning, by prompt.
        missing: why nothing was rendered.
        prompt_length: verl's cap; it cuts longer prompts on the left.
    """
    if rendered is None:
        return finding(CHAT_TEMPLATE, "UNKNOWN", missing, "render a prompt by hand with apply_chat_template")
    sent = {sample.prompt: sample.calls[0].prompt_ids for sample in samples if sample.calls}
    if not sent:
        return finding(
            CHAT_TEMPLATE, "UNKNOWN", "no request to the rollout was seen", "see gate.response-mask"
        )
    for prompt, ids in sorted(sent.items()):
        expected = list(rendered[prompt])[-prompt_length:]
        if ids != expected:
            place = next(
                (i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b),
                min(len(ids), len(expected)),
            )
            return finding(
                CHAT_TEMPLATE,
                "FAIL",
                f"prompt {prompt}: the rollout gets {len(ids)} tokens, the tokenizer's template gives {len(expected)}; "
                f"they differ from token {place} on",
                "remove custom_chat_template, or put that template into the model folder's tokenizer; check "
                "data.apply_chat_template_kwargs, and that the rollout's tokenizer is the model's",
            )
        tail = list(generation_prompt[prompt]) if prompt < len(generation_prompt) else []
        if tail and ids[-len(tail) :] != tail:
            return finding(
                CHAT_TEMPLATE,
                "FAIL",
                f"prompt {prompt} does not end with the template's generation prompt",
                "apply the template with add_generation_prompt=True",
            )
    text = f"{len(sent)} prompts, {sum(map(len, sent.values()))} tokens, equal to Hugging Face's"
    if not any(generation_prompt):
        return finding(
            CHAT_TEMPLATE,
            "WARN",
            f"{text}; the template adds no generation prompt",
            "check that a template without one is meant",
        )
    return finding(CHAT_TEMPLATE, "OK", f"{text}, each ending with the generation prompt")
