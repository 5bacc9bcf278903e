from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from verl_musa.patching import PatchError, load_series
from verl_musa.patching.verify import Report, Status, verify

from .conftest import ADD_TEN, ANSWER, DOUBLE, Lab


@pytest.fixture
def patched(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    lab.patch("ten", ANSWER, ADD_TEN)
    monkeypatch.syspath_prepend(str(lab.site))
    return lab


def report_of(lab: Lab) -> Report:
    return verify(load_series(lab.patches))


def test_installed_and_unchanged(patched: Lab) -> None:
    report = report_of(patched)
    (row,) = report.rows
    assert (row.patch, row.version, row.status, row.note) == ("fakeup-ten", "1.0", Status.OK, "")
    assert row.where == f"{patched.site / 'fakeup' / 'core.py'}:1"
    assert (report.drifted, report.removable, report.doubled) == ((), (), {})


def test_it_does_not_import_the_upstream(patched: Lab) -> None:
    patched.module("fakeup.core", "raise SystemExit('imported')\ndef answer():\n    return 1\n")
    patched.module("fakeup.__init__", "raise SystemExit('imported')\n")
    assert not report_of(patched).drifted
    assert "fakeup" not in sys.modules


def test_one_changed_token_is_drift(patched: Lab) -> None:
    expected = patched.fingerprint(ANSWER)
    patched.module("fakeup.core", "def answer():\n    return 2\n")
    (row,) = report_of(patched).drifted
    assert (row.found, row.expected, row.note) == (
        patched.fingerprint(ANSWER),
        (expected,),
        "the target has changed",
    )


@pytest.mark.parametrize("how", ["target", "module"])
def test_what_is_gone_is_drift(patched: Lab, how: str) -> None:
    path = patched.module("fakeup.core", "def other():\n    return 2\n")
    if how == "module":
        path.unlink()
    (row,) = report_of(patched).drifted
    assert (row.found, row.note) == ("absent", "the target is gone")


def test_a_patch_that_was_never_recorded_is_drift(patched: Lab) -> None:
    patched.patch("double", ANSWER, DOUBLE, recorded={})
    (row,) = report_of(patched).drifted
    assert (row.patch, row.note) == ("fakeup-double", "nothing recorded yet")


def test_the_same_code_at_a_neighbouring_version_is_ok_and_says_so(patched: Lab) -> None:
    patched.install("1.1")
    (row,) = report_of(patched).rows
    assert (row.status, row.note) == (Status.OK, "same code as in 1.0")


@pytest.mark.parametrize(("supported", "status"), [('"2.0"', Status.NOT_NEEDED), ('"1.0"', Status.DRIFT)])
def test_a_version_outside_the_range(patched: Lab, supported: str, status: Status) -> None:
    patched.install("2.0")
    patched.write_series(supported=supported)
    (row,) = report_of(patched).rows
    assert row.status is status


@pytest.mark.parametrize(
    ("version", "source", "condition"),
    [
        ("3.1", "def answer():\n    return 1\n", "3.1 is in >=3"),
        ("1.0", "def answer():\n    return 1\nfixed = True\n", "fakeup.core:fixed is there"),
    ],
)
def test_a_met_removal_condition_is_reported(patched: Lab, version: str, source: str, condition: str) -> None:
    patched.install(version)
    patched.module("fakeup.core", source)
    (removable,) = report_of(patched).removable
    assert removable.patch == "fakeup-ten"
    assert condition in removable.condition


def test_a_target_of_two_patches_is_reported(patched: Lab) -> None:
    patched.patch("double", ANSWER, DOUBLE)
    assert report_of(patched).doubled == {ANSWER: ("fakeup-ten", "fakeup-double")}


def test_where_no_upstream_is_installed_nothing_is_called_ok(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    with pytest.raises(PatchError, match="nothing was verified"):
        report_of(lab)


def test_an_upstream_that_is_not_installed_is_said_to_be(patched: Lab) -> None:
    path = patched.patches / "other" / "thing.py"
    path.parent.mkdir()
    text = (patched.patches / "fakeup" / "ten.py").read_text()
    path.write_text(
        text.replace("fakeup-ten", "other-thing").replace('distribution="fakeup"', 'distribution="nowhere"')
    )
    (patched.patches / "series.yaml").write_text(
        'schema: 1\nupstreams: {fakeup: ["1.0"], nowhere: ["1.0"]}\norder: [fakeup-ten, other-thing]\n'
    )
    assert [row.status for row in report_of(patched).rows] == [Status.OK, Status.NOT_INSTALLED]


def test_against_an_upstream_without_patches(patched: Lab, tmp_path: Path) -> None:
    from .test_sources import wheel

    with pytest.raises(PatchError, match="no patch for this upstream"):
        verify(load_series(patched.patches), against=[str(wheel(tmp_path, "other", "1.0", {}))])


def test_against_a_wheel(patched: Lab, tmp_path: Path) -> None:
    from .test_sources import wheel

    archive = wheel(tmp_path, "fakeup", "1.3", {"fakeup/core.py": "def answer():\n    return 3\n"})
    report = verify(load_series(patched.patches), against=[str(archive)])
    (row,) = report.drifted
    assert (row.version, row.where) == ("1.3", "fakeup-1.3-py3-none-any.whl!fakeup/core.py:1")


def test_all_supported_versions(patched: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from .test_sources import Pip

    monkeypatch.setattr(subprocess, "run", Pip(failures=0))
    patched.patch("ten", ANSWER, ADD_TEN, versions=">=1")
    patched.write_series(supported='"1.0", "9.9"')
    rows = verify(load_series(patched.patches), supported=True).rows
    assert [(row.version, row.status) for row in rows] == [("1.0", Status.OK), ("9.9", Status.DRIFT)]
    path = patched.patches / "series.yaml"
    path.write_text(path.read_text() + "local_only: [fakeup]\n")
    rows = verify(load_series(patched.patches), supported=True).rows
    assert [(row.version, row.status) for row in rows] == [("9.9", Status.NOT_INSTALLED), ("1.0", Status.OK)]


def test_a_supported_version_that_cannot_be_had_is_never_ok(
    patched: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .test_sources import Pip

    monkeypatch.setattr(subprocess, "run", Pip(failures=99))
    patched.write_series(supported='"1.0", "9.9"')
    report = verify(load_series(patched.patches), supported=True)
    assert [(row.version, row.status) for row in report.rows] == [
        ("1.0", Status.OK),
        ("9.9", Status.NOT_CHECKED),
    ]
    assert report.unchecked == ("fakeup==9.9: cannot be downloaded",)
    with pytest.raises(PatchError, match="cannot be downloaded"):
        verify(load_series(patched.patches), against=["fakeup==9.9"])


def test_source_that_cannot_be_parsed(patched: Lab) -> None:
    patched.module("fakeup.core", "def answer(:\n")
    with pytest.raises(PatchError, match="cannot be parsed"):
        report_of(patched)
