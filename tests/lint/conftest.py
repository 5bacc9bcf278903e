from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LETTERS = string.ascii_letters + string.digits


def _token(prefix: str, length: int, letters: str = LETTERS) -> str:
    digest = hashlib.sha512(f"{prefix}{length}".encode()).digest()
    return prefix + "".join(letters[byte % len(letters)] for byte in digest[:length])


TOKENS = {
    "HF": _token("hf" + "_", 34),
    "AWS": _token("AK" + "IA", 16, string.ascii_uppercase + string.digits),
    "HEX40": _token("", 40, "0123456789abcdef"),
    "PASSWORD": _token("", 12),
}


@dataclass(frozen=True)
class Member:
    """One file of an archive: its name, the findings it is to have, and its text."""

    name: str
    expected: tuple[str, ...]
    text: str


def read_archive(name: str) -> list[Member]:
    parts = re.split(r"(?m)^== (\S+) ==(.*)\n", (HERE / f"{name}.txtar").read_text(encoding="utf-8"))[1:]
    members = []
    for file, expected, text in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
        filled = re.sub(r"\{(\w+)\}", lambda found: TOKENS.get(found[1], found[0]), text)
        members.append(Member(file, tuple(expected.split()), filled))
    return members


def unpack(members: list[Member], root: Path) -> Path:
    for member in members:
        path = root / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(member.text, encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def archive() -> Callable[[str], list[Member]]:
    return read_archive


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Member]]:
    """Unpack an archive into the working directory."""

    def make(name: str) -> list[Member]:
        members = read_archive(name)
        monkeypatch.chdir(unpack(members, tmp_path))
        return members

    return make
