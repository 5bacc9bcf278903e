"""What of Megatron-Core needs no patch, because torchada redirects it: each as a check on the simulated device.

Prints one JSON object: the checks' names, each with "ok" or its traceback.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))
import torch
from support import linear_with_optimizer, load, start_megatron

start_megatron()


def equal(found: Any, expected: Any) -> None:
    same = torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected
    if not same:
        raise AssertionError(f"found {found}, expected {expected}")


def literal_devices() -> None:
    equal(torch.zeros(1, device="cuda").device, torch.device("musa:0"))
    equal(torch.zeros(1, device=torch.cuda.current_device()).device.type, "musa")
    equal(torch.zeros(1).cuda().is_cuda, True)


def literal_backends() -> None:
    for backend in ("nccl", "cpu:gloo,cuda:nccl"):
        group = torch.distributed.new_group([0], backend=backend)
        value = torch.ones(1, device="cuda")
        torch.distributed.all_reduce(value, group=group)
        equal(group._get_backend(torch.device("musa")).name(), "mccl")


def typed_tensors() -> None:
    """transformer/module.py tells dtypes apart with isinstance."""
    from megatron.core.transformer.module import float16_to_fp32, fp32_to_float16

    narrow = fp32_to_float16(torch.ones(1, device="musa"), lambda value: value.bfloat16())
    equal(narrow.dtype, torch.bfloat16)
    equal(float16_to_fp32(narrow).dtype, torch.float32)


def default_generators() -> None:
    """tensor_parallel/random.py sets the state of torch.cuda.default_generators through _lazy_call."""
    from megatron.core.tensor_parallel import random

    state = random._get_cuda_rng_state()
    first = torch.rand(8, device="musa")
    random._set_cuda_rng_state(state)
    equal(torch.rand(8, device="musa"), first)
    random._set_cuda_rng_state(state)
    with random.get_cuda_rng_tracker().fork():
        forked = torch.rand(8, device="musa")
    equal(bool((forked == first).any()), False)
    equal(torch.rand(8, device="musa"), first)


def _dropped(run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the gradient of dropout over ones; both show the mask."""
    ones = torch.ones(64, device="musa", requires_grad=True)
    output = run(lambda value: torch.nn.functional.dropout(value, 0.5), ones)
    output.sum().backward()
    return output.detach(), ones.grad


def recomputation_with_dropout() -> None:
    from megatron.core import tensor_parallel

    output, gradient = _dropped(lambda function, value: tensor_parallel.checkpoint(function, False, value))
    equal(gradient, output)


def recomputation_as_verl_patches_it() -> None:
    """verl's backward gives the same gradients on the device and frees the inputs of the recomputed layer."""
    from megatron.core import tensor_parallel

    patch = load("verl.models.mcore.patch", distribution="verl", stubs=())
    original = tensor_parallel.random.CheckpointFunction.backward
    patch.apply_patch_megatron_recomputation_backward()
    try:
        weight = torch.randn(4, 4, device="musa", requires_grad=True)
        inputs = torch.randn(3, 4, device="musa", requires_grad=True)
        hidden = inputs * 2
        tensor_parallel.checkpoint(lambda value: (value @ weight).relu(), False, hidden).sum().backward()
        recomputed = inputs.grad.clone(), weight.grad.clone()
        equal(hidden.untyped_storage().size(), 0)
    finally:
        tensor_parallel.random.CheckpointFunction.backward = original
    inputs.grad = weight.grad = None
    (inputs * 2 @ weight).relu().sum().backward()
    equal(recomputed[0], inputs.grad)
    equal(recomputed[1], weight.grad)


def optimizer_on_the_host() -> None:
    """cpu_offloading/hybrid_optimizer.py asks is_cuda; the public 30B recipe offloads everything."""
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    for fraction, overlap in ((1.0, False), (1.0, True)):
        layer, optimizer, train = linear_with_optimizer(
            sharded=True,
            optimizer_cpu_offload=True,
            optimizer_offload_fraction=fraction,
            overlap_cpu_optimizer_d2h_h2d=overlap,
        )
        hybrid = optimizer.chained_optimizers[0].optimizer
        equal(isinstance(hybrid, HybridDeviceOptimizer), True)
        train()
        placed = {
            param.device.type
            for one in hybrid.sub_optimizers
            for group in one.param_groups
            for param in group["params"]
        }
        equal(placed, {"cpu"})
        torch.testing.assert_close(
            layer.weight.detach().float().cpu(), torch.full((2, 4), 0.875), atol=4e-3, rtol=0
        )


def half_an_optimizer_on_the_host() -> None:
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    params = [torch.nn.Parameter(torch.ones(4, device="musa")) for _ in range(2)]
    hybrid = HybridDeviceOptimizer(
        params,
        offload_fraction=0.5,
        cpu_optimizer_cls=torch.optim.AdamW,
        gpu_optimizer_cls=torch.optim.AdamW,
        lr=0.125,
        weight_decay=0.0,
    )
    for param in params:
        param.grad = torch.ones_like(param)
    hybrid.step()
    placed = [
        param.device.type
        for one in hybrid.sub_optimizers
        for group in one.param_groups
        for param in group["params"]
    ]
    equal(sorted(placed), ["cpu", "musa"])
    for param in params:
        torch.testing.assert_close(param.detach().cpu(), torch.full((4,), 0.875))


def nvtx_ranges() -> None:
    from megatron.core.utils import configure_nvtx_profiling, nvtx_range_pop, nvtx_range_push

    configure_nvtx_profiling(True)
    nvtx_range_push("a range")
    nvtx_range_pop("a range")
    configure_nvtx_profiling(False)


def autocast_by_its_alias() -> None:
    weight = torch.ones(2, 2, device="musa")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        equal((weight @ weight).dtype, torch.bfloat16)


CHECKS = (
    literal_devices,
    literal_backends,
    typed_tensors,
    default_generators,
    recomputation_with_dropout,
    recomputation_as_verl_patches_it,
    optimizer_on_the_host,
    half_an_optimizer_on_the_host,
    nvtx_ranges,
    autocast_by_its_alias,
)

results = {}
for check in CHECKS:
    try:
        check()
        results[check.__name__] = "ok"
    except Exception:  # noqa: BLE001  (each check reports)
        results[check.__name__] = traceback.format_exc()
sys.stdout.write(json.dumps(results))
