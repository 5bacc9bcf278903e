"""verl reads SGLang's ServerArgs as a dataclass, which it no longer is since SGLang 0.5.20."""

import dataclasses
from types import ModuleType
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "verl.workers.rollout.sglang_rollout.async_sglang_server"
TARGET = f"{MODULE}:dataclasses"
USER = f"{MODULE}:SGLangHttpServer.launch_server"

PATCH = Patch(
    id="verl-sglang-server-args-fields",
    summary="the fields of a msgspec ServerArgs can be listed too",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        "verl.workers.rollout.sglang_rollout.async_sglang_server:dataclasses": {
            "0.9.1": "74c6f5f420bc94785c8e506452ab2e436eafe2d40cccdd095bb4d00a20685254",
        },
        "verl.workers.rollout.sglang_rollout.async_sglang_server:SGLangHttpServer.launch_server": {
            "0.9.1": "a8bdf24114e4ffb20755b9a6c6f189a3b1d89918255ff83202b0f30c32913e16",
        },
    },
    reason="dataclasses.fields(ServerArgs) raises TypeError when the server starts, with SGLang 0.5.20 and later.",
    source="SGLang 0.5.20, srt/server_args.py (msgspec.defstruct)",
    remove_when=RemoveWhen(text="verl supports SGLang 0.5.20"),
    without="must be called with a dataclass type or instance",
)


class _Fields:
    """The dataclasses module as that one verl module sees it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dataclasses, name)

    @staticmethod
    def fields(class_or_instance: Any) -> Any:
        """Return the fields, each with a ``name``, of a dataclass or a msgspec structure."""
        if dataclasses.is_dataclass(class_or_instance):
            return dataclasses.fields(class_or_instance)
        import msgspec

        return msgspec.structs.fields(class_or_instance)


@PATCH.unless
def _is_dataclass(module: ModuleType) -> str | None:
    return "ServerArgs is a dataclass" if dataclasses.is_dataclass(module.ServerArgs) else None


@PATCH.attribute(TARGET)
def _with_structures(_current: ModuleType) -> _Fields:
    return _Fields()
