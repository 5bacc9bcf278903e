from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_musa.cli import main
from verl_musa.patching import series as series_module
from verl_musa.patching.fingerprint import SourceModule

CORE = "def answer():\n    return 1\n"
TARGET = "fakeup.core:answer"


@pytest.fixture
def patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One installed upstream with one patch; returns the module that it patches."""
    module = tmp_path / "site" / "fakeup" / "core.py"
    module.parent.mkdir(parents=True)
    module.write_text(CORE)
    (module.parent / "__init__.py").write_text("")
    info = tmp_path / "site" / "fakeup-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakeup\nVersion: 1.0\n")
    patch = tmp_path / "patches" / "fakeup" / "ten.py"
    patch.parent.mkdir(parents=True)
    patch.write_text(
        "from verl_musa.patching import Patch, RemoveWhen\n"
        "PATCH = Patch(\n"
        "    id='fakeup-ten', summary='adds ten', distribution='fakeup', versions='>=1',\n"
        f"    fingerprints={{{TARGET!r}: {{'1.0': {SourceModule(CORE).fingerprint('answer')!r}}}}},\n"
        "    reason='too small', source='a test', remove_when=RemoveWhen(text='it grows', version='>=3'),\n"
        "    without='1 is not 11',\n"
        ")\n"
        f"PATCH.wrap({TARGET!r})(lambda original: lambda: original() + 10)\n"
    )
    (tmp_path / "patches" / "series.yaml").write_text(
        'schema: 1\nupstreams: {fakeup: ["1.0"]}\norder: [fakeup-ten]\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(series_module, "patches_root", lambda: tmp_path / "patches")
    monkeypatch.setenv("COLUMNS", "200")
    return module


@pytest.mark.usefixtures("patched")
def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patches", "list"]) == 0
    assert "fakeup-ten" in capsys.readouterr().out
    assert main(["patches", "list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["changes"] == [{"target": TARGET, "kind": "wrap"}]


@pytest.mark.usefixtures("patched")
def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patches", "show", "fakeup-ten"]) == 0
    shown = capsys.readouterr().out
    for said in ("too small", "it grows (checked: >=3)", "1 is not 11", TARGET):
        assert said in shown
    assert main(["patches", "show", "fakeup-ten", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "fakeup-ten"


@pytest.mark.usefixtures("patched")
def test_show_of_an_unknown_patch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["patches", "show", "fakeup-none"]) == 2
    assert "no such patch" in capsys.readouterr().err


def test_verify_exits_0_when_all_fits_and_1_on_drift(
    patched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["patches", "verify"]) == 0
    assert "ok" in capsys.readouterr().out
    patched.write_text(CORE.replace("1", "2"))
    assert main(["patches", "verify"]) == 1
    said = capsys.readouterr().out
    assert "drifted: fakeup-ten" in said
    assert "the target has changed" in said
    assert main(["patches", "verify", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["rows"][0]["status"] == "drift"


def test_verify_names_what_can_go_and_what_is_touched_twice(
    patched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = patched.parents[2] / "patches" / "fakeup" / "ten.py"
    (file.with_name("again.py")).write_text(file.read_text().replace("fakeup-ten", "fakeup-again"))
    series = patched.parents[2] / "patches" / "series.yaml"
    series.write_text(series.read_text().replace("[fakeup-ten]", "[fakeup-ten, fakeup-again]"))
    (patched.parents[1] / "fakeup-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fakeup\nVersion: 3.0\n"
    )
    assert main(["patches", "verify"]) == 0
    said = capsys.readouterr().out
    assert "can be removed: fakeup-ten at fakeup 3.0: it grows" in said
    assert f"touched by more than one patch: {TARGET}: fakeup-ten, fakeup-again" in said


def test_record_prints_or_writes(patched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    patched.write_text(CORE.replace("1", "2"))
    wanted = SourceModule(patched.read_text()).fingerprint("answer")
    assert main(["patches", "record", "fakeup-ten"]) == 0
    assert wanted in capsys.readouterr().out
    assert main(["patches", "verify"]) == 1
    assert main(["patches", "record", "fakeup-ten", "--against", "fakeup==1.0", "--write"]) == 0
    assert main(["patches", "verify"]) == 0
