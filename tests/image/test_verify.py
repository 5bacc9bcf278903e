from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verl_musa import extras
from verl_musa.checks import Status
from verl_musa.errors import ImageError
from verl_musa.image import current, verify
from verl_musa.image.environment import Distribution, Environment
from verl_musa.image.provenance import Provenance
from verl_musa.image.tree import content_hash

FILES = {"main/verl/a.py": "f 644 1", "main/ray/b.py": "f 644 2"}
OWNERS = {"main/verl/a.py": "verl", "main/ray/b.py": "ray"}
SITE = "/opt/site"


def environment(files: dict[str, str] | None = None, place: str = "main") -> Environment:
    listed = FILES if files is None else files
    found = {
        name: Distribution(
            name, "1.0", place, content_hash({p: e for p, e in listed.items() if OWNERS.get(p) == name})
        )
        for name in ("verl", "ray", "torch")
    }
    return Environment(
        found, listed, {path: OWNERS.get(path, "(no package)") for path in listed}, {"main": SITE}
    )


def recorded(kind: str = "image") -> Provenance:
    now = environment()
    whole = {f"opt/site/{path.partition('/')[2]}": entry for path, entry in FILES.items()}
    files = whole if kind == "image" else FILES
    facts = {
        "schema": 1,
        "kind": kind,
        "build": {},
        "content": {
            "packages": now.sha256,
            **({"filesystem": content_hash(files)} if kind == "image" else {}),
        },
        "packages": {
            key: {"version": one.version, "place": one.place, "sha256": one.sha256}
            for key, one in now.distributions.items()
        },
    }
    return Provenance(facts, files)


def subject(build: dict[str, Any] | None = None, now: Environment | None = None, then: Provenance | None = None) -> verify.Subject:  # fmt: skip
    return verify.Subject(then, build or {}, now or environment())


def test_packages_as_recorded_are_ok() -> None:
    assert verify.PACKAGES.function(subject(then=recorded())).status is Status.OK
    assert verify.PROVENANCE.function(subject(then=recorded())).status is Status.OK


@pytest.mark.parametrize("kind", ["image", "environment"])
def test_a_changed_file_is_named_with_its_package(kind: str) -> None:
    now = environment({**FILES, "main/verl/a.py": "f 644 changed"})
    found = verify.PACKAGES.function(subject(now=now, then=recorded(kind)))
    assert found.status is Status.FAIL
    assert "verl" in found.evidence
    assert "ray" not in found.evidence.replace("a.py", "")
    assert found.where == ("/opt/site/verl/a.py" if kind == "image" else "main/verl/a.py")


def test_a_file_of_no_package_is_named_too() -> None:
    now = environment({**FILES, "main/stray.py": "f 644 3"})
    found = verify.PACKAGES.function(subject(now=now, then=recorded()))
    assert (found.status, found.where) == (Status.FAIL, "/opt/site/stray.py")


def test_without_a_record_nothing_is_known() -> None:
    assert verify.PROVENANCE.function(subject()).status is Status.UNKNOWN
    assert verify.PACKAGES.function(subject()).status is Status.UNKNOWN
    assert verify.PINS.function(subject()).status is Status.UNKNOWN
    assert verify.VENDOR.function(subject()).status is Status.UNKNOWN


def test_a_vendors_torch_that_was_replaced_is_a_failure() -> None:
    build = {"vendor": ["torch"]}
    assert verify.VENDOR.function(subject(build, environment(place="base"))).status is Status.OK
    found = verify.VENDOR.function(subject(build, environment(place="main")))
    assert found.status is Status.FAIL
    assert "torch" in found.evidence
    gone = Environment({}, {}, {}, {})
    assert verify.VENDOR.function(subject(build, gone)).status is Status.FAIL


@pytest.mark.parametrize(
    ("pinned", "status"),
    [
        ("1.0", Status.OK),
        (">=0.5,<2", Status.OK),
        ("", Status.WARN),
        ("2.0", Status.FAIL),
        (">=2", Status.FAIL),
    ],
)
def test_versions_are_held_against_the_pins(
    monkeypatch: pytest.MonkeyPatch, pinned: str, status: Status
) -> None:
    class Found:
        version = "1.0+local"

    monkeypatch.setattr(extras, "distribution", lambda *_: Found)
    build = {"aside": [], "pins": {"packages": {"verl": {"version": pinned}}, "beside": {}}}
    assert verify.PINS.function(subject(build)).status is status


def test_a_pinned_package_that_is_not_there_is_named() -> None:
    build = {"aside": [], "pins": {"packages": {"not-there": {"version": "1"}}, "beside": {}}}
    found = verify.PINS.function(subject(build))
    assert (found.status, found.evidence) == (Status.FAIL, "not-there is not installed")


def answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str = "", err: str = "") -> None:
    def run(arguments: Sequence[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        assert isinstance(variables, dict)
        return subprocess.CompletedProcess(arguments, code, out, err)

    monkeypatch.setattr(verify, "_python", run)


@pytest.mark.parametrize(
    ("code", "out", "status"),
    [(0, '["musa", "verl_musa.device.platform", true]', Status.OK), (0, '["cuda", "verl.x", false]', Status.FAIL),
     (1, "", Status.FAIL)],
)  # fmt: skip
def test_the_active_platform_decides(
    monkeypatch: pytest.MonkeyPatch, code: int, out: str, status: Status
) -> None:
    answer(monkeypatch, code, out)
    assert verify.PLUGIN.function(subject()).status is status


@pytest.mark.parametrize(
    ("code", "out", "status"),
    [(0, [2, 8.0, True], Status.OK), (0, [0, 0.0, False], Status.UNKNOWN), (0, [1, 0.0, False], Status.FAIL), (1, [], Status.FAIL)],
)  # fmt: skip
def test_a_device_counts_when_it_computes(
    monkeypatch: pytest.MonkeyPatch, code: int, out: list[Any], status: Status
) -> None:
    answer(monkeypatch, code, json.dumps(out))
    assert verify.DEVICE.function(subject()).status is status


@pytest.mark.parametrize(("code", "status"), [(0, Status.OK), (1, Status.FAIL)])
def test_every_engine_has_to_be_importable(
    monkeypatch: pytest.MonkeyPatch, code: int, status: Status
) -> None:
    class Found:
        version = "1.0"

    monkeypatch.setattr(extras, "distribution", lambda *_: Found)
    answer(monkeypatch, code, err="ImportError: no kernels")
    found = verify.IMPORTS.function(subject())
    assert found.status is status
    assert ("no kernels" in found.evidence) == bool(code)


def test_an_engine_that_is_not_installed_leaves_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str, wanted: Sequence[str]) -> Any:
        raise importlib.metadata.PackageNotFoundError(name, wanted)

    monkeypatch.setattr(extras, "distribution", distribution)
    monkeypatch.setattr(verify, "_simulated", lambda: False)
    assert verify.IMPORTS.function(subject()).status is Status.UNKNOWN


def test_lint_is_unknown_where_there_is_none_and_fails_on_our_own_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert verify.LINT.function(subject()).status is Status.UNKNOWN
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    answer(monkeypatch, 0)
    assert verify.LINT.function(subject()).status is Status.OK
    answer(monkeypatch, 2)
    assert verify.LINT.function(subject()).status is Status.FAIL


def test_the_series_fits_what_is_installed_here() -> None:
    assert verify.SERIES.function(subject()).status is Status.OK


def test_in_a_changed_image_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(current, "is_image", lambda: True)
    monkeypatch.setattr(current, "recorded", recorded)
    monkeypatch.setattr(current, "read_build_facts", dict)
    monkeypatch.setattr(current, "current_environment", environment)
    current.require_untouched()
    monkeypatch.setattr(
        current, "current_environment", lambda: environment({**FILES, "main/verl/a.py": "f 644 x"})
    )
    with pytest.raises(ImageError, match="not the one that was built") as caught:
        current.require_untouched()
    assert caught.value.where == "/opt/site/verl/a.py"
    monkeypatch.setattr(current, "is_image", lambda: False)
    current.require_untouched()
    assert not list(tmp_path.iterdir())
