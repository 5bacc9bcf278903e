from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from verl_musa.checkpoint import Pair, ToHf, ToMcore, to_hf, to_mcore, verify
from verl_musa.checkpoint.logits import Difference
from verl_musa.checks import Result, Status

MakeModel = Callable[..., Path]


@pytest.fixture
def pair(make_model: MakeModel) -> Pair:
    source = make_model("moe")
    return Pair(source, to_mcore(ToMcore(source=source, output=source.with_name("out"))))


def run(pair: Pair) -> dict[str, Result]:
    results = verify(Pair(pair.source, pair.checkpoint, pair.prompts, pair.megatron))
    return {result.check.removeprefix("convert."): result for result in results}


def statuses(pair: Pair) -> dict[str, str]:
    return {name: result.status.value for name, result in run(pair).items()}


def change(source: Path, name: str) -> None:
    """Change one number of one tensor; names, shapes and sizes stay."""
    for file in source.glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            tensors[name].view(-1)[0] += 1
            save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["dense", "tied", "moe", "critic"])
@pytest.mark.parametrize("options", [{}, {"pad_vocab": 64, "dtype": "float32"}, {"layer_spec": "local"}])
def test_a_fresh_conversion_is_right(make_model: MakeModel, kind: str, options: dict[str, Any]) -> None:
    source = make_model(kind)
    checkpoint = to_mcore(ToMcore(source=source, output=source.with_name("out"), **options))
    assert set(statuses(Pair(source, checkpoint)).values()) == {"OK"}


def test_what_is_said(pair: Pair) -> None:
    found = run(pair)
    assert found["source"].evidence.startswith("Qwen3MoeForCausalLM, ")
    assert "te names, 50 vocabulary rows" in found["format"].evidence
    assert "all equal" in found["tensors"].evidence
    assert found["rest"].evidence == "nothing beyond the source"
    assert "checksums hold; mapping 1" in found["manifest"].evidence


def test_one_number_that_differs_is_found(pair: Pair) -> None:
    change(pair.source, "model.layers.1.mlp.experts.2.up_proj.weight")
    found = run(pair)
    assert found["tensors"].status is Status.FAIL
    assert "1 of" in found["tensors"].evidence
    assert "model.layers.1.mlp.experts.2.up_proj.weight" in found["tensors"].evidence
    assert found["manifest"].status is Status.FAIL
    assert "have changed since" in found["manifest"].evidence


def test_another_source(pair: Pair, make_model: MakeModel) -> None:
    other = Pair(make_model("moe", shards=3, name="other"), pair.checkpoint)
    found = run(other)
    assert found["tensors"].status is Status.OK
    assert found["manifest"].status is Status.FAIL
    assert "other model.safetensors.index.json, model-00001-of-00002" in found["manifest"].evidence
    wrong = Pair(make_model("dense", name="wrong"), pair.checkpoint)
    assert statuses(wrong)["tensors"] == "FAIL"


def test_without_a_manifest(pair: Pair) -> None:
    (pair.checkpoint / "conversion.json").unlink()
    assert statuses(pair)["manifest"] == "UNKNOWN"


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"schema": 99})])
def test_a_damaged_manifest(pair: Pair, content: str) -> None:
    (pair.checkpoint / "conversion.json").write_text(content, encoding="utf-8")
    assert statuses(pair)["manifest"] == "FAIL"


def test_a_missing_common_file(pair: Pair) -> None:
    (pair.checkpoint / "common.pt").unlink()
    found = run(pair)["format"]
    assert found.status is Status.FAIL
    assert "no common.pt; Megatron-Core 0.16 and 0.18 need it" in found.evidence


def test_a_broken_source(pair: Pair) -> None:
    config = pair.source / "config.json"
    raw = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**raw, "num_experts": 5}), encoding="utf-8")
    assert statuses(pair)["source"] == "FAIL"


def test_a_tied_model_s_own_output_layer(make_model: MakeModel) -> None:
    def add(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    source = make_model("tied", edit=add)
    pair = Pair(source, to_mcore(ToMcore(source=source, output=source.with_name("out"))))
    assert statuses(pair)["source"] == "OK"
    change(source, "lm_head.weight")
    assert statuses(pair)["source"] == "FAIL"


def test_a_critic_made_from_a_language_model(make_model: MakeModel) -> None:
    source = make_model("dense")
    options = ToMcore(source=source, output=source.with_name("out"), value_head=True)
    found = run(Pair(source, to_mcore(options)))
    assert {result.status for result in found.values()} == {Status.OK}
    assert found["rest"].evidence == "1 boxes beyond the source, all zero"


def test_the_way_back_is_verified_too(pair: Pair) -> None:
    back = to_hf(ToHf(checkpoint=pair.checkpoint, output=pair.source.with_name("back")))
    found = statuses(Pair(back, pair.checkpoint))
    assert found["tensors"] == found["source"] == "OK"


def test_progress(pair: Pair) -> None:
    seen: list[tuple[int, int]] = []
    verify(Pair(pair.source, pair.checkpoint, progress=lambda *now: seen.append(now)))
    assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.parametrize(
    ("difference", "status"),
    [
        (Difference(1e-6, 1e-7, 2.0), Status.OK),
        (Difference(9e-6, 1e-7, 2.0), Status.OK),
        (Difference(2e-5, 1e-7, 2.0), Status.FAIL),
        (Difference(float("nan"), 0.0, 2.0), Status.FAIL),
    ],
)
def test_logits(
    pair: Pair, difference: Difference, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def compare(cases: list[Any], **options: Any) -> list[Difference]:
        asked.update(options, case=cases[0])
        return [difference]

    # The package's function of the same name hides the module from a dotted path.
    monkeypatch.setattr(sys.modules[Pair.__module__], "compare_logits", compare)
    found = run(Pair(pair.source, pair.checkpoint, 3, tmp_path))["logits"]
    assert found.status is status
    assert "3 prompts" in found.evidence
    assert asked["prompts"] == 3
    assert asked["megatron"] == tmp_path
    assert asked["case"].layer_spec == "te"


def test_logits_need_a_megatron_and_a_language_model(
    pair: Pair, make_model: MakeModel, tmp_path: Path
) -> None:
    assert run(Pair(pair.source, pair.checkpoint, 1))["logits"].status is Status.UNKNOWN
    source = make_model("critic", name="critic")
    critic = to_mcore(ToMcore(source=source, output=tmp_path / "critic-mcore"))
    assert run(Pair(source, critic, 1, tmp_path))["logits"].status is Status.UNKNOWN


def test_a_training_checkpoint_has_moved_on(make_model: MakeModel, tmp_path: Path) -> None:
    source = make_model("dense")
    changed = make_model("dense", name="trained")
    change(changed, "model.norm.weight")
    trained = to_mcore(ToMcore(source=changed, output=tmp_path / "trained-mcore", pad_vocab=64))
    found = run(Pair(source, trained))
    assert found["tensors"].status is Status.FAIL
    assert "what training changed" in found["tensors"].fix
