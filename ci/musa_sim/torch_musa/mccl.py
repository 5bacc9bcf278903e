"""``mccl``, the simulated device's communication backend, as ``torch.distributed`` sees it.

Bytes travel over gloo; the arithmetic, the refusals and the messages are those of a device library. Each process
counts its calls, so that a test or a run can prove that ``mccl`` carried its traffic.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import torch
import torch.distributed as dist

from torch_musa import _C

#: The names under which calls are counted and faults are set: those of ``torch.distributed``'s functions.
OPS = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)

ProcessGroupMCCL = _C.ProcessGroupMCCL


def counters() -> dict[str, dict[str, int]]:
    """Calls issued by this process since its start or the last ``reset_counters``, over all groups.

    Returns:
        ``{name: {"calls": n, "bytes": b}}`` with the names of ``OPS`` that were used; ``bytes`` is what this rank
        brought into the calls (what it took, for ``recv``). A call that then failed counts too.
    """
    return dict(_C.mccl_counters())


def reset_counters() -> None:
    """Forgets all counts of this process."""
    _C.mccl_reset_counters()


def version() -> tuple[int, int, int]:
    """The version of MCCL: ``(0, 0, 0)``, since there is no MCCL behind the simulator."""
    return (0, 0, 0)


def is_mccl_available() -> bool:
    """Whether the ``mccl`` backend can be used: the simulator carries it over gloo, so gloo must be there."""
    return dist.is_available() and dist.is_gloo_available()


def _make_gloo(store: Any, rank: int, size: int, timeout: dt.timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _create(options: Any, _pg_options: Any) -> Any:
    """torch.distributed's hook: makes the mccl half of one process group."""
    own = _C.McclOptions(timeout=options.timeout)
    own.group_name = options.group_id
    own.global_ranks_in_group = options.global_ranks_in_group
    return ProcessGroupMCCL.create(options.store, options.group_rank, options.group_size, own)


def register() -> None:
    """Makes ``mccl`` the backend of device ``musa``; called when torch_musa is imported."""
    if not is_mccl_available() or "mccl" in dist.Backend.backend_list:
        return
    _C.mccl_set_gloo_factory(_make_gloo)
    dist.Backend.register_backend("mccl", _create, extended_api=True, devices=["musa"])
    for module in (dist, torch.distributed.distributed_c10d):
        module.is_mccl_available = is_mccl_available
        module.ProcessGroupMCCL = ProcessGroupMCCL
