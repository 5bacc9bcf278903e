from __future__ import annotations

import json
from pathlib import Path

from verl_musa.run.events import EventDisplay, EventReader, last_attempt


def test_what_is_told_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert list(reader.new()) == []
    display = EventDisplay(path)
    display.note("a\nb")
    display.phase("waiting")
    display.phase("waiting")
    display.step(3, 10, {"critic/score/mean": 0.5})
    display.close()
    found = [(event["kind"], event.get("text"), event.get("step")) for event in reader.new()]
    assert found == [("note", "a\nb", None), ("phase", "waiting", None), ("step", None, 3)]
    assert list(reader.new()) == []


def test_half_a_line_waits_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    path.write_text('no json\n[1]\n{"kind": "note", "te')
    assert list(reader.new()) == []
    with path.open("a") as stream:
        stream.write('xt": "x"}\n')
    assert [event["text"] for event in reader.new()] == ["x"]


def test_the_last_attempt_is_found_whatever_notes_say(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert last_attempt(path) == 0
    display = EventDisplay(path)
    for number in (1, 2):
        display.event("attempt", number=number)
        display.note('"kind": "attempt"')
    first, *_ = EventReader(path, last_attempt(path)).new()
    assert first["number"] == 2
    assert json.loads(path.read_text().splitlines()[0])["number"] == 1
