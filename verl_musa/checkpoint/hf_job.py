"""A process of its own that computes a model's logits with transformers: the reference for ``verify --logits``.

Started as ``python -m verl_musa.checkpoint.hf_job REQUESTS 1``, without Megatron-Core or torchada in the process: their
redirects have silently damaged a reference before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(request_file: str) -> int:
    """Answer a list of requests ``{"hf", "tokens", "out"}``, fp32 on the CPU."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    for request in json.loads(Path(request_file).read_text(encoding="utf-8")):
        model = AutoModelForCausalLM.from_pretrained(
            request["hf"], dtype=torch.float32, attn_implementation="eager", local_files_only=True
        ).eval()
        with torch.no_grad():
            found = model(load_file(request["tokens"])["tokens"]).logits.float()
        save_file({"logits": found.contiguous()}, request["out"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
