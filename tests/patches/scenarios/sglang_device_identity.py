"""A device must be found again by its name in a process that sees other devices, with and without a UUID."""

import os
import sys
from types import SimpleNamespace

from support import Stub, load

common = Stub("sglang.srt.utils.common")
common.is_musa, common.is_npu, common.torch_release = lambda: True, lambda: False, (2, 13)
sys.modules["sglang.srt.utils.common"] = common
torch = Stub("torch")
torch.musa = SimpleNamespace(device_count=lambda: 2, get_device_properties=lambda _index: SimpleNamespace())
torch.cuda = torch.musa  # torchada's redirect
sys.modules["torch"] = torch
module = load(
    "sglang.srt.utils.patch_torch", distribution="sglang", stubs=("torch", "sglang.srt.utils.common")
)

os.environ["MUSA_VISIBLE_DEVICES"] = "4,6"
name = module._device_to_uuid(1)
os.environ["MUSA_VISIBLE_DEVICES"] = "6,7"
if module._device_from_maybe_uuid(name) != 0:
    raise SystemExit("the device was not found again")
del os.environ["MUSA_VISIBLE_DEVICES"]
if module._device_from_maybe_uuid(module._device_to_uuid(1)) != 1 or module._device_from_maybe_uuid(1) != 1:
    raise SystemExit("without the variable, an index is an index")
try:
    module._device_from_maybe_uuid(name)
except ValueError as error:
    if "not among" not in str(error):
        raise
else:
    raise SystemExit("a device that is not seen here was found")
torch.musa.get_device_properties = lambda index: SimpleNamespace(uuid=f"U{index}")
if module._device_to_uuid(1) != "U1" or module._device_from_maybe_uuid("U1") != 1:
    raise SystemExit("a UUID is no longer used where there is one")
