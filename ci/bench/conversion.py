"""How fast weights are converted to Megatron-Core's format, against what users have and against cp.

    python ci/bench/conversion.py --megatron .nox/stack/aside/megatron --gib 2 4 8 --theirs 2 4 --scratch DIR

Each size is a synthetic dense Qwen3 (real names and shapes, fewer layers, random content) in files of 1 GiB. Ways:
``cp`` copies the same bytes; ``cp, flushed`` waits for the disk, as all converters do before they call a checkpoint
whole; ``verl-musa`` is `verl-musa convert to-mcore`; ``mbridge`` loads the model with mbridge into Megatron-Core on the
CPU and saves it with dist_checkpointing.save; ``verl`` is verl's own converter on the simulated device
(verl_converter.py). Every way is a process of its own; the ways take turns, ``--repeat`` times (mbridge and verl:
``--repeat-theirs``), with the source in the page cache, and the median counts. Memory is what the process and its
children have in memory, pages that they share counted once, seen every 20 ms (less often where looking takes longer). A way that would take the host's last memory is ended, and the
table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import verl_converter

from verl_musa.checkpoint.mapping import Target, mapped_tensors
from verl_musa.checkpoint.safetensors_folder import INDEX
from verl_musa.checkpoint.safetensors_writer import SafetensorsWriter
from verl_musa.checkpoint.spec import ModelSpec, spec_from_config

FLUSHED, OURS = "cp, flushed", "verl-musa"
ROOT = Path(__file__).parents[2]
LIMIT_S = 1800.0
SAMPLE_S = 0.02
FILE_BYTES = 1 << 30
MEMORY_LEFT = 1 << 30
"""Bytes of the host's memory that a way has to leave free."""
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 65536,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}
"""Qwen3-1.7B's layer, with a smaller vocabulary so that layers make up most of the bytes."""


@dataclass(frozen=True)
class Measured:
    """One way's wall time and CPU time in seconds and peak memory in bytes; without a time it was ended, for its memory."""

    seconds: float | None
    cpu: float
    peak: int


def make_model(folder: Path, gib: float) -> None:
    """Write a model of about ``gib`` GiB, layer by layer."""
    layer = _nbytes(spec_from_config({**CONFIG, "num_hidden_layers": 2}, "")) - _nbytes(
        spec_from_config({**CONFIG, "num_hidden_layers": 1}, "")
    )
    rest = _nbytes(spec_from_config({**CONFIG, "num_hidden_layers": 1}, "")) - layer
    config = {**CONFIG, "num_hidden_layers": max(1, round((gib * 2**30 - rest) / layer))}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = spec_from_config(config, "")
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for tensor in mapped_tensors(spec, Target("te", spec.vocab)):
        nbytes = 2 * _items(tensor.shape)
        if shards[-1] and size + nbytes > FILE_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((tensor.name, tensor.shape))
        size += nbytes
    noise = os.urandom(1 << 24)
    placed = {}
    for number, tensors in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        announced = {tensor: ("BF16", shape) for tensor, shape in tensors}
        with SafetensorsWriter(folder / name, announced) as stream:
            for tensor_name, shape in tensors:
                nbytes = 2 * _items(shape)
                data = (noise * (nbytes // len(noise) + 1))[:nbytes]
                stream.write(tensor_name, memoryview(data))
                placed[tensor_name] = name
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}), encoding="utf-8")


def _nbytes(spec: ModelSpec) -> int:
    return sum(2 * _items(tensor.shape) for tensor in mapped_tensors(spec, Target("te", spec.vocab)))


def _items(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def measure(command: Sequence[str], env: dict[str, str], log: Path) -> Measured:
    """Run a command and watch it.

    Raises:
        RuntimeError: it failed or took longer than LIMIT_S.
    """
    before, started = _cpu(), time.perf_counter()
    with log.open("wb") as stream:
        process = psutil.Popen(list(command), env=env, stdout=stream, stderr=subprocess.STDOUT)
    peak, code = 0, None
    try:
        while code is None:
            looked = time.perf_counter()
            peak = max(peak, _resident(process))
            cost = time.perf_counter() - looked
            if psutil.virtual_memory().available < MEMORY_LEFT:
                return Measured(None, 0.0, peak)
            if time.perf_counter() - started > LIMIT_S:
                raise RuntimeError(f"{command[:3]} took longer than {LIMIT_S:.0f} s")
            # Returns at once when the process ends, so that the wall time is not rounded up to a sample.
            code = _wait(process, max(SAMPLE_S, 20 * cost))
        seconds = time.perf_counter() - started
    finally:
        _end(process)
    if code:
        raise RuntimeError(f"{command[:3]} failed:\n{log.read_text(errors='replace')[-3000:]}")
    return Measured(seconds, _cpu() - before, peak)


def _cpu() -> float:
    """CPU seconds of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _wait(process: psutil.Popen, seconds: float) -> int | None:
    """The exit code; None where it still runs."""
    try:
        code: int = process.wait(seconds)
    except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
        return None
    return code


def _end(process: psutil.Popen) -> None:
    """End a process and its children, where they still run."""
    if process.poll() is None:
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()


def _resident(process: psutil.Process) -> int:
    """Bytes in memory of a process and its children; what they share counts once."""
    family = [process, *process.children(recursive=True)]
    total = 0
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += each.memory_info().rss if len(family) == 1 else each.memory_full_info().pss
    return total


@dataclass(frozen=True)
class Way:
    """One way to get the bytes from here to there.

    Attributes:
        command: what is run; the model's folder and the output's follow.
        theirs: whether users have it already.
        env: on top of this process's environment.
    """

    command: tuple[str, ...]
    theirs: bool = False
    env: dict[str, str] = field(default_factory=dict)


def ways(megatron: Path | None) -> dict[str, Way]:
    """The ways, by name."""
    convert = "import sys; from verl_musa.cli import main; sys.exit(main(sys.argv[1:]))"
    python = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    found = {
        "cp": Way(("cp", "-r")),
        FLUSHED: Way(("sh", "-c", 'cp -r "$0" "$1" && sync "$1"/*')),
        OURS: Way((sys.executable, "-c", convert, "convert", "to-mcore"), env=python),
    }
    if megatron is not None:
        with_megatron = {"PYTHONPATH": os.pathsep.join((python["PYTHONPATH"], str(megatron)))}
        script = str(Path(verl_converter.__file__))
        found["mbridge"] = Way((sys.executable, __file__, "--mbridge"), theirs=True, env=with_megatron)
        found["verl"] = Way((sys.executable, script), theirs=True, env=verl_converter.environment(megatron))
    return found


def mbridge_job(source: Path, out: Path) -> None:
    """Load with mbridge, save with Megatron-Core, in one CPU process.

    mbridge knows the names of Transformer Engine's layers only; the two norms of the local ones are renamed for it.
    """
    import torch
    from mbridge.models.qwen3 import Qwen3Bridge
    from megatron.core import dist_checkpointing
    from transformers import AutoConfig

    from verl_musa.checkpoint import megatron_job, read_spec

    class LocalBridge(Qwen3Bridge):
        def _weight_name_mapping_mcore_to_hf(self, name: str) -> list[str]:
            name = name.replace(".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight")
            name = name.replace(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight")
            found: list[str] = super()._weight_name_mapping_mcore_to_hf(name)
            return found

    megatron_job.redirect_to_cpu()
    layout = {"tp": 1, "pp": 1, "ep": 1}
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}.meeting", rank=0, world_size=1)
    with megatron_job.parallel(layout), torch.no_grad():
        model = megatron_job.build_model(read_spec(source), layout, "te", torch.bfloat16)
        bridge = LocalBridge(AutoConfig.from_pretrained(source), dtype=torch.bfloat16)
        bridge.load_weights([model], str(source))
        out.mkdir()
        dist_checkpointing.save(model.sharded_state_dict(), str(out))
    torch.distributed.destroy_process_group()
    Path(f"{out}.meeting").unlink(missing_ok=True)


def bench(
    gib: float, scratch: Path, chosen: dict[str, Way], repeat: int, repeat_theirs: int
) -> dict[str, Measured]:
    """Measure ways on one size."""
    source, out = scratch / f"model-{gib:g}", scratch / "out"
    if not source.exists():
        make_model(source, gib)
    seen: dict[str, list[Measured]] = {}
    for turn in range(repeat):
        for name, way in chosen.items():
            if way.theirs and turn >= repeat_theirs:
                continue
            for file in source.iterdir():
                with file.open("rb") as stream:
                    while stream.read(1 << 24):
                        pass
            os.sync()
            command = [*way.command, str(source), str(out)]
            run = measure(command, {**os.environ, **way.env}, scratch / "log")
            print(f"# {gib:g} GiB, {name}: {run}", file=sys.stderr, flush=True)
            seen.setdefault(name, []).append(run)
            shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(source)
    return {name: _middle(runs) for name, runs in seen.items()}


def _middle(runs: Sequence[Measured]) -> Measured:
    seconds = [run.seconds for run in runs if run.seconds is not None]
    peak = max(run.peak for run in runs)
    cpu = statistics.median(run.cpu for run in runs)
    return Measured(statistics.median(seconds) if len(seconds) == len(runs) else None, cpu, peak)


def table(found: dict[float, dict[str, Measured]]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| Model | Way | Wall time | Bandwidth, of cp flushed | Time, of ours | CPU time | Peak memory | Memory, of ours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for gib, runs in found.items():
        limit, ours = runs[FLUSHED].seconds, runs[OURS]
        for name, run in runs.items():
            memory = f"{run.peak / 2**20:,.0f} MiB | {run.peak / ours.peak:.1f} x"
            if run.seconds is None or limit is None or ours.seconds is None:
                lines.append(f"| {gib:g} GiB | {name} | ended: no memory left | | | | over {memory} |")
                continue
            lines.append(
                f"| {gib:g} GiB | {name} | {run.seconds:.1f} s ({gib / run.seconds:.2f} GiB/s) | "
                f"{limit / run.seconds:.0%} | {run.seconds / ours.seconds:.1f} x | {run.cpu:.1f} s | {memory} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gib", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument(
        "--theirs",
        type=float,
        nargs="*",
        help="sizes that mbridge and verl convert too; default: all of --gib",
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path("bench"),
        help="folder for the models; removed from it afterwards",
    )
    parser.add_argument(
        "--megatron",
        type=Path,
        help="folder that holds megatron, mbridge and torchada; without: theirs are not run",
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--repeat-theirs", type=int, default=1)
    parser.add_argument("--mbridge", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.mbridge:
        mbridge_job(*arguments.mbridge)
        return
    theirs = arguments.gib if arguments.theirs is None else arguments.theirs
    megatron = arguments.megatron and arguments.megatron.resolve()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    found = {}
    for gib in arguments.gib:
        chosen = {name: way for name, way in ways(megatron).items() if gib in theirs or not way.theirs}
        found[gib] = bench(gib, arguments.scratch, chosen, arguments.repeat, arguments.repeat_theirs)
        print(table({gib: found[gib]}), flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
