"""The recipe qwen3-tiny-dense: its reward and the assets that its script makes."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.recipes.conftest import SEED, contents, load_script, made_twice, run_script
from verl_musa.data.toy import models
from verl_musa.data.toy.publish import AssetError

SOURCE = "qwen3-tiny-dense/addition"


reward = load_script("qwen3-tiny-dense", "reward")
make_assets = load_script("qwen3-tiny-dense", "make_assets")


# --- reward.py


@pytest.mark.parametrize("text", ["42", " 42", "42\n", "\t42 \r\n"])
def test_the_right_number_earns_one(text: str) -> None:
    assert reward.compute_score(SOURCE, text, "42") == {"score": 1.0, "acc": 1.0, "parsed": 1.0}


@pytest.mark.parametrize("text", ["43", "-42", "4", "2", "420", "0", "142"])
def test_a_wrong_number_earns_nothing_but_is_parsed(text: str) -> None:
    assert reward.compute_score(SOURCE, text, "42") == {"score": 0.0, "acc": 0.0, "parsed": 1.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n",
        "forty-two",
        "42.",
        "42.0",
        "4.2e1",
        "+42",
        "042",
        "0x2a",
        "4 2",
        "42 42",
        "42 43",
        "41 or 42",
        "42\n42",
        "= 42",
        "The answer is 42",
        "42!",
        "--42",
        "- 42",
        "4,2",
        "42\x00",
        "\u00a042",  # a no-break space is not a blank here
        "\u0664\u0662",  # 42 in Arabic-Indic digits
        "\uff14\uff12",  # 42 in full-width digits
        "42\ufffd",
        "4\u00b2",
        "<|im_start|>42",
        "9" * 10_000 + "x",
    ],
)
def test_anything_but_one_number_is_malformed(text: str) -> None:
    assert reward.compute_score(SOURCE, text, "42") == {"score": 0.0, "acc": 0.0, "parsed": 0.0}


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("-7", "-7", 1.0),
        ("7", "-7", 0.0),
        ("-7", "7", 0.0),
        ("0", "0", 1.0),
        ("-0", "0", 0.0),
        ("00", "0", 0.0),
        ("9" * 5000, "9" * 5000, 1.0),  # longer than Python's int() takes
    ],
)
def test_signs_zero_and_very_long_numbers(text: str, truth: str, score: float) -> None:
    assert reward.compute_score(SOURCE, text, truth)["score"] == score


def test_no_text_makes_the_reward_fail() -> None:
    rng = random.Random(0)  # noqa: S311
    alphabet = "0123456789+-. \n\t\x00\ud800\U0001f600<|>eE_"
    for _ in range(3000):
        text = "".join(rng.choices(alphabet, k=rng.randrange(12)))
        result = reward.compute_score(SOURCE, text, "42")
        assert set(result) == {"score", "acc", "parsed"}
        assert result["score"] == float(text.strip(" \t\r\n") == "42")


def test_the_reward_is_called_as_verl_calls_it() -> None:
    result = reward.compute_score(
        data_source=SOURCE,
        solution_str="42",
        ground_truth="42",
        extra_info={"split": "train", "index": 3, "num_turns": 2, "rollout_reward_scores": {}},
        reward_router_address="unused",
    )
    assert result["score"] == 1.0


def test_data_of_another_source_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"found data_source 'openai/gsm8k', expected 'qwen3-tiny-dense/addition'"
    ):
        reward.compute_score("openai/gsm8k", "42", "42")


@pytest.mark.parametrize("truth", [42, None, "", "forty-two", "42 43"])
def test_a_ground_truth_that_is_no_number_is_refused(truth: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number as text"):
        reward.compute_score(SOURCE, "42", truth)


# --- make_assets.py, without its heavy libraries


def test_a_folder_with_files_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    assert make_assets.main(["--out", str(tmp_path), "--seed", "1"]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


@pytest.mark.parametrize(("skill", "base"), [(0.5, 0.15), (0.95, 0.01), (0.95, 0.6)])
def test_a_base_model_that_rl_cannot_improve_is_refused(skill: float, base: float) -> None:
    good = {"skill": {"sampled": 0.93}, "careless": {"sampled": 0.14}}
    models.require_learnable(good, SEED)
    with pytest.raises(AssetError, match=r"seed 17: found val score .* use another seed"):
        models.require_learnable({"skill": {"sampled": skill}, "careless": {"sampled": base}}, SEED)


# --- make_assets.py, for real but hardly trained


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_twice("qwen3-tiny-dense", tmp_path_factory)


def test_the_same_seed_gives_the_same_bytes(made: Path) -> None:
    first, second = contents(made / "first"), contents(made / "second")
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []
    assert {"train.parquet", "val.parquet", "manifest.json", "model/model.safetensors"} <= set(first)


def test_nothing_is_left_beside_and_progress_is_shown(made: Path) -> None:
    assert sorted(path.name for path in made.iterdir()) == ["first", "log", "second"]
    log = (made / "log").read_text()
    assert "[make_assets] skill step 2/2 loss" in log
    assert "[make_assets] after careless: val score" in log


def test_all_files_are_readable_by_other_users(made: Path) -> None:
    assert [p for p in (made / "first").rglob("*") if p.stat().st_mode & 0o044 != 0o044] == []


def test_the_manifest_names_every_file_with_its_hash(made: Path) -> None:
    files = contents(made / "first")
    manifest = json.loads(files.pop("manifest.json"))
    assert manifest["seed"] == SEED
    assert manifest["pretraining"]["skill_steps"] == 2
    assert set(manifest["versions"]) >= {"python", "torch", "transformers", "tokenizers"}
    assert manifest["files"] == {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in sorted(files.items())
    }


@pytest.mark.parametrize(("split", "count"), [("train", 2048), ("val", 256)])
def test_the_parquet_files_have_verls_form(made: Path, split: str, count: int) -> None:
    rows = pq.read_table(made / "first" / f"{split}.parquet").to_pylist()
    assert len(rows) == count
    for index, row in enumerate(rows):
        assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
        assert row["extra_info"] == {"split": split, "index": index, "question": row["prompt"][0]["content"]}
        assert row["reward_model"]["style"] == "rule"
        (message,) = row["prompt"]
        assert message["role"] == "user"
        a, plus, b, *rest = message["content"].split(" ")
        assert (plus, rest) == ("+", ["=", "?"])
        truth = row["reward_model"]["ground_truth"]
        assert truth == str(int(a) + int(b))
        assert reward.compute_score(row["data_source"], truth, truth)["score"] == 1.0


def test_no_val_problem_is_in_train(made: Path) -> None:
    train, val = (
        {
            row["prompt"][0]["content"]
            for row in pq.read_table(made / "first" / f"{split}.parquet").to_pylist()
        }
        for split in ("train", "val")
    )
    assert len(train) == 2048
    assert not train & val


@pytest.fixture(scope="module")
def tokenizer(made: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(made / "first" / "model")


def test_the_chat_template_makes_the_prompt_and_survives_a_round_trip(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "17 + 25 = ?"}]
    text = "<|im_start|>user\n17 + 25 = ?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == text
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert tokenizer.decode(ids) == text
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    answered = [*chat, {"role": "assistant", "content": "42"}]
    assert tokenizer.apply_chat_template(answered, tokenize=False) == text + "42<|im_end|>\n"


def test_prompts_and_answers_fit_the_lengths_of_the_recipe(tokenizer: Any, made: Path) -> None:
    for split in ("train", "val"):
        for row in pq.read_table(made / "first" / f"{split}.parquet").to_pylist():
            ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
            assert len(ids) <= 32
            assert len(tokenizer(row["reward_model"]["ground_truth"])["input_ids"]) <= 15


@pytest.mark.parametrize(
    "text", ["42<|im_end|>", "-7", "  two  spaces ", "\u4f60\u597d \U0001f600", "a'b\n\n"]
)
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_and_roles_are_tokens_and_special_tokens_are_dropped_in_decoding(tokenizer: Any) -> None:
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    assert [tokenizer.tokenize(role) for role in ("user", "assistant")] == [["user"], ["assistant"]]
    ids = [*tokenizer("42")["input_ids"], tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "42"


def test_the_vocabulary_of_model_and_tokenizer_are_one(tokenizer: Any, made: Path) -> None:
    from safetensors import safe_open

    config = json.loads((made / "first" / "model" / "config.json").read_text())
    assert config["vocab_size"] == len(tokenizer)
    assert len(tokenizer) % 2 == 0
    with safe_open(made / "first" / "model" / "model.safetensors", framework="numpy") as tensors:
        assert tensors.get_slice("model.embed_tokens.weight").get_shape()[0] == len(tokenizer)
        assert tensors.get_slice("lm_head.weight").get_shape()[0] == len(tokenizer)
        assert "model.layers.1.self_attn.q_norm.weight" in tensors.keys()  # noqa: SIM118 - not a mapping
    special = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    assert len({*special.values(), None}) == 4
    for name in ("config.json", "generation_config.json"):
        written = json.loads((made / "first" / "model" / name).read_text())
        assert {key: written[f"{key}_token_id"] for key in special} == special


def test_the_model_is_a_qwen3_of_the_real_architecture(made: Path) -> None:
    config = json.loads((made / "first" / "model" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["num_attention_heads"] > config["num_key_value_heads"] > 1
    assert config["head_dim"] != config["hidden_size"] // config["num_attention_heads"]
    assert config["dtype"] == "float32"


@pytest.mark.integration
def test_the_real_assets_start_low_and_know_the_task(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the model is made with transformers")
    job = run_script("qwen3-tiny-dense", tmp_path / "assets")
    try:
        output = job.communicate(timeout=900)[0]
    finally:
        job.kill()
    assert job.returncode == 0, output
    rewards = json.loads((tmp_path / "assets" / "manifest.json").read_text())["measured"]
    assert rewards["skill"]["sampled"] > 0.85
    assert 0.05 < rewards["careless"]["sampled"] < 0.25
