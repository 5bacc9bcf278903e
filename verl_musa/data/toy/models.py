"""A tiny Qwen3 with its own tokenizer, in the three roles of PPO: policy, critic and reward model."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.data.toy.publish import AssetError, say
from verl_musa.data.toy.sums import Problem, careless_answer, one_digit_wrong, split_problems, stream

BOS, START, END, PAD = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"
# A multiple of 128, as Megatron wants it, and even, so that two ranks can share it. It is also len(tokenizer): with a
# larger model vocabulary the rollout engine and the trainer would normalise over different sets of tokens.
VOCAB_SIZE = 384
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# What RL needs of the base model: mean score on the val problems after phase 1, and its range after phase 2.
MIN_SKILL = 0.8
BASE_SCORE = (0.03, 0.35)

Measured = dict[str, dict[str, float]]
"""Phase -> what was measured on the unseen val problems after it: mean score of samples and of greedy answers, each 0 to 1."""

# Prose for the tokenizer beside the prompts, so that its merges are words and not only one prompt's pieces.
PROSE = (
    "You are a helpful assistant. The user asks a question and the assistant gives the answer.",
    "What is the sum of two numbers? Add the units first, then the tens, and carry the one.",
    "The system reads the question, computes the result and answers with a single whole number.",
    "A number is written with digits; the sign of a negative number stands before its digits.",
    "Check the result: subtract the second number from the sum and the first number is left.",
    "Training makes a right answer more likely than a wrong answer, one small step at a time.",
)


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How the base model is made. Steps are optimizer steps; the rates are shares of the answers shown in phase 2.

    The defaults were found by trying: fewer steps in phase 1 leave sums unlearnt; more, or a higher rate, in phase 2
    make the model forget how to add, and RL can't bring that back in thirty steps.
    """

    skill_steps: int = 1000
    careless_steps: int = 100
    batch_size: int = 48
    skill_lr: float = 7e-3
    careless_lr: float = 1e-3
    weight_decay: float = 0.01
    right_rate: float = 0.10
    copy_rate: float = 0.30

    @classmethod
    def of(cls, steps: int | None) -> Pretraining:
        """The default, or with ``steps`` in each phase, for tests."""
        return cls() if steps is None else cls(skill_steps=steps, careless_steps=steps)


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How the reward model is made: it starts from the model that can add, and learns to tell right from wrong."""

    steps: int = 400
    batch_size: int = 64
    lr: float = 2e-3
    weight_decay: float = 0.01
    right_rate: float = 0.5


def build_tokenizer(questions: Iterable[str]) -> Any:
    """Train a byte-level BPE tokenizer of exactly VOCAB_SIZE tokens; each digit is a token of its own.

    Raises:
        AssetError: the texts give another number of tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, START, END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The role names often enough that each becomes one token: they stand in every prompt.
    core.train_from_iterator([*questions, *PROSE, *(["system", "user", "assistant"] * 100)], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    if len(tokenizer) != VOCAB_SIZE:
        raise AssetError(
            f"the tokenizer has {len(tokenizer)} tokens, expected {VOCAB_SIZE}: add text to PROSE"
        )
    return tokenizer


def build_config(tokenizer: Any) -> Any:
    """Return the Qwen3Config of all roles: GQA, qk-norm, head_dim not hidden/heads, about 0.15 M parameters."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.05,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
        dtype="float32",
    )


def build_policy(tokenizer: Any, seed: int) -> Any:
    """Return a Qwen3ForCausalLM in float32 with random weights."""
    import torch
    from transformers import GenerationConfig, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(build_config(tokenizer))
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    return model


def encode_prompts(tokenizer: Any, problems: Sequence[Problem]) -> list[list[int]]:
    """Return the token ids of each problem's prompt, made as verl makes them: through the chat template."""
    chats = [[{"role": "user", "content": problem.question}] for problem in problems]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def collate(tokenizer: Any, prompts: Sequence[list[int]], answers: Sequence[str]) -> tuple[Any, Any]:
    """Return (input ids, labels), int64 [batch, length], right-padded; labels are -100 outside of answer and EOS."""
    import torch

    rows = [
        tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        for answer in answers
    ]
    length = max(len(prompt) + len(row) for prompt, row in zip(prompts, rows, strict=True))
    ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), -100)
    for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        ids[i, : len(prompt) + len(row)] = torch.tensor(prompt + row)
        labels[i, len(prompt) : len(prompt) + len(row)] = torch.tensor(row)
    return ids, labels


def answer_logits(model: Any, ids: Any, labels: Any) -> tuple[Any, Any, Any]:
    """Return (logits [n, vocab], targets [n], row of each [n]) at the n positions that predict an answer token."""
    hidden = model.model(ids).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    mask = targets >= 0
    return model.lm_head(hidden[mask]), targets[mask], mask.nonzero()[:, 0]


def _steps(
    parameters: Any, *, steps: int, lr: float, weight_decay: float, loss: Callable[[int], Any]
) -> float:
    """Take ``steps`` AdamW steps down ``loss(step)`` with warm-up and linear decay; return the last loss."""
    import torch

    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=weight_decay)
    value = torch.tensor(float("nan"))
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / 20) * max(0.05, 1 - step / steps)
        value = loss(step)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return float(value.detach())


def train_phase(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    plan: Pretraining,
    *,
    name: str,
    steps: int,
    rng: random.Random,
) -> None:
    """Teach answers to ``problems`` for ``steps`` steps: the sums (name "skill") or a careless pupil's ("careless")."""
    import torch

    careless = name == "careless"
    prompts = encode_prompts(tokenizer, problems)

    def loss(step: int) -> Any:
        chosen = rng.choices(range(len(problems)), k=plan.batch_size)
        picked = [problems[i] for i in chosen]
        rates = {"right_rate": plan.right_rate, "copy_rate": plan.copy_rate}
        answers = [careless_answer(p, rng, **rates) if careless else p.answer for p in picked]
        logits, targets, _ = answer_logits(model, *collate(tokenizer, [prompts[i] for i in chosen], answers))
        value = torch.nn.functional.cross_entropy(logits, targets)
        if step % 100 == 0 or step == steps:
            say(f"{name} step {step}/{steps} loss {value.item():.4f}")
        return value

    lr = plan.careless_lr if careless else plan.skill_lr
    _steps(model.parameters(), steps=steps, lr=lr, weight_decay=plan.weight_decay, loss=loss)


def measure(model: Any, tokenizer: Any, problems: Sequence[Problem]) -> dict[str, float]:
    """Return the exact mean reward of samples at temperature 1, and of greedy answers, from the model's probabilities."""
    import torch

    ids, labels = collate(tokenizer, encode_prompts(tokenizer, problems), [p.answer for p in problems])
    with torch.no_grad():
        logits, targets, rows = answer_logits(model, ids, labels)
    log_probs = torch.log_softmax(logits.double(), dim=-1)
    picked = log_probs.gather(1, targets[:, None])[:, 0]
    total = torch.zeros(len(problems), dtype=torch.double).index_add_(0, rows, picked)
    wrong = torch.zeros(len(problems)).index_add_(0, rows, (logits.argmax(-1) != targets).float())
    return {
        "sampled": round(total.exp().mean().item(), 6),
        "greedy": round((wrong == 0).double().mean().item(), 6),
    }


def teach(
    model: Any, tokenizer: Any, seed: int, plan: Pretraining, *, after_skill: Callable[[], None] | None = None
) -> Measured:
    """Teach ``model`` both phases on the seed's train problems; return what it scores on the val problems after each.

    ``after_skill`` is called when it can add and has not been made careless yet.
    """
    train, val = split_problems(seed)
    say(f"model: {sum(p.numel() for p in model.parameters())} parameters, vocabulary {len(tokenizer)}")
    measured: Measured = {}
    for name, steps in (("skill", plan.skill_steps), ("careless", plan.careless_steps)):
        train_phase(model, tokenizer, train, plan, name=name, steps=steps, rng=stream(seed, name))
        found = measured[name] = measure(model, tokenizer, val)
        say(f"after {name}: val score {found['sampled']:.3f} sampled, {found['greedy']:.3f} greedy")
        if name == "skill" and after_skill is not None:
            after_skill()
    return measured


def require_learnable(measured: Measured, seed: int) -> None:
    """Refuse a base model with which RL would show nothing.

    Raises:
        AssetError: it can't add, or seldom or mostly does so already.
    """
    skill, base = measured["skill"]["sampled"], measured["careless"]["sampled"]
    if skill < MIN_SKILL or not BASE_SCORE[0] <= base <= BASE_SCORE[1]:
        raise AssetError(
            f"seed {seed}: found val score {skill:.3f} after phase 1 and {base:.3f} after phase 2, expected at least "
            f"{MIN_SKILL} and {BASE_SCORE[0]} to {BASE_SCORE[1]}: RL would show nothing; use another seed"
        )


def wrong_answer(problem: Problem, rng: random.Random) -> str:
    """Return a wrong answer as a policy may give it: a slip, an operand, any number, digits cut off or too many, nothing."""
    draw = rng.random()
    if draw < 0.45:  # noqa: PLR2004 - shares of the kinds, here and below
        return one_digit_wrong(problem, rng)
    if draw < 0.65:  # noqa: PLR2004
        return str(rng.choice((problem.a, problem.b)))
    other = str(rng.randrange(1, 100))
    if draw < 0.85:  # noqa: PLR2004
        return other if other != problem.answer else one_digit_wrong(problem, rng)
    if draw < 0.97:  # noqa: PLR2004
        return problem.answer + rng.choice("0123456789") * rng.randrange(1, 4)
    return ""


def judged_ids(tokenizer: Any, pairs: Sequence[tuple[Problem, str]]) -> tuple[Any, Any, Any]:
    """Return (ids, labels, last) of (problem, answer) chats, right-padded: int64 and float32 [n, length], int64 [n].

    The chat is the tokenizer's own template, as verl and a reward function render it, and ends after the answer; ``last`` is the
    place of its last token. Labels are 1 where the answer is right as far as it goes, 0 where it is not, -1 elsewhere.
    """
    import torch

    prompts = encode_prompts(tokenizer, [problem for problem, _ in pairs])
    end = tokenizer(f"{END}\n", add_special_tokens=False)["input_ids"]
    answers = tokenizer([answer for _, answer in pairs], add_special_tokens=False)["input_ids"]
    rows = [[*prompt, *answer, *end] for prompt, answer in zip(prompts, answers, strict=True)]
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), -1.0)
    for i, (row, (problem, answer)) in enumerate(zip(rows, pairs, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        # A digit is a token, so the token at offset k completes the first k + 1 characters.
        so_far = [problem.answer.startswith(answer[: k + 1]) for k in range(len(answers[i]))]
        marks = [*so_far, *[answer == problem.answer] * len(end)]
        labels[i, len(prompts[i]) : len(row)] = torch.tensor(marks).float()
    return ids, labels, torch.tensor([len(row) - 1 for row in rows])


def build_judge(policy: Any, seed: int) -> Any:
    """Return a Qwen3ForSequenceClassification with one label: ``policy``'s trunk, two more layers and a head of zeros.

    The trunk knows the sum only at its end: comparing each digit with it and gathering the comparisons takes layers of
    their own. They add nothing at first, so that what the trunk computes reaches the head unchanged.
    """
    import torch
    from transformers import Qwen3ForSequenceClassification

    config = copy.deepcopy(policy.config)
    known = config.num_hidden_layers
    config.num_labels = 1
    config.num_hidden_layers = known + 2
    config.layer_types = config.layer_types[:1] * config.num_hidden_layers
    torch.manual_seed(seed)
    model = Qwen3ForSequenceClassification(config)
    model.model.load_state_dict(policy.model.state_dict(), strict=False)
    for layer in model.model.layers[known:]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    torch.nn.init.zeros_(model.score.weight)
    return model


def train_judge(policy: Any, tokenizer: Any, problems: Sequence[Problem], plan: Judging, *, seed: int) -> Any:
    """Return a reward model from ``policy``'s trunk, taught right from wrong answers at every token of the answer."""
    import torch

    model, rng = build_judge(policy, seed), stream(seed, "judge")

    def loss(step: int) -> Any:
        picked = rng.choices(problems, k=plan.batch_size)
        pairs = [(p, p.answer if rng.random() < plan.right_rate else wrong_answer(p, rng)) for p in picked]
        ids, labels, _ = judged_ids(tokenizer, pairs)
        mask = labels >= 0
        logits = model.score(model.model(ids).last_hidden_state[mask])[:, 0]
        value = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[mask])
        if step % 100 == 0 or step == plan.steps:
            say(f"judge step {step}/{plan.steps} loss {value.item():.4f}")
        return value

    _steps(model.parameters(), steps=plan.steps, lr=plan.lr, weight_decay=plan.weight_decay, loss=loss)
    return model


def measure_judge(
    model: Any, tokenizer: Any, problems: Sequence[Problem], rng: random.Random
) -> dict[str, float]:
    """Return the accuracy on right and on wrong answers to ``problems`` at logit 0, and the mean probability of each.

    The logit is the head's at the last token, where SGLang takes it.
    """
    import torch

    found = {}
    for name in ("right", "wrong"):
        pairs = [(p, p.answer if name == "right" else wrong_answer(p, rng)) for p in problems]
        ids, _, last = judged_ids(tokenizer, pairs)
        with torch.no_grad():
            hidden = model.model(ids).last_hidden_state
            logits = model.score(hidden[torch.arange(len(ids)), last])[:, 0]
        found[f"{name}_accuracy"] = round(((logits > 0) == (name == "right")).double().mean().item(), 6)
        found[f"{name}_mean"] = round(torch.sigmoid(logits.double()).mean().item(), 6)
    return found


def build_critic(policy: Any) -> Any:
    """Return a Qwen3ForTokenClassification with one label: ``policy``'s trunk, and a head that values all at 0."""
    import torch
    from transformers import Qwen3ForTokenClassification

    config = copy.deepcopy(policy.config)
    config.num_labels = 1
    model = Qwen3ForTokenClassification(config)
    model.model.load_state_dict(policy.model.state_dict())
    torch.nn.init.zeros_(model.score.weight)
    torch.nn.init.zeros_(model.score.bias)
    return model


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write ``model`` and ``tokenizer`` into ``folder`` in Hugging Face layout."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_judge(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a reward model, with the bias that SGLang's head has and Hugging Face's has not.

    SGLang 0.5.19 builds ``score`` as a linear layer with bias and loads what the file holds: without one in the file, every
    score is shifted by a random number, another one at each start.
    """
    import torch

    state = {**model.state_dict(), "score.bias": torch.zeros(model.config.num_labels)}
    model.save_pretrained(folder, state_dict=state)
    tokenizer.save_pretrained(folder)
