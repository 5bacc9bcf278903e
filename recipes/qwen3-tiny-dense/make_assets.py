"""Make the assets of the recipe qwen3-tiny-dense: a tiny Qwen3 with its own tokenizer, and the data to train it on.

    python make_assets.py --out DIR --seed N

writes ``DIR/model`` (safetensors, config, tokenizer), ``DIR/train.parquet``, ``DIR/val.parquet`` and ``DIR/manifest.json``.
Everything is made here from the seed: nothing is downloaded. DIR appears complete or not at all.

The task is the sum of two numbers. The model is first taught to add (phase 1), then shown the answers of a careless pupil,
who is right one time in ten (phase 2). What comes out knows how to add but seldom does, which is what RL is for: the
exact-match reward of its samples starts low, and rises only if the policy gradient really reaches the weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RECIPE = "qwen3-tiny-dense"
DATA_SOURCE = f"{RECIPE}/addition"
ABILITY = "math"

# Operands 1..48 give 48 * 48 = 2304 = 2048 + 256 different problems.
OPERANDS = range(1, 49)
VAL_PROBLEMS = 256

# What RL needs of the base model: mean reward on the val problems after phase 1, and its range after phase 2.
MIN_SKILL = 0.8
BASE_REWARD = (0.03, 0.35)

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


@dataclass(frozen=True)
class Problem:
    """One sum."""

    a: int
    b: int

    @property
    def question(self) -> str:
        """The text of the user's message."""
        return f"{self.a} + {self.b} = ?"

    @property
    def answer(self) -> str:
        """The one text that earns the reward."""
        return str(self.a + self.b)


class AssetError(Exception):
    """A foreseeable mistake: the message says what was found, what was expected and what to do."""


def stream(seed: int, purpose: str) -> random.Random:
    """Return the random numbers for one purpose; separate streams, so that one change doesn't shift all others."""
    return random.Random(f"{seed}/{purpose}")  # noqa: S311 - data, no secrets


def say(text: str) -> None:
    """Print one progress line at once, so that it is seen through a pipe."""
    print(f"[make_assets] {text}", flush=True)


def split_problems(seed: int) -> tuple[list[Problem], list[Problem]]:
    """Return (train, val): all problems, shuffled by the seed, without overlap."""
    problems = [Problem(a, b) for a in OPERANDS for b in OPERANDS]
    stream(seed, "split").shuffle(problems)
    return problems[VAL_PROBLEMS:], problems[:VAL_PROBLEMS]


def careless_answer(problem: Problem, rng: random.Random, plan: Pretraining) -> str:
    """Return a careless pupil's answer: right, or one of the operands copied, or the sum with one digit wrong."""
    draw = rng.random()
    if draw < plan.right_rate:
        return problem.answer
    if draw < plan.right_rate + plan.copy_rate:
        return str(rng.choice((problem.a, problem.b)))
    digits = list(problem.answer)
    place = rng.randrange(len(digits))
    # A leading zero would be a malformed number rather than a wrong one.
    choices = [
        d for d in "0123456789" if d != digits[place] and not (d == "0" and place == 0 and len(digits) > 1)
    ]
    digits[place] = rng.choice(choices)
    return "".join(digits)


def build_tokenizer(questions: Iterable[str]) -> Any:
    """Train a byte-level BPE tokenizer of exactly VOCAB_SIZE tokens; each digit is a token of its own."""
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


def build_model(tokenizer: Any, seed: int) -> Any:
    """Return a Qwen3ForCausalLM in float32 with random weights: GQA, qk-norm, head_dim not hidden/heads, about 0.16 M."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
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
    model = Qwen3ForCausalLM(config)
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
    peak = plan.careless_lr if careless else plan.skill_lr
    prompts = encode_prompts(tokenizer, problems)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=plan.weight_decay
    )
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, step / 20) * max(0.05, 1 - step / steps)
        chosen = rng.choices(range(len(problems)), k=plan.batch_size)
        picked = [problems[i] for i in chosen]
        answers = [careless_answer(p, rng, plan) if careless else p.answer for p in picked]
        logits, targets, _ = answer_logits(model, *collate(tokenizer, [prompts[i] for i in chosen], answers))
        loss = torch.nn.functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == steps:
            say(f"{name} step {step}/{steps} loss {loss.item():.4f}")


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


def pretrain(seed: int, plan: Pretraining) -> tuple[Any, Any, dict[str, dict[str, float]]]:
    """Return (model, tokenizer, mean reward on the unseen val problems after each phase)."""
    train, val = split_problems(seed)
    tokenizer = build_tokenizer(problem.question for problem in train)
    model = build_model(tokenizer, seed)
    say(f"model: {sum(p.numel() for p in model.parameters())} parameters, vocabulary {len(tokenizer)}")
    rewards = {}
    for name, steps in (("skill", plan.skill_steps), ("careless", plan.careless_steps)):
        train_phase(model, tokenizer, train, plan, name=name, steps=steps, rng=stream(seed, name))
        rewards[name] = measure(model, tokenizer, val)
        say(
            f"after {name}: val reward {rewards[name]['sampled']:.3f} sampled, {rewards[name]['greedy']:.3f} greedy"
        )
    return model, tokenizer, rewards


def require_learnable(rewards: dict[str, dict[str, float]], seed: int) -> None:
    """Raise AssetError if RL could not learn from this base model: it can't add, or seldom or mostly does so already."""
    skill, base = rewards["skill"]["sampled"], rewards["careless"]["sampled"]
    if skill < MIN_SKILL or not BASE_REWARD[0] <= base <= BASE_REWARD[1]:
        raise AssetError(
            f"seed {seed}: found val reward {skill:.3f} after phase 1 and {base:.3f} after phase 2, expected at least "
            f"{MIN_SKILL} and {BASE_REWARD[0]} to {BASE_REWARD[1]}: RL would show nothing; use another seed"
        )


def write_parquet(path: Path, problems: Sequence[Problem], split: str) -> None:
    """Write ``problems`` in verl's form: data_source, prompt, ability, reward_model and extra_info."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": problem.question}],
            "ability": ABILITY,
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"split": split, "index": index},
        }
        for index, problem in enumerate(problems)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_manifest(folder: Path, seed: int, plan: Pretraining, rewards: dict[str, dict[str, float]]) -> None:
    """Write manifest.json: what made the files, and the SHA-256 and size of each. No time stamp: same seed, same bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    packages = ("torch", "transformers", "tokenizers", "safetensors", "pyarrow")
    manifest = {
        "schema": 1,
        "recipe": RECIPE,
        "seed": seed,
        "pretraining": asdict(plan),
        "val_reward": rewards,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "files": {
            path.relative_to(folder).as_posix(): {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "bytes": path.stat().st_size,
            }
            for path in files
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def publish_modes(folder: Path) -> None:
    """Make ``folder`` readable by all: mkdtemp and safetensors leave it to the owner, and Ray workers may be others."""
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below ``folder`` to disk, so that the rename can't precede the contents."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def require_free(out: Path) -> None:
    """Raise AssetError if ``out`` is a file or holds anything."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AssetError(
            f"{out}: exists and is not an empty folder; expected a new one: remove it or name another"
        )


def make_assets(out: Path, seed: int, plan: Pretraining) -> None:
    """Make all assets in ``out``: complete or, if anything goes wrong, not at all. Raises AssetError if it holds files."""
    require_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        train, val = split_problems(seed)
        model, tokenizer, rewards = pretrain(seed, plan)
        if plan == Pretraining():
            require_learnable(rewards, seed)
        model.save_pretrained(work / "model")
        tokenizer.save_pretrained(work / "model")
        write_parquet(work / "train.parquet", train, "train")
        write_parquet(work / "val.parquet", val, "val")
        write_manifest(work, seed, plan, rewards)
        publish_modes(work)
        sync_tree(work)
        work.rename(out)
    finally:
        # After the rename there is nothing left to remove.
        shutil.rmtree(work, ignore_errors=True)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=f"Make model, tokenizer and data of the recipe {RECIPE}.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to make (new or empty)"
    )
    parser.add_argument(
        "--seed", type=int, required=True, metavar="N", help="same seed, same files; 0 or more"
    )
    parser.add_argument(
        "--pretrain-steps",
        type=int,
        metavar="N",
        help="steps of each phase, for tests: with few steps the model knows nothing and RL will not learn",
    )
    args = parser.parse_args(argv)
    if args.seed < 0:
        parser.error(f"--seed: found {args.seed}, expected 0 or more")
    if args.pretrain_steps is not None and args.pretrain_steps < 1:
        parser.error(f"--pretrain-steps: found {args.pretrain_steps}, expected 1 or more")
    return args


def prepare_libraries() -> None:
    """Make torch deterministic and transformers quiet and offline, for this process."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    # One thread: sums are then added in one order, whatever the machine's core count.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 for a foreseeable mistake."""
    args = parse_args(argv)
    plan = Pretraining()
    if args.pretrain_steps is not None:
        plan = Pretraining(skill_steps=args.pretrain_steps, careless_steps=args.pretrain_steps)
    start = time.monotonic()
    try:
        require_free(args.out)  # before the heavy imports, so that a mistake shows at once
        prepare_libraries()
        make_assets(args.out, args.seed, plan)
    except (AssetError, OSError) as error:
        print(f"make_assets.py: error: {error}", file=sys.stderr)
        return 2
    say(f"done in {time.monotonic() - start:.0f} s: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
