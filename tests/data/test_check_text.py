# ruff: noqa: RUF001 - characters that look alike are what is tested
from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa.data.check_text import HARD, text_fault

SHARED = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a\0b", "NUL"),
        ("a\x1bb", "control character"),
        ("a\x85b", "control character"),
        ("\ufeffa", "byte order mark"),
        ("caf\ufffd", "replacement character U+FFFD"),
        ("half \ud83d", "half of a surrogate pair"),
        ("Janet’s".encode().decode("cp1252"), "mojibake"),
        ("café".encode().decode("latin-1"), "mojibake"),
        ("costs 5 €".encode().decode("cp1252"), "mojibake"),
        ("小明有十七个苹果".encode().decode("gbk", errors="replace").replace("\ufffd", ""), "mojibake"),
        ("题目：求和".encode().decode("cp1252", errors="ignore"), "mojibake"),
        ("锟斤拷", "mojibake"),
    ],
)
def test_faults(text: str, kind: str) -> None:
    found = text_fault(text)
    assert found is not None
    assert found[0] == kind
    assert found[1]
    assert (kind in HARD) is (kind in {"NUL", "half of a surrogate pair"})


@pytest.mark.parametrize(
    "text",
    [
        "", "plain\ttext\r\n", "Janet’s ducks — “eggs” cost 5 €", "café, naïve, Ångström, São Paulo", "x² + y³ ≤ ½ · π", "90×° ÷ 2", "À «bientôt»", "ÄÖÜäöüß", "№ 5 – §3",
        "小明有 17 个苹果，又买了 25 个，一共有多少个？", "已知函数在区间上单调递增，求实数的取值范围。", "联通", "龍門飛甲與臥虎藏龍", "鑫淼焱垚犇羴猋骉麤", "さくら、サクラ、桜", "한국어 문제", "😀 𝑥 + 𝑦",
    ],
)  # fmt: skip
def test_good_text(text: str) -> None:
    assert text_fault(text) is None


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data/gsm8k is not here")
def test_gsm8k_is_good_text() -> None:
    lines = (SHARED / "train-1500.jsonl").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if text_fault(line)] == []
