"""float32 must be accepted and kept, all other checks stay, and the engine's field stay frozen."""

import warnings
from dataclasses import FrozenInstanceError

from verl.workers.config import McoreEngineConfig

warnings.simplefilter("ignore")
for dtype in ("float32", "bfloat16", "float16"):
    config = McoreEngineConfig(dtype=dtype)
    if config.dtype != dtype or config.sequence_parallel:
        raise SystemExit(f"made as {config.dtype}, sequence_parallel {config.sequence_parallel}")
refused = 0
for fields in ({"dtype": "float64"}, {"dtype": "float32", "strategy": "fsdp"}):
    try:
        McoreEngineConfig(**fields)
    except AssertionError:
        refused += 1
if refused != 2:
    raise SystemExit("another check is gone")
try:
    McoreEngineConfig(dtype="float32").dtype = "float16"
except FrozenInstanceError:
    raise SystemExit(0) from None
raise SystemExit("the field can be changed")
