"""SGLang names devices by their UUID when it hands over weights, and torch_musa's properties have none."""

import os
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "sglang.srt.utils.patch_torch"
TO_NAME = f"{MODULE}:_device_to_uuid"
FROM_NAME = f"{MODULE}:_device_from_maybe_uuid"
VISIBLE_ENV = "MUSA_VISIBLE_DEVICES"
PREFIX = "musa-"

PATCH = Patch(
    id="sglang-device-identity",
    summary="a device without a UUID is named by its physical index",
    distribution="sglang",
    versions=">=0.5.12,<0.6",
    fingerprints={
        "sglang.srt.utils.patch_torch:_device_to_uuid": {
            "0.5.12": "b47caea886ff86f56dd0aa373ac0f8ae9fb9f67f6f86e1b02d9d32f5785363a5",
            "0.5.19": "b47caea886ff86f56dd0aa373ac0f8ae9fb9f67f6f86e1b02d9d32f5785363a5",
            "0.5.23": "b47caea886ff86f56dd0aa373ac0f8ae9fb9f67f6f86e1b02d9d32f5785363a5",
        },
        "sglang.srt.utils.patch_torch:_device_from_maybe_uuid": {
            "0.5.12": "fff1df759f069fd5c61f19335e5e1755c77b08cd9d76219709eceaaa13b2b671",
            "0.5.19": "fff1df759f069fd5c61f19335e5e1755c77b08cd9d76219709eceaaa13b2b671",
            "0.5.23": "fff1df759f069fd5c61f19335e5e1755c77b08cd9d76219709eceaaa13b2b671",
        },
    },
    reason="The trainer and the server may see different devices, so an index means nothing between them; SGLang sends "
    "the UUID instead, without a fallback, and each weight update fails with AttributeError.",
    source="torch_musa 2.7.1 (_MusaDeviceProperties has no uuid); SGLang 0.5.19, srt/utils/patch_torch.py",
    remove_when=RemoveWhen(text="every torch_musa that is used gives its device properties a uuid"),
    without="has no attribute 'uuid'",
)


def _device_module() -> Any:
    import torch

    return getattr(torch, "musa", None) or torch.cuda


def _name(index: int) -> str:
    """Return a name of the device that holds in every process of this host.

    Raises:
        ValueError: the visible devices are not listed by number, or ``index`` is not one of them.
    """
    properties = _device_module().get_device_properties(index)
    if (uuid := getattr(properties, "uuid", None)) is not None:
        return str(uuid)
    listed = os.environ.get(VISIBLE_ENV, "")
    if not listed:
        return f"{PREFIX}{index}"
    entries = [entry.strip() for entry in listed.split(",")]
    if index >= len(entries) or not entries[index].isdigit():
        raise ValueError(f"{VISIBLE_ENV}={listed!r}: expected a number for device {index}")
    return f"{PREFIX}{int(entries[index])}"


@PATCH.wrap(TO_NAME)
def _to_name(_original: Callable[[int], str]) -> Callable[[int], str]:
    return _name


@PATCH.wrap(FROM_NAME)
def _from_name(original: Callable[[Any], int]) -> Callable[[Any], int]:
    def _device_from_maybe_uuid(device: Any) -> int:
        if isinstance(device, str) and device.startswith(PREFIX):
            count = _device_module().device_count()
            if found := [index for index in range(count) if _name(index) == device]:
                return found[0]
            raise ValueError(f"device {device} is not among the {count} devices that this process sees")
        return original(device)

    return _device_from_maybe_uuid
