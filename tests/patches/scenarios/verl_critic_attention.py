"""A critic must be loaded with the attention that its configuration names; without a name, with verl's own choice."""

import importlib.machinery
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

from support import Stub, load

asked: list[str] = []
trl_model = object()


class TokenClassification:
    broken = False

    @classmethod
    def from_pretrained(cls, attn_implementation: str, **options: Any) -> str:
        asked.append(attn_implementation)
        if cls.broken:
            raise ValueError("no head")
        return f"critic of {options['pretrained_model_name_or_path']}"


class CausalLM(TokenClassification):
    broken = False
    _model_mapping: ClassVar[dict[Any, Any]] = {}


class ValueHead:
    @classmethod
    def from_pretrained(cls, model: str) -> Any:
        return SimpleNamespace(pretrained_model=SimpleNamespace(), made_from=model)


transformers = Stub("transformers")
transformers.AutoModelForTokenClassification = TokenClassification
transformers.AutoModelForCausalLM = CausalLM
sys.modules["transformers"] = transformers
module = load(
    "verl.utils.model",
    distribution="verl",
    stubs=(
        "torch", "transformers", "tensordict", "verl.models.registry", "verl.utils.import_utils",
        "verl.utils.transformers_compat",
    ),
)  # fmt: skip


def critic(attention: str | None) -> Any:
    asked.clear()
    config = SimpleNamespace(_attn_implementation=attention)
    return module.load_valuehead_model(
        local_path="folder", torch_dtype=None, model_config=config, trust_remote_code=False
    )


if critic("sdpa") != "critic of folder":
    raise SystemExit("another model was returned")
if asked != ["sdpa"]:
    raise SystemExit(f"the critic was asked for {asked[0]}")
critic("eager")
critic_default = critic(None)
if asked != ["flash_attention_2"]:
    raise SystemExit(f"without a configured attention the critic was asked for {asked}")

# The second way, through trl, passes the attention too.
TokenClassification.broken = True
CausalLM.broken = False
trl = Stub("trl")
trl.__spec__ = importlib.machinery.ModuleSpec("trl", None)
trl.AutoModelForCausalLMWithValueHead = ValueHead
experimental = Stub("trl.experimental.ppo")
experimental.AutoModelForCausalLMWithValueHead = ValueHead
sys.modules.update(
    {"trl": trl, "trl.experimental": Stub("trl.experimental"), "trl.experimental.ppo": experimental}
)
module.is_trl_available = lambda: True
module.AutoModelForVision2Seq = CausalLM
module.patch_valuehead_model = lambda _model: None
if critic("sdpa").made_from != "critic of folder" or asked != ["sdpa", "sdpa"]:
    raise SystemExit(f"through trl the critic was asked for {asked}")
