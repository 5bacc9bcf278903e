from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa.checks import Status
from verl_musa.errors import ImageError
from verl_musa.image.engine import Engine, StepFailedError, find_engine, run_logged
from verl_musa.image.inside import verify_image


def client(folder: Path, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "docker"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


OLD = 'case "$*" in *Server*) echo 20.10.24;; *Client*) echo 20.10.24;; *) exit 1;; esac'
NEW_WITHOUT = 'case "$*" in *Server*) echo 20.10.24;; *Client*) echo 28.2.2;; *) exit 1;; esac'
NEW_WITH = (
    'case "$*" in *Server*) echo 28.2.2;; *Client*) echo 28.2.2;; "buildx version") exit 0;; *) exit 1;; esac'
)
DEAD = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(OLD, DEAD, ("one", "buildkit")), (NEW_WITHOUT, OLD, ("two", "buildkit")), (NEW_WITHOUT, DEAD, ("one", "legacy")),
     (NEW_WITH, OLD, ("one", "buildkit"))],
)  # fmt: skip
def test_the_client_that_can_do_most_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, expected: tuple[str, str]
) -> None:
    client(tmp_path / "one", first)
    client(tmp_path / "two", second)
    monkeypatch.delenv("VERL_MUSA_DOCKER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'one'}:{tmp_path / 'two'}:/bin")
    if (Path("/bin") / "docker").exists():
        monkeypatch.setattr("verl_musa.image.engine._clients", lambda: [str(tmp_path / n / "docker") for n in ("one", "two")])  # fmt: skip
    found = find_engine()
    assert (Path(found.command).parent.name, found.builder) == expected


def test_no_engine_is_named_with_what_each_client_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_MUSA_DOCKER", str(client(tmp_path, DEAD)))
    with pytest.raises(ImageError, match="no Docker Engine answers") as caught:
        find_engine()
    assert "Cannot connect" in str(caught.value)


def test_a_failed_step_is_named_and_its_log_kept(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(StepFailedError, match="step 'build' failed") as caught:
        run_logged(["sh", "-c", "echo first; echo wrong >&2; exit 3"], tmp_path / "log", what="build", limit=30, each=lines.append)  # fmt: skip
    assert lines == ["first", "wrong"]
    assert "exit 3" in caught.value.message
    assert "wrong" in str(caught.value)
    assert "wrong" in (tmp_path / "log").read_text()


def test_a_step_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with pytest.raises(StepFailedError):
        run_logged(["sleep", "60"], tmp_path / "log", what="build", limit=0.2)


def test_an_image_that_gives_no_answer_is_no_good_image(tmp_path: Path) -> None:
    command = client(tmp_path, "echo broken >&2; exit 1")
    results = verify_image(Engine(str(command), "0", "legacy"), "image")
    assert [result.status for result in results] == [Status.FAIL, Status.FAIL]
    assert "broken" in results[1].evidence
