"""verl loads every critic with FlashAttention 2, whatever its configuration says."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

TARGET = "verl.utils.model:load_valuehead_model"
CALLER = "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_module"
WRITTEN = "flash_attention_2"

PATCH = Patch(
    id="verl-critic-attention",
    summary="the critic's attention is the one of critic.model.override_config, as the actor's is",
    distribution="verl",
    versions=">=0.9,<0.10",
    fingerprints={
        TARGET: {
            "0.9.1": "69e6f4c0f8b75a2c0980f6de9f09cd4d83037101029bbb78d3f4a660c5724c97",
        },
        CALLER: {
            "0.9.1": "b081c9e97fcb8942076d9752508b0f054ee2636edbf18da6feac11ed0361e10a",
        },
    },
    reason="load_valuehead_model passes attn_implementation='flash_attention_2', a CUDA package, and its except clause "
    "turns the ImportError into 'not a value head model, please install trl'. The actor's attention is configurable.",
    source="verl 0.9.1, utils/model.py load_valuehead_model; workers/config/model.py sets the configuration's attention, "
    "flash_attention_2 unless override_config.attn_implementation names another",
    remove_when=RemoveWhen(text="load_valuehead_model leaves the attention to its model_config"),
    without="the critic was asked for flash_attention_2",
)


@PATCH.wrap(TARGET)
def _as_configured(original: Callable[..., Any]) -> Callable[..., Any]:
    assert isinstance(original, FunctionType)  # noqa: S101

    def load_valuehead_model(
        local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool
    ) -> Any:
        asked = getattr(model_config, "_attn_implementation", None) or WRITTEN
        return _with_attention(original, asked)(local_path, torch_dtype, model_config, trust_remote_code)

    return load_valuehead_model


def _with_attention(original: FunctionType, asked: str) -> Callable[..., Any]:
    """Return the same function over a code object whose one string constant names another attention."""
    code = original.__code__
    constants = tuple(asked if constant == WRITTEN else constant for constant in code.co_consts)
    return FunctionType(
        code.replace(co_consts=constants), original.__globals__, original.__name__, original.__defaults__
    )
