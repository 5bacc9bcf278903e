"""Hugging Face on the CPU, as the gate's reference. Run by path in an isolated interpreter, never imported by a job.

    python -I gate_reference.py MODEL_FOLDER

Reads one JSON object a line and answers each with one: ``{"result": …}`` or ``{"error": text}``. In a process of its own since
whatever patches torch or transformers for the job must not touch the reference. Operations (key ``op``):

* ``logprobs``: ``sequences`` [{"ids", "start"}], ``temperature``, ``dtypes`` -> by dtype, by sequence, the log-probability of
  each token from ``start`` on, computed with the model in that dtype;
* ``prompts``: ``messages`` (one chat each), ``kwargs`` of the template -> ``ids`` and ``generation`` (the token ids that
  ``add_generation_prompt`` adds), one list a chat;
* ``head``: -> ``tied`` (the config's), ``folder`` (``absent``, ``equal`` or ``own``), ``eos`` (token ids that end a response).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAD = "lm_head.weight"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")


class Reference:
    """Answers requests about one model folder; loads what a request needs, once."""

    def __init__(self, folder: str, *, trust: bool = False, override: dict[str, Any] | None = None) -> None:
        self._folder = folder
        self._trust = trust
        self._override = override or {}
        self._models: dict[str, Any] = {}
        self._tokenizer: Any = None

    def answer(self, request: dict[str, Any]) -> Any:
        """Do what ``request`` asks.

        Raises:
            ValueError: an unknown operation.
        """
        operation = request.pop("op")
        operations: dict[str, Callable[..., Any]] = {
            "logprobs": self.logprobs,
            "prompts": self.prompts,
            "head": self.head,
        }
        if operation not in operations:
            raise ValueError(f"unknown op {operation!r}; expected one of {', '.join(operations)}")
        return operations[operation](**request)

    def _config(self) -> Any:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(self._folder, trust_remote_code=self._trust)
        for name, value in self._override.items():
            setattr(config, name, value)
        return config

    def _model(self, dtype: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        if dtype not in self._models:
            self._models.clear()  # one at a time: they are large
            self._models[dtype] = AutoModelForCausalLM.from_pretrained(
                self._folder,
                config=self._config(),
                dtype=getattr(torch, dtype),
                attn_implementation="eager",
                trust_remote_code=self._trust,
            ).eval()
        return self._models[dtype]

    def logprobs(
        self, sequences: list[dict[str, Any]], temperature: float, dtypes: list[str]
    ) -> dict[str, list[list[float]]]:
        """See the module's docstring. One sequence at a time: no padding, hence no mask that could be wrong."""
        import torch

        found: dict[str, list[list[float]]] = {}
        with torch.inference_mode():
            for dtype in dtypes:
                model = self._model(dtype)
                found[dtype] = []
                for sequence in sequences:
                    ids = torch.tensor(sequence["ids"])
                    start = sequence["start"]
                    logits = model(input_ids=ids[None], use_cache=False).logits[0, start - 1 : -1]
                    scores = torch.log_softmax(logits.float() / temperature, dim=-1)
                    found[dtype].append(scores.gather(1, ids[start:, None])[:, 0].tolist())
        return found

    def _tokens(self) -> Any:
        from transformers import AutoTokenizer

        if self._tokenizer is None:
            self._tokenizer = AutoTokenizer.from_pretrained(self._folder, trust_remote_code=self._trust)
        return self._tokenizer

    def prompts(
        self, messages: list[list[dict[str, Any]]], kwargs: dict[str, Any]
    ) -> dict[str, list[list[int]]]:
        """See the module's docstring."""
        tokenizer = self._tokens()
        ids, generation = [], []
        for chat in messages:
            whole, plain = (
                tokenizer.apply_chat_template(
                    chat, add_generation_prompt=added, tokenize=True, return_dict=False, **kwargs
                )
                for added in (True, False)
            )
            ids.append(list(whole))
            generation.append(list(whole[len(plain) :]) if whole[: len(plain)] == plain else [])
        return {"ids": ids, "generation": generation}

    def head(self) -> dict[str, Any]:
        """See the module's docstring."""
        config = self._config()
        text = config.get_text_config()
        ends = [config.eos_token_id, text.eos_token_id, self._tokens().eos_token_id]
        file = Path(self._folder, "generation_config.json")
        if file.is_file():
            more = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
            ends.append(more)
        flat = {end for value in ends for end in (value if isinstance(value, list | tuple) else [value])}
        return {
            "tied": bool(getattr(text, "tie_word_embeddings", config.tie_word_embeddings)),
            "folder": self._folder_head(),
            "eos": sorted(end for end in flat if isinstance(end, int)),
        }

    def _folder_head(self) -> str:
        import torch
        from safetensors import safe_open

        found: dict[str, Any] = {}
        for file in sorted(Path(self._folder).glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - safe_open is no mapping
                    if name.endswith((HEAD, *EMBEDDINGS)):
                        found[HEAD if name.endswith(HEAD) else "embedding"] = tensors.get_tensor(name)
        if "embedding" not in found:
            return ""
        if HEAD not in found:
            return "absent"
        return "equal" if torch.equal(found[HEAD], found["embedding"]) else "own"


def main() -> None:
    """Answer requests until standard input ends. The first line tells how to load the model."""
    replies, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no reply
    setup = json.loads(sys.stdin.readline())
    reference = Reference(sys.argv[1], trust=setup["trust"], override=setup["override"])
    for line in sys.stdin:
        try:
            reply = {"result": reference.answer(json.loads(line))}
        except Exception as error:  # noqa: BLE001 - every failure is an answer
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
