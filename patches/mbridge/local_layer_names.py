"""mbridge knows a model's parameters by the names that Transformer Engine's modules give them."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "mbridge.core.bridge"
LOAD = f"{MODULE}:Bridge.load_weights"
EXPORT = f"{MODULE}:Bridge.export_weights"
NUMBERING = f"{MODULE}:Bridge._weight_name_mapping_mcore_local_to_global"

PATCH = Patch(
    id="mbridge-local-layer-names",
    summary="weights are loaded into, and exported from, models of Megatron's own (local) layers, dense and experts",
    distribution="mbridge",
    versions=">=0.15.1,<0.16",
    fingerprints={
        "mbridge.core.bridge:Bridge.load_weights": {
            "0.15.1": "32589d70aabf916a84277dd55452cbba12a4718510a1e6c74e2c51397348062e",
        },
        "mbridge.core.bridge:Bridge.export_weights": {
            "0.15.1": "6b5f1992df80a234c8821a9a312482e06cd2c408d1b4b3b889ae4ced1f80c169",
        },
        "mbridge.core.bridge:Bridge._weight_name_mapping_mcore_local_to_global": {
            "0.15.1": "5cf673a22edeaec45b93e9a15177d8dc202c8aab884fb820c0483c93280076e9",
        },
    },
    reason="Transformer Engine fuses a norm into the linear layer after it, and all experts of a rank into one module: "
    "`linear_qkv.layer_norm_weight`, `experts.linear_fc1.weight3`. The local layers keep them apart: "
    "`input_layernorm.weight`, `experts.local_experts.3.linear_fc1.weight`. The tensors are the same.",
    source="mbridge 0.15.1, core/bridge.py and models/qwen2.py, qwen2moe.py",
    remove_when=RemoveWhen(text="mbridge knows the local names, or Transformer Engine is used on MUSA"),
    without="Unsupported parameter name: decoder.layers.0.input_layernorm.weight",
)

_EXPERT = re.compile(r"\.mlp\.experts\.local_experts\.(\d+)\.(linear_fc[12])\.(weight|bias)$")
_FUSED = (
    (".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"),
    (".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"),
)
DENSE_NORM = _FUSED[1][0]


@PATCH.unless
def _with_transformer_engine(_module: ModuleType) -> str | None:
    from megatron.core.models.gpt import gpt_layer_specs

    return "Transformer Engine is installed" if gpt_layer_specs.HAVE_TE else None


class FusedNames:
    """A model seen under Transformer Engine's names; what mbridge asks of a model, and nothing else.

    Attributes:
        decoder: the model's own, whose layers tell their numbers; missing where the model has none.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        if hasattr(model, "decoder"):
            self.decoder = model.decoder
        names = list(model.state_dict())
        with_experts = {_layer(name) for name in names if ".mlp.experts." in name}
        self._fused = {name: _fused_name(name, has_experts=_layer(name) in with_experts) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """The model's own tensors under the other names."""
        return {self._fused.get(name, name): value for name, value in self._model.state_dict().items()}

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """The model's own parameters under the other names, in the model's order."""
        for name, parameter in self._model.named_parameters():
            yield self._fused.get(name, name), parameter


def _layer(name: str) -> str:
    return ".".join(name.split(".")[:3])


def _fused_name(name: str, *, has_experts: bool) -> str:
    """Return the Transformer Engine name; a norm before experts is not fused there either."""
    expert = _EXPERT.search(name)
    if expert is not None:
        return f"{name[: expert.start()]}.mlp.experts.{expert[2]}.{expert[3]}{expert[1]}"
    for own, fused in _FUSED:
        if own in name and not (own == DENSE_NORM and has_experts):
            return name.replace(own, fused)
    return name


def _seen(models: Sequence[Any]) -> list[FusedNames]:
    from mbridge.core.util import unwrap_model

    return [FusedNames(unwrap_model(model)) for model in models]


@PATCH.wrap(LOAD)
def _load(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load_weights(self: Any, models: list[Any], *args: Any, **kwargs: Any) -> None:
        original(self, _seen(models), *args, **kwargs)

    return load_weights


@PATCH.wrap(EXPORT)
def _export(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def export_weights(self: Any, models: list[Any]) -> Any:
        return original(self, _seen(models))

    return export_weights
