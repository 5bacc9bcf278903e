"""The stand-in for SGLang's kernels, in processes of their own: its start-up hook works on interpreter start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "ci" / "sgl_kernel_stub" / "src"
START = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import _sgl_kernel_stub_hook as h; h.install()\n"


def _run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "SGLANG_USE_CPU_ENGINE"}
    return subprocess.run(
        [sys.executable, "-c", START + script],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _fails_with(script: str, error: str, **environment: str) -> str:
    done = _run(script, **environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith(error), done.stderr
    return done.stderr


def test_names_and_submodules_import() -> None:
    done = _run(
        "from sgl_kernel import a; from sgl_kernel.b.c import d; import sgl_kernel; print(sgl_kernel.__stub__)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "statement", ["import sgl_kernel; sgl_kernel.rmsnorm(1)", "from sgl_kernel.x import y; y()"]
)
def test_calling_a_kernel_raises(statement: str) -> None:
    assert "was called, but this is the stub" in _fails_with(statement, "NotImplementedError: sgl_kernel.")


def test_scalar_type_stays_unimportable() -> None:
    _fails_with("from sgl_kernel.scalar_type import ScalarType", "ModuleNotFoundError")


def test_a_real_kernel_package_beside_it_is_refused(tmp_path: Path) -> None:
    info = tmp_path / "sglang_kernel-0.4.6.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang-kernel\nVersion: 0.4.6\n", encoding="utf-8"
    )
    error = _fails_with("import sgl_kernel", "ImportError", PYTHONPATH=str(tmp_path))
    assert "beside the real sglang-kernel 0.4.6" in error


def test_triton_stands_in_only_where_asked() -> None:
    _fails_with("import triton.language.stub_probe", "ModuleNotFoundError")


def test_stand_in_triton_refuses_to_launch() -> None:
    script = (
        "import triton, triton.language as tl\n"
        "@triton.jit\n"
        "def kernel(x: tl.constexpr): pass\n"
        "@triton.autotune(configs=[triton.Config({})], key=[])\n"
        "def tuned(x): pass\n"
        "kernel[(1,)](1)\n"
    )
    error = _fails_with(script, "NotImplementedError: triton kernel", SGLANG_USE_CPU_ENGINE="1")
    assert "triton kernel kernel was launched" in error


def test_stand_in_triton_offers_no_backend() -> None:
    """torch asks so before it compiles; without an answer Python would search for ever."""
    done = _run(
        "import triton.backends; print('cpu' in triton.backends.backends, list(triton.backends.backends))",
        SGLANG_USE_CPU_ENGINE="1",
    )
    assert done.stdout.strip() == "False []", done.stderr
