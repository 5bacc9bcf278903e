"""The denylist: what real torch_musa lacks raises here too, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch_musa = pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)
denylist = torch_musa.denylist

ENTRY = """
[[entry]]
name = "no-erfinv"
ops = ["aten::erfinv"]
dtypes = ["float16", "bfloat16"]
gap = "missing"
torch_musa = ["9.9"]
source = "a test"
reason = "no half-precision erfinv"
"""


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    before = denylist.mode()
    yield
    denylist.apply(before)


def pad() -> Any:
    values = torch.ones(3, 2, device="musa")
    offsets = torch.tensor([0, 1, 3], device="musa")
    return torch.ops.aten._jagged_to_padded_dense_forward(values, [offsets], [2], 0.0)


def test_the_shipped_list_is_valid_and_complete() -> None:
    entries = denylist.read(denylist.DEFAULT_FILE)
    assert len({entry.name for entry in entries}) == len(entries) >= 5
    assert all(entry.source and entry.reason and entry.torch_musa for entry in entries)
    assert {op for entry in entries for op in entry.ops} >= {
        "aten::_jagged_to_padded_dense_forward",
        "aten::_fft_c2c",
    }


def test_a_missing_op_raises_by_default_and_names_its_entry() -> None:
    denylist.apply()
    with pytest.raises(
        NotImplementedError, match=r"_jagged_to_padded_dense_forward.*'musa' backend.*jagged-to-padded"
    ):
        pad()
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged, device="musa")
    with pytest.raises(NotImplementedError, match="jagged-to-padded"):
        nested.to_padded_tensor(0.0)


def test_a_partial_gap_raises_only_when_strict() -> None:
    a = torch.eye(2, dtype=torch.float64, device="musa")
    denylist.apply("error")
    assert torch.equal((a @ a).cpu(), torch.eye(2, dtype=torch.float64))
    with denylist.using("strict"):
        with pytest.raises(NotImplementedError, match="float64-matmul"):
            a @ a
        assert torch.equal((a.float() @ a.float()).cpu(), torch.eye(2))  # other dtypes are not concerned
        with pytest.raises(NotImplementedError, match="complex-fft"):
            torch.fft.rfft(torch.ones(4, device="musa"))
        with pytest.raises(NotImplementedError, match="complex-copy"):  # a dtype inside a list of tensors
            torch.cat([torch.ones(1, dtype=torch.complex64, device="musa")] * 2)
    assert denylist.mode() == "error"
    assert (a @ a).dtype is torch.float64


def test_backward_is_checked_too() -> None:
    denylist.apply("off")
    a = torch.eye(2, dtype=torch.float64, device="musa", requires_grad=True)
    loss = (a @ a).sum()
    denylist.apply("strict")
    with pytest.raises(NotImplementedError, match="float64-matmul"):
        loss.backward()


def test_warn_warns_once_for_each_entry() -> None:
    denylist.apply("warn")
    a = torch.eye(2, dtype=torch.float64, device="musa")
    with pytest.warns(UserWarning, match="float64-matmul"):
        first = a @ a
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = a @ a
    assert torch.equal(first, second)


def test_off_refuses_nothing() -> None:
    denylist.apply("off")
    assert denylist.entries() == ()
    assert pad().shape == (2, 2, 2)


def test_a_list_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(ENTRY, encoding="utf-8")
    x = torch.zeros(2, device="musa")
    with denylist.using("error", path):
        assert torch.equal(torch.erfinv(x).cpu(), torch.zeros(2))
        with pytest.raises(NotImplementedError, match=r"no half-precision erfinv.*torch_musa 9\.9"):
            torch.erfinv(x.half())
    torch.erfinv(x.half())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'gap = "missing"',
            'gap = "some"',
            r"list\.toml: entry 1 \(no-erfinv\): gap: expected one of .*found 'some'",
        ),
        ('"bfloat16"', '"float13"', "expected names of torch dtypes, found 'float13'"),
        ("aten::erfinv", "aten::erfinw", r"no such operator in torch .*: aten::erfinw"),
        ('reason = "no half-precision erfinv"', "", "expected the fields"),
        ('ops = ["aten::erfinv"]', "ops = []", "expected at least one operator"),
        ('ops = ["aten::erfinv"]', "ops = [", "cannot read the denylist"),
    ],
)
def test_a_bad_list_is_refused_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "list.toml"
    path.write_text(ENTRY.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        denylist.apply("error", path)
    assert denylist.mode() == "error"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of off, warn, error, strict; found 'never'"):
        denylist.apply("never")


def test_the_environment_chooses_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSA_SIM_DENYLIST", "strict")
    denylist.load_environment()
    assert denylist.mode() == "strict"
    monkeypatch.setenv("MUSA_SIM_DENYLIST", "loud")
    with pytest.raises(ValueError, match=r"MUSA_SIM_DENYLIST: expected one of .*; found 'loud'"):
        denylist.load_environment()


def test_a_bad_environment_stops_the_import() -> None:
    root = str(Path(torch_musa.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", "import torch_musa"],
        env={**os.environ, "PYTHONPATH": root, "MUSA_SIM_DENYLIST": "loud", "MUSA_SIM_FAULTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "MUSA_SIM_DENYLIST: expected one of" in done.stderr


def test_a_kernel_of_ones_own_is_not_refused() -> None:
    denylist.apply("error")
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_jagged_to_padded_dense_forward", lambda *_args: torch.zeros(7), "PrivateUse1")
        assert pad().shape == (7,)
    finally:
        library._destroy()
    with pytest.raises(NotImplementedError, match="jagged-to-padded"):
        pad()


def test_unlisted_ops_cost_nothing_measurable() -> None:
    """An unlisted op costs one bit test. The bound is wide, for a busy machine; a look-up by name would break it."""
    x = torch.ones(4, device="musa")
    best = {"off": float("inf"), "strict": float("inf")}
    for _ in range(40):  # in turn, and the best of each, so that other load does not decide
        for mode in ("off", "strict"):
            denylist.apply(mode)
            start = time.perf_counter()
            for _ in range(500):
                torch.neg(x)
            best[mode] = min(best[mode], time.perf_counter() - start)
    assert best["strict"] < 1.3 * best["off"]
