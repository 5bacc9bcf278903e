from __future__ import annotations

import calendar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_musa.diagnose.triage_text import LONGEST_SHOWN, Stamp, Who, find_stamp, shown, split_prefixes

NOW = calendar.timegm((2026, 11, 29, 13, 3, 5))


@pytest.mark.parametrize(
    ("text", "seconds", "zone"),
    [
        ("2026-11-29 13:03:05,250\tINFO worker.py:1 -- x", NOW + 0.25, None),
        ("[2026-11-29 13:03:05,188 W 79 79] rpc_client.h:153: x", NOW + 0.188, None),
        ("[2026-11-29 13:03:05 DP0 TP1] Decode batch", NOW, None),
        ("2026-11-29T13:03:05.5+08:00 x", NOW + 0.5, 28800),
        ("2026-11-29T13:03:05Z x", NOW, 0),
        ("2026-11-29 13:03:05 -0330 x", NOW, -12600),
        ("[E1129 13:03:05.123456789 ProcessGroupNCCL.cpp:616] x", NOW + 0.123456789, None),
        ("[Sun Nov 29 13:03:05 2026] Out of memory", NOW, None),
        ("Nov 29 13:03:05 node3 kernel: x", NOW, None),
        ("INFO 11-29 13:03:05 [core.py:3] x", NOW, None),
        ("13:03:05.5 x", NOW + 0.5, None),
        ("INFO:2026-11-29 13:03:05,000:Platform override", NOW, None),
    ],
)
def test_time_stamps_of_many_forms(text: str, seconds: float, zone: int | None) -> None:
    stamp = find_stamp(text, float(NOW))
    assert stamp is not None
    assert stamp.seconds == pytest.approx(seconds, abs=1e-5)
    assert stamp.zone == zone


@pytest.mark.parametrize(
    "text",
    [
        "no time at all",
        "192.0.2.1:6379 and 2026-13-45 99:99:99",
        "13:03 short",
        "x" * 300 + " 2026-11-29 13:03:05",
    ],
)
def test_what_is_no_time_stamp(text: str) -> None:
    assert find_stamp(text, float(NOW)) is None


def test_a_stamp_without_a_date_goes_past_midnight_and_needs_one_before() -> None:
    before = float(calendar.timegm((2026, 11, 29, 23, 59, 58)))
    assert find_stamp("00:00:03 x", before) == Stamp(before + 5)
    assert find_stamp("23:59:59 x", before) == Stamp(before + 1)
    assert find_stamp("00:00:03 x", None) is None


def test_a_stamp_without_a_year_takes_the_nearest() -> None:
    january = float(calendar.timegm((2027, 1, 1, 0, 0, 9)))
    found = find_stamp("Dec 31 23:59:59 h kernel: x", january)
    assert found == Stamp(january - 10)
    december = float(calendar.timegm((2026, 12, 31, 23, 59, 59)))
    assert find_stamp("I0101 00:00:09.000000 x", december) == Stamp(december + 10)
    assert find_stamp("Dec 31 23:59:59 h kernel: x", None) is None


@pytest.mark.parametrize(
    ("text", "rest", "who", "repeated"),
    [
        ("(WorkerDict pid=12, ip=192.0.2.2) hello", "hello", Who("192.0.2.2", "WorkerDict", "12"), 1),
        ("(create.<locals>.WorkerDict pid=12) hello", "hello", Who("", "WorkerDict", "12"), 1),
        ("(raylet, ip=192.0.2.3) hello", "hello", Who("192.0.2.3", "raylet"), 1),
        ("[rank3]: hello", "hello", Who(rank="3"), 1),
        ("(WorkerDict pid=12) [rank3]: hello", "hello", Who("", "WorkerDict", "12", "3"), 1),
        ("(A pid=1) hi [repeated 7x across cluster] (Ray deduplicates logs)", "hi", Who("", "A", "1"), 7),
        (
            "[2026-11-29 13:03:05 DP0 TP1] hi",
            "[2026-11-29 13:03:05 DP0 TP1] hi",
            Who("", "SGLang scheduler", "", "DP0 TP1"),
            1,
        ),
        ("(not a process) hello", "(not a process) hello", Who(), 1),
    ],
)
def test_prefixes(text: str, rest: str, who: Who, repeated: int) -> None:
    line = split_prefixes(text)
    assert (line.text, line.who, line.repeated) == (rest, who, repeated)


def test_who_is_completed_only_by_the_same_process() -> None:
    assert Who(pid="1").over(Who("h", "raylet", "1", "0")) == Who("h", "raylet", "1", "0")
    assert Who(pid="1").over(Who("h", "raylet", "2", "0")) == Who("h", "", "1", "")
    assert str(Who("h", "raylet", "2", "0")) == "host h, raylet, pid 2, rank 0"
    assert str(Who()) == "not named in the logs"


def test_nothing_that_a_terminal_would_obey_is_shown() -> None:
    hostile = b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link \x9b31m \xc2\x9b1m \xff\xfe\x00 \xe2\x80\xae \r\b\x7f \x1b[2J\x1b(0 end"
    text = shown(hostile)
    assert text.startswith("red link")
    assert text.endswith("end")
    assert all(char.isprintable() for char in text)


def test_long_lines_are_cut() -> None:
    assert shown(b"x" * 10_000_000) == "x" * LONGEST_SHOWN + "…"
    assert len(shown("\u4e2d" * 5000, 100)) == 101


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_whatever_comes_is_printable(raw: bytes) -> None:
    assert all(char.isprintable() for char in shown(raw))


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_line_breaks_the_readers(text: str) -> None:
    line = split_prefixes(text)
    assert len(line.text) <= len(text)
    stamp = find_stamp(text, float(NOW))
    assert stamp is None or stamp.seconds >= 0
