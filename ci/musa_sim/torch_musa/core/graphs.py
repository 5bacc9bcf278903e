"""Graphs: the names exist so that code imports; capturing raises, since nothing is queued that could be captured."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["MUSAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]

_REASON = (
    "the simulated musa device cannot capture graphs: its kernels run at once on the CPU, so there is no queue of work "
    "to record. Turn graphs off (SGLang: disable_cuda_graph=True, enforce_eager) or test this on hardware"
)


def _refuse() -> NoReturn:
    raise NotImplementedError(_REASON)


class MUSAGraph:
    """A graph that can be made but not captured."""

    def capture_begin(self, *_args: Any, **_kwargs: Any) -> None:
        """Raises NotImplementedError."""
        _refuse()

    def capture_end(self) -> None:
        """Raises NotImplementedError."""
        _refuse()

    def instantiate(self) -> None:
        """Raises NotImplementedError."""
        _refuse()

    def replay(self) -> None:
        """Raises NotImplementedError."""
        _refuse()

    def reset(self) -> None:
        """Forgets a capture; there is none."""

    def pool(self) -> tuple[int, int]:
        """The memory pool's id."""
        return graph_pool_handle()


class graph:  # noqa: N801 (the name torch.cuda has)
    """Context manager around a capture; entering it raises NotImplementedError."""

    def __init__(self, musa_graph: MUSAGraph, pool: Any = None, stream: Any = None, **_kwargs: Any) -> None:
        self.musa_graph = musa_graph
        self.pool = pool
        self.stream = stream

    def __enter__(self) -> None:
        _refuse()

    def __exit__(self, *_exc: object) -> None:
        self.musa_graph.reset()


def graph_pool_handle() -> tuple[int, int]:
    """The id of a memory pool for graphs; there is one."""
    return (0, 1)


def is_current_stream_capturing() -> bool:
    """Always false."""
    return False


def make_graphed_callables(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse()
