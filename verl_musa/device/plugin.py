"""The entry point that verl loads (group ``verl.plugins``): importing this module registers everything for musa.

verl 0.9.1 only loads an entry point, it never calls it, and logs an Exception at debug level before it falls back to
nvidia. So the work happens on import, and a failure leaves as PluginFailureError, which is no Exception: nothing in verl
swallows it, and the process ends with the reason. Processes that ask for no musa are left alone.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from types import ModuleType

from verl_musa.device.expect import expectation, own_file, proof_dir, write_atomically
from verl_musa.device.lazy import when_imported

logger = logging.getLogger(__name__)

PLATFORM_ENV = "VERL_PLATFORM"
NAME = "musa"


class PluginFailureError(SystemExit):
    """Registering for musa failed in a process that asks for musa. Ends the process."""

    def __init__(self, reason: str) -> None:
        self.reason = f"verl-musa: the verl plugin for musa could not be loaded: {reason}"
        super().__init__(self.reason)

    def __str__(self) -> str:
        return self.reason


def wanted() -> bool:
    """Whether this process asks for musa, by VERL_PLATFORM or by a run's expectation.

    Raises:
        ExpectationError: VERL_MUSA_EXPECT is set but cannot be read.
    """
    expected = expectation()
    if expected is not None and expected.device == NAME:
        return True
    return os.environ.get(PLATFORM_ENV, "").strip().lower() == NAME


def register() -> None:
    """Register the platform now, and engines and rollouts as soon as verl imports their registries.

    Raises:
        Exception: whatever is missing or broken: torch_musa, torch.musa, a registry of verl that changed.
    """
    from verl.plugin.platform import PlatformRegistry

    from verl_musa.device import jagged, megatron_import, vllm_name
    from verl_musa.device.platform import PlatformMUSA

    PlatformRegistry.register(NAME)(PlatformMUSA)
    PlatformMUSA()
    jagged.register()
    megatron_import.arm()
    vllm_name.register()
    when_imported("verl.workers.engine.fsdp.transformer_impl", _register_fsdp)
    when_imported("verl.workers.engine.megatron.transformer_impl", _register_megatron)
    when_imported("verl.workers.rollout.base", _register_rollout)
    when_imported("verl.workers.rollout.replica", _register_replica)
    when_imported("verl.checkpoint_engine", _register_checkpoint_engine)
    if os.environ.get("VERL_MUSA_GATE"):
        when_imported("verl.trainer.ppo.v1.trainer_base", _install_gate)
        when_imported("verl.workers.rollout.vllm_rollout.utils", _extend_vllm)


def registered() -> bool:
    """Whether verl's registry holds this plugin's platform."""
    registry = sys.modules.get("verl.plugin.platform.platform_manager")
    platform = registry.PlatformRegistry.get(NAME) if registry is not None else None
    return platform is not None and platform.__module__ == "verl_musa.device.platform"


def _register_fsdp(module: ModuleType) -> None:
    del module
    from verl_musa.device import engines_fsdp

    engines_fsdp.register()


def _register_megatron(module: ModuleType) -> None:
    del module
    from verl_musa.device import engines_megatron

    engines_megatron.register()


def _register_checkpoint_engine(module: ModuleType) -> None:
    """Import ours: verl's registry takes the class then, under ``mccl``."""
    del module
    importlib.import_module("verl_musa.device.checkpoint_engine")


def _install_gate(module: ModuleType) -> None:
    from verl_musa.device import gate

    gate.install(module)


def _extend_vllm(module: ModuleType) -> None:
    from verl_musa.device import gate_servers

    gate_servers.extend_vllm(module)


def _register_rollout(module: ModuleType) -> None:
    module._ROLLOUT_REGISTRY["sglang", "async"] = "verl_musa.device.sglang_rollout.MusaServerAdapter"
    module._ROLLOUT_REGISTRY["vllm", "async"] = "verl_musa.device.vllm_rollout.MusaVLLMAdapter"


def _register_replica(module: ModuleType) -> None:
    from verl_musa.device.replica import load_sglang_replica, load_vllm_replica

    original = module._load_sglang
    module.RolloutReplicaRegistry.register("sglang", lambda: load_sglang_replica(original))
    module.RolloutReplicaRegistry.register("vllm", load_vllm_replica)


def load() -> None:
    """Register, if this process asks for musa.

    Raises:
        PluginFailureError: registering failed. The reason also goes to ``logs/proof/failed-<pid>-<host>.txt`` of the run.
    """
    try:
        if wanted():
            register()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        details = traceback.format_exc()
        sys.stderr.write(details)
        folder = proof_dir()
        if folder is not None:
            write_atomically(folder / own_file("failed", "txt"), f"{reason}\n\n{details}")
        raise PluginFailureError(reason) from error


load()
