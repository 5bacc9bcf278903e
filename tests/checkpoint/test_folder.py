from __future__ import annotations

from pathlib import Path

import pytest

from verl_musa.checkpoint.folder import PartialFolder
from verl_musa.errors import CheckpointError


def opened(tmp_path: Path, *, resume: bool = False, plan: str = "a") -> PartialFolder:
    folder = PartialFolder(tmp_path / "out", {"plan": plan})
    folder.open(resume=resume)
    return folder


def finish_unit(folder: PartialFolder, unit: int) -> None:
    (folder.path / f"{unit}.bin").write_bytes(b"data")
    folder.record(unit, f"{unit}.bin", note="kept")


def test_it_appears_whole(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    finish_unit(folder, 0)
    assert not folder.output.exists()
    folder.commit()
    assert [path.name for path in folder.output.iterdir()] == ["0.bin"]
    assert not folder.path.exists()


def test_an_empty_output_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    folder = opened(tmp_path)
    finish_unit(folder, 0)
    folder.commit()
    assert (tmp_path / "out" / "0.bin").is_file()


def test_what_is_done_is_known_again(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    finish_unit(folder, 3)
    folder.close()
    again = opened(tmp_path, resume=True)
    assert again.done() == {3: {"unit": 3, "file": "3.bin", "bytes": 4, "note": "kept"}}
    (again.path / "3.bin").write_bytes(b"dat")
    assert again.done() == {}


def test_without_a_finished_part_it_starts_over(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    # As if it was killed while its journal was being removed: nothing may look whole while it is written anew.
    (folder.path / "metadata.json").write_text("{}", encoding="utf-8")
    (folder.path / "huggingface").mkdir()
    folder.close()
    again = opened(tmp_path, plan="b")
    assert sorted(path.name for path in again.path.iterdir()) == [
        "conversion.lock",
        "conversion.partial.json",
    ]
    again.close()


def test_a_part_of_another_plan_is_not_used(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    finish_unit(folder, 0)
    folder.close()
    with pytest.raises(CheckpointError, match="--resume"):
        opened(tmp_path)
    with pytest.raises(CheckpointError, match="other plan"):
        opened(tmp_path, resume=True, plan="b")
    opened(tmp_path, resume=True).close()


def test_one_at_a_time(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    with pytest.raises(CheckpointError, match="another conversion writes"):
        opened(tmp_path, resume=True)
    with folder.writing():
        pass
    opened(tmp_path).close()


def test_too_little_space(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.require_space(1)
    with pytest.raises(CheckpointError, match="not enough space"):
        folder.require_space(1 << 60)
    folder.close()
