"""Fault injection: out of memory at a chosen allocation, collectives that hang or fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch_musa = pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)
faults = torch_musa.faults


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    faults.clear()
    yield
    faults.clear()


def test_oom_at_the_nth_allocation() -> None:
    faults.oom(at=3)
    kept = [torch.empty(10, device="musa") for _ in range(2)]
    before = torch.musa.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match=r"MUSA out of memory.*40 bytes on musa:0.*allocation 3"):
        torch.empty(10, device="musa")
    assert torch.musa.memory_allocated() == before
    kept.append(torch.empty(10, device="musa"))  # once only
    assert faults.active()[0]["fired"] == 1
    assert faults.active()[0]["seen"] == 4


def test_oom_counts_only_what_it_is_told_to() -> None:
    faults.oom(device=1, min_bytes=1000, count=2)
    torch.empty(1000, device="musa:0")
    torch.empty(10, device="musa:1")
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="musa:1"):
            torch.empty(1000, device="musa:1")
    torch.empty(1000, device="musa:1")


def test_oom_reaches_the_result_of_a_kernel() -> None:
    x = torch.ones(1000, device="musa")
    faults.oom()
    with pytest.raises(torch.OutOfMemoryError):
        x + x
    assert torch.equal((x + x).cpu(), torch.full((1000,), 2.0))


def test_faults_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSA_SIM_FAULTS", " oom:at=2,device=0 ; hang:op=all_reduce,at=3,rank=1;error ")
    faults.load_environment()
    found = [(f["kind"], f["op"], f["at"], f["device"], f["rank"]) for f in faults.active()]
    assert found == [("oom", "*", 2, 0, -1), ("hang", "all_reduce", 3, -1, 1), ("error", "*", 1, -1, -1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crash:at=1", "expected a kind of oom, hang, error; found 'crash'"),
        ("oom:at=soon", "'oom:at=soon': at: expected a whole number, found 'soon'"),
        ("oom:op=all_reduce", r"expected at=…, count=…, device=…, min_bytes=…; found 'op=all_reduce'"),
        ("hang:at", "found 'at'"),
        ("oom:at=0", "MUSA_SIM_FAULTS: fault oom: at: expected at least 1, found 0"),
        ("hang:op=allreduce", r"op: expected one of all_gather, .*; found 'allreduce'"),
    ],
)
def test_a_bad_environment_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setenv("MUSA_SIM_FAULTS", text)
    with pytest.raises(ValueError, match=message):
        faults.load_environment()


def test_collectives_that_hang_or_fail(run_ranks: Callable[..., Any], all_ok: Callable[..., None]) -> None:
    expected = {"error_once", "hang_until_timeout", "peer_absent", "wait_with_a_limit", "from_environment"}
    all_ok(run_ranks("faults_job.py", env={"MUSA_SIM_FAULTS": "error:op=broadcast,at=2"}), expected)
