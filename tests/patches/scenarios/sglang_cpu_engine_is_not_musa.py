"""With a server on the CPU SGLang must not be on MUSA nor import torchada; without one it must ask for itself."""

import importlib.util
import os
import sys

import torch
import torch_musa  # noqa: F401 - sets torch.version.musa
from support import SKIP

if importlib.util.find_spec("torchada") is None:
    sys.stderr.write("torchada is not installed here\n")
    raise SystemExit(SKIP)
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
from sglang.srt.utils import is_musa
from sglang.srt.utils.common import is_cpu

if is_musa() or "torchada" in sys.modules:
    raise SystemExit("SGLang takes this host for a MUSA host")
if not is_cpu():
    raise SystemExit("SGLang does not compute on the CPU")
del os.environ["SGLANG_USE_CPU_ENGINE"]
if is_musa() is not bool(torch.version.musa):
    raise SystemExit("without a server on the CPU the question has another answer than SGLang's own")
