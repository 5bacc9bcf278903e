from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_musa.checks import Status
from verl_musa.data import reward
from verl_musa.data.subject import Subject

Look = Callable[..., Subject]
HEAD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n"


def write(folder: Path, text: str) -> None:
    (folder / "reward.py").write_text(text, encoding="utf-8")


def test_all_right(look: Look) -> None:
    subject = look()
    assert reward.check_file(subject).status is Status.OK
    finding = reward.check_scores(subject)
    assert (finding.status, finding.evidence) == (Status.OK, "18 calls on 6 rows, scores from 0 to 1")


@pytest.mark.parametrize(
    ("text", "evidence", "line"),
    [
        (
            "def other(): ...\nclass Thing: ...\n",
            "no function 'compute_score' in it; it defines Thing, other",
            None,
        ),
        ("", "it defines nothing", None),
        ("x = 1\ndef compute_score(:\n", "syntax error", 2),
        ("\0", "null bytes", None),
    ],
)
def test_file(text: str, evidence: str, line: int | None, folder: Path, look: Look) -> None:
    write(folder, text)
    finding = reward.check_file(look())
    assert finding.status is Status.FAIL
    assert evidence in finding.evidence
    assert finding.where == f"{folder}/reward.py" + (f":{line}" if line else "")


@pytest.mark.parametrize("text", ["from math import sqrt as compute_score\n", "compute_score = len\n"])
def test_function_may_be_bound_otherwise(text: str, folder: Path, look: Look) -> None:
    write(folder, text)
    assert reward.check_file(look()).status is Status.OK


def test_no_reward(folder: Path, look: Look) -> None:
    recipe = folder / "recipe.yaml"
    kept = [
        line for line in recipe.read_text(encoding="utf-8").splitlines() if not line.startswith("reward:")
    ]
    recipe.write_text("\n".join(kept), encoding="utf-8")
    subject = look()
    assert reward.check_file(subject).status is Status.UNKNOWN
    assert reward.check_scores(subject).status is Status.UNKNOWN


def test_missing_file(look: Look) -> None:
    subject = look("reward.custom_reward_function.path=/nowhere/r.py")
    finding = reward.check_file(subject)
    assert (finding.status, "No such file" in finding.evidence) == (Status.FAIL, True)
    assert reward.check_scores(subject).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("body", "evidence", "line"),
    [
        ("    return {}['x']\n", "KeyError: 'x' for data_source 'sums'", 2),
        (
            "    helper()\ndef helper():\n    raise ValueError('bad data')\n",
            "ValueError: bad data for data_source",
            4,
        ),
        ("    return None\n", "returned None, not a number", None),
        ("    return '1.0'\n", "returned '1.0', not a number", None),
        ("    return [1]\n", "not a number", None),
        ("    return {'acc': 1}\n", "a dict without 'score', with acc", None),
        ("    return float('nan')\n", "not a finite number", None),
        ("    import os; os._exit(7)\n", "ended its process with code 7", None),
        ("    raise SystemExit(0)\n", "SystemExit: 0", 2),
        ("    import json\n    return json.loads(solution_str)\n", "JSONDecodeError", 3),
    ],
)
def test_scores(body: str, evidence: str, line: int | None, folder: Path, look: Look) -> None:
    write(folder, HEAD + body)
    finding = reward.check_scores(look())
    assert finding.status is Status.FAIL
    assert evidence in finding.evidence
    assert finding.where == f"{folder}/reward.py" + (f":{line}" if line else "")
    assert finding.fix


def test_import_error(folder: Path, look: Look) -> None:
    write(folder, "import no_such_module_here\n" + HEAD + "    return 1\n")
    finding = reward.check_scores(look())
    assert "No module named 'no_such_module_here' on import" in finding.evidence
    assert finding.where == f"{folder}/reward.py:1"


def test_a_hang_names_its_line(folder: Path, look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward, "PROBE_SECONDS", 1.0)
    write(folder, HEAD + "    import time\n    while True:\n        time.sleep(1)\n")
    finding = reward.check_scores(look())
    assert finding.status is Status.FAIL
    assert "did not return within 1 s" in finding.evidence
    assert finding.where in {f"{folder}/reward.py:3", f"{folder}/reward.py:4"}


@pytest.mark.parametrize(
    "body",
    [
        "    print('noise on stdout')\n    return True\n",
        "    return {'score': 0.5, 'note': object()}\n",
        "    return extra_info['index'] if 'rollout_reward_scores' in extra_info else None\n",
    ],
)
def test_what_verl_takes_too(body: str, folder: Path, look: Look) -> None:
    write(folder, HEAD + body)
    assert reward.check_scores(look()).status is Status.OK


def test_async_function(folder: Path, look: Look) -> None:
    write(folder, "async " + HEAD + "    return 1\n")
    assert reward.check_scores(look()).status is Status.OK


def test_keyword_arguments_of_the_config(folder: Path, look: Look) -> None:
    write(folder, HEAD + "    return kwargs['scale']\n")
    assert reward.check_scores(look()).status is Status.FAIL
    finding = reward.check_scores(look("+reward.custom_reward_function.reward_kwargs={scale: 3}"))
    assert finding.evidence.endswith("scores from 3 to 3")


def test_each_data_source_is_tried(folder: Path, look: Look) -> None:
    rows = [
        {
            "data_source": "sums" if index < 90 else "products",
            "prompt": [{"role": "user", "content": "x"}],
            "reward_model": {"ground_truth": "1"},
        }
        for index in range(100)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    write(folder, HEAD + "    assert data_source == 'sums'\n    return 1\n")
    finding = reward.check_scores(look())
    assert "AssertionError:  for data_source 'products'" in finding.evidence


def test_unreadable_rows(folder: Path, look: Look) -> None:
    (folder / "train.parquet").unlink()
    assert reward.check_scores(look()).status is Status.UNKNOWN


ASKS = """\
import json
import urllib.request


def ask(address, route):
    request = urllib.request.Request(f"http://{address}{route}", data=b"{}", headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())
"""
JUDGED = ("reward.reward_model.enable=true", "reward.reward_model.rollout.name=sglang")


@pytest.mark.parametrize(
    ("route", "value"),
    [
        ("/v1/embeddings", "answer['data'][-1]['embedding'][-1] + 1"),
        ("/classify", "answer['data'][-1]['probs'][-1] + 0.5"),
        ("/v1/chat/completions", "float(answer['choices'][0]['message']['content']) + 1"),
        ("/v1/completions", "float(answer['choices'][0]['text']) + 1"),
    ],
)
def test_a_reward_model_is_stood_in_for(route: str, value: str, folder: Path, look: Look) -> None:
    body = f"    answer = ask(kwargs['reward_router_address'], {route!r})\n    return {value}\n"
    write(folder, ASKS + "\n\n" + HEAD + body)
    finding = reward.check_scores(look(*JUDGED))
    assert finding.status is Status.OK
    assert finding.evidence.endswith("scores from 1 to 1, with a stand-in for the reward model")
    assert "KeyError: 'reward_router_address'" in reward.check_scores(look()).evidence


def test_an_unknown_route_of_the_stand_in_is_the_functions_error(folder: Path, look: Look) -> None:
    write(folder, ASKS + "\n\n" + HEAD + "    return ask(kwargs['reward_router_address'], '/nowhere')\n")
    finding = reward.check_scores(look(*JUDGED))
    assert finding.status is Status.FAIL
    assert "HTTP Error 404" in finding.evidence


def test_the_stand_in_tokenizer_puts_a_chat_into_words(folder: Path, look: Look) -> None:
    body = (
        "    chat = [{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': 'a'}]\n"
        "    text = kwargs['reward_model_tokenizer'].apply_chat_template(chat, tokenize=False)\n"
        "    return 7 if text == 'user: q\\nassistant: a\\n' else None\n"
    )
    write(folder, HEAD + body)
    assert reward.check_scores(look(*JUDGED)).evidence.startswith("18 calls on 6 rows, scores from 7 to 7")
