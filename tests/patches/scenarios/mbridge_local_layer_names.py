"""Weights of a Hugging Face model must come back the same, under the same names, through a model of local layers."""

import tempfile

from mbridge_support import build, tiny_config
from support import start_megatron

# Before torchada redirects torch: what it does to a model that is being made is not this scenario's business.
from transformers import Qwen3ForCausalLM, Qwen3MoeForCausalLM

folders = {}
for experts, family in ((0, Qwen3ForCausalLM), (4, Qwen3MoeForCausalLM)):
    folders[experts] = tempfile.TemporaryDirectory()
    family(tiny_config(experts)).save_pretrained(folders[experts].name)
start_megatron()
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

for experts, folder in folders.items():
    bridge, model = build(tiny_config(experts))
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    bridge.load_weights([model], folder.name)
    given = load_file(f"{folder.name}/model.safetensors")
    found = {name: tensor.detach().cpu() for name, tensor in bridge.export_weights([model])}
    if found.keys() != given.keys():
        raise SystemExit(f"other names: {sorted(found.keys() ^ given.keys())[:4]}")
    for name, tensor in given.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    folder.cleanup()
