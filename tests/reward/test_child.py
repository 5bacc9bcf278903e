from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from verl_musa.reward.child import Child, ChildDiedError, ChildError, ChildTimeoutError

BODY = """\
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked == "hang":
        time.sleep(600)
    if asked == "die":
        print("these are the last words", file=sys.stderr)
        sys.exit(7)
    if asked == "killed":
        os.kill(os.getpid(), 9)
    if asked == "noise":
        print("not json", flush=True)
    print(json.dumps({"echo": asked, "pid": os.getpid()}), flush=True)
"""


def start(tmp_path: Path, body: str = BODY, seconds: float = 60) -> Child:
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(body), encoding="utf-8")
    return Child([sys.executable, "-I", str(script)], os.environ, seconds)


def test_it_answers_one_request_after_the_other(tmp_path: Path) -> None:
    child = start(tmp_path)
    try:
        answers = [child.ask({"number": number, "text": "四十二" * 50_000}, 60) for number in range(3)]
    finally:
        child.close()
    assert [answer["echo"]["number"] for answer in answers] == [0, 1, 2]
    assert answers[2]["echo"]["text"] == "四十二" * 50_000
    assert not psutil.pid_exists(answers[0]["pid"])


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    child = start(tmp_path)
    pid = child.ask("hello", 60)["pid"]
    started = time.monotonic()
    with pytest.raises(ChildTimeoutError, match=r"no answer within 0\.3 s"):
        child.ask("hang", 0.3)
    assert time.monotonic() - started < 30
    assert not psutil.pid_exists(pid)
    with pytest.raises(ChildDiedError):
        child.ask("hello", 60)


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [("die", 7, "exit code 7: these are the last words"), ("killed", -9, "SIGKILL")],
)
def test_one_that_dies_is_reported(request_: str, code: int, says: str, tmp_path: Path) -> None:
    child = start(tmp_path)
    with pytest.raises(ChildDiedError, match=says) as caught:
        child.ask(request_, 60)
    assert caught.value.code == code
    child.close()


def test_one_that_says_something_else_is_ended(tmp_path: Path) -> None:
    child = start(tmp_path)
    with pytest.raises(ChildError):
        child.ask("noise", 60)
    child.close()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise SystemExit('cannot start')", "cannot start"),
        ("""print('{"error": "no such module"}', flush=True)""", "no such module"),
        ("import time; time.sleep(600)", "no answer within 1 s"),
    ],
)
def test_one_that_does_not_become_ready(body: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ChildError, match=says):
        start(tmp_path, body, seconds=1 if "sleep" in body else 60)
