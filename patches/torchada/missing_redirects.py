"""Two redirects from CUDA to MUSA that torchada leaves out."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from verl_musa.patching import Patch, RemoveWhen

MODULE = "torchada._patch"
TARGET = f"{MODULE}:apply_patches"
AUTOCAST = f"{MODULE}:_patch_autocast"
BACKEND = f"{MODULE}:_patch_distributed_backend"
NAMES = {"cuda": "musa", "nccl": "mccl"}

PATCH = Patch(
    id="torchada-missing-redirects",
    summary="torch.autocast('cuda') and process groups of 'cpu:gloo,cuda:nccl' mean MUSA too",
    distribution="torchada",
    versions=">=0.1.103,<0.2",
    fingerprints={
        "torchada._patch:apply_patches": {
            "0.1.103": "8f382b3c06f759f96e51985f6e1e3d7c3a83619dfaa5d8593a7eae9f147fe5bb",
        },
        "torchada._patch:_patch_autocast": {
            "0.1.103": "304053980ccf52305f5566cd22f8945b0d84fba61fd14693b10b126caa131b8a",
        },
        "torchada._patch:_patch_distributed_backend": {
            "0.1.103": "c7be70c470726c61f97dd570d6099b9e8cdd7bca8045a44f689144696970b309",
        },
    },
    reason="torchada replaces torch.amp.autocast but not its alias torch.autocast, under which a region silently stays in "
    "float32; and it translates a backend only if it is exactly 'nccl'.",
    source="torchada 0.1.103, _patch.py",
    remove_when=RemoveWhen(text="torchada redirects both"),
    without="torch.autocast is not redirected",
)


@PATCH.wrap(TARGET)
def _and_the_rest(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def apply_patches() -> None:
        import torch

        plain = torch.amp.autocast
        original()
        if torch.amp.autocast is plain:
            return  # not a MUSA host, or done before
        if torch.autocast is plain:
            torch.autocast = torch.amp.autocast
        for name in ("init_process_group", "new_group"):
            setattr(torch.distributed, name, _with_musa_backend(getattr(torch.distributed, name)))

    return apply_patches


def _with_musa_backend(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with the parts of a ``device:backend`` list translated; anything else is torchada's."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        backend = bound.arguments.get("backend")
        if isinstance(backend, str) and ":" in backend:
            pairs = [[NAMES.get(part, part) for part in pair.split(":")] for pair in backend.split(",")]
            bound.arguments["backend"] = ",".join(":".join(pair) for pair in pairs)
        return function(*bound.args, **bound.kwargs)

    return call
