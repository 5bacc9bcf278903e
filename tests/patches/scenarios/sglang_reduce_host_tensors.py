"""A host tensor must be reduced by torch's own reducer, a device tensor by SGLang's."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from support import Stub, load

common = Stub("sglang.srt.utils.common")
common.is_musa, common.is_npu, common.torch_release = lambda: False, lambda: False, (2, 13)
sys.modules["sglang.srt.utils.common"] = common
reductions: Any = ModuleType(
    "torch.multiprocessing.reductions"
)  # SGLang asks whether a name is missing there
multiprocessing = Stub("torch.multiprocessing")
multiprocessing.reductions = reductions
torch = Stub("torch")
torch.cuda = torch.musa = SimpleNamespace(
    get_device_properties=lambda index: SimpleNamespace(uuid=f"U{index}")
)
torch.multiprocessing = multiprocessing
sys.modules.update(
    {
        "torch": torch,
        "torch.multiprocessing": multiprocessing,
        "torch.multiprocessing.reductions": reductions,
    }
)


def torch_reducer(tensor: Any) -> tuple[str, tuple[Any, ...]]:
    # Only a device tensor's arguments are long enough to have a device index, at place 6.
    return "rebuild", ("host", "args") if tensor.device.type == "cpu" else (0, 1, 2, 3, 4, 5, 1, 7)


reductions.reduce_tensor = torch_reducer
reductions.rebuild_cuda_tensor = None
reductions.init_reductions = lambda: None
module = load(
    "sglang.srt.utils.patch_torch", distribution="sglang", stubs=("torch", "sglang.srt.utils.common")
)
module.monkey_patch_torch_reductions()
host = SimpleNamespace(device=SimpleNamespace(type="cpu"))
device = SimpleNamespace(device=SimpleNamespace(type="musa"))
if reductions.reduce_tensor(host) != ("rebuild", ("host", "args")):
    raise SystemExit("a host tensor was changed")
if reductions.reduce_tensor(device)[1][6] != "U1":
    raise SystemExit("a device tensor's index was not rewritten")
