"""The gate's verdicts about weights: digests in, findings out. Imports nothing of verl, Ray or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_musa.device.gate_judge import LM_HEAD, WEIGHT_SYNC, Finding, few, finding

HEAD = "lm_head.weight"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")


@dataclass(frozen=True)
class Weights:
    """Digests of weights at one moment.

    Attributes:
        trainer: by tensor, then by rank of the rollout's tensor parallelism: what that rank may hold, as texts
            ``dtype|shape|digest``, one for each dtype and each way of cutting the tensor.
        replicas: by replica and rank (``replica 0 rank 1``), by tensor: what it holds, as such a text.
    """

    trainer: dict[str, list[list[str]]]
    replicas: dict[str, dict[str, str]]

    def may_hold(self, name: str, rank: int) -> list[str]:
        """What rank ``rank`` of a replica may hold of the tensor ``name``."""
        ranks = self.trainer.get(name, [])
        return ranks[rank % len(ranks)] if ranks else []


@dataclass
class _Comparison:
    """The tensors of all replicas at three moments; fills its lists with the names that stand out.

    Attributes:
        before: as training would start.
        during: with the trainer's weights perturbed and synced.
        after: restored and synced.
        moved: the trainer's tensors whose export changed with the perturbation.
    """

    before: Weights
    during: Weights
    after: Weights
    moved: set[str]
    stale: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    wrong_at_first: list[str] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    other_layout: int = 0
    equal: int = 0

    def look(self) -> None:
        """Compare every tensor on every rank of every replica."""
        tied = _tied_heads(self.during)
        for place in self.during.replicas:
            for name in sorted(self.moved):
                held = [
                    part.replicas.get(place, {}).get(name) for part in (self.before, self.during, self.after)
                ]
                if None not in held:
                    self._place(name, place, [text for text in held if text is not None])
                elif name not in tied:
                    self.absent.append(f"{name} ({place})")

    def _place(self, name: str, place: str, held: list[str]) -> None:
        then, now, later = held
        label, rank = f"{name} ({place})", int(place.rpartition(" ")[2])
        allowed = self.during.may_hold(name, rank)
        if now == then:
            self.stale.append(label)
        elif later != then:
            self.not_restored.append(label)
        elif now in allowed and then in self.before.may_hold(name, rank):
            self.equal += 1
        elif now in allowed:
            self.wrong_at_first.append(label)
        elif _layout(now) in {_layout(text) for text in allowed}:
            self.wrong.append(label)
        else:
            self.other_layout += 1

    def problems(self) -> list[str]:
        """One sentence for each kind of problem."""
        kinds = [
            (self.stale, "did not change when the trainer's did (stale)"),
            (self.wrong_at_first, "differ from the trainer's from the first sync on"),
            (self.wrong, "differ from the trainer's after a sync"),
            (self.not_restored, "did not come back after the trainer's were restored"),
            (
                sorted(set(self.before.trainer) - self.moved),
                "did not change in the trainer's own export when its weights did",
            ),
        ]
        return [f"{len(names)} {what}: {few(names)}" for names, what in kinds if names]


def judge_weight_sync(before: Weights, during: Weights, after: Weights, *, missing: str = "") -> Finding:
    """Each tensor of each replica follows the trainer's: there, changed with it, and back.

    A tensor whose shape or dtype on the rollout is none that the trainer's can be cut to (a layout of a kernel's own) counts
    as following when it changes with the trainer's and comes back.

    Args:
        before: as training would start.
        during: with the trainer's weights perturbed and synced.
        after: restored and synced.
        missing: why the replicas' weights could not be read.
    """
    if lost := [name for name, value in after.trainer.items() if value != before.trainer.get(name)]:
        evidence = f"the trainer's weights could not be restored: {few(lost)}"
        return finding(WEIGHT_SYNC, "FAIL", evidence, "start the job again with --no-gate and report this")
    if missing or not before.replicas:
        evidence = missing or "there is no rollout replica"
        return finding(
            WEIGHT_SYNC,
            "UNKNOWN",
            evidence,
            "compare rollout_corr/log_ppl_abs_diff of the first steps instead",
        )
    moved = {name for name, value in during.trainer.items() if value != before.trainer.get(name)}
    seen = _Comparison(before, during, after, moved)
    seen.look()
    text = (
        f"{len(before.trainer)} tensors, {len(before.replicas)} replica ranks: {seen.equal} comparisons equal bit for "
        "bit, before, with and after a perturbation"
    )
    if seen.other_layout:
        text += f", {seen.other_layout} in a layout of their own changed with it"
    if problems := seen.problems():
        fix = "look for these names in the weight export, the buckets of the transfer and the rollout's load_weights"
        return finding(WEIGHT_SYNC, "FAIL", "; ".join(problems), fix)
    if seen.absent:
        text += f"; {len(seen.absent)} not found there: {few(seen.absent)}"
        return finding(WEIGHT_SYNC, "UNKNOWN", text, "see whether the rollout renames or fuses these tensors")
    return finding(WEIGHT_SYNC, "OK", text)


def _layout(text: str) -> str:
    return text.rpartition("|")[0]


def _embedding(names: Mapping[str, object]) -> str | None:
    return next((name for name in names if name.endswith(EMBEDDINGS)), None)


def _tied_heads(weights: Weights) -> set[str]:
    """The output projection, where the trainer exports it equal to the embedding: a tied rollout keeps only one."""
    embedding = _embedding(weights.trainer)
    heads = [name for name in weights.trainer if name.endswith(HEAD)]
    return {name for name in heads if embedding and weights.trainer[name] == weights.trainer[embedding]}


WORDS = {
    "absent": "has no lm_head",
    "equal": "has an lm_head equal to the embedding",
    "own": "has its own lm_head",
    "unknown": "has no embedding of a known name",
}


def judge_lm_head(weights: Weights, *, tied: bool | None, folder_head: str = "") -> Finding:
    """The output projection is tied, or its own, everywhere alike.

    Args:
        weights: digests as training would start.
        tied: ``tie_word_embeddings`` of the model's config; None where unknown.
        folder_head: what the model folder holds: ``absent``, ``equal`` (to the embedding), ``own``; empty where unknown.
    """
    if tied is None:
        return finding(
            LM_HEAD, "UNKNOWN", "the model's config could not be read", "see model.folder of recipe check"
        )
    said = f"tie_word_embeddings is {str(tied).lower()}"
    held = {"trainer": {name: str(value) for name, value in weights.trainer.items()}, **weights.replicas}
    states = {place: _head_state(tensors) for place, tensors in held.items() if tensors}
    if folder_head:
        states = {"model folder": folder_head, **states}
    bad = {"own"} if tied else {"absent", "equal"}
    wrong = {place: state for place, state in states.items() if state in bad}
    shown = "; ".join(f"{place} {WORDS[state]}" for place, state in (wrong or states).items())
    if wrong:
        fix = (
            "the checkpoint's lm_head is lost: correct tie_word_embeddings in the model's config, or the conversion "
            "that dropped or overwrote lm_head"
        )
        return finding(LM_HEAD, "FAIL", f"{said}, but {shown}", fix)
    if "unknown" in states.values() or not states:
        return finding(LM_HEAD, "UNKNOWN", f"{said}; {shown}", "compare lm_head and embedding by hand")
    return finding(LM_HEAD, "OK", f"{said}; {shown}")


def _head_state(tensors: Mapping[str, str]) -> str:
    embedding = _embedding(tensors)
    head = next((name for name in tensors if name.endswith(HEAD)), None)
    if embedding is None:
        return "unknown"
    if head is None:
        return "absent"
    return "equal" if tensors[head] == tensors[embedding] else "own"
