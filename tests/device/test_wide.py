from __future__ import annotations

import torch

from verl_musa.device.wide import wide_linear, widen


def linear(**options: torch.dtype) -> torch.nn.Linear:
    layer = torch.nn.Linear(64, 32, **options)
    layer.cpu_linear = torch.nn.functional.linear
    return layer


def test_a_row_is_the_same_whatever_is_beside_it() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(128, 64), torch.randn(32, 64), torch.randn(32)
    together = wide_linear(x, weight, bias)
    assert together.dtype == torch.float32
    for rows in (1, 3, 17):
        assert torch.equal(wide_linear(x[:rows], weight, bias), together[:rows])
    torch.testing.assert_close(together, torch.nn.functional.linear(x, weight, bias))


def test_only_float32_layers_that_vllm_prepared_are_widened() -> None:
    prepared, narrow, plain = linear(), linear(dtype=torch.bfloat16), torch.nn.Linear(4, 4)
    elsewhere = linear().to("meta")
    assert widen(torch.nn.ModuleList([prepared, narrow, plain, elsewhere])) == 1
    assert prepared.cpu_linear is wide_linear
    assert narrow.cpu_linear is torch.nn.functional.linear
    assert elsewhere.cpu_linear is torch.nn.functional.linear
