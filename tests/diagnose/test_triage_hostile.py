"""Logs that nobody means well with, or that are only very large."""

from __future__ import annotations

import gzip
import io
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from verl_musa.diagnose.triage import triage_paths, triage_run
from verl_musa.diagnose.triage_card import Card, Verdict, card_lines, markdown, render
from verl_musa.diagnose.triage_read import BLOCK, LONGEST_LINE, blocks
from verl_musa.diagnose.triage_sources import RunFacts
from verl_musa.errors import RunError

OOM = b"torch.OutOfMemoryError: MUSA out of memory. Tried to allocate 2.00 GiB"


def look(path: Path, raw: bytes) -> Card:
    path.write_bytes(raw)
    return triage_paths([path])


def test_an_error_amid_binary_garbage_is_found(tmp_path: Path) -> None:
    noise = random.Random(3).randbytes(3 * BLOCK)  # noqa: S311  (noise, no secret)
    card = look(tmp_path / "x.log", noise + b"\n" + OOM + b"\n" + noise)
    assert "musa.out-of-memory" in {card.rule, *(one.rule for one in card.others)}


def test_an_error_in_a_line_of_ten_megabytes_is_found_and_cut(tmp_path: Path) -> None:
    raw = (
        b"one\ntwo\n"
        + b"a" * 6_000_000
        + b" "
        + OOM
        + b" "
        + b"b" * 4_000_000
        + b"\nlast\n"
        + b"Too many open files\n"
    )
    card = look(tmp_path / "x.log", raw)
    assert card.rule == "musa.out-of-memory"
    assert card.evidence[0].line == 3
    assert len(card.evidence[0].text) < 700
    assert [one.place for one in card.others] == ["x.log:5"]


@pytest.mark.parametrize("distance", range(-3, 4))
def test_an_error_at_the_edge_of_a_block_is_found_at_its_line(distance: int, tmp_path: Path) -> None:
    line = b"y" * 63 + b"\n"
    head = line * (BLOCK // 64 - 1) + b"z" * (63 - len(OOM) // 2 + distance) + b"\n"
    card = look(tmp_path / "x.log", head + OOM + b"\n" + line)
    assert (card.rule, card.evidence[0].line) == ("musa.out-of-memory", BLOCK // 64 + 1)


def test_every_line_is_in_one_block() -> None:
    raw = b"".join(b"%d " % number + b"x" * (number % 977) + b"\n" for number in range(20_000)) + b"no end"
    found = list(blocks(io.BytesIO(raw)))
    assert b"".join(block.data for block in found) == raw
    assert [block.line for block in found] == [raw[: block.offset].count(b"\n") + 1 for block in found]


def test_a_line_above_the_limit_comes_in_pieces_of_one_number() -> None:
    found = list(blocks(io.BytesIO(b"a\n" + b"x" * (3 * LONGEST_LINE) + b"\nb\n")))
    assert [block.line for block in found][:2] == [1, 2]
    assert max(len(block.data) for block in found) <= LONGEST_LINE + BLOCK


@pytest.mark.parametrize(
    "raw",
    [
        b"(" * 200_000 + b"\n",
        b"Traceback (most recent call last):\n" * 20_000,
        b"\x1b[" * 300_000 + b"Error\n",
        b"\x1b]" + b"x" * 500_000 + b" Error\n",
        (b"(" + b"A" * 159 + b" pid=1, ip=" + b"1" * 64) * 3000 + b" Error\n",
        b"2026-11-29 13:03:05" * 30_000 + b" ERROR\n",
        b"Error: " + b"a." * 200_000 + b"\n",
        b"ray::" * 100_000 + b"() (pid=1, ip=1\n",
        b"Watchdog caught collective operation timeout: WorkMCCL(SeqNum=" * 20_000,
        b"'host=" * 100_000 + b"', port=1): Failed to establish a new connection: [Errno 111]\n",
        b" is not accepted: " * 50_000,
        b"ERROR " + b"0" * 400_000 + b"\n" * 50_000,
    ],
    ids=range(12),
)
def test_no_input_takes_long(raw: bytes, tmp_path: Path) -> None:
    begin = time.process_time()
    card = look(tmp_path / "x.log", raw)
    assert (
        time.process_time() - begin < 8.0
    )  # each is below a second on an idle machine; a catastrophe would be hours
    assert card.files == 1


def test_what_a_log_says_never_reaches_the_terminal_raw(tmp_path: Path) -> None:
    raw = (
        b"\x1b]0;evil\x07\x1b[2J[bold red]ValueError[/]: \x1b[31m [link=http://x]pwn[/link] \xe2\x80\xae\x9b2J ```` \r\n"
        b"[/]ValueError: [/nope] \x1b[5m\n"
    )
    card = look(tmp_path / "x\x1b[31m.log", raw + b"[bold]" + OOM + b"[/bold]\x1b[0m\n")
    out = io.StringIO()
    render(card, Console(file=out, width=100))
    assert "\x1b" not in out.getvalue()
    assert "[bold]torch.OutOfMemoryError" in out.getvalue()
    assert all(char.isprintable() for _, text in card_lines(card) for char in text)
    report = "\n".join(markdown(look(tmp_path / "y.log", b"ValueError: ```` # title\n")))
    assert report.count("`````") == 2
    assert "# title" in report


def test_gzip_is_read_and_a_broken_one_to_where_it_breaks(tmp_path: Path) -> None:
    whole = gzip.compress(b"fine\n" + OOM + b"\n" + os.urandom(200_000))
    assert look(tmp_path / "x.log.gz", whole).rule == "musa.out-of-memory"
    card = look(tmp_path / "x.log.gz", whole[:150_000])
    assert card.rule == "musa.out-of-memory"
    assert any("x.log.gz: broken after line" in note for note in card.notes)
    assert look(tmp_path / "y.gz", b"\x1f\x8bnonsense").notes


def test_nothing_is_followed_out_of_a_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.log").write_bytes(OOM)
    inside = tmp_path / "run"
    (inside / "logs").mkdir(parents=True)
    (inside / "logs" / "link.log").symlink_to(outside / "secret.log")
    (inside / "logs" / "folder").symlink_to(outside)
    os.mkfifo(inside / "logs" / "pipe.log")
    (inside / "logs" / "weights.safetensors").write_bytes(OOM)
    card = triage_paths([inside])
    assert (card.verdict, card.files) == (Verdict.CLEAN, 0)


def test_a_run_whose_logs_are_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.log").write_bytes(OOM)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "outside")
    assert triage_run(RunFacts(tmp_path / "run", "r", "h", "running")).files == 0


def test_a_pipe_by_name_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    assert triage_paths([tmp_path / "pipe.log"]).notes == ("pipe.log: not a plain file",)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such run, file or folder"):
        triage_paths([tmp_path / "nothing"])


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    line = b"2026-11-29 13:03:05,188\tINFO step:%d - actor/loss:0.25 - some words to fill a line up to a usual length\n"
    with log.open("wb") as stream:
        for start in range(0, 400_000, 4000):
            stream.write(b"".join(line % number for number in range(start, start + 4000)))
            stream.write(
                b"".join(
                    b"ValueError: %d is another number every time %x\n" % (n, n * 7919)
                    for n in range(start, start + 40)
                )
            )
    script = (
        "import resource, sys; from pathlib import Path; from verl_musa.diagnose.triage import triage_paths\n"
        "triage_paths([]); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "card = triage_paths([Path(sys.argv[1])]); assert card.rule == 'UNKNOWN', card\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(log)], capture_output=True, text=True, timeout=300, check=True
    )
    assert log.stat().st_size > 40_000_000
    assert int(done.stdout) < 24 * 1024  # KiB


PIECES = [
    "an ordinary line",
    "",
    "2026-11-29 13:03:05,000 INFO step 1",
    "Traceback (most recent call last):",
    '  File "/x.py", line 3, in f',
    "    g(x)",
    "ValueError: odd",
    "(A pid=1, ip=h1) Traceback (most recent call last):",
    '(A pid=1, ip=h1)   File "/y.py", line 9, in g',
    "(A pid=1, ip=h1) OSError: [Errno 28] No space left on device",
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
    "ray.exceptions.RayTaskError(OSError): ray::W.f() (pid=7, ip=h2, actor_id=1)",
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "2026-11-29 13:03:04,000 ERROR x.py:1 -- something failed",
    "Fatal Python error: Segmentation fault",
    "Get timed out: some object(s) not ready.",
    "Using address 192.0.2.1:6379 set in the environment variable RAY_ADDRESS",
    "Job submission server address: http://192.0.2.2:8265",
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_evidence_stands_where_the_card_says(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "x.log")
        log.write_text("\n".join(lines))
        card = triage_paths([log])
    assert (card.verdict is Verdict.CLEAN) == (not card.evidence)
    for one in card.evidence:
        assert lines[one.line - 1].endswith(one.text.partition("\n")[0])
    assert [one.line for one in card.evidence if one.file != "x.log"] == []
    fatal = any("No space left" in line or "Fatal" in line for line in lines)
    assert not (fatal and card.verdict is Verdict.CLEAN)
