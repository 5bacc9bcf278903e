from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_musa.checks import Finding, Status
from verl_musa.data import model
from verl_musa.data.subject import Subject

Look = Callable[..., Subject]


def edit(file: Path, **changes: Any) -> None:
    value = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**value, **changes}), encoding="utf-8")


def holds(finding: Finding, status: Status, evidence: str) -> None:
    assert (finding.status, evidence in finding.evidence) == (status, True), finding
    if status in {Status.FAIL, Status.WARN}:
        assert finding.fix
        assert finding.where


def test_all_right(look: Look) -> None:
    subject = look()
    findings = {check.name: check.function(subject) for check in model.CHECKS}
    assert {name: finding.status for name, finding in findings.items()} == dict.fromkeys(findings, Status.OK)


def test_no_folder(folder: Path, look: Look) -> None:
    (folder / "model").rename(folder / "elsewhere")
    subject = look()
    finding = model.check_folder(subject)
    holds(finding, Status.FAIL, f"no folder {folder}/model")
    assert finding.where == f"{folder}/recipe.yaml:7"
    for check in (
        model.check_architecture,
        model.check_weights,
        model.check_tokenizer,
        model.check_vocabulary,
    ):
        holds(check(subject), Status.UNKNOWN, "")


@pytest.mark.parametrize(("text", "evidence"), [("{", "is not JSON"), ("[]", "no JSON object")])
def test_bad_config_json(text: str, evidence: str, folder: Path, look: Look) -> None:
    (folder / "model/config.json").write_text(text, encoding="utf-8")
    holds(model.check_folder(look()), Status.FAIL, evidence)
    holds(model.check_architecture(look()), Status.UNKNOWN, "model.folder")


def test_no_config_json(folder: Path, look: Look) -> None:
    (folder / "model/config.json").unlink()
    holds(model.check_folder(look()), Status.FAIL, "No such file")


def test_assets_not_made_are_unknown(
    look: Look, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder / "make.py").write_text("", encoding="utf-8")
    text = (folder / "recipe.yaml").read_text(encoding="utf-8").replace("${recipe.dir}/", "${assets.dir}/")
    (folder / "recipe.yaml").write_text(text + "assets: {script: make.py, seed: 1}\n", encoding="utf-8")
    subject = look(assets_ready=False)
    for check in model.CHECKS:
        holds(check.function(subject), Status.UNKNOWN, "assets have not been made")


def test_other_architecture(folder: Path, look: Look) -> None:
    edit(folder / "model/config.json", architectures=["LlamaForCausalLM"])
    holds(model.check_architecture(look()), Status.FAIL, "the recipe is for 'Qwen3ForCausalLM'")


def test_no_weights(folder: Path, look: Look) -> None:
    (folder / "model/model.safetensors").unlink()
    holds(model.check_weights(look()), Status.FAIL, "no *.safetensors")
    (folder / "model/pytorch_model.bin").touch()
    holds(model.check_weights(look()), Status.WARN, ".bin")


@pytest.mark.parametrize(
    ("content", "evidence"),
    [
        (b"", "shorter than"),
        (struct.pack("<Q", 2**60), "absurd header length"),
        (struct.pack("<Q", 4) + b"nope", "not JSON"),
        (struct.pack("<Q", 10) + b'{"x": {}} ', "does not describe tensors"),
        (
            struct.pack("<Q", 30) + b'{"x":{"data_offsets":[0,8]}}  ' + bytes(7),
            "45 bytes, its header says 46",
        ),
        (
            struct.pack("<Q", 30) + b'{"x":{"data_offsets":[0,8]}}  ' + bytes(9),
            "47 bytes, its header says 46",
        ),
    ],
)
def test_damaged_weights(content: bytes, evidence: str, folder: Path, look: Look) -> None:
    (folder / "model/model.safetensors").write_bytes(content)
    holds(model.check_weights(look()), Status.FAIL, evidence)


def test_shards(folder: Path, look: Look) -> None:
    index = folder / "model/model.safetensors.index.json"
    index.write_text('{"weight_map": {"x": "model.safetensors"}}', encoding="utf-8")
    holds(model.check_weights(look()), Status.OK, "1 safetensors file")
    index.write_text('{"weight_map": {"x": "model.safetensors", "y": "gone.safetensors"}}', encoding="utf-8")
    holds(model.check_weights(look()), Status.FAIL, "gone.safetensors: No such file")
    index.write_text("{}", encoding="utf-8")
    holds(model.check_weights(look()), Status.FAIL, "no weight_map")


def test_tokenizer(folder: Path, look: Look) -> None:
    (folder / "model/tokenizer_config.json").unlink()
    holds(model.check_tokenizer(look()), Status.FAIL, "no chat template")
    holds(
        model.check_tokenizer(look("actor_rollout_ref.model.custom_chat_template=x")),
        Status.OK,
        "custom_chat",
    )
    (folder / "model/chat_template.jinja").touch()
    holds(model.check_tokenizer(look()), Status.OK, "chat_template.jinja")
    (folder / "model/tokenizer.json").unlink()
    holds(model.check_tokenizer(look()), Status.FAIL, "no tokenizer.json")


def test_vocabulary(folder: Path, look: Look) -> None:
    config = folder / "model/config.json"
    edit(config, vocab_size=3)
    holds(model.check_vocabulary(look()), Status.FAIL, "token id 3 is outside the model's 3")
    edit(config, vocab_size=None)
    holds(model.check_vocabulary(look()), Status.UNKNOWN, "no vocab_size")
    edit(folder / "model/tokenizer.json", model={})
    holds(model.check_vocabulary(look()), Status.UNKNOWN, "another layout")
