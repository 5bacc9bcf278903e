"""What is wrong with a text: bytes that are no UTF-8, characters that belong in no prompt, text that was decoded by the wrong code page."""

from __future__ import annotations

import re

HARD = frozenset({"NUL", "half of a surrogate pair", "not UTF-8"})
"""Faults that break a reader or a tokenizer; the others only look wrong."""

_CONTROL = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# UTF-8 read as Windows-1252: a first byte of a character, then its continuation bytes. Not the multiplication sign, 0xD7, which
# stands before a degree sign in good text.
_CONTINUATION = "".join(
    bytes([byte]).decode("cp1252", errors="ignore") or chr(byte) for byte in range(0x80, 0xC0)
)
_AS_LATIN = re.compile(f"[\u00c2-\u00d6\u00d8-\u00f4][{re.escape(_CONTINUATION)}]+")
_HANZI = re.compile(r"[\u3400-\u9fff\ue000-\uf8ff]{3,}")
# What decoders leave behind: U+FFFD written as UTF-8 and read as GBK, and fresh memory of a debug build.
_MARKS = ("锟斤拷", "烫烫烫", "屯屯屯")


def text_fault(text: str) -> tuple[str, str] | None:
    """The first fault of ``text`` as (kind, what was seen); None where there is none."""
    if "\0" in text:
        return "NUL", _around(text, text.index("\0"))
    control = _CONTROL.search(text)
    if control:
        return "control character", f"U+{ord(control.group()):04X} in {_around(text, control.start())}"
    if text.isascii():
        return None
    return _not_ascii(text)


def _not_ascii(text: str) -> tuple[str, str] | None:
    half = _SURROGATE.search(text)
    if half:
        return "half of a surrogate pair", f"U+{ord(half.group()):04X}"
    for character, kind in (("\ufeff", "byte order mark"), ("\ufffd", "replacement character U+FFFD")):
        if character in text:
            return kind, _around(text, text.index(character))
    return _wrong_code_page(text)


def _wrong_code_page(text: str) -> tuple[str, str] | None:
    for match in _AS_LATIN.finditer(text):
        meant = _decoded(match.group(), "cp1252")
        if meant:
            return "mojibake", f"{match.group()!r} for {meant!r}, UTF-8 read as Windows-1252"
    for mark in _MARKS:
        if mark in text:
            return "mojibake", _around(text, text.index(mark))
    for match in _HANZI.finditer(text):
        meant = _decoded(match.group(), "gbk") or _decoded(match.group()[:-1], "gbk")
        if meant and sum("\u4e00" <= character <= "\u9fff" for character in meant) * 2 > len(meant):
            return "mojibake", f"{match.group()[:12]!r} for {meant[:12]!r}, UTF-8 read as GBK"
    return None


def _decoded(text: str, page: str) -> str:
    """``text`` as it was meant, had it been UTF-8 read as ``page``; empty where it cannot have been."""
    try:
        raw = b"".join(
            character.encode("latin-1")
            if page == "cp1252" and "\x80" <= character <= "\x9f"
            else character.encode(page)
            for character in text
        )
        return raw.decode("utf-8")
    except UnicodeError:
        return ""


def _around(text: str, place: int) -> str:
    return repr(text[max(0, place - 12) : place + 12])
