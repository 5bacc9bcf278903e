"""The numbers of a decoder that memory and time depend on, from its ``config.json`` or the recipe's facts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder with gated MLPs, dense or with experts in every layer.

    Attributes:
        hidden: width of the residual stream.
        layers: decoder layers.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: width of one head.
        ffn: width of a dense layer's MLP.
        vocab: rows of the embedding.
        tied: the output layer is the embedding.
        experts: experts a layer; 0 for a dense model.
        expert_ffn: width of one expert.
        topk: experts that compute a token.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    experts: int = 0
    expert_ffn: int = 0
    topk: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape | None:
        """The shape that ``config`` describes; None where it lacks a number or holds another kind of model."""
        text = config.get("text_config", config)
        experts = text.get("num_experts") or text.get("num_local_experts") or 0
        names = [
            *_NEEDED,
            *(("moe_intermediate_size", "num_experts_per_tok") if experts else ("intermediate_size",)),
        ]
        if any(not isinstance(text.get(name), int) for name in names):
            return None
        hidden, heads = text["hidden_size"], text["num_attention_heads"]
        return cls(
            hidden=hidden,
            layers=text["num_hidden_layers"],
            heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or hidden // heads,
            ffn=text.get("intermediate_size") or 0,
            vocab=text["vocab_size"],
            tied=bool(text.get("tie_word_embeddings", False)),
            experts=experts,
            expert_ffn=text.get("moe_intermediate_size") or 0,
            topk=text.get("num_experts_per_tok") or 0,
        )

    @property
    def attention(self) -> int:
        """Parameters of one layer's attention: query, key, value and output."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def dense_layer(self) -> int:
        """Parameters of one layer without its experts; norms are left out, being a thousandth."""
        return self.attention + (self.hidden * self.experts if self.experts else 3 * self.hidden * self.ffn)

    @property
    def expert_layer(self) -> int:
        """Parameters of all experts of one layer."""
        return 3 * self.hidden * self.expert_ffn * self.experts

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; the output layer has as many where it is not the embedding itself."""
        return self.vocab * self.hidden

    @property
    def total(self) -> int:
        """Parameters of the model."""
        return self.layers * (self.dense_layer + self.expert_layer) + self.embedding * (1 if self.tied else 2)

    @property
    def active(self) -> int:
        """Parameters that compute one token: all but the experts that the router leaves out, and the embedding's look-up."""
        chosen = 3 * self.hidden * self.expert_ffn * self.topk
        return self.layers * (self.dense_layer + chosen) + self.embedding

    @property
    def cache_per_token(self) -> int:
        """Numbers in the key-value cache for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def forward_flops(self, tokens: int, length: int) -> float:
        """Floating-point operations of one forward pass over ``tokens`` in sequences of ``length``, causal attention included."""
        return tokens * (2.0 * self.active + 2.0 * self.layers * self.heads * self.head_dim * length)
