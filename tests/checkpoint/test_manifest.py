from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.checkpoint import ToMcore, manifest, to_mcore
from verl_musa.checkpoint.safetensors_folder import open_weights

MakeModel = Callable[..., Path]


@pytest.fixture
def converted(make_model: MakeModel) -> Path:
    source = make_model("dense")
    return to_mcore(ToMcore(source=source, output=source.with_name("out")))


def test_the_digest_is_that_of_the_content(converted: Path, make_model: MakeModel, tmp_path: Path) -> None:
    first = manifest.digest(converted)
    assert first is not None
    assert len(first) == 64
    again = to_mcore(ToMcore(source=converted.with_name("model"), output=tmp_path / "again"))
    file = again / manifest.MANIFEST
    made = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**made, "made_by": "verl-musa 9"}), encoding="utf-8")
    assert manifest.digest(again) == first
    for options in ({"pad_vocab": 64}, {"dtype": "float32"}, {"value_head": True}):
        other = tmp_path / "-".join(options)
        to_mcore(ToMcore(source=converted.with_name("model"), output=other, **options))
        assert manifest.digest(other) != first
    weights = make_model("dense", name="other", edit=lambda tensors: tensors["model.norm.weight"].zero_())
    assert manifest.digest(to_mcore(ToMcore(source=weights, output=tmp_path / "o"))) != first
    file.unlink()
    assert manifest.digest(again) is None


def test_what_has_changed_is_named(converted: Path, make_model: MakeModel) -> None:
    made = manifest.read(converted)
    assert made is not None
    source = converted.with_name("model")
    assert manifest.other_source(made, open_weights(source)) == ""
    assert manifest.other_output(made, converted) == ""
    several = make_model("dense", name="several", shards=4)
    assert manifest.other_source(made, open_weights(several)).endswith("and 4 more")
    (converted / "__1_0.distcp").unlink()
    assert "__1_0.distcp is missing" in manifest.other_output(made, converted)
    assert manifest.other_output({"source": {}}, converted) == "", "made before the manifest named its files"
