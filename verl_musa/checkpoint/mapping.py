"""Which rows of which Hugging Face tensor fill which box of which Megatron-Core tensor.

Megatron-Core stacks the decoder's layers: ``decoder.layers.mlp.linear_fc2.weight`` of shape (layers, hidden, ffn)
holds every layer's, and experts add a second leading axis. Three tensors are fused there: query, key and value,
interleaved by query group, and gate and up, one after the other. Whatever is fused, each box is a run of whole rows
of one Hugging Face tensor, so a conversion moves bytes and computes nothing. The names and shapes are those that
``GPTModel.sharded_state_dict`` of Megatron-Core 0.16.1 and 0.18.0 asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verl_musa.checkpoint.spec import ModelSpec

MAPPING_VERSION = 1
"""Raised whenever the same model would be written under other names or in another arrangement."""

LAYER_SPECS = ("te", "local")
"""``te``: the names of the Transformer Engine layer spec, and of the local one with this project's patch
``megatron-local-moe-keys``. ``local``: those of Megatron-Core's own local spec, which differ where there are experts."""

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
OUTPUT_BIAS = "output_layer.bias"

HF_EMBEDDING = "model.embed_tokens.weight"
HF_OUTPUT = "lm_head.weight"
HF_SCORE = "score.weight"
HF_SCORE_BIAS = "score.bias"

_STATEFUL = ("self_attention.linear_proj", "self_attention.linear_qkv", "mlp.linear_fc1", "mlp.linear_fc2")
_STATEFUL_TE = (
    "self_attention.core_attention",
    "self_attention.q_layernorm",
    "self_attention.k_layernorm",
)
_EXPERT = "mlp.experts.experts."

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows ``start`` to ``stop`` of one Hugging Face tensor, and the box they fill.

    Attributes:
        start: first row (of axis 0).
        stop: one past the last.
        key: Megatron-Core's name of the whole tensor.
        offset: first corner of the box in it.
        sizes: the box's size along each axis.
    """

    start: int
    stop: int
    key: str
    offset: Shape
    sizes: Shape


@dataclass(frozen=True, slots=True)
class Mapped:
    """One Hugging Face tensor.

    Attributes:
        name: its name.
        shape: its shape.
        parts: where its rows go, in row order and without gaps.
    """

    name: str
    shape: Shape
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be written, beyond the model itself.

    Attributes:
        layer_spec: one of :data:`LAYER_SPECS`.
        vocab_rows: rows of the embedding and the output layer; at least the model's. The rest is zero.
        value_head: replace a language model's output layer by a value head of one zero row, for a critic.
    """

    layer_spec: str
    vocab_rows: int
    value_head: bool = False


def mcore_shapes(spec: ModelSpec, target: Target) -> dict[str, Shape]:
    """Name and global shape of every tensor that Megatron-Core asks for."""
    layers, hidden = spec.layers, spec.hidden
    shapes: dict[str, Shape] = {
        EMBEDDING: (target.vocab_rows, hidden),
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight": (layers, hidden),
        "decoder.layers.self_attention.linear_qkv.weight": (layers, spec.qkv_rows, hidden),
        "decoder.layers.self_attention.q_layernorm.weight": (layers, spec.head_dim),
        "decoder.layers.self_attention.k_layernorm.weight": (layers, spec.head_dim),
        "decoder.layers.self_attention.linear_proj.weight": (layers, hidden, spec.heads * spec.head_dim),
        "decoder.final_layernorm.weight": (hidden,),
    }
    if spec.experts:
        shapes[f"decoder.layers.{moe_norm_key(target.layer_spec)}"] = (layers, hidden)
        shapes["decoder.layers.mlp.router.weight"] = (layers, spec.experts, hidden)
        leading: Shape = (layers, spec.experts)
        prefix, ffn = f"decoder.layers.{_EXPERT}", spec.expert_ffn
    else:
        shapes["decoder.layers.mlp.linear_fc1.layer_norm_weight"] = (layers, hidden)
        leading, prefix, ffn = (layers,), "decoder.layers.mlp.", spec.ffn
    shapes[f"{prefix}linear_fc1.weight"] = (*leading, 2 * ffn, hidden)
    shapes[f"{prefix}linear_fc2.weight"] = (*leading, hidden, ffn)
    if spec.labels or target.value_head:
        shapes[OUTPUT] = (max(spec.labels, 1), hidden)
        if has_head_bias(spec):
            shapes[OUTPUT_BIAS] = (spec.labels,)
    elif not spec.tied:
        shapes[OUTPUT] = (target.vocab_rows, hidden)
    return shapes


def moe_norm_key(layer_spec: str) -> str:
    """Name of the norm before the experts, within a layer (Megatron-LM pull request 6270)."""
    return "pre_mlp_layernorm.weight" if layer_spec == "te" else "mlp.linear_fc1.layer_norm_weight"


def has_head_bias(spec: ModelSpec) -> bool:
    """Whether the ``score`` head has a bias: transformers gives one to token classifiers only."""
    return spec.architecture.endswith("ForTokenClassification")


def mapped_tensors(spec: ModelSpec, target: Target) -> Iterator[Mapped]:
    """Every Hugging Face tensor of the model with its place in Megatron-Core, layer by layer."""
    hidden = spec.hidden
    yield _whole(HF_EMBEDDING, (spec.vocab, hidden), EMBEDDING)
    for layer in range(spec.layers):
        yield from _layer(spec, target, layer)
    yield _whole("model.norm.weight", (hidden,), "decoder.final_layernorm.weight")
    if spec.labels:
        yield _whole(HF_SCORE, (spec.labels, hidden), OUTPUT)
        if has_head_bias(spec):
            yield _whole(HF_SCORE_BIAS, (spec.labels,), OUTPUT_BIAS)
    elif not spec.tied and not target.value_head:
        yield _whole(HF_OUTPUT, (spec.vocab, hidden), OUTPUT)


def zero_boxes(spec: ModelSpec, target: Target) -> Iterator[Part]:
    """Boxes that no Hugging Face tensor fills: the rows that pad the vocabulary, and a fresh value head."""
    extra = target.vocab_rows - spec.vocab
    if extra:
        yield Part(0, extra, EMBEDDING, (spec.vocab, 0), (extra, spec.hidden))
        if not (spec.tied or spec.labels or target.value_head):
            yield Part(0, extra, OUTPUT, (spec.vocab, 0), (extra, spec.hidden))
    if target.value_head and not spec.labels:
        yield Part(0, 1, OUTPUT, (0, 0), (1, spec.hidden))


def extra_state_keys(spec: ModelSpec, target: Target) -> Iterator[str]:
    """Names of the objects that Megatron-Core's loader insists on beside the tensors: one a layer (and expert) and module.

    They hold FP8 scales where there are any, else nothing. For ``te`` those of the local spec are among them, and
    those of norms too, which newer Transformer Engines ask for: a name too many is not looked at.
    """
    modules = [name for name in _STATEFUL if not (spec.experts and name.startswith("mlp."))]
    if target.layer_spec == "te":
        modules += _STATEFUL_TE
        if spec.experts:
            modules.append("pre_mlp_layernorm")
        yield "decoder.final_layernorm._extra_state/shard_0_1"
    for layer in range(spec.layers):
        for module in modules:
            yield f"decoder.layers.{module}._extra_state/shard_{layer}_{spec.layers}"
        for expert in range(spec.experts):
            place = f"shard_{layer}.{expert}_{spec.layers}.{spec.experts}"
            for module in ("linear_fc1", "linear_fc2"):
                yield f"decoder.layers.{_EXPERT}{module}._extra_state/{place}"


def _whole(name: str, shape: Shape, key: str, place: Shape = (), row: int = 0) -> Mapped:
    """A tensor whose rows stay together, at ``row`` of ``key[place]``."""
    offset = (*place, row, *(0 for _ in shape[1:]))
    return Mapped(name, shape, (Part(0, shape[0], key, offset, (*(1 for _ in place), *shape)),))


def _layer(spec: ModelSpec, target: Target, layer: int) -> Iterator[Mapped]:
    source, key, hidden = f"model.layers.{layer}.", "decoder.layers.", spec.hidden
    place = (layer,)

    yield _whole(
        f"{source}input_layernorm.weight",
        (hidden,),
        f"{key}self_attention.linear_qkv.layer_norm_weight",
        place,
    )
    yield from _qkv(spec, source, layer)
    for name in ("q", "k"):
        yield _whole(
            f"{source}self_attn.{name}_norm.weight",
            (spec.head_dim,),
            f"{key}self_attention.{name}_layernorm.weight",
            place,
        )
    yield _whole(
        f"{source}self_attn.o_proj.weight",
        (hidden, spec.heads * spec.head_dim),
        f"{key}self_attention.linear_proj.weight",
        place,
    )
    norm = moe_norm_key(target.layer_spec) if spec.experts else "mlp.linear_fc1.layer_norm_weight"
    yield _whole(f"{source}post_attention_layernorm.weight", (hidden,), key + norm, place)
    if not spec.experts:
        yield from _mlp(f"{source}mlp.", f"{key}mlp.", place, hidden, spec.ffn)
        return
    yield _whole(f"{source}mlp.gate.weight", (spec.experts, hidden), f"{key}mlp.router.weight", place)
    for expert in range(spec.experts):
        yield from _mlp(
            f"{source}mlp.experts.{expert}.", key + _EXPERT, (layer, expert), hidden, spec.expert_ffn
        )


def _mlp(source: str, key: str, place: Shape, hidden: int, ffn: int) -> Iterator[Mapped]:
    """A gated MLP: Megatron's first weight holds all gate rows, then all up rows."""
    for number, name in enumerate(("gate_proj", "up_proj")):
        yield _whole(f"{source}{name}.weight", (ffn, hidden), f"{key}linear_fc1.weight", place, number * ffn)
    yield _whole(f"{source}down_proj.weight", (hidden, ffn), f"{key}linear_fc2.weight", place)


def _qkv(spec: ModelSpec, source: str, layer: int) -> Iterator[Mapped]:
    """Query, key and value: for each query group its query heads, then its key head, then its value head."""
    width, queries = spec.head_dim, spec.heads_per_group
    for name, heads, first in (("q_proj", queries, 0), ("k_proj", 1, queries), ("v_proj", 1, queries + 1)):
        rows = heads * width
        parts = tuple(
            Part(
                group * rows,
                (group + 1) * rows,
                "decoder.layers.self_attention.linear_qkv.weight",
                (layer, (group * (queries + 2) + first) * width, 0),
                (1, rows, spec.hidden),
            )
            for group in range(spec.groups)
        )
        yield Mapped(f"{source}self_attn.{name}.weight", (spec.groups * rows, spec.hidden), parts)
