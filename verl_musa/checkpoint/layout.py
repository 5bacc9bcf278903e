"""Whether a model can be spread over devices as asked, by the divisions that Megatron-Core makes."""

from __future__ import annotations

from dataclasses import dataclass

from verl_musa.checkpoint.spec import ModelSpec
from verl_musa.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of the parallel groups; ``etp`` is the experts' tensor parallelism, None for ``tp``'s (Megatron's default).

    ``world`` is the number of devices; None leaves data parallelism open.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    etp: int | None = None
    world: int | None = None

    def __str__(self) -> str:
        names = {"TP": self.tp, "PP": self.pp, "EP": self.ep, "CP": self.cp, "ETP": self.etp or 1}
        return " ".join(f"{name}{size}" for name, size in names.items() if size > 1) or "TP1"


def check_layout(spec: ModelSpec, layout: Layout, vocab_rows: int, where: str) -> None:
    """Do the arithmetic of a layout.

    Args:
        spec: the model.
        layout: what it is to run under.
        vocab_rows: rows of the embedding that is written.
        where: the file or option that gave the layout, for the message.

    Raises:
        CheckpointError: naming every division that fails, and what to change.
    """
    found = list(_problems(spec, layout, vocab_rows))
    if found:
        raise CheckpointError(
            f"{spec.architecture} cannot run under {layout}",
            where=where,
            found="; ".join(problem for problem, _ in found),
            fix="; ".join(dict.fromkeys(fix for _, fix in found)),
        )


def _problems(spec: ModelSpec, layout: Layout, vocab_rows: int) -> list[tuple[str, str]]:
    tp, pp, ep, etp = layout.tp, layout.pp, layout.ep, layout.etp or layout.tp
    found = []

    def require(total: int, parts: int, what: str, name: str, fix: str) -> None:
        if total % parts:
            found.append((f"{what} {total} is not divisible by {name} {parts}", fix))

    require(spec.heads, tp, "num_attention_heads", "TP", _choose("TP", spec.heads))
    if max(spec.groups, tp) % min(spec.groups, tp):
        found.append(
            (
                f"num_key_value_heads {spec.groups} and TP {tp} do not divide one another",
                _choose("TP", spec.groups),
            )
        )
    require(vocab_rows, tp, "the embedding's rows", "TP", f"pad the vocabulary: --pad-vocab {_padding(tp)}")
    require(spec.layers, pp, "num_hidden_layers", "PP", _choose("PP", spec.layers))
    if spec.experts:
        require(spec.experts, ep, "num_experts", "EP", _choose("EP", spec.experts))
        require(spec.expert_ffn, etp, "moe_intermediate_size", "ETP", _choose("ETP", spec.expert_ffn))
    else:
        require(spec.ffn, tp, "intermediate_size", "TP", _choose("TP", spec.ffn))
        if ep > 1:
            found.append((f"EP {ep}, but the model has no experts", "leave EP at 1"))
    if layout.world is not None:
        require(
            layout.world, tp * pp * layout.cp, "the number of devices", "TP x PP x CP", "use more devices"
        )
        if spec.experts:
            require(layout.world, etp * ep * pp, "the number of devices", "ETP x EP x PP", "use more devices")
    return found


def _choose(name: str, total: int) -> str:
    """``choose TP from 1, 2, 4``: the divisors up to 64, the widest that one sees in practice."""
    return f"choose {name} from {', '.join(str(size) for size in range(1, 65) if total % size == 0)}"


def _padding(tensor_parallel: int) -> int:
    """The smallest multiple of ``tensor_parallel`` that is also one of 128, Megatron-LM's own default."""
    size = 128
    while size % tensor_parallel:
        size += 128
    return size
