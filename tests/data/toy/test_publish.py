from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from verl_musa.data.toy import publish


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "assets"
    with publish.publishing(out) as work:
        (work / "inner").mkdir()
        (work / "inner" / "x").write_text("y")
        assert not out.exists()
    assert (out / "inner" / "x").read_text() == "y"
    assert [path.name for path in out.parent.iterdir()] == ["assets"]
    assert [path for path in [out, *out.rglob("*")] if path.stat().st_mode & 0o044 != 0o044] == []


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    with publish.publishing(tmp_path / "assets") as work:
        (work / "x").write_text("y")
    assert (tmp_path / "assets" / "x").exists()


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def work() -> None:
        with publish.publishing(tmp_path / "assets") as folder:
            (folder / "x").write_text("y")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", ["folder", "file"])
def test_what_is_there_is_left_alone(taken: str, tmp_path: Path) -> None:
    out = tmp_path / "assets"
    if taken == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "kept").write_text("mine")
    with pytest.raises(publish.AssetError, match="is not an empty folder"), publish.publishing(out):
        pass
    assert out.is_file() or (out / "kept").read_text() == "mine"


def test_the_manifest_names_every_file_with_its_hash(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    publish.write_manifest(tmp_path, "toy", 3, {"measured": {"skill": 0.5}})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["files"] == {"x": {"sha256": hashlib.sha256(b"abc").hexdigest(), "bytes": 3}}
    assert (manifest["recipe"], manifest["seed"], manifest["measured"]) == ("toy", 3, {"skill": 0.5})
    assert set(manifest["versions"]) >= {"python", "torch", "transformers", "tokenizers"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-1"], "found -1, expected 0 or more"),
        (["--seed", "x"], "invalid int value"),
        (["--seed", "1", "--pretrain-steps", "0"], "found 0, expected 1 or more"),
        ([], "--seed"),
    ],
)
def test_bad_arguments_exit_with_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        publish.parse_args("toy", ["--out", str(tmp_path / "assets"), *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_good_arguments(tmp_path: Path) -> None:
    args = publish.parse_args("toy", ["--out", str(tmp_path), "--seed", "4", "--pretrain-steps", "2"])
    assert (args.out, args.seed, args.pretrain_steps) == (tmp_path, 4, 2)


def test_a_mistake_is_said_on_standard_error_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "prepare_libraries", lambda: None)  # it changes torch for the whole process

    def make(work: Path, seed: int, steps: int | None) -> None:
        (work / "half").write_text("")
        raise publish.AssetError(f"what happened with {seed} and {steps}")

    assert publish.run_script("toy", ["--out", str(tmp_path / "assets"), "--seed", "3"], make) == 2
    assert capsys.readouterr().err == "make_assets.py: error: what happened with 3 and None\n"
    assert list(tmp_path.iterdir()) == []


def test_what_was_made_appears_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "prepare_libraries", lambda: None)
    arguments = ["--out", str(tmp_path / "assets"), "--seed", "3", "--pretrain-steps", "2"]
    made = publish.run_script("toy", arguments, lambda work, seed, steps: (work / f"{seed}-{steps}").touch())
    assert made == 0
    assert [path.name for path in (tmp_path / "assets").iterdir()] == ["3-2"]
    assert "done in 0 s" in capsys.readouterr().out
