"""The Hugging Face process: its answers are those of the same computation made here, and it fails with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("transformers")

import torch

from verl_musa.device import gate_hf

TEMPLATE = (
    "{%- for message in messages -%}<{{ message['role'] }}>{{ message['content'] }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<bot>{%- endif -%}"
)
IDS = [1, 5, 7, 3, 9, 2]
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with a word-level tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    path = tmp_path_factory.mktemp("model")
    words = ["<eos>", "a", "b", "<user>", "<bot>", "c", "<", ">", "user", "bot", "<unk>"]
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=12,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            tie_word_embeddings=False,
            eos_token_id=0,
        )
    )
    model.generation_config = GenerationConfig(eos_token_id=[0, 2])
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reference(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[gate_hf.Reference]:
    log = tmp_path_factory.mktemp("logs") / "reference.log"
    with gate_hf.Reference(folder, trust=False, override={}, log=log) as process:
        yield process


def test_log_probabilities_are_the_models(folder: Path, reference: gate_hf.Reference) -> None:
    from transformers import AutoModelForCausalLM

    found = reference.ask(
        "logprobs",
        timeout_s=LIMIT_S,
        sequences=[{"ids": IDS, "start": 2}],
        temperature=0.5,
        dtypes=["bfloat16", "float32"],
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([IDS])).logits[0, 1:-1] / 0.5
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(IDS[2:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found["float32"][0]), expected, rtol=0, atol=1e-5)
    assert found["bfloat16"][0] != found["float32"][0]
    assert len(found["bfloat16"][0]) == len(IDS) - 2


def test_prompts_are_rendered_with_the_models_own_template(reference: gate_hf.Reference) -> None:
    chats = [[{"role": "user", "content": "a b"}]]
    found = reference.ask("prompts", timeout_s=LIMIT_S, messages=chats, kwargs={})
    assert found["generation"] == [found["ids"][0][-len(found["generation"][0]) :]]
    assert len(found["generation"][0]) > 0


def test_the_head_and_the_ends_are_told(reference: gate_hf.Reference) -> None:
    assert reference.ask("head", timeout_s=LIMIT_S) == {"tied": False, "folder": "own", "eos": [0, 2]}


def test_a_request_that_fails_gives_its_reason_and_the_process_goes_on(reference: gate_hf.Reference) -> None:
    with pytest.raises(gate_hf.ReferenceFailedError, match="unknown op 'typo'"):
        reference.ask("typo", timeout_s=LIMIT_S)
    assert reference.ask("head", timeout_s=LIMIT_S)["tied"] is False


def test_a_process_that_ends_or_is_slow_is_an_error(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "reference.log"
    with gate_hf.Reference(folder, trust=False, override={}, log=log) as process:
        with pytest.raises(gate_hf.ReferenceFailedError, match="did not answer within 0 s"):
            process.ask("head", timeout_s=0.0)
        process._process.kill()
        process._process.wait()
        with pytest.raises(gate_hf.ReferenceFailedError, match="ended"):
            process.ask("head", timeout_s=LIMIT_S)


def test_nothing_of_the_job_reaches_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VERL_MUSA_PATCHES", "VERL_PLATFORM", "PYTHONPATH", "VERL_MUSA_RUN_ID"):
        monkeypatch.setenv(name, "x")
    kept = gate_hf.environment()
    assert kept["VERL_MUSA_RUN_ID"] == "x"
    assert kept["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert not {"VERL_MUSA_PATCHES", "VERL_PLATFORM", "PYTHONPATH"} & kept.keys()


@pytest.mark.parametrize(("dtype", "factor"), [("bfloat16", 2), ("float32", 1)])
def test_a_model_that_does_not_fit_is_left_out(
    tmp_path: Path, dtype: str, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    (tmp_path / "config.json").write_text(json.dumps({"dtype": dtype}))
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1000)
    assert gate_hf.needed_bytes(tmp_path) == 1000 * factor
    free = SimpleNamespace(available=1900 * factor)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert "GiB of host memory are free" in gate_hf.too_large(tmp_path)
    free.available = 2000 * factor
    assert gate_hf.too_large(tmp_path) == ""
