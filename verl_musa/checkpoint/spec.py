"""What a Qwen3 model's ``config.json`` says about its weights. Nothing here reads a weight or imports torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.errors import CheckpointError

CONFIG = "config.json"

DENSE = "Qwen3ForCausalLM"
MOE = "Qwen3MoeForCausalLM"
VALUE_HEADS = {
    "Qwen3ForTokenClassification": False,
    "Qwen3MoeForTokenClassification": True,
    "Qwen3ForSequenceClassification": False,
    "Qwen3MoeForSequenceClassification": True,
}
"""Architectures whose head is ``score``; the value says whether they have experts."""

ARCHITECTURES = {DENSE: False, MOE: True, **VALUE_HEADS}


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The numbers that fix every tensor's name and shape.

    Attributes:
        architecture: as ``config.json`` names it.
        hidden: width of the residual stream.
        layers: decoder layers.
        heads: query heads.
        groups: key/value heads (query groups in Megatron's words).
        head_dim: width of one head; ``heads * head_dim`` need not be ``hidden``.
        ffn: width of a dense layer's MLP.
        vocab: rows of the embedding.
        tied: the output layer is the embedding.
        experts: experts a layer; 0 for a dense model.
        expert_ffn: width of one expert's MLP; 0 for a dense model.
        labels: outputs of a value model's ``score`` head; 0 for a language model.
        topk: experts a token.
        eps: epsilon of the RMS norms.
        rope_theta: base of the rotary embedding.
        positions: longest sequence.
    """

    architecture: str
    hidden: int
    layers: int
    heads: int
    groups: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    experts: int = 0
    expert_ffn: int = 0
    labels: int = 0
    topk: int = 0
    eps: float = 1e-6
    rope_theta: float = 10000.0
    positions: int = 32768

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.groups

    @property
    def qkv_rows(self) -> int:
        """Rows of Megatron's fused query-key-value weight."""
        return (self.heads + 2 * self.groups) * self.head_dim


def read_spec(folder: Path) -> ModelSpec:
    """Read ``folder/config.json``.

    Raises:
        CheckpointError: no such file, no JSON, another architecture, or numbers that do not fit together.
    """
    file = folder / CONFIG
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            "the model folder has no readable config.json",
            where=str(file),
            found=error.strerror or str(error),
            fix="name a folder in Hugging Face layout",
        ) from error
    except ValueError as error:
        raise CheckpointError(
            "config.json is not JSON", where=str(file), found=str(error), fix="copy the file again"
        ) from error
    if not isinstance(raw, dict):
        raise CheckpointError("config.json holds no JSON object", where=str(file), fix="copy the file again")
    return spec_from_config(raw, str(file))


def spec_from_config(raw: dict[str, Any], where: str) -> ModelSpec:
    """Turn the content of a ``config.json`` into a spec. ``where`` goes into messages.

    Raises:
        CheckpointError: another architecture, a missing number, or numbers that do not fit together.
    """
    named = raw.get("architectures")
    architecture = named[0] if isinstance(named, list) and len(named) == 1 else None
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            "this architecture cannot be converted",
            where=where,
            found=f"architectures is {named!r}",
            expected=f"one of {', '.join(ARCHITECTURES)}",
            fix="convert a Qwen3 model; others need their own mapping",
        )
    moe = ARCHITECTURES[architecture]
    _refuse_unmapped(raw, where, moe=moe)
    hidden, heads = _number(raw, where, "hidden_size"), _number(raw, where, "num_attention_heads")
    spec = ModelSpec(
        architecture=architecture,
        hidden=hidden,
        layers=_number(raw, where, "num_hidden_layers"),
        heads=heads,
        groups=_number(raw, where, "num_key_value_heads", default=heads),
        # Qwen3's own default where the key is absent or null: hidden_size // num_attention_heads.
        head_dim=_number(raw, where, "head_dim", default=hidden // heads),
        ffn=_number(raw, where, "intermediate_size"),
        vocab=_number(raw, where, "vocab_size"),
        tied=bool(raw.get("tie_word_embeddings", False)) and architecture not in VALUE_HEADS,
        experts=_number(raw, where, "num_experts", "num_local_experts") if moe else 0,
        expert_ffn=_number(raw, where, "moe_intermediate_size") if moe else 0,
        labels=_labels(raw) if architecture in VALUE_HEADS else 0,
        topk=_number(raw, where, "num_experts_per_tok") if moe else 0,
        eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(raw),
        positions=_number(raw, where, "max_position_embeddings", default=32768),
    )
    if spec.heads % spec.groups:
        raise CheckpointError(
            "query heads cannot be shared evenly among key/value heads",
            where=where,
            found=f"num_attention_heads {spec.heads}, num_key_value_heads {spec.groups}",
            fix="take the config.json that belongs to these weights",
        )
    return spec


def _refuse_unmapped(raw: dict[str, Any], where: str, *, moe: bool) -> None:
    """Refuse settings that add tensors or change the layer pattern: silently dropping them would be wrong.

    Raises:
        CheckpointError: one of them is set.
    """
    reasons = {
        "attention_bias": bool(raw.get("attention_bias")),
        "quantization_config": raw.get("quantization_config") is not None,
        "mlp_only_layers": moe and bool(raw.get("mlp_only_layers")),
        "decoder_sparse_step": moe and raw.get("decoder_sparse_step", 1) != 1,
    }
    for key, bad in reasons.items():
        if bad:
            raise CheckpointError(
                f"{key} has no mapping to Megatron-Core here",
                where=where,
                found=f"{key} is {raw.get(key)!r}",
                expected="a plain Qwen3 model: no attention bias, no quantisation, experts in every layer or in none",
                fix="convert the unquantised weights of a plain Qwen3",
            )


def _number(raw: dict[str, Any], where: str, *keys: str, default: int | None = None) -> int:
    value = next((raw[key] for key in keys if raw.get(key) is not None), default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f"{keys[0]} must be a positive integer",
            where=where,
            found=f"{keys[0]} is {value!r}",
            fix="take the config.json that belongs to these weights",
        )
    return value


def _rope_theta(raw: dict[str, Any]) -> float:
    """Base of the rotary embedding: its own key, or inside ``rope_parameters`` as transformers 5 writes it."""
    parameters = raw.get("rope_parameters")
    inner = parameters.get("rope_theta") if isinstance(parameters, dict) else None
    return float(raw.get("rope_theta") or inner or 10000.0)


def _labels(raw: dict[str, Any]) -> int:
    """Outputs of the head: ``num_labels``, or the size of ``id2label``, which transformers writes instead; else 2."""
    names = raw.get("id2label")
    return int(raw.get("num_labels") or (len(names) if isinstance(names, dict) and names else 2))
