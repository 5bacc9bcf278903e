from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_musa.checkpoint.mapping import Target, mapped_tensors
from verl_musa.checkpoint.spec import spec_from_config
from verl_musa.cli import main

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 12,
    "vocab_size": 10,
    "tie_word_embeddings": False,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    header: dict[str, Any] = {}
    end = 0
    for tensor in mapped_tensors(spec_from_config(CONFIG, ""), Target("te", 10)):
        start, end = end, end + 4 * tensor.shape[0] * (tensor.shape[1] if len(tensor.shape) == 2 else 1)
        header[tensor.name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    data = b"".join(struct.pack("<f", number / 7) for number in range(end // 4))
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return folder


def test_the_round_trip(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, back = tmp_path / "mcore", tmp_path / "back"
    assert main(["convert", "to-mcore", str(model), str(checkpoint), "--tp", "2", "--jobs", "1"]) == 0
    assert f"verl-musa convert verify {model} {checkpoint}" in capsys.readouterr().out.replace("\n", " ")
    assert main(["convert", "verify", str(model), str(checkpoint), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["counts"] == {"OK": 5, "WARN": 0, "FAIL": 0, "UNKNOWN": 0}
    assert main(["convert", "to-hf", str(checkpoint), str(back)]) == 0
    capsys.readouterr()
    assert main(["convert", "show", str(back), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "Hugging Face"
    assert len(shown["tensors"]) == 2 * 11 + 3
    (checkpoint / "__0_0.distcp").write_bytes(b"")
    assert main(["convert", "verify", str(model), str(checkpoint)]) == 2
    assert "truncated" in capsys.readouterr().out


def test_show_for_people(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    checkpoint = tmp_path / "mcore"
    main(["convert", "to-mcore", str(model), str(checkpoint)])
    capsys.readouterr()
    assert main(["convert", "show", str(checkpoint)]) == 0
    text = capsys.readouterr().out
    assert "decoder.layers.self_attention.linear_qkv.weight" in text
    assert "2 x 16 x 8" in text
    assert "Megatron-Core torch_dist, 4 files" in text
    assert "to-mcore by verl-musa" in text


def test_a_dry_run_writes_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mcore"
    assert main(["convert", "to-mcore", str(model), str(out), "--dry-run"]) == 0
    assert "11 Megatron-Core tensors" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tp", "3"], "num_attention_heads 2 is not divisible by TP 3"),
        (["--ep", "2"], "the model has no experts"),
        (["--dtype", "int8"], "--dtype has no such value"),
        (["--spec", "x"], "--spec has no such value"),
    ],
)
def test_mistakes_end_with_code_2(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["convert", "to-mcore", str(model), str(tmp_path / "out"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_line_starts_without_torch(model: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from verl_musa.cli import main; "
        f"code = main(['convert', 'to-mcore', {str(model)!r}, {str(tmp_path / 'out')!r}, '--dry-run']); "
        "heavy = {'torch', 'safetensors', 'transformers', 'numpy'} & set(sys.modules); "
        "assert code == 0 and not heavy, heavy"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
