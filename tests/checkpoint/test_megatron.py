"""Against the real Megatron-Core and transformers, each in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from verl_musa.checkpoint import Layout, ToMcore, to_mcore
from verl_musa.checkpoint.logits import Case, compare_logits
from verl_musa.checkpoint.mapping import Target, extra_state_keys, mcore_shapes
from verl_musa.checkpoint.spec import spec_from_config
from verl_musa.cli import main
from verl_musa.errors import CheckpointError

MakeModel = Callable[..., Path]

pytestmark = [pytest.mark.integration, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
NAMES_JOB = Path(__file__).parent / "jobs" / "names_job.py"
LIMIT = 5e-6
LAYOUTS = {
    "dense": (Layout(), Layout(tp=2), Layout(pp=2), Layout(tp=2, pp=2)),
    "tied": (Layout(), Layout(tp=2, pp=2)),
    "moe": (
        Layout(),
        Layout(tp=2),
        Layout(pp=2),
        Layout(ep=2),
        Layout(tp=2, ep=2),
        Layout(tp=2, pp=2, ep=2),
    ),
}


@pytest.fixture
def megatron(aside: Any) -> Path:
    """The folder that holds the package megatron."""
    found = aside.version("megatron-core")
    if found is None:
        pytest.skip("megatron-core is not installed (ci/stack.py puts it aside)")
    return next(
        place for place in (aside.folder, aside.folder / "megatron") if (place / "megatron" / "core").is_dir()
    )


def realistic(tensors: dict[str, torch.Tensor]) -> None:
    """Small weights around what a trained model has: logits of a few units, so that differences mean something."""
    for name, tensor in tensors.items():
        tensors[name] = 1 + 0.1 * tensor if name.endswith("norm.weight") else 0.2 * tensor


@pytest.mark.timeout(3000)
def test_logits_under_every_layout(make_model: MakeModel, tmp_path: Path, megatron: Path) -> None:
    cases = []
    for kind, layouts in LAYOUTS.items():
        source = make_model(kind, name=kind, dtype=torch.float32, edit=realistic)
        options = ToMcore(source=source, output=tmp_path / f"{kind}-mcore", pad_vocab=8)
        checkpoint = to_mcore(options)
        cases += [Case(source=source, checkpoint=checkpoint, layout=layout) for layout in layouts]
    local = to_mcore(ToMcore(source=tmp_path / "moe", output=tmp_path / "local", layer_spec="local"))
    cases.append(Case(source=tmp_path / "moe", checkpoint=local, layer_spec="local"))
    found = compare_logits(cases, prompts=4, megatron=megatron, limit_s=2400)
    for case, difference in zip(cases, found, strict=True):
        assert difference.largest > 0.5, case
        assert difference.maximum <= LIMIT * max(1.0, difference.largest), (case, difference)


@pytest.mark.timeout(1500)
def test_a_wrong_checkpoint_is_found(make_model: MakeModel, tmp_path: Path, megatron: Path) -> None:
    def swapped(tensors: dict[str, torch.Tensor]) -> None:
        realistic(tensors)
        names = [f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")]
        tensors[names[0]], tensors[names[1]] = (tensors[name] for name in reversed(names))

    source = make_model("dense", dtype=torch.float32, edit=realistic)
    wrong = make_model("dense", dtype=torch.float32, edit=swapped, name="wrong")
    checkpoint = to_mcore(ToMcore(source=wrong, output=tmp_path / "mcore"))
    (difference,) = compare_logits([Case(source=source, checkpoint=checkpoint)], prompts=2, megatron=megatron)
    assert difference.maximum > 100 * LIMIT
    te_names = to_mcore(ToMcore(source=make_model("moe", name="moe"), output=tmp_path / "te"))
    with pytest.raises(CheckpointError, match="the megatron process failed") as caught:
        compare_logits(
            [Case(source=tmp_path / "moe", checkpoint=te_names, layer_spec="local")],
            prompts=1,
            megatron=megatron,
        )
    assert "layer_norm_weight" in str(caught.value.found)


@pytest.mark.timeout(1500)
def test_verify_with_logits_from_end_to_end(
    make_model: MakeModel, tmp_path: Path, megatron: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_model("moe", dtype=torch.float32, edit=realistic)
    other = make_model("moe", dtype=torch.float32, name="other")
    for model, code, status in ((source, 0, "OK"), (other, 2, "FAIL")):
        checkpoint = tmp_path / f"{model.name}-mcore"
        assert main(["convert", "to-mcore", str(model), str(checkpoint)]) == 0
        capsys.readouterr()
        asked = ["--logits", "2", "--megatron", str(megatron), "--json"]
        assert main(["convert", "verify", str(source), str(checkpoint), *asked]) == code
        found = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
        assert found["convert.logits"]["status"] == status, found
        assert "2 prompts: largest difference" in found["convert.logits"]["evidence"]
        assert found["convert.tensors"]["status"] == status


@pytest.mark.timeout(1500)
def test_names_and_shapes_are_those_that_megatron_asks_for(
    configs: dict[str, Any], real_configs: dict[str, Any], tmp_path: Path, megatron: Path
) -> None:
    small = [(configs[kind], spec) for kind in ("dense", "tied", "moe") for spec in ("te", "local")]
    asked = [*small, *((config, "te") for config in real_configs.values())]
    request, out = tmp_path / "request.json", tmp_path / "answers.json"
    request.write_text(json.dumps(asked), encoding="utf-8")
    path = os.pathsep.join((str(ROOT), str(megatron)))
    subprocess.run(
        [sys.executable, str(NAMES_JOB), str(request), str(out)],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        timeout=1400,
    )
    answers = json.loads(out.read_text(encoding="utf-8"))
    for (config, layer_spec), answer in zip(asked, answers, strict=True):
        spec = spec_from_config(config, "config.json")
        shapes = mcore_shapes(spec, Target(layer_spec, spec.vocab))
        assert answer["tensors"] == {key: list(shape) for key, shape in shapes.items()}
        # Without Transformer Engine only the linear layers keep state; the names for it are among those that we write.
        assert set(answer["objects"]) == set(extra_state_keys(spec, Target("local", spec.vocab)))
