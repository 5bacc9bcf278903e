"""The same prompts through Hugging Face and through Megatron-Core, each in processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.checkpoint.layout import Layout, check_layout
from verl_musa.checkpoint.spec import CONFIG, read_spec
from verl_musa.errors import CheckpointError

LIMIT_S = 900.0
LENGTH = 16
"""Tokens of one prompt."""
LOG_LINES = 12


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model to compare.

    Attributes:
        source: folder in Hugging Face layout.
        checkpoint: the converted folder.
        layer_spec: names in the checkpoint, as converted.
        layout: how Megatron-Core spreads the model over CPU processes.
    """

    source: Path
    checkpoint: Path
    layer_spec: str = "te"
    layout: Layout = field(default_factory=Layout)


@dataclass(frozen=True)
class Difference:
    """Differences of fp32 logits over all prompts, positions and tokens, beside the largest logit itself."""

    maximum: float
    mean: float
    largest: float


def compare_logits(
    cases: Sequence[Case], *, prompts: int, megatron: Path, seed: int = 0, limit_s: float = LIMIT_S
) -> list[Difference]:
    """Run ``prompts`` random prompts of each case through both.

    Args:
        cases: what to compare; all in the same processes, as many as the widest layout needs.
        prompts: how many.
        megatron: folder that holds the package ``megatron``.
        seed: of the prompts.
        limit_s: longest time for each of the two.

    Raises:
        CheckpointError: a layout does not fit, a process failed or took too long; its last lines are in the message.
    """
    import torch
    from safetensors.torch import load_file, save_file

    specs = [read_spec(case.source) for case in cases]
    for spec, case in zip(specs, cases, strict=True):
        layout = dataclasses.replace(case.layout, etp=1)
        check_layout(spec, layout, layout.tp, str(case.source / CONFIG))
    ranks = math.lcm(*(case.layout.pp * math.lcm(case.layout.tp, case.layout.ep) for case in cases))
    with tempfile.TemporaryDirectory(prefix="verl-musa-logits-") as scratch:
        folder = Path(scratch)
        for number, spec in enumerate(specs):
            generator = torch.Generator().manual_seed(seed)
            tokens = torch.randint(spec.vocab, (prompts, LENGTH), generator=generator)
            save_file({"tokens": tokens}, folder / f"tokens-{number}.safetensors")
        requests = [
            {
                "hf": str(case.source.resolve()),
                "mcore": str(case.checkpoint.resolve()),
                "layer_spec": case.layer_spec,
                "layout": {"tp": case.layout.tp, "pp": case.layout.pp, "ep": case.layout.ep},
                "tokens": str(folder / f"tokens-{number}.safetensors"),
            }
            for number, case in enumerate(cases)
        ]
        expected = _run(folder, "hf", requests, ranks=1, path=(), limit_s=limit_s)
        found = _run(folder, "megatron", requests, ranks=ranks, path=(megatron,), limit_s=limit_s)
        return [
            _difference(load_file(one)["logits"], load_file(other)["logits"])
            for one, other in zip(expected, found, strict=True)
        ]


def _difference(reference: Any, found: Any) -> Difference:
    difference = (found - reference).abs()
    return Difference(
        float(difference.max()), float(difference.double().mean()), float(reference.abs().max())
    )


def _run(
    folder: Path,
    engine: str,
    requests: list[dict[str, Any]],
    *,
    ranks: int,
    path: tuple[Path, ...],
    limit_s: float,
) -> list[Path]:
    """Let one engine's process answer the requests, and return the files with its logits.

    Raises:
        CheckpointError: it failed, or the limit was reached.
    """
    outs = [folder / f"{engine}-{number}.safetensors" for number in range(len(requests))]
    file, log = folder / f"{engine}.json", folder / f"{engine}.log"
    asked = [{**request, "out": str(out)} for request, out in zip(requests, outs, strict=True)]
    file.write_text(json.dumps(asked), encoding="utf-8")
    search = [str(Path(__file__).parents[2]), *map(str, path), os.environ.get("PYTHONPATH", "")]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", f"verl_musa.checkpoint.{engine}_job", str(file), str(ranks)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))},
            cwd=folder,
            start_new_session=True,  # so that its ranks can be ended with it
        )
    try:
        code: int | None = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        raise CheckpointError(
            f"the {engine} process took too long" if code is None else f"the {engine} process failed",
            where=f"verl_musa.checkpoint.{engine}_job",
            found="\n    ".join(tail) or "no output",
            fix="is Megatron-Core 0.16 or 0.18 in the folder given by --megatron?"
            if engine == "megatron"
            else "does transformers load this model?",
        )
    return outs
