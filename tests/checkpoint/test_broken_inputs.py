"""Twelve ways in which an input or the place for the output is broken: each gives its message, and nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from verl_musa.checkpoint import Layout, ToMcore, to_mcore
from verl_musa.errors import CheckpointError

MakeModel = Callable[..., Path]


def require_refused(source: Path, message: str, **options: Any) -> CheckpointError:
    """Convert, which must fail with ``message`` and leave the folder as it was."""
    before = _listing(source.parent)
    with pytest.raises(CheckpointError, match=message) as caught:
        to_mcore(ToMcore(source=source, output=source.with_name("out"), **options))
    assert _listing(source.parent) == before
    error = caught.value
    assert error.where
    assert error.fix
    return error


def _listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in sorted(folder.rglob("*"))}


def test_1_a_truncated_file(make_model: MakeModel) -> None:
    source = make_model(shards=2)
    file = source / "model-00002-of-00002.safetensors"
    os.truncate(file, file.stat().st_size - 10)
    error = require_refused(source, "the weight file is truncated")
    assert error.where == str(file)
    assert "by its own header" in str(error.expected)


def test_2_a_missing_tensor(make_model: MakeModel) -> None:
    source = make_model(edit=lambda tensors: tensors.pop("model.layers.1.self_attn.k_norm.weight"))
    error = require_refused(source, "tensors are missing")
    assert error.found == "1 missing: model.layers.1.self_attn.k_norm.weight"


def test_a_missing_file(make_model: MakeModel) -> None:
    source = make_model(shards=2)
    (source / "model-00001-of-00002.safetensors").unlink()
    error = require_refused(source, "a weight file cannot be read")
    assert "No such file" in str(error.found)


def test_3_an_extra_tensor(make_model: MakeModel) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.q_proj.lora_A.weight"] = tensors["model.norm.weight"].clone()

    error = require_refused(make_model(edit=edit), "there are tensors that this architecture lacks")
    assert error.found == "1 unexpected: model.layers.0.self_attn.q_proj.lora_A.weight"
    assert "adapters" in str(error.fix)


def test_4_a_wrong_shape(make_model: MakeModel) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name][:-1].clone()

    error = require_refused(make_model(edit=edit), "the sizes differ")
    assert "model.layers.0.mlp.up_proj.weight is [23, 16], expected [24, 16]" in str(error.found)


def test_another_type(make_model: MakeModel) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(dtype=_int8())

    error = require_refused(make_model(edit=edit), "not floating-point numbers")
    assert error.found == "model.norm.weight is I8"


def test_types_that_megatron_cannot_keep_apart(make_model: MakeModel) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].float()

    source = make_model(edit=edit)
    error = require_refused(source, "have different types")
    assert "choose one with --dtype" in str(error.fix)
    to_mcore(ToMcore(source=source, output=source.with_name("out"), dtype="bfloat16"))


def test_5_the_tied_flag_is_wrong(make_model: MakeModel) -> None:
    error = require_refused(
        make_model("tied", config={"tie_word_embeddings": False}),
        "tie_word_embeddings is false, but there is no output layer",
    )
    assert "set tie_word_embeddings to true" in str(error.fix)


def test_5_and_the_other_way_round(make_model: MakeModel) -> None:
    # Megatron-Core itself would drop the output layer without a word.
    source = make_model("dense", config={"tie_word_embeddings": True})
    error = require_refused(source, "the output layer is not the embedding")
    assert "set tie_word_embeddings to false" in str(error.fix)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, the weights have 2 layers"),
        ({"vocab_size": 64}, "vocab_size is 64, the embedding has 50 rows"),
        ({"head_dim": 4}, "the sizes differ"),
    ],
)
def test_6_the_config_of_another_size(make_model: MakeModel, changes: dict[str, int], said: str) -> None:
    error = require_refused(make_model(config=changes), said)
    assert "take the config.json that belongs to these weights" in str(error.fix)
    assert str(error.where).endswith("config.json")


def test_7_a_dense_config_on_weights_with_experts(make_model: MakeModel) -> None:
    source = make_model("moe", config={"architectures": ["Qwen3ForCausalLM"]})
    require_refused(source, "the weights have experts, config.json is a dense model's")


def test_7_and_the_other_way_round(make_model: MakeModel) -> None:
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    source = make_model("dense", config={"architectures": ["Qwen3MoeForCausalLM"], **moe})
    require_refused(source, "config.json has experts, the weights are a dense model's")


def test_7_another_number_of_experts(make_model: MakeModel) -> None:
    require_refused(
        make_model("moe", config={"num_experts": 8}), "num_experts is 8, the weights have 4 experts"
    )


def test_7_experts_in_one_tensor(make_model: MakeModel) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if ".mlp.experts." in name]:
            tensor = tensors.pop(name)
            if name.endswith("experts.0.gate_proj.weight"):
                tensors[name.replace("0.gate_proj.weight", "gate_up_proj")] = tensor

    error = require_refused(make_model("moe", edit=edit), "the experts are stacked")
    assert "save_pretrained" in str(error.fix)


def test_8_heads_not_divisible_by_tp(make_model: MakeModel) -> None:
    error = require_refused(make_model(), "cannot run under TP3", layout=Layout(tp=3))
    assert "num_attention_heads 4 is not divisible by TP 3" in str(error.found)


def test_9_experts_not_divisible_by_ep(make_model: MakeModel) -> None:
    error = require_refused(make_model("moe"), "cannot run under EP3", layout=Layout(ep=3))
    assert "num_experts 4 is not divisible by EP 3" in str(error.found)


@pytest.mark.skipif(os.getuid() == 0, reason="root writes into read-only folders; see the mounted one below")
def test_10_a_read_only_folder(make_model: MakeModel) -> None:
    source = make_model()
    source.parent.chmod(0o555)
    try:
        error = require_refused(source, "the output folder cannot be written")
    finally:
        source.parent.chmod(0o755)
    assert error.found == "Permission denied"


def test_10_a_read_only_file_system(make_model: MakeModel, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=1m,ro") as disk:
        options = ToMcore(source=make_model(), output=disk / "out")
        with pytest.raises(CheckpointError, match="the output folder cannot be written") as caught:
            to_mcore(options)
    assert caught.value.found == "Read-only file system"
    assert "make the folder above it writable" in str(caught.value.fix)


def test_10_a_file_in_the_way(make_model: MakeModel) -> None:
    source = make_model()
    source.with_name("out").write_text("mine", encoding="utf-8")
    require_refused(source, "the output is a file")


def test_10_a_folder_that_is_not_empty(make_model: MakeModel) -> None:
    source = make_model()
    source.with_name("out").mkdir()
    (source.with_name("out") / "precious.txt").write_text("mine", encoding="utf-8")
    error = require_refused(source, "the output folder is not empty")
    assert error.found == "precious.txt"
    require_refused(source, "the output folder is not empty", resume=True)


def test_10_a_working_folder_of_someone_else(make_model: MakeModel) -> None:
    source = make_model()
    source.with_name("out.partial").mkdir()
    (source.with_name("out.partial") / "precious.txt").write_text("mine", encoding="utf-8")
    for resume in (False, True):
        with pytest.raises(CheckpointError, match="holds something else") as caught:
            to_mcore(ToMcore(source=source, output=source.with_name("out"), resume=resume))
        assert caught.value.found == "precious.txt"
    assert (source.with_name("out.partial") / "precious.txt").read_text(encoding="utf-8") == "mine"


def test_11_too_small_a_disk_is_seen_before(make_model: MakeModel, tmp_path: Path) -> None:
    source = make_model()
    with mounted(tmp_path / "disk", "size=1m") as disk:
        with pytest.raises(CheckpointError, match="not enough space") as caught:
            to_mcore(ToMcore(source=source, output=disk / "out"))
        assert not list(disk.rglob("*.distcp"))
        subprocess.run([tool("mount"), "-o", "remount,size=128m", str(disk)], check=True, timeout=30)
        to_mcore(ToMcore(source=source, output=disk / "out"))
    assert "GiB free" in str(caught.value.found)


def test_11_a_disk_that_fills_up_meanwhile(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model("moe", shards=4)
    monkeypatch.setattr("verl_musa.checkpoint.folder.MARGIN", -(1 << 40))
    with mounted(tmp_path / "disk", "size=48k") as disk:
        with pytest.raises(CheckpointError, match="the disk is full") as caught:
            to_mcore(ToMcore(source=source, output=disk / "out", jobs=1))
        assert "--resume" in str(caught.value.fix)
        assert not (disk / "out").exists()
        subprocess.run([tool("mount"), "-o", "remount,size=4m", str(disk)], check=True, timeout=30)
        folder = to_mcore(ToMcore(source=source, output=disk / "out", resume=True))
        assert (folder / "metadata.json").is_file()


def test_12_interrupted(make_model: MakeModel) -> None:
    source = make_model(shards=3)

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_mcore(ToMcore(source=source, output=source.with_name("out"), jobs=1), interrupt)
    assert not source.with_name("out").exists()
    error = require_refused(source, "an interrupted conversion lies here")
    assert "continue it with --resume" in str(error.fix)
    to_mcore(ToMcore(source=source, output=source.with_name("out"), resume=True))


def test_options_that_make_no_sense(make_model: MakeModel) -> None:
    source = make_model()
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"layer_spec": "transformer_engine"}, "--spec has no such value"),
        ({"dtype": "int8"}, "--dtype has no such value"),
        ({"pad_vocab": 0}, "--pad-vocab must be at least 1"),
        ({"jobs": 0}, "--jobs must be at least 1"),
    )
    for options, said in cases:
        with pytest.raises(CheckpointError, match=said):
            to_mcore(ToMcore(source=source, output=source.with_name("out"), **options))
    with pytest.raises(CheckpointError, match="the same folder"):
        to_mcore(ToMcore(source=source, output=source))


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small file system of its own; skips the test where this user cannot mount one."""
    folder.mkdir()
    if os.getuid() != 0:
        pytest.skip("needs root to mount a small file system")
    done = subprocess.run(
        [tool("mount"), "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([tool("umount"), str(folder)], check=True, timeout=30)


def tool(name: str) -> str:
    """Full name of a system tool; skips the test where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    return found


def _int8() -> Any:
    import torch

    return torch.int8


def test_the_messages_name_a_long_list_briefly(make_model: MakeModel) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            if ".layers.1." in name:
                tensors.pop(name)

    error = require_refused(make_model(edit=edit), "the weights have 1 layers")
    assert "11 missing: " in str(error.found)
    assert "and 6 more" in str(error.found)
    assert json.dumps(str(error))
