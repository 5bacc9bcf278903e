"""torch.compile: musa tensors run eagerly; CPU tensors are still compiled."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch
from torch_musa.core import compile_fallback

X = torch.arange(3.0)


@pytest.fixture(autouse=True)
def _fresh_message() -> None:
    compile_fallback._said.clear()


def _double(x: torch.Tensor, offset: Any = 0.0) -> torch.Tensor:
    return x * 2 + (offset["v"] if isinstance(offset, dict) else offset)


@pytest.mark.parametrize(
    "compiled",
    [
        torch.compile(_double),
        torch.compile(_double, dynamic=True, fullgraph=True),
        torch.compile(dynamic=True)(_double),
    ],
)
def test_functions_run_eagerly_with_one_message(compiled: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger=compile_fallback.log.name):
        assert compiled(X.musa()).tolist() == [0.0, 2.0, 4.0]
        assert compiled(X.musa(), offset={"v": X.musa()}).tolist() == [0.0, 3.0, 6.0]
    assert [record.name for record in caplog.records] == [compile_fallback.log.name]
    assert compiled.__name__ == "_double"


def test_modules_and_their_methods_run_eagerly() -> None:
    model = torch.nn.Linear(3, 2).musa()
    expected = model(X.musa())
    assert torch.equal(torch.compile(model, backend="eager")(X.musa()), expected)
    model.compile(backend="eager")
    assert torch.equal(model(X.musa()), expected)
    assert expected.device.type == "musa"


def test_functions_of_the_cpu_are_still_compiled() -> None:
    graphs = []

    def backend(graph_module: Any, _inputs: Any) -> Any:
        graphs.append(graph_module)
        return graph_module.forward

    compiled = torch.compile(_double, backend=backend)
    assert torch.equal(compiled(X), X * 2)
    assert len(graphs) == 1


def test_a_captured_graph_on_musa_is_not_given_to_inductor() -> None:
    class Inductor:
        """Stands for inductor, which must not be called."""

        def __call__(self, _model: Any, _inputs: Any) -> Any:
            raise AssertionError("inductor was called")

    call = compile_fallback._wrap_backend(Inductor.__call__)
    graph_module = torch.fx.symbolic_trace(torch.nn.Identity())
    assert call(Inductor(), graph_module, [X.musa()]) == graph_module.forward
    with pytest.raises(AssertionError, match="inductor was called"):
        call(Inductor(), graph_module, [X])


def test_disabled_compilation_is_left_alone() -> None:
    assert torch.compile(_double, disable=True)(X.musa()).device.type == "musa"
