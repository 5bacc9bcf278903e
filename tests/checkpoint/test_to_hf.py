from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import checkpoint as dcp

from verl_musa.checkpoint import ToHf, ToMcore, to_hf, to_mcore
from verl_musa.errors import CheckpointError

MakeModel = Callable[..., Path]
# torch says that it works without a process group, which is what is asked of it.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
Tensors = dict[str, torch.Tensor]


def load(folder: Path) -> Tensors:
    found: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found


def require_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def save_as_training_does(
    folder: Path, tensors: dict[str, Any], model: Path, *, numbered: bool = False
) -> Path:
    """A checkpoint as verl lays it out, with other boxes than ours: torch's own writer splits nothing."""
    place = folder / "actor" / "model" / "dist_ckpt"
    place.mkdir(parents=True)
    if numbered:
        layers = {key: value for key, value in tensors.items() if key.startswith("decoder.layers.")}
        tensors = {key: value for key, value in tensors.items() if key not in layers}
        for key, value in layers.items():
            rest = key.removeprefix("decoder.layers.")
            tensors |= {f"decoder.layers.{number}.{rest}": row for number, row in enumerate(value)}
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(place), no_dist=True)
    (place / "metadata.json").write_text('{"sharded_backend": "torch_dist"}', encoding="utf-8")
    torch.save({}, place / "common.pt")
    model.rename(place.parent / "huggingface")
    return folder


@pytest.mark.parametrize("options", [{}, {"pad_vocab": 64}, {"layer_spec": "local"}])
@pytest.mark.parametrize("kind", ["dense", "tied", "moe", "critic"])
def test_there_and_back_is_exact(
    make_model: MakeModel, hf_of: Callable[[str], Tensors], kind: str, options: dict[str, Any]
) -> None:
    source = make_model(kind)
    between = to_mcore(ToMcore(source=source, output=source.with_name("mcore"), **options))
    back = to_hf(ToHf(checkpoint=between, output=source.with_name("back")))
    require_equal(load(back), hf_of(kind))
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (back / name).read_bytes() == (source / name).read_bytes()
    assert not (back / "model.safetensors.index.json").exists()


def test_several_files_have_an_index(make_model: MakeModel, hf_of: Callable[[str], Tensors]) -> None:
    source = make_model("moe")
    between = to_mcore(ToMcore(source=source, output=source.with_name("mcore")))
    seen: list[tuple[int, int]] = []
    options = ToHf(checkpoint=between, output=source.with_name("back"), shard_bytes=4096)
    back = to_hf(options, lambda *now: seen.append(now))
    files = sorted(path.name for path in back.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((back / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert set(index["weight_map"].values()) == set(files)
    require_equal(load(back), hf_of("moe"))
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in hf_of("moe").values())
    assert seen[-1] == (index["metadata"]["total_size"],) * 2


@pytest.mark.parametrize("numbered", [False, True], ids=["stacked layers", "one tensor a layer"])
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_training_checkpoint(
    make_model: MakeModel,
    hf_of: Callable[[str], Tensors],
    mcore_of: Callable[[str], Tensors],
    tmp_path: Path,
    *,
    kind: str,
    numbered: bool,
) -> None:
    folder = save_as_training_does(
        tmp_path / "global_step_3", mcore_of(kind), make_model(kind), numbered=numbered
    )
    for number, path in enumerate((folder, folder / "actor", folder / "actor" / "model" / "dist_ckpt")):
        back = to_hf(ToHf(checkpoint=path, output=tmp_path / f"back{number}"))
        require_equal(load(back), hf_of(kind))


def test_another_type(make_model: MakeModel, hf_of: Callable[[str], Tensors]) -> None:
    source = make_model("dense", dtype=torch.float32)
    between = to_mcore(ToMcore(source=source, output=source.with_name("mcore")))
    back = to_hf(ToHf(checkpoint=between, output=source.with_name("back"), dtype="bfloat16"))
    require_equal(load(back), hf_of("dense"))
    with pytest.raises(CheckpointError, match="--dtype has no such value"):
        to_hf(ToHf(checkpoint=between, output=source.with_name("other"), dtype="int4"))


def test_an_interrupted_one_is_continued(make_model: MakeModel, hf_of: Callable[[str], Tensors]) -> None:
    source = make_model("dense")
    between = to_mcore(ToMcore(source=source, output=source.with_name("mcore")))

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"checkpoint": between, "output": source.with_name("back"), "shard_bytes": 4096}
    with pytest.raises(KeyboardInterrupt):
        to_hf(ToHf(**options), interrupt)
    assert not source.with_name("back").exists()
    assert list(source.with_name("back.partial").glob("unit-*.json"))
    with pytest.raises(CheckpointError, match="an interrupted conversion"):
        to_hf(ToHf(**options))
    require_equal(load(to_hf(ToHf(**options, resume=True))), hf_of("dense"))


def test_another_model_s_config(make_model: MakeModel) -> None:
    source = make_model("dense")
    between = to_mcore(ToMcore(source=source, output=source.with_name("mcore")))
    other = make_model("moe", name="other")
    with pytest.raises(CheckpointError, match="the checkpoint is not this model's") as caught:
        to_hf(ToHf(checkpoint=between, output=source.with_name("back"), config=other))
    assert "decoder.layers.mlp.router.weight is missing" in str(caught.value)


def test_no_config(make_model: MakeModel, hf_of: Callable[[str], Tensors]) -> None:
    source = make_model("dense")
    between = to_mcore(ToMcore(source=source, output=source.with_name("mcore")))
    (between / "huggingface" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="--config"):
        to_hf(ToHf(checkpoint=between, output=source.with_name("back")))
    back = to_hf(ToHf(checkpoint=between, output=source.with_name("back"), config=source))
    require_equal(load(back), hf_of("dense"))


def test_a_critic_needs_a_config_with_a_head(make_model: MakeModel) -> None:
    source = make_model("dense")
    between = to_mcore(ToMcore(source=source, output=source.with_name("mcore"), value_head=True))
    with pytest.raises(CheckpointError, match="the checkpoint is a critic's") as caught:
        to_hf(ToHf(checkpoint=between, output=source.with_name("back")))
    assert "Qwen3ForSequenceClassification" in str(caught.value.fix)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    back = to_hf(ToHf(checkpoint=between, output=source.with_name("back"), config=source))
    assert not load(back)["score.weight"].any()
