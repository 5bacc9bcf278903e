from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from verl_musa.cluster import node_state
from verl_musa.cluster.node_state import NodeState, NodeStates
from verl_musa.errors import HostError


def state(cluster: str = "c1", **changes: object) -> NodeState:
    values: dict[str, object] = {
        "cluster": cluster,
        "owner": "me@here",
        "host": "node1",
        "address": "198.51.100.11",
        "head": True,
        "temp_dir": "t",
        "ports": {"port": 6379},
        "num_gpus": 1,
        "created": 1.0,
    }
    return NodeState(**{**values, **changes})  # type: ignore[arg-type]


def test_a_state_is_kept_and_forgotten(tmp_path: Path) -> None:
    states = NodeStates(tmp_path / "states")
    assert states.load("c1") is None
    states.save(state())
    states.save(state("c2"))
    assert states.load("c1") == state()
    assert [one.cluster for one in states.all()] == ["c1", "c2"]
    states.log("c1").write_text("x")
    states.forget("c1")
    assert states.load("c1") is None
    assert not states.log("c1").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 99}', '{"schema": 1, "cluster": "c1"}'])
def test_a_file_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    states = NodeStates(tmp_path / "states")
    (states.folder / "c1.json").write_text(text)
    assert states.load("c1") is None
    assert states.all() == []


def test_only_the_very_process_counts_as_alive() -> None:
    me = psutil.Process()
    assert state(pid=me.pid, started=me.create_time()).alive
    assert not state(pid=me.pid, started=me.create_time() - 100).alive
    assert not state().alive


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    with pytest.raises(HostError, match="can be changed by others"):
        NodeStates(folder)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "states").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostError, match="can be changed by others"):
        NodeStates(tmp_path / "states")


def test_the_lock_is_waited_for_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_state, "LOCK_S", 0.2)
    states = NodeStates(tmp_path / "states")
    with states.locked(), pytest.raises(HostError, match="busy"), NodeStates(tmp_path / "states").locked():
        pass
    with states.locked():
        assert (states.folder / "lock").exists()
