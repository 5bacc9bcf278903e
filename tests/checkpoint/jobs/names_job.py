"""Ask the real Megatron-Core which tensors and objects it would load, for models of any size: on the meta device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from verl_musa.checkpoint import megatron_job
from verl_musa.checkpoint.spec import spec_from_config


def main(request_file: str, out: str) -> None:
    import torch

    torch.set_num_threads(1)
    megatron_job.redirect_to_cpu()
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedObject, apply_factories

    torch.distributed.init_process_group("gloo", init_method=f"file://{out}.meeting", rank=0, world_size=1)
    answers = []
    layout = {"tp": 1, "pp": 1, "ep": 1}
    for config, layer_spec in json.loads(Path(request_file).read_text(encoding="utf-8")):
        with megatron_job.parallel(layout), torch.device("meta"):
            model = megatron_job.build_model(spec_from_config(config, "request"), layout, layer_spec)
            state = model.sharded_state_dict()
            apply_factories(state)
            tensors, objects = {}, []
            for value in nested_values(state):
                if isinstance(value, ShardedObject):
                    objects.append(value.unique_key)
                else:
                    tensors[value.key] = list(value.global_shape)
        answers.append({"tensors": tensors, "objects": objects})
    torch.distributed.destroy_process_group()
    Path(out).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
