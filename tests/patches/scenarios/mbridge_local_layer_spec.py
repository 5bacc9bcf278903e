"""A model must be built of Megatron's own layers, dense and with experts, and compute on the device."""

from mbridge_support import build, tiny_config
from support import start_megatron

start_megatron()
import torch  # noqa: E402

for experts in (0, 4):
    _, model = build(tiny_config(experts))
    names = {type(module).__name__ for module in model.modules()}
    if not {"RMSNorm", "ColumnParallelLinear", "DotProductAttention"} <= names or (
        "SequentialMLP" in names
    ) != bool(experts):
        raise SystemExit(f"built of {sorted(names)}")
    tokens = torch.arange(6, device="musa").view(1, 6)
    logits = model(tokens, tokens, None)
    if logits.shape != (1, 6, 32) or not bool(logits.isfinite().all()):
        raise SystemExit(f"logits {tuple(logits.shape)}")
