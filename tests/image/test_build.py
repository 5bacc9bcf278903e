from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from verl_musa.errors import ImageError
from verl_musa.image.base import BaseImages
from verl_musa.image.build import _STEP, build_facts, dockerfile, site_registry, timed, write_context
from verl_musa.image.engine import Engine
from verl_musa.image.pins import load_pins
from verl_musa.image.wheels import Locked

ROOT = Path(__file__).resolve().parents[2]
LOCKED = Locked("thing", "1.0", ("0" * 64,))
ENGINE = Engine("docker", "20", "buildkit")


def context(tmp_path: Path, image: str) -> tuple[Path, dict[str, Any]]:
    pins = load_pins(image, ROOT / "images")
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    names = ["tools", *(["vendor"] if image == "sim" else []), *pins.layers.main, *pins.layers.aside]
    locks = {name: [LOCKED] for name in names}
    facts = build_facts(pins, BaseImages("run", "build", "sha256:1", "made"), locks, ENGINE)
    target = tmp_path / "context"
    target.mkdir()
    write_context(target, pins, locks, {name: [wheel] for name in names}, facts)
    return target, facts


def test_the_engine_sees_of_the_checkout_what_is_installed_and_no_more(tmp_path: Path) -> None:
    target, _ = context(tmp_path, "sim")
    assert sorted(path.name for path in (target / "checkout/main").iterdir()) == [
        "sgl_kernel_stub",
        "verl-musa",
    ]
    own = sorted(path.name for path in (target / "checkout/main/verl-musa").iterdir())
    assert own == ["LICENSE", "README.md", "patches", "pyproject.toml", "verl_musa"]
    assert [path.name for path in (target / "checkout/vendor").iterdir()] == ["musa_sim"]
    assert (
        not list(target.rglob("__pycache__")) + list(target.rglob("*.so")) + list(target.rglob("*.egg-info"))
    )


def test_every_layer_has_its_lock_in_order(tmp_path: Path) -> None:
    target, _ = context(tmp_path, "sim")
    locks = target / "locks"
    assert [path.name for path in sorted((locks / "main").iterdir())] == [
        "02-train.txt",
        "03-rollout.txt",
        "04-image.txt",
    ]
    assert [path.name for path in (locks / "aside").iterdir()] == ["megatron.txt"]
    assert (locks / "tools.txt").read_text() == f"{LOCKED.text}\n"
    assert {path.parent.name for path in target.glob("wheels/*/*.whl")} == {"tools", "vendor", "layers"}


def test_the_musa_image_gets_nothing_of_the_simulator(tmp_path: Path) -> None:
    target, _ = context(tmp_path, "musa")
    assert [path.name for path in (target / "checkout/main").iterdir()] == ["verl-musa"]
    assert not list((target / "checkout/vendor").iterdir())
    assert not list((target / "locks/aside").iterdir()), "torchada lies in the environment itself"


def test_what_only_the_builder_knows_is_kept_in_the_image(tmp_path: Path) -> None:
    target, facts = context(tmp_path, "sim")
    found = json.loads((target / "facts/build.json").read_text())
    assert found == json.loads(json.dumps(facts))
    assert found["base"]["identity"] == "sha256:1"
    assert found["requirements"]["train"]["thing"] == {"version": "1.0", "sha256": ["0" * 64]}
    assert set(found["git"]) == {"commit", "dirty"}
    assert found["pins"]["packages"]["torch"]["version"]


def test_the_images_share_every_stage_but_the_vendors() -> None:
    texts = {name: dockerfile(load_pins(name, ROOT / "images")) for name in ("sim", "musa")}
    shared = (ROOT / "images/common/Dockerfile").read_text()
    assert all(text.endswith(shared) for text in texts.values())
    assert "FROM vendor-build AS build" in shared
    assert all("AS vendor-build" in text and "AS vendor\n" in text for text in texts.values())


def test_a_folder_that_is_no_package_is_refused(tmp_path: Path) -> None:
    images = tmp_path / "images"
    shutil.copytree(ROOT / "images", images)
    with pytest.raises(ImageError, match="not a package of this checkout"):
        write_context(tmp_path / "c", _at(images, tmp_path), {}, {}, {})


def _at(images: Path, tmp_path: Path) -> Any:
    (tmp_path / "c").mkdir()
    return load_pins("sim", images)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("#17 [vendor-build 11/11] RUN sh x", ("vendor-build", "11/11", "RUN sh x")),
        ("#5 [build  2/8] COPY a b", ("build", "2/8", "COPY a b")),
        ("Step 3/30 : COPY a b", (None, None, None)),
        ("#17 12.3 some output", None),
    ],
)
def test_steps_of_both_builders_are_shown(line: str, seen: tuple[str | None, ...] | None) -> None:
    match = _STEP.match(line)
    assert (None if match is None else (match["stage"], match["number"], match["text"])) == seen


def test_the_sites_registry_is_a_value_of_site_yaml() -> None:
    assert site_registry({"registry": "mirror.example"}) == "mirror.example"
    assert site_registry({}) is None


def test_progress_shows_the_seconds_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 100.2, 173.4])
    monkeypatch.setattr("verl_musa.image.build.time.monotonic", lambda: next(now))
    lines: list[str] = []
    progress = timed(lines.append)
    progress("1/7 pins")
    progress("2/7 base")
    assert lines == ["    0 s  1/7 pins", "   73 s  2/7 base"]
