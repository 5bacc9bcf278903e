"""Hosts of the image that this session built: what runs there is what was shipped, also for a user who sits on one of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ci.hosts import Host, Hosts, Shape, faults, up
from ci.hosts.model import IMAGE_PYTHON, SHARED, SITE_INSIDE

from .conftest import SimImage

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LAYER_LIMIT_S = 120.0
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "qwen3-tiny-dense"
PATCHED = "/opt/verl-musa/lib/python3.11/site-packages/verl/utils/ray_utils.py"
SERIES = "/opt/verl-musa/lib/python3.11/site-packages/verl_musa/_patches/series.yaml"


def preflight(hosts: Hosts, login: Host | None) -> list[dict[str, Any]]:
    """What preflight finds, on this machine or as a user of a host, apart from real cards that no host has."""
    site = hosts.site if login is None else SITE_INSIDE
    command = hosts.verl_musa("preflight", "--json", "--site", str(site), login=login)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.startswith("{"), done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["checks"]
    return [one for one in found if one["status"] == "FAIL"]


def test_hosts_of_the_image_are_found_fit_and_a_changed_one_is_named(sim_image: SimImage) -> None:
    shape = Shape(count=2, image=sim_image.reference, memory="4g", shm="1g")
    with ExitStack() as stack:
        hosts = stack.enter_context(up(shape, docker_host=sim_image.docker_host))
        assert hosts.seconds < LAYER_LIMIT_S
        first, second = hosts.hosts
        version = [IMAGE_PYTHON, "-c", "'import verl_musa; print(verl_musa.__file__)'"]
        assert hosts.ssh(second, version).stdout.startswith("/opt/verl-musa/")
        assert preflight(hosts, None) == []
        assert preflight(hosts, first) == []
        with faults.changed_file(second, SERIES, "# edited\n"):
            failed = preflight(hosts, None)
        assert ("version.patches", "host2") in {(one["check"], one["host"]) for one in failed}
        with faults.other_version(second, "ray", "2.57.0", python=IMAGE_PYTHON):
            failed = preflight(hosts, None)
        assert [(one["check"], one["host"]) for one in failed if one["check"] == "version.ray"] == [
            ("version.ray", "host2")
        ]
        assert preflight(hosts, None) == []
        shutil.copytree(RECIPE, hosts.shared / "recipes" / RECIPE.name)
        with faults.changed_file(second, PATCHED, "# edited\n"):
            run = ("run", f"{SHARED}/recipes/{RECIPE.name}", "--nodes", "2", "--devices-per-node", "1")
            command = hosts.verl_musa(*run, "--site", SITE_INSIDE, login=first)
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 2, done.stderr
        assert "the image on host host2 is not the one that was built" in done.stderr
        assert f"host2: {PATCHED}" in done.stderr
        assert not (hosts.shared / "runs").exists()
