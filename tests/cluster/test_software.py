"""What a run on several hosts runs in is what its head runs in, whatever the machine has that starts it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_musa.cluster.agent import MARK, serve
from verl_musa.cluster.fleet import Fleet
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.locking import lock_results
from verl_musa.cluster.software import Software, software_of
from verl_musa.cluster.ssh import Done
from verl_musa.errors import HostError, ImageError
from verl_musa.image import current
from verl_musa.recipe import Site, load_recipe, resolve
from verl_musa.run import RunOptions, lock
from verl_musa.run.directory import RunDirectory

HEAD = Host("node1", "192.0.2.1", head=True)
THERE = {
    "image": {"kind": "image", "sha256": "a" * 64, "packages": {"verl": "0.9.1 0123"}},
    "series": "0123456789abcdef",
    "provenance": {"schema": 1, "kind": "image"},
    "changed": {},
}
TINY = str(Path(__file__).resolve().parents[2] / "recipes" / "qwen3-tiny-dense")


class Answers:
    """A host whose agent answers so."""

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
        self.asked.append((argv[-1], json.loads(stdin)))
        text = b"" if self.answer is None else f"{MARK}{json.dumps(self.answer)}\n".encode()
        return Done(host.name, 255 if self.answer is None else 0, text, "refused", timeout_s)


def test_the_agent_says_what_a_job_would_run_in(monkeypatch: pytest.MonkeyPatch) -> None:
    said = serve("software", '{"extras": []}')
    assert said["image"] == current.image_with(())
    assert said["changed"] == {}
    assert said["provenance"]["content"]

    def touched() -> None:
        raise ImageError("this image is not the one that was built", where="/opt/a.py", found="a.py differs")

    monkeypatch.setattr(current, "require_untouched", touched)
    seen = {"where": "/opt/a.py", "found": "a.py differs"}
    assert serve("software", '{"extras": []}')["changed"] == seen
    assert serve("software", '{"extras": [], "brief": true}') == {"changed": seen}


def test_the_head_is_asked() -> None:
    remote = Answers(THERE)
    found = software_of(Fleet(remote), [HEAD], ["megatron"])
    assert remote.asked == [("software", {"extras": ["megatron"], "brief": False})]
    assert found.items == {"image": THERE["image"], "patches": {"series": "0123456789abcdef"}}
    assert found.changed == {}


def test_a_change_on_any_host_is_seen_and_a_silent_host_is_left_to_preflight() -> None:
    class Hosts(Answers):
        def run(self, host: Host, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Done:
            answers: dict[str, dict[str, Any]] = {
                "node1": THERE,
                "node2": {"changed": {"where": "/opt/a.py", "found": "a.py differs"}},
            }
            self.answer = answers.get(host.name)
            return super().run(host, argv, stdin=stdin, timeout_s=timeout_s)

    hosts = [HEAD, Host("node2", "192.0.2.2"), Host("node3", "192.0.2.3")]
    found = software_of(Fleet(Hosts(None)), hosts, [])
    assert found.changed == {"node2": {"where": "/opt/a.py", "found": "a.py differs"}}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "the host does not answer"),
        ({"image": {}}, "did not say what it runs in"),
        ({"error": {"message": "the agent does not understand what it is asked"}}, "does not understand"),
    ],
)
def test_a_head_that_does_not_say_stops_the_run(answer: dict[str, Any] | None, says: str) -> None:
    with pytest.raises(HostError, match=says) as caught:
        software_of(Fleet(Answers(answer)), [HEAD], [])
    assert caught.value.where == "node1"


def test_an_image_that_somebody_changed_on_the_head_is_refused() -> None:
    seen = {"where": "/opt/a.py", "found": "a.py differs"}
    changed = Software({}, "", {}, {"node1": seen, "node2": seen})
    with pytest.raises(ImageError, match="the image on host node1 and 1 other hosts") as caught:
        lock.refuse_changed_image(RunOptions(recipe="x"), changed)
    assert caught.value.where == "node1: /opt/a.py"
    lock.refuse_changed_image(RunOptions(recipe="x", unlocked=("image=a test",)), changed)


def test_the_head_s_provenance_is_kept_beside_the_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    lock.keep_provenance(run, Software({}, "", {"kind": "image"}, {}))
    assert json.loads(run.provenance.read_text()) == {"kind": "image"}


def test_preflight_holds_the_lock_against_what_the_head_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = resolve(load_recipe(TINY), site=Site(), run_dir=tmp_path / "run", cache=tmp_path)
    entry = {"image": THERE["image"], "patches": {"series": "0123456789abcdef"}}
    others: dict[str, Any] = {
        "conversion": {},
        "model": {},
        "data": {},
        "config": {"sha256": "1", "values": {}},
    }
    monkeypatch.setattr("verl_musa.image.lock.read_entry", lambda _: entry | others)
    monkeypatch.setattr("verl_musa.cluster.preflight.locking.read_entry", lambda _: entry | others)
    parts = {"_conversions": "conversion", "_models": "model", "_data": "data", "_config": "config"}
    for name, item in parts.items():
        monkeypatch.setattr(f"verl_musa.image.lock.{name}", lambda *_, item=item: others[item])
    monkeypatch.delattr("verl_musa.image.lock.current_image")  # this machine's is not asked for
    found = {one.check: one.status.value for one in lock_results(resolved, Site(), Answers(THERE), HEAD)}
    assert set(found.values()) == {"OK"}, found
    silent = lock_results(resolved, Site(), Answers(None), HEAD)
    assert [(one.check, one.status.value) for one in silent] == [("lock.entry", "UNKNOWN")]
