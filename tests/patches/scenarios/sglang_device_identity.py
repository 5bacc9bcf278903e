"""A tensor must be opened on its own device by a process that sees other devices, with and without a UUID."""

import os
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

from support import load_sglang_reductions, start_again

RECEIVES = "receives"
if sys.argv[-1] != RECEIVES:
    os.environ["MUSA_VISIBLE_DEVICES"] = "4,6"

import torch  # noqa: E402

module = load_sglang_reductions()
if sys.argv[-1] == RECEIVES:
    tensor = pickle.loads(sys.stdin.buffer.read())  # noqa: S301
    sys.stdout.write(f"{tensor.device} {tensor.tolist()}")
    raise SystemExit

sent = torch.full((2,), 6.0, device="musa:1")
data = bytes(ForkingPickler.dumps(sent))


def receive(visible: str) -> tuple[str, str]:
    """Return what a process with these devices prints, and its last error line."""
    receiver = start_again(__file__, RECEIVES, env={"MUSA_VISIBLE_DEVICES": visible}, piped=True)
    output, errors = receiver.communicate(data, timeout=120)
    return output.decode(), (errors.decode().strip().splitlines() or [""])[-1]


if (found := receive("6,7")[0]) != "musa:0 [6.0, 6.0]":
    raise SystemExit(f"physical device 6 was opened as: {found}")
if "musa-6 is not among the 2 devices" not in (found := receive("1,2")[1]):
    raise SystemExit(f"a device that is not seen there was opened: {found}")
if module._device_from_maybe_uuid(1) != 1:
    raise SystemExit("an index is no longer an index")
del os.environ["MUSA_VISIBLE_DEVICES"]
if module._device_to_uuid(1) != "musa-1":
    raise SystemExit("without the variable, the index among all devices is the name")
torch.musa.get_device_properties = lambda index: SimpleNamespace(uuid=f"U{index}")
if module._device_to_uuid(1) != "U1" or module._device_from_maybe_uuid("U1") != 1:
    raise SystemExit("a UUID is no longer used where there is one")
