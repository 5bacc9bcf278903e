"""Whether options that verl only passes on exist where they arrive: Megatron-Core, SGLang, vLLM.

Names are read from the installed packages' source, without importing it; where a package is not installed, from ``names.json``, which
``ci/upstream_names.py`` writes for the pinned versions.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from verl_musa import extras
from verl_musa.checks import Check, Finding, fail, ok
from verl_musa.data.arithmetic import ACTOR, REF, ROLLOUT
from verl_musa.data.sizes import CRITIC
from verl_musa.data.subject import Subject


@dataclass(frozen=True)
class Source:
    """Where the names of one kind of option are.

    Attributes:
        package: the top-level package.
        classes: (file below the package, class) whose annotated fields are the names.
        distribution: name of the distribution, for messages.
    """

    package: str
    classes: tuple[tuple[str, str], ...]
    distribution: str


SOURCES = {
    "transformer": Source(
        "megatron",
        (
            ("core/transformer/transformer_config.py", "TransformerConfig"),
            ("core/model_parallel_config.py", "ModelParallelConfig"),
        ),
        "megatron-core",
    ),
    "optimizer": Source(
        "megatron", (("core/optimizer/optimizer_config.py", "OptimizerConfig"),), "megatron-core"
    ),
    "ddp": Source(
        "megatron",
        (("core/distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),),
        "megatron-core",
    ),
    "sglang": Source("sglang", (("srt/server_args.py", "ServerArgs"),), "sglang"),
    "vllm": Source(
        "vllm", (("engine/arg_utils.py", "EngineArgs"), ("engine/arg_utils.py", "AsyncEngineArgs")), "vllm"
    ),
}
TAKEN_BY_VERL = {"sglang": ("attention_backend", "mm_attention_backend", "custom_weight_loader")}
"""Options that verl takes out of the mapping itself."""

FILE = "names.json"


def fields_of(file: Path, name: str) -> set[str]:
    """Annotated fields of the class ``name`` in ``file``."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    body = [] if found is None else found.body
    return {
        statement.target.id
        for statement in body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def installed(source: Source) -> set[str] | None:
    """The names in the installed package, in this environment or aside; None where it is in neither."""
    roots = [folder / source.package for folder in extras.folders()]
    spec = importlib.util.find_spec(source.package)
    if spec is not None and spec.submodule_search_locations:
        roots = [*map(Path, spec.submodule_search_locations), *roots]
    for root in roots:
        if all((root / file).is_file() for file, _ in source.classes):
            return set().union(*(fields_of(root / file, name) for file, name in source.classes))
    return None


@lru_cache(maxsize=1)
def recorded() -> dict[str, dict[str, object]]:
    """The names of the pinned versions: kind -> {"version", "names"}."""
    text = resources.files("verl_musa.rules").joinpath(FILE).read_text(encoding="utf-8")
    found: dict[str, dict[str, object]] = json.loads(text)
    return found


@lru_cache(maxsize=8)
def names(kind: str) -> tuple[frozenset[str], str]:
    """The names of one kind of option, and where they come from."""
    source = SOURCES[kind]
    found = installed(source)
    if found:
        return frozenset(found), f"the installed {source.distribution}"
    entry = recorded()[kind]
    listed = entry["names"]
    if not isinstance(listed, list):
        raise TypeError(f"{FILE} holds no list of names for {kind}")
    return frozenset(map(str, listed)), f"{source.distribution} {entry['version']}"


def _blocks(kind: str) -> Iterable[str]:
    match kind:
        case "transformer":
            return [f"{role}.megatron.override_transformer_config" for role in (ACTOR, REF, CRITIC)]
        case "optimizer":
            return [f"{role}.optim.override_optimizer_config" for role in (ACTOR, CRITIC)]
        case "ddp":
            return [f"{role}.megatron.override_ddp_config" for role in (ACTOR, CRITIC)]
    return [f"{ROLLOUT}.engine_kwargs.{kind}"]


def check_kind(subject: Subject, kind: str) -> Finding:
    """The first option of ``kind`` that does not exist, or that all do."""
    if kind == "optimizer" and subject.select(f"{ACTOR}.strategy") != "megatron":
        return ok("not Megatron's")
    known, source = names(kind)
    count = 0
    for block in _blocks(kind):
        for name in subject.select(block, {}) or {}:
            count += 1
            if name in known or name in TAKEN_BY_VERL.get(kind, ()):
                continue
            close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
            return fail(f"{block}.{name} does not exist in {source}",
                        f"did you mean {' or '.join(close)}?" if close else "remove the line", subject.where(f"{block}.{name}"))  # fmt: skip
    return ok(f"{count} option(s) of {source}" if count else "none")


def check_transformer(subject: Subject) -> Finding:
    """Options of Megatron-Core's TransformerConfig exist."""
    return check_kind(subject, "transformer")


def check_optimizer(subject: Subject) -> Finding:
    """Options of Megatron-Core's OptimizerConfig exist."""
    return check_kind(subject, "optimizer")


def check_ddp(subject: Subject) -> Finding:
    """Options of Megatron-Core's DistributedDataParallelConfig exist."""
    return check_kind(subject, "ddp")


def check_sglang(subject: Subject) -> Finding:
    """Options of SGLang's ServerArgs exist."""
    return check_kind(subject, "sglang")


def check_vllm(subject: Subject) -> Finding:
    """Options of vLLM's EngineArgs exist."""
    return check_kind(subject, "vllm")


CHECKS = (
    Check("names.transformer", "override_transformer_config against Megatron-Core", check_transformer),
    Check("names.optimizer", "override_optimizer_config against Megatron-Core", check_optimizer),
    Check("names.ddp", "override_ddp_config against Megatron-Core", check_ddp),
    Check("names.sglang", "engine_kwargs.sglang against SGLang", check_sglang),
    Check("names.vllm", "engine_kwargs.vllm against vLLM", check_vllm),
)
