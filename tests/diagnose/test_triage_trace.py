from __future__ import annotations

from verl_musa.diagnose.triage_text import NOBODY
from verl_musa.diagnose.triage_trace import MOST_NOISE, Fed, Trace

CHAIN = """\
Traceback (most recent call last):
  File "/a.py", line 1, in connect
    sock.connect(sa)
    ^^^^^^^^^^^^^^^^
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/b.py", line 2, in request
    raise Refused() from error
b.Refused: nobody there

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/c.py", line 3, in main
    raise ConnectionError("no Ray")
ConnectionError: no Ray"""

REMOTE = """\
Traceback (most recent call last):
  File "/driver.py", line 1, in <module>
    ray.get(x)
ray.exceptions.RayTaskError(OSError): ray::Outer.run() (pid=11, ip=192.0.2.1, actor_id=1, repr=<x>)
           ^^^^^^^^
  File "/outer.py", line 2, in run
    ray.get(y)
ray.exceptions.RayTaskError(OSError): ray::create.<locals>.Inner.read() (pid=22, ip=192.0.2.2, actor_id=2, repr=<y>)
  File "/inner.py", line 3, in read
    open(path)
OSError: [Errno 5] Input/output error: '/data/x'"""


def read(text: str) -> tuple[Trace, list[Fed]]:
    first, *rest = text.split("\n")
    trace = Trace.opened_by(1, first, NOBODY, None)
    assert trace is not None
    return trace, [trace.feed(number, line) for number, line in enumerate(rest, 2)]


def test_a_chain_is_read_from_its_cause() -> None:
    trace, fed = read(CHAIN)
    assert set(fed) == {Fed.TAKEN}
    assert [one.name for one in trace.from_cause()] == [
        "ConnectionRefusedError",
        "b.Refused",
        "ConnectionError",
    ]
    assert [one.during for one in trace.from_cause()] == [False, False, True]
    assert trace.from_cause()[0].frames[-1] == (3, "    sock.connect(sa)")
    assert trace.feed(99, "an ordinary line") is Fed.ENDED


def test_tasks_inside_tasks_lead_to_the_innermost_process() -> None:
    trace, _ = read(REMOTE)
    cause, *wrappers = trace.from_cause()
    assert cause.text == "OSError: [Errno 5] Input/output error: '/data/x'"
    assert (cause.who.host, cause.who.pid, cause.who.process) == ("192.0.2.2", "22", "Inner.read")
    assert [one.wrapper for one in wrappers] == [True, True]


def test_an_unhandled_task_error_needs_no_header() -> None:
    text = 'Unhandled error (suppress with X): ray::W.f() (pid=7, ip=192.0.2.9, repr=<w>)\n  File "/w.py", line 3, in f\n    assert a < b\nAssertionError'
    trace, _ = read(text)
    (cause,) = trace.from_cause()
    assert cause.who.host == "192.0.2.9"
    assert "assert a < b" in cause.searched


def test_lines_of_others_in_between_are_not_taken() -> None:
    first, *rest = CHAIN.split("\n")
    trace = Trace.opened_by(1, first, NOBODY, None)
    assert trace is not None
    trace.feed(2, rest[0])
    assert trace.feed(3, "2026-11-29 13:02:47,151 INFO scripts.py:1231 -- Local node IP") is Fed.NOT_MINE
    assert trace.feed(4, "KeyError: 'x'") is Fed.TAKEN
    assert trace.from_cause()[0].name == "KeyError"


def test_others_do_not_keep_it_open_for_ever() -> None:
    trace, _ = read('Traceback (most recent call last):\n  File "/x.py", line 1, in f')
    fed = [trace.feed(number, "step 1") for number in range(3, MOST_NOISE + 10)]
    assert fed.count(Fed.NOT_MINE) == MOST_NOISE
    assert fed[-1] is Fed.ENDED
    assert trace.from_cause() == []


def test_a_message_of_several_lines_is_kept_whole() -> None:
    trace, _ = read(
        'Traceback (most recent call last):\n  File "/x.py", line 1, in f\n    raise E\nRuntimeError: Version mismatch:\n    Ray: 2.58.0\n'
        "This process on node 192.0.2.3 was started with:\n    Ray: 2.57.0"
    )
    assert trace.chain[0].text.split("\n") == [
        "RuntimeError: Version mismatch:", "    Ray: 2.58.0", "This process on node 192.0.2.3 was started with:", "    Ray: 2.57.0",
    ]  # fmt: skip


def test_a_group_of_exceptions_shows_the_ones_in_it() -> None:
    text = """\
  + Exception Group Traceback (most recent call last):
  |   File "/x.py", line 1, in f
  |     raise g
  | ExceptionGroup: several (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/y.py", line 2, in g
    |     raise e
    | ValueError: inner
    +------------------------------------"""
    trace, _ = read(text)
    assert "ExceptionGroup" in [one.name for one in trace.from_cause()]


def test_what_opens_no_traceback() -> None:
    assert Trace.opened_by(1, "ValueError: alone", NOBODY, None) is None
