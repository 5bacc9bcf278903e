from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from verl_musa._start import PLAN_ENV, split_plan
from verl_musa.patching import PatchError, activation_env, load_series
from verl_musa.patching.loading import patches_root

from .conftest import ADD_TEN, ANSWER, CHECKOUT, Lab

MISNAMED = (
    "Patch(id='X', summary='', distribution='', versions='', fingerprints={}, reason='', source='', remove_when=None, "
    "without='')"
)
UPSTREAMS = ("verl", "sglang", "megatron", "mbridge", "torch", "torchada", "transformers", "ray")


def test_the_shipped_series_loads_without_any_upstream() -> None:
    code = (
        "import sys\n"
        f"for name in {UPSTREAMS!r}: sys.modules[name] = None\n"
        "from verl_musa.patching import load_series\n"
        "print(len(load_series().patches))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CHECKOUT
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 0


def test_every_shipped_patch_is_recorded_for_every_supported_version_in_its_range() -> None:
    from verl_musa.patching.versions import in_range

    series = load_series()
    missing = [
        (patch.id, target, version)
        for patch in series.patches
        for target, recorded in patch.fingerprints.items()
        for version in series.upstreams[patch.distribution]
        if in_range(patch.versions, version) and version not in recorded
    ]
    assert missing == []


def test_every_shipped_patch_is_needed_by_a_supported_version() -> None:
    from verl_musa.patching.versions import in_range

    series = load_series()
    for patch in series.patches:
        versions = series.upstreams[patch.distribution]
        assert any(in_range(patch.versions, version) for version in versions), patch.id


def test_the_plan_names_every_patch_in_order_and_is_small_enough_for_an_environment() -> None:
    text = activation_env(simulated=True)[PLAN_ENV]
    modules, plan_text = split_plan(text)
    plan = json.loads(plan_text)
    wanted = [patch.id for patch in load_series().patches if set(patch.devices) & {"any", "simulated"}]
    assert [entry["id"] for entry in plan["patches"]] == wanted
    assert plan["root"] is None
    assert modules == {name for entry in plan["patches"] for name in entry["modules"]}
    assert len(text) < 16_000


def test_the_digest_covers_every_file(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    before = load_series(lab.patches).digest
    lab.patch("ten", ANSWER, ADD_TEN + "\n# another line\n")
    assert load_series(lab.patches).digest != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: 2", "not a patch series"),
        ("[]", "not a patch series"),
        ("schema: 1\nupstreams: {}\norder: []", "no upstreams"),
        ("schema: 1\nupstreams: {fakeup: [1.0]}\norder: []", "strings, quoted"),
        ('schema: 1\nupstreams: {fakeup: ["1.0"]}\n', "no order"),
        ('schema: 1\nupstreams: {fakeup: ["1.0"]}\norder: [fakeup-ten, fakeup-ten]', "listed twice"),
        ('schema: 1\nupstreams: {fakeup: ["1.0"]}\norder: []\nmore: 1', "unknown keys"),
        ('schema: 1\nupstreams: {fakeup: ["1.0"]}\norder: []', "does not list"),
        ('schema: 1\nupstreams: {fakeup: ["1.0"]}\norder: [fakeup-none]', "cannot be read"),
        ('schema: 1\nupstreams: {other: ["1.0"]}\norder: [fakeup-ten]', "does not declare"),
        (
            'schema: 1\nupstreams: {fakeup: ["1.0"]}\norder: []\nlocal_only: [other]',
            "something else than upstreams",
        ),
        ("schema: [", "cannot be read"),
    ],
)
def test_a_malformed_series_is_refused(lab: Lab, text: str, said: str) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    (lab.patches / "series.yaml").write_text(text)
    with pytest.raises(PatchError) as caught:
        load_series(lab.patches)
    assert said in str(caught.value)
    assert str(lab.patches) in str(caught.value)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise KeyError('x')", "fails when it is loaded"),
        ("def broken(:", "fails when it is loaded"),
        ("PATCH = None", "declares something else"),
        ("PATCH.changes.clear()", "changes nothing"),
        ("PATCH.wrap('fakeup.core:other')(print)", "has no fingerprints"),
        ("PATCH.versions = 'new'", "not a version range"),
        (MISNAMED, "not a patch id"),
        ("RemoveWhen(text='', defines='no colon')", "not a patch target"),
    ],
)
def test_a_malformed_patch_is_refused(lab: Lab, code: str, said: str) -> None:
    lab.patch("ten", ANSWER, ADD_TEN + "\n" + code + "\n")
    with pytest.raises(PatchError, match=said):
        load_series(lab.patches)


def test_unknown_ids_are_refused(lab: Lab) -> None:
    lab.patch("ten", ANSWER, ADD_TEN)
    with pytest.raises(PatchError, match="no such patch"):
        lab.env(allow_drift=("fakeup-other",))
    with pytest.raises(PatchError, match="no such patch"):
        lab.env(off=("fakeup-other",))


def test_a_missing_series_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("verl_musa.__file__", str(tmp_path / "verl_musa" / "__init__.py"))
    with pytest.raises(PatchError, match="series is missing"):
        patches_root()
