"""The device module: devices, copies, views, and every error that must be raised."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "torch_musa", reason="the simulator is not installed in this environment", exc_type=ImportError
)

import torch
import torch_musa
from torch_musa import _C


def _python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a fresh interpreter that sees the simulator and has warnings as errors."""
    root = str(Path(torch_musa.__file__).parents[1])
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MUSA_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={
            **clean,
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_says_that_it_is_a_simulator() -> None:
    assert torch_musa.__simulator__ is True
    assert torch_musa.__version__.endswith("+simulator")
    assert "simulat" in torch.musa.get_device_name(0)
    assert "simulator" in torch.version.musa
    assert torch.musa is torch_musa


def test_devices() -> None:
    assert torch.musa.is_available()
    assert torch.musa.device_count() >= 2
    assert torch.musa.get_device_capability() == (3, 1)
    properties = torch.musa.get_device_properties("musa:1")
    assert (properties.major, properties.minor) == (3, 1)
    assert properties.total_memory == torch.musa.mem_get_info(1)[1]
    assert not hasattr(properties, "uuid"), "torch_musa 2.7.1 has none either"
    assert torch.accelerator.current_accelerator() == torch.device("musa")
    with torch.musa.device(1):
        assert torch.musa.current_device() == 1
        assert torch.empty(1, device="musa").device.index == 1
    assert torch.musa.current_device() == 0
    with torch.musa.device_of(torch.empty(1, device="musa:1")):
        assert torch.musa.current_device() == 1
    with torch.musa.device(None):
        assert torch.musa.current_device() == 0


@pytest.mark.parametrize(
    ("devices", "visible", "expected"),
    [
        ("3", None, 3),
        (None, None, 8),
        ("4", "2,3", 2),
        ("4", "2,2,3", 1),
        ("4", "0,9,1", 1),
        ("4", "", 0),
        ("0", None, 0),
    ],
)
def test_visible_devices(devices: str | None, visible: str | None, expected: int) -> None:
    env = {"MUSA_SIM_DEVICES": devices, "MUSA_VISIBLE_DEVICES": visible}
    code = "import torch, torch_musa; print(torch.musa.device_count(), torch.musa.is_available())"
    done = _python(code, **{key: value for key, value in env.items() if value is not None})
    assert done.stdout.split() == [str(expected), str(expected > 0)], done.stderr


def test_importing_warns_of_nothing_and_initialises_nothing() -> None:
    done = _python("import torch, torch_musa; print(torch.musa.is_initialized(), torch.musa._initialized)")
    assert done.stdout.split() == ["False", "False"], done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.parametrize(("name", "value"), [("MUSA_SIM_DEVICES", "many"), ("MUSA_SIM_MEMORY_MIB", "0")])
def test_a_bad_environment_is_named(name: str, value: str) -> None:
    done = _python("import torch_musa", **{name: value})
    assert done.returncode != 0
    assert f"environment variable {name}: found '{value}'" in done.stderr


CPU_3 = torch.ones(3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x + CPU_3, RuntimeError, "musa:0 and cpu"),
        (lambda x: CPU_3 + x, RuntimeError, "musa:0 and cpu"),
        (lambda x: x + x.to("musa:1"), RuntimeError, "musa:0 and musa:1"),
        (lambda x: torch.cat([x, CPU_3]), RuntimeError, "musa:0 and cpu"),
        (lambda x: torch.add(x, x, out=torch.empty(3)), RuntimeError, "same device"),
        (lambda x: torch.tensor(1.0).add_(x.sum()), RuntimeError, "same device"),
        (lambda x: x.numpy(), TypeError, "can't convert musa:0 device type tensor to numpy"),
        (lambda x: x.to("musa:99"), RuntimeError, "invalid device ordinal 99"),
        (lambda _: torch.empty(1, device="musa:99"), RuntimeError, "invalid device ordinal 99"),
        (lambda _: torch.musa.set_device(99), RuntimeError, "invalid device ordinal 99"),
        (lambda _: torch.musa.get_device_properties(99), RuntimeError, "invalid device ordinal 99"),
        (lambda _: torch.musa.synchronize(99), RuntimeError, "invalid device ordinal 99"),
        (lambda _: torch.musa.set_device("cuda:0"), ValueError, "Expected a musa device"),
        (lambda x: x.to_sparse(), NotImplementedError, "cannot hold"),
        (lambda x: torch.tensor_split(x, torch.tensor([1]).musa()), RuntimeError, "to be on cpu"),
        (lambda x: torch.bernoulli(x, generator=torch.Generator()), RuntimeError, "generator"),
        (lambda _: torch.empty(2, device="musa", pin_memory=True), RuntimeError, "dense CPU tensors"),
        (lambda _: torch.musa.Event(interprocess=True), NotImplementedError, "between processes"),
        (lambda _: torch.musa.MUSAGraph().capture_begin(), NotImplementedError, "cannot capture graphs"),
        (lambda _: torch.musa.MUSAGraph().capture_end(), NotImplementedError, "cannot capture graphs"),
        (lambda _: torch.musa.make_graphed_callables(None), NotImplementedError, "cannot capture graphs"),
        (lambda x: torch.nn.LSTM(3, 3).musa()(x[None]), NotImplementedError, "no kernel for it"),
    ],
)
def test_what_must_fail(call: Callable[[Any], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(torch.ones(3, device="musa"))


def test_entering_a_capture_fails() -> None:
    with (
        pytest.raises(NotImplementedError, match="cannot capture graphs"),
        torch.musa.graph(torch.musa.MUSAGraph()),
    ):
        pass


def test_host_scalars_mix_with_device_tensors() -> None:
    x = torch.arange(3.0, device="musa")
    assert (x * torch.tensor(2.0)).tolist() == [0.0, 2.0, 4.0]
    assert (torch.tensor(2.0) - x).device.type == "musa"
    assert x[torch.tensor([2, 0])].tolist() == [2.0, 0.0]  # indices may stay on the host, as on other devices
    assert (x * 2.5).dtype == torch.float32


def test_views_and_writes_share_memory() -> None:
    x = torch.zeros(2, 6, device="musa")
    x.view(3, 4)[1:].t()[0].fill_(7)
    assert x.cpu().flatten().tolist() == [0, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0]
    assert x[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x.unfold(1, 2, 2)._base is x
    with pytest.raises(RuntimeError, match="single memory location"):
        x[:, :1].expand(2, 6).add_(1)


def test_out_tensors_are_resized_in_place() -> None:
    out = torch.empty(0, device="musa")
    torch.add(torch.ones(5, device="musa"), 1, out=out)
    assert out.tolist() == [2.0] * 5
    assert out.untyped_storage().nbytes() == 20
    out.resize_(2, 8).fill_(3)
    assert out.sum().item() == 48
    out.untyped_storage().resize_(0)
    out.untyped_storage().resize_(64)
    assert out.zero_().sum().item() == 0


def test_set_shares_the_other_storage() -> None:
    x, y = torch.arange(6.0, device="musa"), torch.empty(0, device="musa")
    y.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert y.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    y.zero_()
    assert x.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert y.set_().shape == (0,)


def test_copies_between_devices_and_dtypes() -> None:
    x = torch.arange(6, dtype=torch.int64).reshape(2, 3)
    moved = x.t().to("musa:1", torch.bfloat16)
    assert moved.device == torch.device("musa:1")
    assert torch.equal(moved.to("musa:0").cpu(), x.t().bfloat16())
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(z.musa().conj().cpu(), z.conj())
    assert torch.equal(z.conj().musa().resolve_conj().cpu(), z.conj().resolve_conj())
    assert torch.equal(
        torch.zeros(3, dtype=torch.complex64, device="musa").copy_(z).imag.neg().cpu(), -z.imag
    )


def test_a_parameter_can_be_given_device_data() -> None:
    module = torch.nn.Linear(2, 2)
    weight = module.weight
    module.to("musa")
    assert module.weight is weight
    assert weight.device.type == "musa"
    weight.data = torch.zeros(2, 2, device="musa:1")
    assert weight.device.index == 1


def test_save_and_load(tmp_path: Path) -> None:
    x = torch.randn(3, 4, device="musa:1")
    path = tmp_path / "x.pt"
    torch.save({"x": x, "view": x[1]}, path)
    for location, device in ((None, "musa:1"), ("cpu", "cpu"), ("musa:0", "musa:0"), ("musa", "musa:0")):
        loaded = torch.load(path, map_location=location)
        assert loaded["x"].device == torch.device(device)
        assert torch.equal(loaded["x"].cpu(), x.cpu())
        loaded["x"][1] = 5
        assert loaded["view"].tolist() == [5.0] * 4
    buffer = io.BytesIO()
    torch.save(x, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer).cpu(), x.cpu())


def test_pickle_and_deepcopy_keep_the_device() -> None:
    x = torch.randn(3, device="musa:1", requires_grad=True)
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):  # noqa: S301 (our own bytes)
        assert other.device == x.device
        assert other.requires_grad
        assert torch.equal(other.cpu(), x.cpu())
        assert other.data_ptr() != x.data_ptr()


def test_pinned_memory() -> None:
    x = torch.randn(5)
    pinned = x.pin_memory()
    assert not x.is_pinned()
    assert pinned.is_pinned()
    assert pinned[3:].is_pinned()
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert torch.equal(pinned.to("musa", non_blocking=True).cpu(), x)


def test_aliases_are_zero_copy() -> None:
    x = torch.zeros(2, 3, device="musa")[:, 1:]
    alias = _C.cpu_alias(x)
    alias += 4
    assert (alias.shape, alias.stride(), alias.storage_offset()) == (x.shape, x.stride(), x.storage_offset())
    assert x.sum().item() == 16
    back = _C.musa_alias(alias, 1)
    back.zero_()
    assert back.device.index == 1
    assert x.sum().item() == 0


def test_typed_tensors() -> None:
    x = torch.ones(2, device="musa")
    assert x.type() == "torch.musa.FloatTensor"
    assert isinstance(x, torch.musa.FloatTensor)
    assert not isinstance(x, torch.musa.HalfTensor)
    assert not isinstance(torch.ones(2), torch.musa.FloatTensor)
    for spelling in ("torch.musa.BFloat16Tensor", torch.musa.BFloat16Tensor):
        typed = torch.ones(2).type(spelling)
        assert (typed.dtype, typed.device.type) == (torch.bfloat16, "musa")
    assert torch.musa.LongTensor([1, 2]).tolist() == [1, 2]
    assert torch.musa.DoubleTensor(2, 3).shape == (2, 3)
    assert torch.musa.ByteTensor().numel() == 0
    assert torch.musa.IntTensor(x).tolist() == [1, 1]


def test_fork_after_initialisation_is_refused_in_the_child() -> None:
    code = """
import os, torch, torch_musa
x = torch.ones(2, device="musa")
child = os.fork()
if child == 0:
    assert torch.musa._is_in_bad_fork() and not torch.musa.is_initialized()
    assert torch.ones(2).add(1).sum().item() == 4  # the CPU still works
    torch.manual_seed(1)
    for call in (lambda: torch.ones(2, device="musa"), lambda: x + 1, lambda: torch.musa.set_device(0)):
        try:
            call()
        except RuntimeError as error:
            assert "Cannot re-initialize MUSA in forked subprocess" in str(error) and "spawn" in str(error), error
        else:
            os._exit(3)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x.sum().item())
"""
    done = _python(code)
    assert done.stdout.split() == ["0", "2.0"], done.stderr


def test_fork_before_initialisation_is_fine() -> None:
    code = """
import os, torch, torch_musa
torch.manual_seed(1)
assert torch.musa.device_count() > 0
child = os.fork()
if child == 0:
    os._exit(0 if torch.ones(2, device="musa").sum().item() == 2 else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = _python(code)
    assert done.stdout.split() == ["0"], done.stderr


def test_it_refuses_to_load_beside_a_real_torch_musa(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "torch_musa-2.7.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch_musa\nVersion: 2.7.1\n", encoding="utf-8"
    )
    done = _python(f"import sys; sys.path.append({str(site)!r}); import torch_musa")
    assert done.returncode != 0
    assert "ImportError: refusing to load the simulated musa device" in done.stderr
    assert "2.7.1" in done.stderr
    assert "pip uninstall musa-sim" in done.stderr


def test_it_refuses_a_real_package_further_down_the_path(tmp_path: Path) -> None:
    package = tmp_path / "torch_musa"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '2.7.1'\n", encoding="utf-8")
    done = _python(f"import sys; sys.path.append({str(tmp_path)!r}); import torch_musa")
    assert f"package {package}" in done.stderr
    (package / "__init__.py").write_text("__simulator__ = True\n", encoding="utf-8")
    done = _python(f"import sys; sys.path.append({str(tmp_path)!r}); import torch_musa; print('loaded')")
    assert done.stdout.split() == ["loaded"], done.stderr
