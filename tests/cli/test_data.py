from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_musa.cli import main
from verl_musa.data import prepare_hub


def write(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    return write(
        tmp_path / "sums.jsonl", *({"question": f"{n}+1?", "answer": f"So #### {n + 1}"} for n in range(5))
    )


def test_prepare_check_and_show(sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    val = write(tmp_path / "val.jsonl", {"question": "9+9?", "answer": "#### 18"})
    assert main(["data", "prepare", "gsm8k", "--train", str(sums), "--val", str(val), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert f"{out}/train.parquet (train): 5 rows; the whole data set has 7,473" in said
    assert f"verl-musa data check {out}/train.parquet --val {out}/val.parquet" in said
    assert (
        main(["data", "check", str(out / "train.parquet"), "--val", str(out / "val.parquet"), "--json"]) == 3
    )
    checked = json.loads(capsys.readouterr().out)
    assert checked["counts"] == {"OK": 10, "WARN": 0, "FAIL": 0, "UNKNOWN": 2}
    assert checked["rows"]["data.leakage"]["count"] == 0
    assert main(["data", "show", str(out / "train.parquet"), "--rows", "1"]) == 0
    shown = capsys.readouterr().out
    assert "5 rows; data sources: 5 openai/gsm8k" in shown
    assert '"ground_truth": "1"' in shown
    assert main(["data", "show", str(out / "train.parquet"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 5


def test_what_was_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": "1+1?", "answer": f"#### {n}"} for n in (2, 2, 3)]
    source = write(tmp_path / "s.jsonl", *rows, {"question": "", "answer": "#### 1"})
    command = [
        "data",
        "prepare",
        "gsm8k",
        "--train",
        str(source),
        "--out",
        str(tmp_path / "out"),
        "--skip-bad",
    ]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert (
        "1 rows; 2 duplicates dropped; 1 of them with ANOTHER answer than the first; 1 unusable rows left out"
        in said
    )
    assert "s.jsonl:4: 'question' is empty" in said


def test_a_failed_check_has_exit_code_2(
    sums: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "prepare", "gsm8k", "--train", str(sums), "--out", str(tmp_path / "out")]) == 0
    file = str(tmp_path / "out" / "train.parquet")
    capsys.readouterr()
    assert main(["data", "check", file, "--val", file]) == 2
    assert "data.leakage" in capsys.readouterr().out
    assert main(["data", "check", file, "--val", file, "--json"]) == 2
    (leaked,) = [one for one in json.loads(capsys.readouterr().out)["checks"] if one["status"] == "FAIL"]
    assert leaked["evidence"].startswith("5 of 5 rows: train.parquet:0 is also train.parquet:0; ")


def test_own_data_by_options_and_by_a_mapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "own.jsonl", {"q": "1+1?", "a": 2, "level": "easy"})
    options = ["--prompt", "q", "--truth", "a", "--data-source", "own", "--system", "Add.", "--keep", "level"]
    assert (
        main(
            [
                "data",
                "prepare",
                "custom",
                "--train",
                str(source),
                "--out",
                str(tmp_path / "a"),
                *options,
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["mapping"]["keep"] == ["level"]
    (tmp_path / "m.yaml").write_text(
        "prompt: q\nground_truth: a\ndata_source: own\nsystem: Add.\nkeep: [level]\n"
    )
    mapped = ["--mapping", str(tmp_path / "m.yaml")]
    assert (
        main(["data", "prepare", "custom", "--train", str(source), "--out", str(tmp_path / "b"), *mapped])
        == 0
    )
    rows = [pq.read_table(tmp_path / name / "train.parquet").to_pylist() for name in ("a", "b")]
    assert rows[0] == rows[1]
    assert rows[0][0]["prompt"] == [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1+1?"},
    ]
    assert rows[0][0]["extra_info"]["level"] == "easy"


def test_an_option_changes_what_a_known_data_set_asks(sums: Path, tmp_path: Path) -> None:
    assert (
        main(["data", "prepare", "gsm8k", "--train", str(sums), "--out", str(tmp_path / "o"), "--suffix", ""])
        == 0
    )
    (first, *_) = pq.read_table(tmp_path / "o" / "train.parquet").to_pylist()
    assert first["prompt"][0]["content"] == "0+1?"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prepare", "mnist", "--out", "o"], "no such data set"),
        (["prepare", "gsm8k", "--out", "o", "--hub", "kaggle"], "no such hub"),
        (["prepare", "gsm8k", "--out", "o", "--mapping", "m.yaml"], "--mapping belongs to custom data"),
        (["prepare", "custom", "--train", "t.jsonl", "--out", "o"], "Field required"),
        (
            ["prepare", "custom", "--out", "o", "--prompt", "q", "--truth", "a", "--data-source", "d"],
            "nothing says where",
        ),
        (["prepare", "aime-2024", "--out", "o", "--hub", "modelscope"], "nothing says where the data is"),
        (["check"], "nothing to check"),
        (["show", "missing.parquet"], "no such file"),
    ],
)
def test_mistakes(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "request_"),
    [
        ([], ("huggingface", "openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866")),
        (["--revision", "main"], ("huggingface", "openai/gsm8k", "main")),
        (["--hub", "modelscope"], ("modelscope", "AI-ModelScope/gsm8k", None)),
        (["--repo", "me/copy", "--train", "a.jsonl"], ("huggingface", "me/copy", None)),
    ],
)
def test_what_a_hub_is_asked_for(  # noqa: PLR0917  (fixtures)
    options: list[str],
    request_: tuple[str, str, str | None],
    sums: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[prepare_hub.Request] = []

    def fetch(request: prepare_hub.Request, _: Any) -> list[prepare_hub.Fetched]:
        asked.append(request)
        copies = {name: tmp_path / name.replace("/", "-") for name in request.files}
        for copy in copies.values():
            copy.with_suffix(".jsonl").write_bytes(sums.read_bytes())
        return [
            prepare_hub.Fetched(copy.with_suffix(".jsonl"), f"{request.where}@c/{name}")
            for name, copy in copies.items()
        ]

    monkeypatch.setattr(prepare_hub, "fetch", fetch)
    assert main(["data", "prepare", "gsm8k", "--out", str(tmp_path / "o"), *options, "--json"]) == 0
    assert {(one.hub, one.repository, one.revision) for one in asked} == {request_}
    made = json.loads(capsys.readouterr().out)
    assert made["sources"]["train"][0]["origin"] == f"{request_[0]}:{request_[1]}@c/{asked[0].files[0]}"
    assert set(made["splits"]) == ({"train"} if "--train" in options else {"train", "val"})


def test_the_command_line_stays_light() -> None:
    heavy = "pyarrow, numpy, transformers, datasets, torch, huggingface_hub, requests, pydantic"
    code = f"import sys, verl_musa.cli.data; sys.exit(' '.join(m for m in '{heavy}'.split(', ') if m in sys.modules) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_recipe_s_own_data(make_recipe: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_recipe()
    row = {"data_source": "sums", "reward_model": {"style": "rule", "ground_truth": "2"}}
    for split, question in (("train", "1+1?"), ("val", "2+0?")):
        rows = [{**row, "prompt": [{"role": "user", "content": question}]}]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
    assert main(["data", "check", "--recipe", str(folder), "--json"]) == 3
    checked = json.loads(capsys.readouterr().out)
    statuses = {check["check"]: check["status"] for check in checked["checks"]}
    assert statuses.pop("data.length") == "UNKNOWN"  # there is no model folder
    assert set(statuses.values()) == {"OK"}
    assert main(["data", "check", "--recipe", str(folder), "--no-reward", "--json"]) == 3
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert next(check for check in checks if check["check"] == "data.reward")["status"] == "UNKNOWN"
