"""One rank of verl's Megatron engine as a recipe configures it, without Ray: log-probabilities, updates, weights, a checkpoint.

    python recipe_engine_job.py PLAN RANK

PLAN is a JSON file: world, port, config (verl's whole configuration of the recipe), batch (samples of token ids: prompt, answer), steps, lr, out
(folder) and save (checkpoint folder). The engine is made as verl's worker makes it: from the configuration's own dataclasses. Each rank
that holds outputs writes ``out/rank<RANK>.json``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import torch


def make_engine(plan: dict[str, Any], role: str) -> Any:
    """The engine of ``role`` (actor or ref), as ``ActorRolloutRefWorker.init_model`` puts it together."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import HFModelConfig
    from verl.workers.engine import EngineRegistry

    config = OmegaConf.create(plan["config"]).actor_rollout_ref
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    block = dict(plain[role])
    for name in [name for name in block if name.startswith("log_prob_")]:
        value = block.pop(name)
        if name == "log_prob_max_token_len_per_gpu":
            block["ppo_max_token_len_per_gpu"] = value
        elif name == "log_prob_use_dynamic_bsz":
            block["use_dynamic_bsz"] = value
    if role == "actor":
        block["optim"].update(lr=plan["lr"], total_training_steps=100)
    made = omega_conf_to_dataclass(OmegaConf.create(block))
    engine_config, budget = made.engine, plain["actor"]["ppo_max_token_len_per_gpu"]
    engine_config.use_dynamic_bsz = plain["actor"]["use_dynamic_bsz"]
    engine_config.infer_max_token_len_per_gpu = engine_config.max_token_len_per_gpu = budget
    engine_config.use_remove_padding = plain["model"]["use_remove_padding"]
    model = HFModelConfig(
        path=plain["model"]["path"], use_remove_padding=plain["model"]["use_remove_padding"]
    )
    engine = EngineRegistry.new(
        model_type="language_model",
        backend=plain[role]["strategy"],
        model_config=model,
        engine_config=engine_config,
        optimizer_config=made.optim,
        checkpoint_config=made.checkpoint,
    )
    engine.initialize()
    return engine


def make_data(samples: list[dict[str, list[int]]], budget: int) -> Any:
    """verl's nested batch, to be divided by token count."""
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
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": budget,
            "use_fused_kernels": False,
            "pad_mode": DatasetPadMode.NO_PADDING,
        },
    )


def run(plan: dict[str, Any], rank: int) -> None:
    """Do what the plan asks for and write what came out."""
    from functools import partial

    from verl.utils.distributed import initialize_global_process_group_ray
    from verl.workers.utils.losses import sft_loss

    initialize_global_process_group_ray(timeout_second=300)
    torch.musa.set_device(rank)
    reference = make_engine(plan, "ref")  # first, as verl does
    engine = make_engine(plan, "actor")
    from megatron.core import parallel_state as mpu  # after verl, whose plugin imports torchada first

    budget = plan["config"]["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"]
    samples = json.loads(Path(plan["batch"]).read_text())
    place, ranks = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    share = len(samples) // ranks
    mine = samples[place * share : (place + 1) * share]
    holds = engine.is_mp_src_rank_with_outputs()
    found: dict[str, Any] = {
        "data_rank": place,
        "sizes": [
            mpu.get_tensor_model_parallel_world_size(),
            mpu.get_expert_model_parallel_world_size(),
            mpu.get_data_parallel_world_size(),
        ],
        "losses": [],
        "grad_norms": [],
    }
    for name, one in (("reference", reference), ("log_probs", engine)):
        with one.eval_mode():
            output = one.infer_batch(make_data(mine, budget), loss_function=None)
        if holds:
            found[name] = [row.tolist() for row in output["model_output"]["log_probs"].cpu().unbind()]
    for _ in range(plan["steps"]):
        with engine.train_mode():
            result = engine.train_batch(make_data(mine, budget), loss_function=partial(sft_loss, None))
        engine.lr_scheduler_step()
        if holds:
            found["losses"].append(float(sum(result["loss"])))
            found["grad_norms"].append(float(result["metrics"]["grad_norm"]))
    engine.save_checkpoint(plan["save"], global_step=plan["steps"])
    weights = {name: tuple(tensor.shape) for name, tensor in engine.get_per_tensor_param()[0]}
    if holds:
        Path(plan["out"], f"rank{rank}.json").write_text(json.dumps({**found, "weights": weights}))
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
