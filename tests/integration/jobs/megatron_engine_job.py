"""One rank of verl's Megatron engine on the simulated device, without Ray: log-probabilities, training, weights.

    python megatron_engine_job.py PLAN RANK

PLAN is a JSON file: world, port, model (folder), batch (file of load_batch), steps, megatron (fields of verl's McoreEngineConfig), out
(folder), and optionally save and load (checkpoint folders). Rank 0's data-parallel peers each take their share of the batch.
Each rank that holds outputs writes ``out/rank<RANK>.json``; rank 0 also ``out/weights.safetensors``, the exported weights.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch

LR = 1e-3


def load_batch(path: Path) -> list[dict[str, list[int]]]:
    """Return the samples of a batch: ``prompt`` and ``answer``, token ids each."""
    samples: list[dict[str, list[int]]] = json.loads(path.read_text())
    return samples


def make_data(samples: list[dict[str, list[int]]]) -> Any:
    """Return verl's nested batch of ``samples``: input_ids (rows, tokens), loss_mask with 1 at the answers' tokens."""
    from verl.utils import tensordict_utils as tu
    from verl.utils.dataset.dataset_utils import DatasetPadMode

    ids = [torch.tensor(sample["prompt"] + sample["answer"]) for sample in samples]
    masks = [torch.tensor([0] * len(sample["prompt"]) + [1] * len(sample["answer"])) for sample in samples]
    return tu.get_tensordict(
        {
            "input_ids": torch.nested.nested_tensor(ids, layout=torch.jagged),
            "loss_mask": torch.nested.nested_tensor(masks, layout=torch.jagged),
            "temperature": torch.ones(len(samples)),
        },
        {
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": 2,
            "use_fused_kernels": False,
            "pad_mode": DatasetPadMode.NO_PADDING,
        },
    )


def make_engine(plan: dict[str, Any]) -> Any:
    """Return the engine that verl's registry has for this device, built."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine import EngineRegistry

    model = HFModelConfig(
        path=plan["model"], use_remove_padding=False, override_config={"attn_implementation": "sdpa"}
    )
    contents = ["model", "optimizer", "extra"]
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="megatron",
        model_config=model,
        engine_config=McoreEngineConfig(**{"use_remove_padding": False, **plan["megatron"]}),
        optimizer_config=McoreOptimizerConfig(
            lr=LR, lr_warmup_steps=0, total_training_steps=100, weight_decay=0.01
        ),
        checkpoint_config=CheckpointConfig(save_contents=contents, load_contents=contents),
    )
    engine.initialize()
    return engine


def run(plan: dict[str, Any], rank: int) -> None:
    """Do what the plan asks for and write what came out."""
    from functools import partial

    from verl.utils.distributed import initialize_global_process_group_ray
    from verl.workers.utils.losses import sft_loss

    initialize_global_process_group_ray(timeout_second=120)
    torch.musa.set_device(rank)
    engine = make_engine(plan)
    ranks, place = engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    samples = load_batch(Path(plan["batch"]))
    share = len(samples) // ranks
    mine = samples[place * share : (place + 1) * share]
    found: dict[str, Any] = {"losses": [], "grad_norms": [], "data_rank": place}
    if plan.get("load"):
        engine.load_checkpoint(plan["load"], del_local_after_load=False)
    with engine.eval_mode():
        output = engine.infer_batch(make_data(mine), loss_function=None)
    holds_outputs = engine.is_mp_src_rank_with_outputs()
    if holds_outputs:
        found["log_probs"] = [row.tolist() for row in output["model_output"]["log_probs"].cpu().unbind()]
    for _ in range(plan["steps"]):
        with engine.train_mode():
            result = engine.train_batch(make_data(mine), loss_function=partial(sft_loss, None))
        engine.lr_scheduler_step()
        if holds_outputs:
            found["losses"].append(sum(result["loss"]))
            found["grad_norms"].append(float(result["metrics"]["grad_norm"]))
    if plan.get("save"):
        engine.save_checkpoint(plan["save"], global_step=plan["steps"])
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in engine.get_per_tensor_param()[0]}
    out = Path(plan["out"])
    if holds_outputs:
        (out / f"rank{rank}.json").write_text(json.dumps(found))
    if rank == 0:
        from safetensors.torch import save_file

        save_file({name: tensor.clone() for name, tensor in weights.items()}, out / "weights.safetensors")
        (out / "modules.json").write_text(
            json.dumps(sorted(set(sys.modules) & {"torchada", "megatron", "sglang"}))
        )
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main() -> None:
    """Run the rank named on the command line."""
    plan, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(plan["world"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(plan["port"]),
    )
    torch.set_num_threads(1)
    try:
        run(plan, rank)
    finally:
        # Megatron keeps a Manager process for saving; it would outlive a failed rank and hold its pipes open.
        for child in multiprocessing.active_children():
            child.terminate()


if __name__ == "__main__":
    main()
