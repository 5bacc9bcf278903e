"""The documents name every check, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_musa.cluster.preflight import check_ids
from verl_musa.cluster.preflight.afterwards import LOOKS_AT
from verl_musa.cluster.site_check import CHECKS

DOCS = Path(__file__).parents[3] / "docs"
ID = re.compile(r"`((?:site|host|net|ray|path|version|device|lock)\.[a-z-]+)`")
FIELDS = {"site.yaml", "site.example"}


@pytest.mark.parametrize("name", ["preflight.md", "preflight.zh-CN.md"])
def test_documents_and_code_name_the_same_checks(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    told = {
        found
        for line in text.splitlines()
        if line.startswith("| `")
        for found in ID.findall(line.split("|")[1])
    }
    known = {*check_ids(), *LOOKS_AT, "site.schema", "site.hosts", *(check.name for check in CHECKS)}
    assert told == known
    assert set(ID.findall(text)) - FIELDS <= known


def test_no_id_means_two_things() -> None:
    ids = [*check_ids(), *LOOKS_AT]
    assert len(ids) == len(set(ids))
