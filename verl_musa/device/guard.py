"""What Ray runs first in every worker process of a run: makes a missing plugin impossible to miss.

A plugin that is not there cannot complain about itself. Ray calls ``on_worker_start`` (runtime_env
``worker_process_setup_hook``) before anything of verl: without this package the worker does not start at all, and with
it the import of verl fails unless the platform that the run expects is in verl's registry afterwards.
"""

from __future__ import annotations

import os
from types import ModuleType

from verl_musa.device.expect import ExpectationError, expectation
from verl_musa.device.lazy import when_imported

NOSET_MUSA_ENV = "RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES"
NOSET_CUDA_ENV = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"


def keep_devices_visible() -> None:
    """Carry the wish of RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES over to the name that Ray and verl know.

    Ray's Jobs API removes the CUDA variable from a job's environment. Without it Ray narrows CUDA_VISIBLE_DEVICES and verl
    selects no device per worker, so that all ranks end up on device 0 (seen with verl 0.9.1 on Ray 2.58).
    """
    if os.environ.get(NOSET_MUSA_ENV) == "1":
        os.environ[NOSET_CUDA_ENV] = "1"


def on_worker_start() -> None:
    """Arm the check in this process. Cheap: imports neither torch nor verl.

    Raises:
        ExpectationError: the run's expectation cannot be read, or verl was imported before and lacks the platform.
    """
    keep_devices_visible()
    if expectation() is not None:
        when_imported("verl", require_platform)


def require_platform(verl: ModuleType) -> None:
    """Check that verl chose the platform that the run expects.

    Raises:
        ExpectationError: verl runs on another platform, or the expected one was never registered.
    """
    expected = expectation()
    if expected is None:
        return
    from verl.plugin.platform import PlatformRegistry, get_platform

    where = f"verl {getattr(verl, '__version__', '?')}"
    try:
        platform = get_platform()
    except ValueError as error:
        names = ", ".join(PlatformRegistry.registered_names())
        raise ExpectationError(
            f"{where}: no platform for device {expected.device!r}; registered: {names}. The verl-musa plugin was "
            "not loaded in this worker: install verl-musa in its environment (verl_musa.device.plugin, "
            "group verl.plugins) and check VERL_USE_EXTERNAL_PLUGINS"
        ) from error
    found = (platform.device_name, platform.communication_backend_name())
    if found != (expected.device, expected.backend):
        raise ExpectationError(
            f"{where}: found device {found[0]!r} with backend {found[1]!r}; expected {expected.device!r} with "
            f"{expected.backend!r}: set VERL_PLATFORM={expected.device} for every worker of the run"
        )
