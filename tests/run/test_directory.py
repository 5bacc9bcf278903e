from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_musa.errors import RunError
from verl_musa.run.directory import RunDirectory, find_run, new_run_id


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = {new_run_id() for _ in range(20)}
    assert len(ids) == 20
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", name) for name in ids)


def test_a_directory_is_made_once(run: RunDirectory) -> None:
    assert run.proofs.is_dir()
    assert run.checkpoints.is_dir()
    with pytest.raises(RunError, match="cannot be made"):
        run.create()


def test_a_run_is_found_by_path_id_or_unique_prefix(tmp_path: Path) -> None:
    for name in ("20260101T000000Z-aaaaaa", "20260101T000000Z-bbbbbb", "20260202T000000Z-cccccc"):
        (tmp_path / "r" / name).mkdir(parents=True)
        (tmp_path / "r" / name / "run.json").write_text("{}")
    found = find_run(tmp_path, "r", "202602")
    assert found.path.name == "20260202T000000Z-cccccc"
    assert find_run(tmp_path, "r", "20260101T000000Z-aaaaaa").path.name.endswith("aaaaaa")
    assert find_run(tmp_path / "elsewhere", "r", str(found.path)) == found
    with pytest.raises(RunError, match="several runs begin with '202601'") as caught:
        find_run(tmp_path, "r", "202601")
    assert "aaaaaa" in str(caught.value)
    assert "cccccc" not in str(caught.value)
    with pytest.raises(RunError, match="no run begins with 'x'"):
        find_run(tmp_path, "r", "x")
    with pytest.raises(RunError, match="no run of this recipe"):
        find_run(tmp_path, "other", "x")
