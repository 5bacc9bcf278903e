"""The images, built for real by an engine that the session starts and ends. Skipped with the reason where none can start."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.conftest import ImageTool, SimImage

ROOT = Path(__file__).resolve().parents[2]
PATCHED = "/opt/verl-musa/lib/python3.11/site-packages/verl/utils/ray_utils.py"
RECIPES = ("-v", f"{ROOT / 'recipes'}:/work/recipes:ro")

pytestmark = pytest.mark.integration


def statuses(built: dict[str, Any]) -> dict[str, str]:
    return {check["check"].removeprefix("image."): check["status"] for check in built["checks"]}


def test_a_built_image_passes_its_own_checks(sim_build: dict[str, Any]) -> None:
    found = statuses(sim_build)
    assert found == dict.fromkeys(
        ("filesystem", "provenance", "packages", "pins", "vendor", "patches", "lint", "plugin", "imports", "device"), "OK"
    )  # fmt: skip


def test_one_changed_byte_of_a_patched_module_is_refused_by_name(
    image_tool: ImageTool, sim_image: SimImage
) -> None:
    change = f"FROM {sim_image.reference}\nRUN printf X | dd of={PATCHED} bs=1 seek=3 conv=notrunc\n"
    made = image_tool.call("docker", "build", "--network", "none", "-t", "changed:1", "-", stdin=change)
    assert made.returncode == 0, made.stderr
    verified = image_tool.image("verify", "changed:1", "--json")
    assert verified.returncode == 2, verified.stderr
    failed = {
        check["check"]: check["where"]
        for check in json.loads(verified.stdout)["checks"]
        if check["status"] == "FAIL"
    }
    assert failed["image.filesystem"] == PATCHED.lstrip("/")
    assert failed["image.packages"] == PATCHED
    run = image_tool.call("docker", "run", "--rm", "--network", "none", *RECIPES, "changed:1",
                          "verl-musa", "run", "qwen3-tiny-dense", "--dry-run")  # fmt: skip
    assert run.returncode == 2
    assert PATCHED in run.stderr


@pytest.mark.long  # in CI four hosts of this image train: test_four_hosts.py
def test_the_tiny_recipe_trains_two_steps_inside_the_image(
    image_tool: ImageTool, sim_image: SimImage
) -> None:
    run = image_tool.call("docker", "run", "--rm", "--network", "none", "--init", "--shm-size", "2g", *RECIPES, sim_image.reference,
                          "verl-musa", "run", "qwen3-tiny-dense", "--set", "trainer.total_training_steps=2")  # fmt: skip
    assert run.returncode == 0, f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
    assert "succeeded" in run.stdout


@pytest.mark.long
def test_two_clean_builds_have_one_content_hash_and_one_id(
    image_tool: ImageTool, sim_image: SimImage, sim_build: dict[str, Any]
) -> None:
    second = image_tool.build("sim", "--no-cache", "--tag", "second:1")
    difference = image_tool.image("diff", sim_image.reference, "second:1")
    assert second["content"] == sim_build["content"], difference.stdout
    assert difference.returncode == 0
    # The name is in no image's config, so the id is that of the content and of what the image runs with.
    assert second["id"] == sim_image.id


@pytest.mark.long
def test_the_musa_dockerfile_builds_over_a_stand_in_for_the_vendors_base(
    image_tool: ImageTool, sim_image: SimImage
) -> None:
    assert sim_image.id, "its layers and packages are what the stand-in is made of"
    script, cache = str(ROOT / "ci" / "standin.py"), str(image_tool.folder / "cache")
    made = image_tool.call(sys.executable, script, "standin:1", cache)
    assert made.returncode == 0, made.stderr
    found = statuses(image_tool.build("musa", "--base", "standin:1"))
    wanted = ("filesystem", "packages", "vendor", "patches", "plugin", "imports", "device")
    assert {name: found[name] for name in wanted} == dict.fromkeys(wanted, "OK")
