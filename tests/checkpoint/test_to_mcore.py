"""What is written, read back by torch's own loader and compared with a second derivation."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from verl_musa.checkpoint import ToMcore, describe, to_mcore
from verl_musa.errors import CheckpointError

MakeModel = Callable[..., Path]
# torch says that it works without a process group, which is what is asked of it.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
Tensors = dict[str, torch.Tensor]
ROOT = Path(__file__).parents[2]


def read_back(folder: Path) -> Tensors:
    """Every tensor, by torch.distributed.checkpoint alone."""
    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {
        key: torch.full(value.size, float("nan"), dtype=value.properties.dtype)
        for key, value in metadata.items()
        if hasattr(value, "size")
    }
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def convert(source: Path, **options: Any) -> Path:
    return to_mcore(ToMcore(source=source, output=source.with_name("out"), **options))


def require_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].dtype == value.dtype, key
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", ["dense", "tied", "moe", "critic"])
def test_every_number_arrives(
    make_model: MakeModel, mcore_of: Callable[[str], Tensors], kind: str, shards: int
) -> None:
    folder = convert(make_model(kind, shards=shards))
    require_equal(read_back(folder), mcore_of(kind))


def test_small_pieces_and_many_files(
    make_model: MakeModel, mcore_of: Callable[[str], Tensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_musa.checkpoint.pieces.PIECE_BYTES", 32)
    monkeypatch.setattr("verl_musa.checkpoint.pieces.UNIT_BYTES", 2048)
    folder = convert(make_model("moe"), jobs=3)
    assert len(list(folder.glob("*.distcp"))) > 4
    assert (folder / ".metadata").stat().st_size > 64 << 10  # several frames of its pickle
    require_equal(read_back(folder), mcore_of("moe"))


def test_another_type(make_model: MakeModel, mcore_of: Callable[[str], Tensors]) -> None:
    folder = convert(make_model("dense"), dtype="float32")
    require_equal(read_back(folder), {key: value.float() for key, value in mcore_of("dense").items()})


def test_the_vocabulary_is_padded_with_zeros(
    make_model: MakeModel, mcore_of: Callable[[str], Tensors]
) -> None:
    found = read_back(convert(make_model("dense"), pad_vocab=64))
    for key in ("embedding.word_embeddings.weight", "output_layer.weight"):
        assert found[key].shape == (64, 16)
        assert torch.equal(found[key][:50], mcore_of("dense")[key])
        assert not found[key][50:].any()


def test_a_critic_has_a_fresh_head(make_model: MakeModel, mcore_of: Callable[[str], Tensors]) -> None:
    expected = mcore_of("moe") | {"output_layer.weight": torch.zeros(1, 16, dtype=torch.bfloat16)}
    require_equal(read_back(convert(make_model("moe"), value_head=True)), expected)


def test_local_names(make_model: MakeModel, mcore_of: Callable[[str], Tensors]) -> None:
    expected = mcore_of("moe")
    norm = expected.pop("decoder.layers.pre_mlp_layernorm.weight")
    expected["decoder.layers.mlp.linear_fc1.layer_norm_weight"] = norm
    require_equal(read_back(convert(make_model("moe"), layer_spec="local")), expected)


def test_what_lies_beside_the_tensors(make_model: MakeModel) -> None:
    source = make_model("dense")
    folder = convert(source)
    assert torch.load(folder / "common.pt", weights_only=True) == {}
    assert json.loads((folder / "metadata.json").read_text(encoding="utf-8")) == {
        "sharded_backend": "torch_dist",
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
    }
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (folder / "huggingface" / name).read_bytes() == (source / name).read_bytes()
    manifest = json.loads((folder / "conversion.json").read_text(encoding="utf-8"))
    assert manifest["direction"] == "to-mcore"
    assert len(manifest["tensors"]) == 2 * 11 + 3
    assert [file["name"] for file in manifest["source"]["files"]] == sorted(
        path.name for path in source.glob("*.safetensors")
    )
    assert not list(source.parent.glob("*.partial"))


def test_objects_hold_what_megatron_saves_for_no_state(make_model: MakeModel) -> None:
    folder = convert(make_model("moe"))
    state: dict[str, Any] = {"decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_1.2_2.4": None}
    reader = dcp.FileSystemReader(folder)
    key = next(iter(state))
    info = reader.read_metadata().storage_data[dcp.metadata.MetadataIndex(key)]
    with (folder / info.relative_path).open("rb") as stream:
        stream.seek(info.offset)
        raw = stream.read(info.length)
    file = folder.with_name("object.pt")
    file.write_bytes(raw)
    assert torch.load(file, weights_only=True) == [None]


def test_the_same_input_gives_the_same_bytes(make_model: MakeModel) -> None:
    source = make_model("moe")
    folders = [to_mcore(ToMcore(source=source, output=source.with_name(name))) for name in ("one", "two")]
    contents = [
        {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} for folder in folders
    ]
    assert contents[0] == contents[1]


def test_a_tied_model_that_ships_its_output_layer(
    make_model: MakeModel, mcore_of: Callable[[str], Tensors]
) -> None:
    def add(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    require_equal(read_back(convert(make_model("tied", edit=add))), mcore_of("tied"))


def test_progress_reaches_the_whole(make_model: MakeModel) -> None:
    seen: list[tuple[int, int]] = []
    source = make_model("dense")
    to_mcore(ToMcore(source=source, output=source.with_name("out")), lambda *now: seen.append(now))
    total = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    assert seen[0] == (0, seen[0][1])
    assert seen[-1][0] == seen[-1][1] <= total
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def interrupted(source: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> Path:
    """Convert until ``after`` output files are written, then fail."""
    from verl_musa.checkpoint import torch_dist

    real, count = torch_dist.write_unit, 0

    def write_unit(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count > after:
            raise OSError(5, "Input/output error")
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch_dist, "write_unit", write_unit)
        with pytest.raises(CheckpointError, match="cannot be written"):
            convert(source, jobs=1)
    return source.with_name("out.partial")


def test_an_interrupted_conversion_is_continued(
    make_model: MakeModel, mcore_of: Callable[[str], Tensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model("dense", shards=4)
    partial = interrupted(source, monkeypatch, after=2)
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.distcp")}
    assert len(list(partial.glob("unit-*.json"))) == 2
    assert not (partial / "metadata.json").exists()
    assert not (partial / ".metadata").exists()
    with pytest.raises(CheckpointError, match="an interrupted conversion lies here") as caught:
        convert(source)
    assert "--resume" in str(caught.value.fix)
    with pytest.raises(CheckpointError, match="an interrupted conversion"):
        describe(partial)
    folder = convert(source, resume=True)
    require_equal(read_back(folder), mcore_of("dense"))
    done = ("__0_0.distcp", "__1_0.distcp")
    assert [(folder / name).stat().st_mtime_ns for name in done] == [kept[name] for name in done]
    assert not partial.exists()
    assert not list(folder.glob("unit-*"))
    clean = to_mcore(ToMcore(source=source, output=source.with_name("clean")))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == {
        path.name: path.read_bytes() for path in clean.iterdir() if path.is_file()
    }


def test_a_unit_that_was_cut_short_is_written_again(
    make_model: MakeModel, mcore_of: Callable[[str], Tensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_model("dense", shards=3)
    partial = interrupted(source, monkeypatch, after=2)
    (partial / "__0_0.distcp").write_bytes(b"short")
    require_equal(read_back(convert(source, resume=True)), mcore_of("dense"))


def test_another_conversion_is_not_continued(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_model("dense", shards=3)
    interrupted(source, monkeypatch, after=1)
    with pytest.raises(CheckpointError, match="was another one") as caught:
        convert(source, resume=True, dtype="float32")
    assert "other target" in str(caught.value.found)
    (source / "config.json").write_text(
        (source / "config.json").read_text(encoding="utf-8") + "\n", encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match="was another one"):
        convert(source, resume=True)


def test_two_at_once_are_refused(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    source = make_model("dense", shards=3)
    partial = interrupted(source, monkeypatch, after=1)
    with (partial / "conversion.lock").open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="another conversion writes"):
            convert(source, resume=True)


KILLED = """\
import os, signal, sys
from pathlib import Path
from verl_musa.checkpoint import ToMcore, to_mcore
from verl_musa.checkpoint import pieces
pieces.UNIT_BYTES = 1024
total = 0
def progress(done, all_bytes):
    if done > all_bytes * float(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
to_mcore(ToMcore(source=Path(sys.argv[1]), output=Path(sys.argv[2]), jobs=2), progress)
"""


@pytest.mark.parametrize("part", ["0.0", "0.6"])
def test_sigkill_leaves_nothing_that_loads_and_can_be_continued(
    make_model: MakeModel, mcore_of: Callable[[str], Tensors], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    source = make_model("moe", shards=2)
    out = source.with_name("out")
    command = [sys.executable, "-c", KILLED, str(source), str(out), part]
    done = subprocess.run(command, cwd=ROOT, check=False, timeout=300, env=_plain_env())
    assert done.returncode == -9
    assert not out.exists()
    partial = source.with_name("out.partial")
    assert not (partial / "metadata.json").exists()
    assert not (partial / ".metadata").exists()
    monkeypatch.setattr("verl_musa.checkpoint.pieces.UNIT_BYTES", 1024)
    require_equal(read_back(convert(source, resume=True)), mcore_of("moe"))


def _plain_env() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


MEMORY = """\
import resource, sys
from pathlib import Path
from verl_musa.checkpoint import ToMcore, to_mcore
from verl_musa.checkpoint import torch_dist
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
to_mcore(ToMcore(source=Path(sys.argv[1]), output=Path(sys.argv[2]), jobs=1))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


def test_memory_does_not_grow_with_the_model(make_model: MakeModel) -> None:
    # 192 MiB of weights, the largest tensor 16 MiB; both a copy and a whole mapped file would show.
    big = {"hidden_size": 1024, "intermediate_size": 8192, "vocab_size": 1024, "num_hidden_layers": 4}

    def grow(tensors: Tensors) -> None:
        from verl_musa.checkpoint.mapping import Target, mapped_tensors
        from verl_musa.checkpoint.spec import spec_from_config

        config = {**json.loads(_CONFIG), **big}
        tensors.clear()
        spec = spec_from_config(config, "config.json")
        for tensor in mapped_tensors(spec, Target("te", spec.vocab)):
            tensors[tensor.name] = torch.zeros(tensor.shape, dtype=torch.bfloat16)

    source = make_model("dense", shards=1, config=big, edit=grow)
    size = (source / "model.safetensors").stat().st_size
    assert size > 190 << 20
    out = source.with_name("out")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(source), str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env=_plain_env(),
    )
    assert int(done.stdout) < 30 << 20, f"{int(done.stdout) >> 20} MiB"


_CONFIG = json.dumps(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": False,
    }
)


def test_nothing_of_torch_is_needed(make_model: MakeModel) -> None:
    source = make_model("moe")
    out = source.with_name("out")
    code = (
        "import sys; from pathlib import Path; from verl_musa.checkpoint import ToMcore, describe, to_mcore; "
        f"describe(to_mcore(ToMcore(source=Path({str(source)!r}), output=Path({str(out)!r})))); "
        "heavy = {'torch', 'safetensors', 'transformers', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, env=_plain_env()
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 60
