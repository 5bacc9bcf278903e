"""verl's view of a Moore Threads GPU."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase

NAME = "musa"
VENDOR = "moore_threads"
BACKEND = "mccl"
VISIBLE_DEVICES_ENV = "MUSA_VISIBLE_DEVICES"
NOSET_ENV = "RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES"


class PlatformMUSA(PlatformBase):
    """Platform ``musa``, for the real torch_musa and for the simulator alike.

    Nothing here depends on a version: what torch_musa may lack is looked for before it is used.

    Raises:
        ImportError: torch_musa is not importable, or does not provide ``torch.musa``.
    """

    def __init__(self) -> None:
        self._torch_musa = importlib.import_module("torch_musa")
        if not hasattr(torch, NAME):
            raise ImportError(
                f"torch_musa was imported from {self._torch_musa.__file__} but torch.musa is missing: "
                "this torch_musa was built for another torch; reinstall the pair that belongs together"
            )
        if self.is_available():
            # verl's SGLang launcher reads this from each worker and has no default for it.
            os.environ.setdefault(VISIBLE_DEVICES_ENV, ",".join(map(str, range(self.device_count()))))

    @property
    def device_name(self) -> str:
        """The torch device type."""
        return NAME

    @property
    def vendor_name(self) -> str:
        """The vendor key of verl's registries (as in the public verl hardware plugin)."""
        return VENDOR

    @property
    def device_module(self) -> ModuleType:
        """``torch.musa``."""
        return torch.musa

    @property
    def simulated(self) -> bool:
        """Whether torch_musa is the simulator."""
        return bool(getattr(self._torch_musa, "__simulator__", False))

    def is_available(self) -> bool:
        """Whether this process sees at least one device."""
        return bool(torch.musa.is_available())

    def current_device(self) -> int:
        """Index of the current device among the visible ones."""
        return int(torch.musa.current_device())

    def device_count(self) -> int:
        """Number of visible devices."""
        return int(torch.musa.device_count())

    def set_device(self, device_index: int) -> None:
        """Make ``device_index`` the current device."""
        torch.musa.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        """Wait for all work on a device (the current one by default)."""
        torch.musa.synchronize(device_index)

    def manual_seed(self, seed: int) -> None:
        """Seed the current device's generator."""
        torch.musa.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the generators of all devices."""
        torch.musa.manual_seed_all(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Hand a setting to the caching allocator, where this torch_musa takes any.

        verl only toggles expandable segments here, an optimisation: an allocator without them loses nothing.
        """
        setter = getattr(torch.musa.memory, "_set_allocator_settings", None)
        if setter is not None and not self.simulated:
            setter(settings)

    def empty_cache(self) -> None:
        """Return unused cached memory to the device."""
        torch.musa.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """(major, minor), or (None, None) in a process that sees no device."""
        if not self.is_available():
            return (None, None)
        major, minor = torch.musa.get_device_capability(device_index)
        return (int(major), int(minor))

    def communication_backend_name(self) -> str:
        """The c10d backend of the device."""
        return BACKEND

    def visible_devices_envvar(self) -> str:
        """The variable that narrows the visible devices."""
        return VISIBLE_DEVICES_ENV

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Mark a range for a profiler; torch_musa offers no such marks, so nothing happens."""
        del msg
        yield

    def profiler_start(self) -> None:
        """Do nothing: torch_musa has no start/stop profiler control."""

    def profiler_stop(self) -> None:
        """Do nothing: torch_musa has no start/stop profiler control."""

    def ray_resource_name(self) -> str:
        """``GPU``: verl counts only GPU and NPU, and Ray itself does not know MUSA devices."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Variables that keep Ray from hiding devices.

        The CUDA one too: Ray treats its GPU resource as CUDA devices, and verl's own check
        (``ray_noset_visible_devices``) knows only names of that list. MCCL is reported to fail when each process sees one
        device only, so all stay visible and each worker selects its own.
        """
        return [NOSET_ENV, "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """Whether device memory can be handed to another process by handle.

        Real MUSA devices can. A simulator says so by ``torch_musa.ipc_supported``; one that says nothing cannot.
        """
        if not self.simulated:
            return True
        supported = getattr(self._torch_musa, "ipc_supported", False)
        return bool(supported() if callable(supported) else supported)

    def cudart(self) -> Any:
        """None: there is no CUDA runtime behind this device."""
        return None
