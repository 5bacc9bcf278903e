from __future__ import annotations

import pytest

from verl_musa.patching import PatchError, load_series, recorder
from verl_musa.patching.sources import InstalledSource
from verl_musa.patching.verify import verify

from .conftest import ADD_TEN, ANSWER, Lab


@pytest.fixture
def drifted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.syspath_prepend(str(lab.site))
    lab.patch("ten", ANSWER, ADD_TEN, watch="fakeup.core:other")
    lab.module("fakeup.core", "def answer():\n    return 2\nother = 'é'\n")
    lab.install("1.1")
    return lab


def test_recording_keeps_what_was_known_and_makes_verify_pass(drifted: Lab) -> None:
    series = load_series(drifted.patches)
    assert verify(series).drifted
    patch = series.patch("fakeup-ten")
    path = series.file(patch)
    before = path.read_text()
    recorder.write(path, recorder.record(patch, InstalledSource("fakeup")))
    series = load_series(drifted.patches)
    assert not verify(series).drifted
    recorded = series.patch("fakeup-ten").fingerprints
    assert list(recorded[ANSWER]) == ["1.0", "1.1"]
    assert recorded["fakeup.core:other"]["1.1"] == drifted.fingerprint("fakeup.core:other")
    after = path.read_text()
    assert after.split("fingerprints=")[0] == before.split("fingerprints=")[0]
    assert after.split("reason=")[1] == before.split("reason=")[1]
    assert "TARGET: {" in after


def test_a_module_that_is_gone_is_recorded_as_absent(drifted: Lab) -> None:
    (drifted.site / "fakeup" / "core.py").unlink()
    patch = load_series(drifted.patches).patch("fakeup-ten")
    assert recorder.record(patch, InstalledSource("fakeup"))[ANSWER]["1.1"] == "absent"


def test_another_upstream_is_refused(drifted: Lab) -> None:
    patch = load_series(drifted.patches).patch("fakeup-ten")
    source = InstalledSource("fakeup")
    source.distribution = "other"
    with pytest.raises(PatchError, match="another upstream"):
        recorder.record(patch, source)


def test_unreadable_source_is_refused(drifted: Lab) -> None:
    drifted.module("fakeup.core", "def answer(:\n")
    patch = load_series(drifted.patches).patch("fakeup-ten")
    with pytest.raises(PatchError, match="cannot be parsed"):
        recorder.record(patch, InstalledSource("fakeup"))


def test_a_file_without_fingerprints_is_refused(drifted: Lab) -> None:
    path = drifted.patches / "fakeup" / "ten.py"
    path.write_text("PATCH = 1\n")
    with pytest.raises(PatchError, match="no `fingerprints="):
        recorder.write(path, {})
