"""The images, built for real by an engine that this test starts and ends. Skipped with the reason where none can start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("docker.io", "mmdebstrap")
PATCHED = "/opt/verl-musa/lib/python3.11/site-packages/verl/utils/ray_utils.py"
BUILD_S = 3000.0

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(7200)]


@dataclass(frozen=True)
class Engine:
    """Runs commands beside an engine of its own, all over the same folder."""

    folder: Path

    def call(self, *command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, str(ROOT / "ci" / "engine.py"), str(self.folder / "engine"), "--", *command]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=BUILD_S, cwd=ROOT, env=environment, input=stdin)  # fmt: skip

    def image(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        entry = "import sys; from verl_musa.cli import main; sys.exit(main(sys.argv[1:]))"
        return self.call(sys.executable, "-c", entry, "image", *arguments)

    def built(self, *arguments: str) -> dict[str, Any]:
        done = self.image("build", *arguments, "--json", "--cache", str(self.folder / "cache"))
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{done.stdout[-2000:]}"
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _install() -> None:
    """On a CI machine the engine is installed; elsewhere nobody expects a test to do that."""
    if os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *PACKAGES]):
            subprocess.run(
                [shutil.which("apt-get") or "apt-get", *command],
                check=False,
                timeout=900,
                capture_output=True,
            )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if not (shutil.which("dockerd", path="/usr/sbin:/usr/bin") and shutil.which("mmdebstrap")):
        _install()
    missing = [
        name for name in ("dockerd", "mmdebstrap") if not shutil.which(name, path="/usr/sbin:/usr/bin")
    ]
    if missing:
        pytest.skip(
            f"no image was built: {', '.join(missing)} not installed (apt-get install {' '.join(PACKAGES)})"
        )
    if os.geteuid() != 0:
        pytest.skip("no image was built: starting dockerd takes root")
    made = Engine(tmp_path_factory.mktemp("images"))
    asked = made.call("docker", "info")
    if asked.returncode != 0 and "no Docker Engine" in asked.stderr:
        pytest.skip(f"no image was built: {asked.stderr.strip()}")
    yield made
    shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def built(engine: Engine) -> dict[str, Any]:
    return engine.built("sim")


def test_a_built_image_passes_its_own_checks(engine: Engine, built: dict[str, Any]) -> None:
    assert built["counts"]["FAIL"] == 0
    verified = engine.image("verify", built["reference"], "--json")
    assert json.loads(verified.stdout)["counts"]["FAIL"] == 0, verified.stderr
    statuses = {check["check"]: check["status"] for check in built["checks"]}
    assert {statuses[f"image.{name}"] for name in ("filesystem", "packages", "pins", "vendor", "patches", "plugin", "imports", "device")} == {"OK"}  # fmt: skip


def test_two_clean_builds_have_one_content_hash_and_one_id(engine: Engine, built: dict[str, Any]) -> None:
    second = engine.built("sim", "--no-cache", "--tag", "verl-musa-sim:second")
    difference = engine.image("diff", built["reference"], "verl-musa-sim:second")
    assert second["content"] == built["content"], difference.stdout
    assert second["id"] == built["id"]


def test_one_changed_byte_of_a_patched_module_is_refused_by_name(
    engine: Engine, built: dict[str, Any]
) -> None:
    change = f"FROM {built['reference']}\nRUN printf X | dd of={PATCHED} bs=1 seek=3 conv=notrunc\n"
    made = engine.call(
        "docker", "build", "--network", "none", "-t", "verl-musa-sim:changed", "-", stdin=change
    )
    assert made.returncode == 0, made.stderr
    verified = engine.image("verify", "verl-musa-sim:changed", "--json")
    assert verified.returncode == 2
    failed = {
        check["check"]: check["where"]
        for check in json.loads(verified.stdout)["checks"]
        if check["status"] == "FAIL"
    }
    assert failed["image.filesystem"] == PATCHED.lstrip("/")
    assert failed["image.packages"] == PATCHED
    compared = engine.image("diff", built["reference"], "verl-musa-sim:changed", "--json")
    assert json.loads(compared.stdout)["files"] == [f"{PATCHED.lstrip('/')} (changed)"]
    run = engine.call("docker", "run", "--rm", "--network", "none", "-v", f"{ROOT / 'recipes'}:/work/recipes:ro",
                      "verl-musa-sim:changed", "verl-musa", "run", "qwen3-tiny-dense", "--dry-run")  # fmt: skip
    assert run.returncode == 2
    assert PATCHED in run.stderr


def test_the_tiny_recipe_trains_two_steps_inside_the_image(engine: Engine, built: dict[str, Any]) -> None:
    run = engine.call("docker", "run", "--rm", "--network", "none", "--init", "--shm-size", "2g",
                      "-v", f"{ROOT / 'recipes'}:/work/recipes:ro", built["reference"],
                      "verl-musa", "run", "qwen3-tiny-dense", "--set", "trainer.total_training_steps=2")  # fmt: skip
    assert run.returncode == 0, f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
    assert "succeeded" in run.stdout


def test_the_musa_dockerfile_builds_over_a_stand_in_for_the_vendors_base(
    engine: Engine, built: dict[str, Any]
) -> None:
    assert built["reference"]
    made = engine.call(
        sys.executable, str(ROOT / "ci" / "standin.py"), "standin:1", str(engine.folder / "cache")
    )
    assert made.returncode == 0, made.stderr
    musa = engine.built("musa", "--base", "standin:1")
    statuses = {check["check"]: check["status"] for check in musa["checks"]}
    assert {statuses[f"image.{name}"] for name in ("filesystem", "packages", "vendor", "patches", "plugin", "device")} == {"OK"}  # fmt: skip
