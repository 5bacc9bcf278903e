"""The recipe qwen3-tiny-ppo: its reward, with a server that answers as SGLang does, and the assets that its script makes."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "qwen3-tiny-ppo"
SOURCE = "qwen3-tiny-ppo/addition"
SEED = 17
QUESTION = {"split": "train", "index": 3, "question": "17 + 25 = ?", "num_turns": 2}


def load(name: str) -> ModuleType:
    """Import one of the recipe's scripts by path, as verl does."""
    spec = importlib.util.spec_from_file_location(f"qwen3_tiny_ppo_{name}", RECIPE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


reward = load("reward")
make_assets = load("make_assets")


# --- reward.py


class Tokenizer:
    def apply_chat_template(self, chat: list[dict[str, str]], *, tokenize: bool) -> str:
        assert tokenize is False
        return "|".join(f"{message['role']}:{message['content']}" for message in chat)


class Server(ThreadingHTTPServer):
    """Answers with what ``answers`` holds, one after another, the last for ever: (status, JSON text)."""

    answers: list[tuple[int, str]]
    asked: list[dict[str, Any]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append({"path": self.path, **json.loads(body)})
        answers = self.server.answers
        status, text = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def embedding(*values: float) -> tuple[int, str]:
    return 200, json.dumps({"data": [{"embedding": list(values)}]})


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.answers, made.asked = [embedding(0.0)], []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join(timeout=10)
    made.server_close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_seconds: float) -> None:
        """Wait for nothing between two attempts."""

    monkeypatch.setattr(reward.asyncio, "sleep", at_once)


def score(server: Server, text: str, truth: Any = "42", **changes: Any) -> dict[str, float]:
    """Call the function as verl 0.9.1's naive reward manager does."""
    call = {
        "data_source": SOURCE,
        "solution_str": text,
        "ground_truth": truth,
        "extra_info": {**QUESTION, "rollout_reward_scores": {}},
        "reward_router_address": f"127.0.0.1:{server.server_address[1]}",
        "reward_model_tokenizer": Tokenizer(),
        **changes,
    }
    result: dict[str, float] = asyncio.run(reward.compute_score(**call))
    return result


@pytest.mark.parametrize(
    ("text", "logit", "expected"),
    [
        ("42", 0.0, (1.0, 0.5, 1.0)),
        (" 42\n", 100.0, (1.0, 1.0, 1.0)),
        ("43", 0.0, (0.0, 0.5, 1.0)),
        ("43", -1000.0, (0.0, 0.0, 1.0)),
        ("", 0.0, (0.0, 0.5, 0.0)),
        ("The answer is 42", 0.0, (0.0, 0.5, 0.0)),
        ("042", 0.0, (0.0, 0.5, 0.0)),
        ("\u0664\u0662", 0.0, (0.0, 0.5, 0.0)),  # 42 in Arabic-Indic digits
        ("9" * 10_000 + "x", 0.0, (0.0, 0.5, 0.0)),
    ],
)
def test_score_is_seven_parts_rule_and_three_parts_model(
    text: str, logit: float, expected: tuple[float, float, float], server: Server
) -> None:
    rule, model, parsed = expected
    server.answers = [embedding(logit)]
    assert score(server, text) == {
        "score": pytest.approx(0.7 * rule + 0.3 * model),
        "acc": rule,
        "parsed": parsed,
        "rule_score": rule,
        "model_score": pytest.approx(model),
    }


def test_the_weights_come_from_the_configuration(server: Server) -> None:
    assert score(server, "42", rule_weight=0.25, model_weight=0.5)["score"] == pytest.approx(0.5)


def test_the_model_is_asked_for_the_chat_in_its_own_form(server: Server) -> None:
    score(server, "42")
    text = "user:17 + 25 = ?|assistant:42"
    assert server.asked == [{"path": "/v1/embeddings", "model": "reward", "input": text}]


def test_a_model_that_vllm_serves_is_asked_as_a_classifier(server: Server) -> None:
    server.answers = [
        (200, json.dumps({"data": [{"index": 0, "label": None, "probs": [0.0], "num_classes": 1}]}))
    ]
    assert score(server, "42", engine="vllm")["model_score"] == 0.5
    text = "user:17 + 25 = ?|assistant:42"
    assert server.asked == [{"path": "/classify", "use_activation": False, "input": text}]


def test_an_answer_of_the_other_engine_is_refused(server: Server) -> None:
    with pytest.raises(ValueError, match=r"expected one number in data\[-1\]\.probs"):
        score(server, "42", engine="vllm")


def test_a_server_in_trouble_is_asked_again(server: Server) -> None:
    server.answers = [(503, "{}"), embedding(0.0)]
    assert score(server, "42")["score"] == pytest.approx(0.85)
    assert len(server.asked) == 2


def test_a_server_that_never_answers_is_an_error(server: Server) -> None:
    server.answers = [(500, '{"error": "out of memory"}')]
    with pytest.raises(RuntimeError, match=r"3 requests to .* failed, the last with HTTP 500.*out of memory"):
        score(server, "42")
    assert len(server.asked) == 3


def test_no_server_is_an_error(server: Server) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(RuntimeError, match=r"3 requests to .* failed, the last with Client"):
        score(server, "42")


@pytest.mark.parametrize(
    "answer", ['{"data": []}', '{"data": [{"embedding": []}]}', '{"data": [{"embedding": [1, 2]}]}', "[]", '{"data": [{"embedding": ["x"]}]}']
)  # fmt: skip
def test_another_kind_of_model_is_refused_at_once(answer: str, server: Server) -> None:
    server.answers = [(200, answer)]
    with pytest.raises(ValueError, match="serve a sequence classifier with one label"):
        score(server, "42")
    assert len(server.asked) == 1


def test_a_logit_that_is_no_number_is_refused(server: Server) -> None:
    server.answers = [(200, '{"data": [{"embedding": [NaN]}]}')]
    with pytest.raises(ValueError, match="found nan from the reward model"):
        score(server, "42")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data_source": "openai/gsm8k"},
            "found data_source 'openai/gsm8k', expected 'qwen3-tiny-ppo/addition'",
        ),
        ({"truth": 42}, "expected a whole number as text"),
        ({"truth": "forty-two"}, "expected a whole number as text"),
        ({"extra_info": None}, "found no extra_info.question"),
        ({"extra_info": {"question": ""}}, "found no extra_info.question"),
        ({"reward_router_address": None}, "verl passed no reward model"),
        ({"reward_model_tokenizer": None}, "verl passed no reward model"),
        ({"engine": "trtllm"}, "found engine 'trtllm', expected sglang or vllm"),
    ],
)
def test_what_does_not_belong_to_this_reward_is_refused(
    changes: dict[str, Any], message: str, server: Server
) -> None:
    with pytest.raises(ValueError, match=message):
        score(server, "42", **changes)
    assert server.asked == []


def test_probabilities_of_any_logit() -> None:
    assert reward.probability(0.0) == 0.5
    assert (reward.probability(1e6), reward.probability(-1e6)) == (1.0, 0.0)
    assert reward.probability(2.0) + reward.probability(-2.0) == pytest.approx(1.0)


def test_verl_sees_a_coroutine_through_its_wrapper() -> None:
    # verl 0.9.1 binds reward_kwargs with functools.partial and awaits what inspect calls a coroutine function.
    assert asyncio.iscoroutinefunction(reward.compute_score)


# --- make_assets.py, without its heavy libraries


GOOD = {
    "skill": {"sampled": 0.93},
    "careless": {"sampled": 0.14},
    "judge": {"right_accuracy": 0.95, "wrong_accuracy": 0.9},
}


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("skill", "sampled", 0.5, "val score 0.500 after phase 1"),
        ("careless", "sampled", 0.01, "0.010 after phase 2"),
        ("careless", "sampled", 0.6, "0.600 after phase 2"),
        ("judge", "right_accuracy", 0.7, "judges 0.700 of right and 0.900 of wrong"),
        ("judge", "wrong_accuracy", 0.1, "judges 0.950 of right and 0.100 of wrong"),
    ],
)
def test_models_that_rl_could_not_use_are_refused(part: str, key: str, value: float, message: str) -> None:
    make_assets.require_learnable(GOOD, SEED)
    with pytest.raises(make_assets.publish.AssetError, match=rf"seed 17: .*{message}.* use another seed"):
        make_assets.require_learnable({**GOOD, part: {**GOOD[part], key: value}}, SEED)


def test_a_folder_with_files_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    assert make_assets.main(["--out", str(tmp_path), "--seed", "1"]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


# --- make_assets.py, for real but hardly trained


def make(folder: Path) -> None:
    """Run the script twice at once with few steps; leaves folder/first, folder/second and, last, folder/log."""
    command = [
        sys.executable,
        "-P",
        str(RECIPE / "make_assets.py"),
        "--seed",
        str(SEED),
        "--pretrain-steps",
        "2",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            [*command, "--out", str(folder / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for name in ("first", "second")
    ]
    try:
        outputs = [job.communicate(timeout=400)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    log = "\n".join(f"exit {job.returncode}\n{text}" for job, text in zip(jobs, outputs, strict=True))
    (folder / "log.tmp").write_text(log)
    (folder / "log.tmp").rename(folder / "log")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``make``, made once for all xdist workers: the script's imports are its main cost here."""
    pytest.importorskip("transformers", reason="the models are made with transformers")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "qwen3-tiny-ppo"
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + 500
        while not (folder / "log").exists():
            assert time.monotonic() < deadline, f"{folder}: the worker that makes the assets didn't finish"
            time.sleep(0.2)
    else:
        make(folder)
    log = (folder / "log").read_text()
    assert log.count("exit 0\n") == 2, log
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    found: dict[str, Any] = load_file(folder / "model.safetensors")
    return found


def test_the_same_seed_gives_the_same_bytes(made: Path) -> None:
    first, second = contents(made / "first"), contents(made / "second")
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []
    weights = {f"{name}/model.safetensors" for name in ("model", "critic", "reward_model")}
    assert {"train.parquet", "val.parquet", "manifest.json", *weights} <= set(first)
    assert sorted(path.name for path in made.iterdir()) == ["first", "log", "second"]


def test_progress_and_the_judges_accuracy_are_shown(made: Path) -> None:
    log = (made / "log").read_text()
    assert "[make_assets] judge step 2/2 loss" in log
    assert "[make_assets] reward model on val problems: right_accuracy" in log


def test_the_manifest_names_every_file_with_its_hash(made: Path) -> None:
    files = contents(made / "first")
    manifest = json.loads(files.pop("manifest.json"))
    assert (manifest["recipe"], manifest["seed"]) == ("qwen3-tiny-ppo", SEED)
    assert (manifest["pretraining"]["skill_steps"], manifest["judging"]["steps"]) == (2, 2)
    assert set(manifest["measured"]) == {"skill", "careless", "judge"}
    assert manifest["files"] == {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in sorted(files.items())
    }


@pytest.mark.parametrize(("split", "count"), [("train", 2048), ("val", 256)])
def test_the_rows_carry_the_question_for_the_reward_model(made: Path, split: str, count: int) -> None:
    rows = pq.read_table(made / "first" / f"{split}.parquet").to_pylist()
    assert len(rows) == count
    for index, row in enumerate(rows):
        assert row["data_source"] == SOURCE
        assert row["extra_info"] == {"split": split, "index": index, "question": row["prompt"][0]["content"]}
        a, _, b, *_ = row["prompt"][0]["content"].split(" ")
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(int(a) + int(b))}


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("model", "Qwen3ForCausalLM"),
        ("critic", "Qwen3ForTokenClassification"),
        ("reward_model", "Qwen3ForSequenceClassification"),
    ],
)
def test_each_role_has_its_architecture_and_the_same_tokenizer(
    made: Path, name: str, architecture: str
) -> None:
    folder = made / "first" / name
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == ([architecture], "float32")
    assert (folder / "tokenizer.json").read_bytes() == (made / "first/model/tokenizer.json").read_bytes()
    if name != "model":
        assert len(config["id2label"]) == 1


def test_the_critic_is_the_policy_with_a_head_of_zeros(made: Path) -> None:
    policy, critic = tensors(made / "first" / "model"), tensors(made / "first" / "critic")
    assert {name for name in critic if not name.startswith("model.")} == {"score.weight", "score.bias"}
    assert critic["score.weight"].shape == (1, 64)
    assert not critic["score.weight"].any()
    assert not critic["score.bias"].any()
    for name in policy.keys() - {"lm_head.weight"}:
        assert (policy[name] == critic[name]).all(), name


def test_the_reward_model_has_all_of_sglangs_head(made: Path) -> None:
    found = tensors(made / "first" / "reward_model")
    assert found["score.weight"].shape == (1, 64)
    assert found["score.bias"].tolist() == [0.0]
    assert "model.layers.3.mlp.down_proj.weight" in found


def test_the_judge_is_taught_on_the_text_that_the_reward_function_sends(made: Path) -> None:
    from transformers import AutoTokenizer

    from verl_musa.data.toy import models, sums

    tokenizer = AutoTokenizer.from_pretrained(made / "first" / "reward_model")
    problem = sums.Problem(17, 25)
    pairs = [(problem, answer) for answer in ("42", "41", "4", "")]
    ids, labels, last = models.judged_ids(tokenizer, pairs)
    for row, (_, answer), end in zip(ids, pairs, last.tolist(), strict=True):
        text = reward.judged_text(tokenizer, problem.question, answer)
        assert row[: end + 1].tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert set(row[end + 1 :].tolist()) <= {tokenizer.pad_token_id}
    marks = [[int(mark) for mark in row if mark >= 0] for row in labels.tolist()]
    # One mark for each digit, which may still become right, and two for the end of the answer.
    assert marks == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0], [0, 0]]


def test_wrong_answers_are_wrong() -> None:
    from verl_musa.data.toy import models, sums

    rng = sums.stream(SEED, "test")
    for problem in sums.split_problems(SEED)[1]:
        for _ in range(20):
            assert models.wrong_answer(problem, rng) != problem.answer
