"""How fast weights are converted to Megatron-Core's format, against what users have and against cp.

    python ci/bench/conversion.py --megatron .nox/stack/aside/megatron --gib 2 8 --scratch DIR

Each size is a synthetic dense Qwen3 (real names and shapes, fewer layers, random content) in files of 1 GiB. Ways:
``cp`` copies the same bytes; ``cp, flushed`` waits for the disk, as both converters do before they call a checkpoint
whole; ``verl-musa`` is `verl-musa convert to-mcore`; ``mbridge`` loads the model with mbridge into Megatron-Core on the
CPU and saves it with dist_checkpointing.save. Every way is a process of its own; the ways take turns, `--repeat` times,
with the source in the page cache, and the median counts. Memory is the largest sum of the resident sets of the process
and its children, seen every 20 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from verl_musa.checkpoint.mapping import Target, mapped_tensors
from verl_musa.checkpoint.safetensors_folder import INDEX
from verl_musa.checkpoint.safetensors_writer import SafetensorsWriter
from verl_musa.checkpoint.spec import ModelSpec, spec_from_config

ROOT = Path(__file__).parents[2]
LIMIT_S = 1800.0
SAMPLE_S = 0.02
FILE_BYTES = 1 << 30
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
    """One way's wall time in seconds and peak memory in bytes."""

    seconds: float
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


def measure(command: Sequence[str], env: dict[str, str]) -> Measured:
    """Run a command and watch it.

    Raises:
        RuntimeError: it failed or took longer than LIMIT_S.
    """
    started = time.perf_counter()
    process = psutil.Popen(
        list(command), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    peak = 0
    try:
        while process.poll() is None:
            peak = max(peak, _resident(process))
            if time.perf_counter() - started > LIMIT_S:
                raise RuntimeError(f"{command[:3]} took longer than {LIMIT_S:.0f} s")
            time.sleep(SAMPLE_S)
        seconds = time.perf_counter() - started
        output = process.stdout.read()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise RuntimeError(f"{command[:3]} failed:\n{output[-3000:]}")
    return Measured(seconds, peak)


def _resident(process: psutil.Process) -> int:
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def ways(source: Path, out: Path, megatron: Path | None) -> dict[str, list[str]]:
    """The commands, by name."""
    convert = "import sys; from verl_musa.cli import main; sys.exit(main(sys.argv[1:]))"
    found = {
        "cp": ["cp", "-r", str(source), str(out)],
        "cp, flushed": ["sh", "-c", 'cp -r "$0" "$1" && sync "$1"/*', str(source), str(out)],
        "verl-musa": [sys.executable, "-c", convert, "convert", "to-mcore", str(source), str(out)],
    }
    if megatron is not None:
        found["mbridge"] = [sys.executable, __file__, "--mbridge", str(source), str(out)]
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
        model = megatron_job.build_model(read_spec(source), layout, "te").bfloat16()
        bridge = LocalBridge(AutoConfig.from_pretrained(source), dtype=torch.bfloat16)
        bridge.load_weights([model], str(source))
        out.mkdir()
        dist_checkpointing.save(model.sharded_state_dict(), str(out))
    torch.distributed.destroy_process_group()
    Path(f"{out}.meeting").unlink(missing_ok=True)


def bench(gib: float, scratch: Path, megatron: Path | None, repeat: int) -> dict[str, Measured]:
    """Measure every way on one size."""
    source, out = scratch / f"model-{gib:g}", scratch / "out"
    if not source.exists():
        make_model(source, gib)
    path = os.pathsep.join(filter(None, (str(ROOT), str(megatron or ""), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path}
    seen: dict[str, list[Measured]] = {}
    for _ in range(repeat):
        for name, command in ways(source, out, megatron).items():
            for file in source.iterdir():
                with file.open("rb") as stream:
                    while stream.read(1 << 24):
                        pass
            os.sync()
            seen.setdefault(name, []).append(measure(command, env))
            shutil.rmtree(out)
    shutil.rmtree(source)
    return {
        name: Measured(statistics.median(run.seconds for run in runs), max(run.peak for run in runs))
        for name, runs in seen.items()
    }


def table(found: dict[float, dict[str, Measured]], sizes: dict[float, int]) -> str:
    """The results as a Markdown table."""
    lines = ["| model | way | wall time | of cp's speed | peak memory |", "|---|---|---|---|---|"]
    for gib, ways_ in found.items():
        for name, run in ways_.items():
            share = ways_["cp"].seconds / run.seconds
            rate = sizes[gib] / 2**30 / run.seconds
            lines.append(
                f"| {gib:g} GiB | {name} | {run.seconds:.1f} s ({rate:.2f} GiB/s) | {share:.0%} | "
                f"{run.peak / 2**20:,.0f} MiB |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gib", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path("bench"),
        help="folder for the models; removed from it afterwards",
    )
    parser.add_argument(
        "--megatron", type=Path, help="folder that holds megatron and mbridge; without: not measured"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--mbridge", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.mbridge:
        mbridge_job(*arguments.mbridge)
        return
    found, sizes = {}, {}
    for gib in arguments.gib:
        sizes[gib] = round(gib * 2**30)
        found[gib] = bench(gib, arguments.scratch, arguments.megatron, arguments.repeat)
        print(table({gib: found[gib]}, sizes), flush=True)
    print(table(found, sizes))


if __name__ == "__main__":
    main()
