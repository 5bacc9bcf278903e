from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from verl_musa.cli import main


@pytest.fixture(autouse=True)
def _no_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pymtml.py").write_text("raise ImportError('none', name='pymtml')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == 1
    assert value["devices"]["source"] == "none"
    assert value["devices"]["list"] is None
    assert value["versions"]["python"]["value"] == ".".join(map(str, sys.version_info[:3]))
    named = {
        "driver",
        "musa-sdk",
        "mccl",
        "torch",
        "torch_musa",
        "torchada",
        "verl",
        "megatron-core",
        "sglang",
        "ray",
    }
    assert named <= set(value["versions"])


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    assert "devices: none found" in text
    assert "mthreads-gmi: not on PATH" in text


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from verl_musa.cli import main; code = main(['env', '--json']); "
        "heavy = {'torch', 'verl', 'ray', 'transformers', 'sglang', 'torch_musa', 'pyarrow'} & set(sys.modules); "
        "assert code == 0 and not heavy, heavy"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", f"sys_path = {str(root)!r}; import sys; sys.path.insert(0, sys_path); {code}"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
