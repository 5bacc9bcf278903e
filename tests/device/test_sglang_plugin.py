from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_musa.device import sglang_plugin
from verl_musa.device.expect import RUN_DIR_ENV


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(RUN_DIR_ENV, str(tmp_path))
    monkeypatch.setenv(sglang_plugin.SERVER_PID_ENV, str(os.getpid()))
    monkeypatch.setattr(sglang_plugin, "_marked", False)


def _draw(logprobs: torch.Tensor, seeds: list[int], positions: list[int]) -> list[int]:
    drawn = sglang_plugin.draw(None, logprobs, torch.tensor(seeds), torch.tensor(positions))
    assert drawn.shape == (len(seeds), 1)
    return [int(index) for index in drawn.flatten()]


def test_numbers_are_uniform_and_reproducible() -> None:
    numbers = [sglang_plugin.uniform(17, position) for position in range(20000)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    tenths = torch.histc(torch.tensor(numbers), bins=10, min=0, max=1)
    # 2000 expected per bin, standard deviation 42: six of them.
    assert (tenths - 2000).abs().max() < 260
    assert sglang_plugin.uniform(17, 5) == numbers[5]
    assert sglang_plugin.uniform(18, 5) != numbers[5]


def test_a_token_depends_on_its_own_row_only() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = torch.log_softmax(torch.randn(16, 50, generator=generator), dim=1)
    seeds, positions = list(range(100, 116)), list(range(16))
    together = _draw(logprobs, seeds, positions)
    order = torch.randperm(16, generator=generator).tolist()
    shuffled = _draw(logprobs[order], [seeds[i] for i in order], [positions[i] for i in order])
    assert [shuffled[order.index(i)] for i in range(16)] == together
    assert [_draw(logprobs[i : i + 1], [seeds[i]], [positions[i]])[0] for i in range(16)] == together


def test_frequencies_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    rows = probabilities.log().expand(20000, 4)
    counts = torch.bincount(torch.tensor(_draw(rows, list(range(20000)), [0] * 20000)), minlength=4) / 20000
    assert counts[1] == 0
    assert (counts - probabilities).abs().max() < 0.02


def test_excluded_tokens_are_never_drawn() -> None:
    row = torch.full((1000, 8), float("-inf"))
    row[:, 3] = 0.0
    assert set(_draw(row, list(range(1000)), [1] * 1000)) == {3}


def test_seeds_of_the_requests_reach_the_sampler() -> None:
    def original(batch: Any, vocab_size: int) -> Any:
        del batch, vocab_size
        return SimpleNamespace(temperatures=torch.ones(2, 1), sampling_seed=None)

    requests = [SimpleNamespace(sampling_params=SimpleNamespace(sampling_seed=seed)) for seed in (7, None)]
    info = sglang_plugin.with_seeds(original, SimpleNamespace(reqs=requests), 100)
    assert info.sampling_seed.tolist() == [7, sglang_plugin.DEFAULT_SEED]


def test_missing_mark_is_an_error_and_a_draw_leaves_one() -> None:
    sglang_plugin.announce_server()
    with pytest.raises(RuntimeError, match="not in force"):
        sglang_plugin.require_marks()
    _draw(torch.zeros(1, 2), [1], [1])
    sglang_plugin.require_marks()
    sglang_plugin.announce_server()
    with pytest.raises(RuntimeError, match="not in force"):
        sglang_plugin.require_marks()


def test_nothing_is_hooked_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sglang_plugin.SEEDING_ENV, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "sglang.srt.plugins.hook_registry", None)
    sglang_plugin.register()
    monkeypatch.setenv(sglang_plugin.SEEDING_ENV, "1")
    with pytest.raises(ImportError):
        sglang_plugin.register()


def _refuse(*args: Any) -> Any:
    raise AssertionError(f"left to SGLang: {len(args)}")


def test_a_row_of_a_layer_does_not_depend_on_the_other_rows() -> None:
    generator = torch.Generator().manual_seed(3)
    layer = torch.nn.Linear(128, 384)
    x = torch.randn(64, 128, generator=generator)
    with torch.no_grad():
        together = sglang_plugin.wide_linear(_refuse, None, layer, x, layer.bias)
        for size in (1, 3, 17):
            part = sglang_plugin.wide_linear(_refuse, None, layer, x[:size], layer.bias)
            assert torch.equal(part, together[:size])
        head = sglang_plugin.wide_lm_head(_refuse, None, x, layer)
        assert torch.equal(sglang_plugin.wide_lm_head(_refuse, None, x[:5], layer), head[:5])
        assert (together - layer(x)).abs().max() < 1e-5
    assert together.dtype == torch.float32


@pytest.mark.parametrize("bias", [True, False])
def test_a_score_does_not_depend_on_the_other_rows(bias: bool) -> None:
    def pool(score_head: Any, pooler: str, states: torch.Tensor, *, batch: str) -> Any:
        assert (pooler, batch) == ("pooler", "batch")
        return score_head(states)

    generator = torch.Generator().manual_seed(3)
    head = torch.nn.Linear(64, 1, bias=bias)
    states = torch.randn(128, 64, generator=generator)
    with torch.no_grad():
        together = sglang_plugin.wide_score(pool, head, "pooler", states, batch="batch")
        for size in (1, 3, 17):
            part = sglang_plugin.wide_score(pool, head, "pooler", states[:size], batch="batch")
            assert torch.equal(part, together[:size])
        assert (together - head(states)).abs().max() < 1e-5
        low = head.to(torch.bfloat16)
        scores = sglang_plugin.wide_score(pool, low, "pooler", states.bfloat16(), batch="batch")
        assert torch.equal(scores, low(states.bfloat16()))


def test_a_score_head_of_several_layers_is_left_to_sglang() -> None:
    head = torch.nn.Sequential(torch.nn.Linear(4, 1))
    assert sglang_plugin.wide_score(lambda given: given, head) is head


def test_other_dtypes_are_left_to_sglang() -> None:
    layer = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
    x = torch.ones(1, 4, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="left to SGLang: 4"):
        sglang_plugin.wide_linear(_refuse, None, layer, x, None)
    with pytest.raises(AssertionError, match="left to SGLang: 4"):
        sglang_plugin.wide_lm_head(_refuse, None, x, layer)
