"""Megatron tells float16, bfloat16 and float32 parameters apart by names of types that only CUDA tensors have."""

from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

OPTIMIZER = "megatron.core.optimizer.optimizer:Float16OptimizerWithFloat16Params.__init__"
DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.__init__"
GROUPS = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer._build_model_and_main_param_groups"
CLIP = "megatron.core.optimizer.clip_grads:clip_grad_by_total_norm_fp32"
WRITTEN, MEANT = "torch.cuda.", "torch.musa."
KINDS = ("FloatTensor", "HalfTensor", "BFloat16Tensor")

PATCH = Patch(
    id="megatron-typed-tensor-names",
    summary="the optimizers and gradient clipping know the type names of MUSA tensors",
    distribution="megatron-core",
    versions=">=0.16,<0.19",
    fingerprints={
        OPTIMIZER: {
            "0.16.1": "9751d5510751c276c93374494ca5a96b817f000da92ddbf5c9c836e862d1c0dc",
            "0.18.0": "9751d5510751c276c93374494ca5a96b817f000da92ddbf5c9c836e862d1c0dc",
        },
        DISTRIBUTED: {
            "0.16.1": "6db95d6930a2dd395f660ce852c0f54e5ab6363beec15401c8666225794414f0",
            "0.18.0": "6db95d6930a2dd395f660ce852c0f54e5ab6363beec15401c8666225794414f0",
        },
        GROUPS: {
            "0.16.1": "7679d9c9582666f90fddb67bf7362f91cf89fc43892660b5397282db0e352095",
            "0.18.0": "514ca209fc0729550f06c7e379e54320a7dd2f11a6784d54ec58fdcfd39f365a",
        },
        CLIP: {
            "0.16.1": "c0f700f6d9edc706f457cef254fe518dffdcd17df2ad59f26be078d1ba0ba813",
            "0.18.0": "9f54ac91e723057733a02e3fd51e7f6049db882a083212ae2b21e11c138b1625",
        },
    },
    reason="They compare Tensor.type() with 'torch.cuda.HalfTensor' and its like. That of a MUSA tensor begins with "
    "'torch.musa.', and torchada leaves it so: making an optimizer ends in a TypeError, clipping in an AssertionError. "
    "The names are changed inside these functions; Tensor.type() itself stays what it is for everybody else.",
    source="Megatron-Core 0.16.1, core/optimizer/{optimizer,distrib_optimizer,clip_grads}.py; torchada 0.1.103 "
    "(isinstance with torch.cuda.*Tensor, in transformer/module.py, it does redirect)",
    remove_when=RemoveWhen(text="Megatron compares dtypes, or torchada changes Tensor.type()"),
    without="Received torch.musa.BFloat16Tensor",
)


@PATCH.unless
def _cuda_names_fit(_module: ModuleType) -> str | None:
    import torch

    if torch._C._get_privateuse1_backend_name() != "musa":
        return "this torch has no MUSA tensors"
    return "Tensor.type() is changed already" if "type" in vars(torch.Tensor) else None


@PATCH.wrap(OPTIMIZER)
@PATCH.wrap(DISTRIBUTED)
@PATCH.wrap(GROUPS)
@PATCH.wrap(CLIP)
def _with_musa_names(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function over a code object whose string constants name MUSA's types."""
    assert isinstance(original, FunctionType)  # noqa: S101
    code = _renamed_code(original.__code__)
    made = FunctionType(
        code, original.__globals__, original.__name__, original.__defaults__, original.__closure__
    )
    made.__kwdefaults__ = original.__kwdefaults__
    made.__dict__.update(original.__dict__)
    made.__annotations__ = original.__annotations__
    return made


def _renamed_code(code: CodeType) -> CodeType:
    return code.replace(co_consts=tuple(_renamed(constant) for constant in code.co_consts))


def _renamed(constant: Any) -> Any:
    if isinstance(constant, str):
        for kind in KINDS:
            constant = constant.replace(f"{WRITTEN}{kind}", f"{MEANT}{kind}")
        return constant
    if isinstance(constant, tuple | frozenset):
        return type(constant)(map(_renamed, constant))
    return _renamed_code(constant) if isinstance(constant, CodeType) else constant
