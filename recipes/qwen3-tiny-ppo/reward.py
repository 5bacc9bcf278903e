"""The reward of the recipe qwen3-tiny-ppo: a rule and a reward model, in fixed shares.

verl 0.9.1 loads this file by path and awaits ``compute_score`` for each response, after decoding it without special tokens.
With a reward model it also passes the address of that model's router and its tokenizer; the two weights, and the engine that
serves the model, come from ``reward.custom_reward_function.reward_kwargs`` in config.yaml. All numbers of the returned dict
become metrics.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import aiohttp

from verl_musa.data.toy.scoring import exact_number, require_source

DATA_SOURCE = "qwen3-tiny-ppo/addition"
REQUEST_SECONDS = 60.0
ATTEMPTS = 3
# Engine -> path, what it is asked beside the text, and the field of its answer. vLLM would make a probability of it by itself.
ENGINES: dict[str, tuple[str, dict[str, Any], str]] = {
    "sglang": ("v1/embeddings", {"model": "reward"}, "embedding"),
    "vllm": ("classify", {"use_activation": False}, "probs"),
}


def probability(logit: float) -> float:
    """Return the probability that belongs to ``logit``, of any finite size.

    Raises ValueError for a number that is not finite.
    """
    if not math.isfinite(logit):
        raise ValueError(f"reward.py: found {logit} from the reward model, expected a finite number")
    small = math.exp(-abs(logit))
    return 1 / (1 + small) if logit >= 0 else small / (1 + small)


def judged_text(tokenizer: Any, question: str, answer: str) -> str:
    """Return the chat that the reward model judges, in the form of its own chat template."""
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    text: str = tokenizer.apply_chat_template(chat, tokenize=False)
    return text


async def ask_model(address: str, text: str, engine: str = "sglang") -> float:
    """Return the reward model's logit for ``text``, from its server behind verl's router.

    ``engine``, of ENGINES, is what serves it. An answer other than 200 and a broken connection are tried again; RuntimeError
    says what the last attempt found. An answer of another form than one number raises ValueError at once: the server serves
    another kind of model.
    """
    path, asked, field = ENGINES[engine]
    url, last = f"http://{address}/{path}", ""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(2.0**attempt)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(url, json={**asked, "input": text}) as response,
            ):
                if response.status == 200:  # noqa: PLR2004 - HTTP's OK
                    return _logit(await response.json(), field, url)
                last = f"HTTP {response.status}: {(await response.text())[:300]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            last = f"{type(error).__name__}: {error}"
    raise RuntimeError(
        f"reward.py: {ATTEMPTS} requests to {url} failed, the last with {last}: look at the logs of the reward model's server"
    )


def _logit(answer: Any, field: str, url: str) -> float:
    try:
        (value,) = answer["data"][-1][field]
        return float(value)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"reward.py: {url} answered {str(answer)[:300]}, expected one number in data[-1].{field}: "
            "serve a sequence classifier with one label"
        ) from error


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    *,
    reward_router_address: str | None = None,
    reward_model_tokenizer: Any = None,
    rule_weight: float = 0.7,
    model_weight: float = 0.3,
    engine: str = "sglang",
    **kwargs: Any,  # noqa: ARG001 - what later versions of verl may pass
) -> dict[str, float]:
    """Return {"score", "acc", "parsed", "rule_score", "model_score"}, all from 0 to 1 if the weights add up to 1.

    ``score`` = ``rule_weight`` * ``rule_score`` + ``model_weight`` * ``model_score``. ``rule_score`` is 1 for exactly the
    right number, else 0; ``model_score`` is the probability that the reward model gives the answer. ``acc`` (the rule alone)
    names the core validation metric, ``parsed`` tells a wrong answer (1) from one that is no number (0).

    ValueError: the data does not belong to this reward (unknown ``data_source``, a ``ground_truth`` that is no number, no
    question in ``extra_info``), there is no reward model, it answers something else, or ``engine`` (what serves it, of
    ENGINES) is unknown. RuntimeError: it does not answer.
    """
    require_source(data_source, DATA_SOURCE)
    if engine not in ENGINES:
        raise ValueError(
            f"reward.py: found engine {engine!r}, expected {' or '.join(ENGINES)}: "
            "correct reward.custom_reward_function.reward_kwargs"
        )
    rule = exact_number(solution_str, ground_truth)
    question = (extra_info or {}).get("question")
    if not question:
        raise ValueError(
            "reward.py: found no extra_info.question, expected the text of the prompt: make the data anew"
        )
    if not reward_router_address or reward_model_tokenizer is None:
        raise ValueError(
            "reward.py: verl passed no reward model, expected its address and tokenizer: "
            "set reward.reward_model.enable and enable_resource_pool to true"
        )
    text = judged_text(reward_model_tokenizer, str(question), solution_str)
    model = probability(await ask_model(reward_router_address, text, engine))
    return {
        **rule,
        "score": rule_weight * rule["score"] + model_weight * model,
        "rule_score": rule["score"],
        "model_score": model,
    }
