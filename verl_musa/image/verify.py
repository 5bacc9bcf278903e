"""The checks of an environment, run inside the image or in any Python environment: is it what it says, and does it work?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from verl_musa import extras
from verl_musa.checks import Check, Finding, Result, Status, fail, ok, run_checks, unknown, warn
from verl_musa.image.environment import BELOW, UNOWNED, Environment, read_environment
from verl_musa.image.inside import compare
from verl_musa.image.provenance import Provenance, is_image, read_build_facts, recorded
from verl_musa.image.tree import HashCache, list_filesystem

IMPORT_LIMIT_S = 600.0
WORKERS = 2
"""Checks at a time: most start a Python of their own, which on small machines is more than half of what a build waits for."""

_ENGINES = {
    "torch": ("torch", ()),
    "torch_musa": ("torch_musa", ()),
    "ray": ("ray", ()),
    "transformers": ("transformers", ()),
    "verl": ("verl.trainer.main_ppo", ()),
    "sglang": ("sglang.srt.server_args", ()),
    "megatron-core": ("megatron.core", ("megatron",)),
    "mbridge": ("mbridge", ("megatron",)),
}
"""Distribution -> the module that stands for it, and the extras without which it is not there."""


@dataclass(frozen=True)
class Subject:
    """The environment that is looked at.

    Attributes:
        recorded: its provenance; None where nothing was recorded.
        build: what its builder noted; empty outside of an image.
        environment: every package of it.
        hashes: of the files that were read for that, so that none is read twice.
    """

    recorded: Provenance | None
    build: dict[str, Any]
    environment: Environment
    hashes: HashCache | None = None


def verify_environment(*, filesystem: bool = True) -> list[Result]:
    """Run every check here; ``filesystem`` also reads the whole file system where this is an image."""
    checks = [
        PROVENANCE,
        PACKAGES,
        *([FILESYSTEM] if filesystem and is_image() else []),
        PINS,
        VENDOR,
        SERIES,
        LINT,
        PLUGIN,
    ]
    checks += [IMPORTS, DEVICE]
    hashes = HashCache(None)
    subject = Subject(recorded(), read_build_facts(), read_environment(hashes=hashes), hashes)
    return run_checks(checks, subject, workers=WORKERS)


def _check_recorded(subject: Subject) -> Finding:
    if subject.recorded is None:
        return unknown("nothing was recorded about this environment", "verl-musa image record")
    facts = subject.recorded.facts
    commit = facts["build"].get("git", {}).get("commit") or "no commit"
    return ok(f"{subject.recorded.kind} of {len(subject.recorded.packages)} packages, built from {commit}")


def _check_packages(subject: Subject) -> Finding:
    """Hold every package's files against the record."""
    if subject.recorded is None:
        return unknown("nothing was recorded to hold the packages against", "verl-musa image record")
    if subject.environment.sha256 == subject.recorded.facts["content"]["packages"]:
        return ok(f"{len(subject.environment.files)} files, sha256:{subject.environment.sha256}")
    before = subject.recorded.packages
    after = subject.environment.distributions
    names = sorted(
        key
        for key in before.keys() | after.keys()
        if key not in after or key not in before or after[key].sha256 != before[key]["sha256"]
    ) or [UNOWNED]
    if subject.recorded.kind == "environment":
        found = compare(subject.recorded, subject.environment.files)
        return fail(f"packages {', '.join(names)}: {found.evidence}", found.fix, found.where)
    files = _changed_in_image(subject.recorded, subject.environment, names)
    return fail(
        f"packages differ from the record: {', '.join(names)}; {', '.join(files[:10]) or 'files were removed'}",
        "use an image that nobody has changed",
        files[0] if files else "",
    )


def _changed_in_image(found: Provenance, environment: Environment, names: Sequence[str]) -> list[str]:
    """The files of ``names`` that are not as the image's listing has them."""
    changed = []
    for path, entry in environment.files.items():
        place, _, inner = path.partition("/")
        whole = f"{environment.roots[place]}/{inner}".lstrip("/")
        if (
            environment.owners[path] in names
            and found.files.get(whole, "").rsplit(" ", 1)[-1] != entry.rsplit(" ", 1)[-1]
        ):
            changed.append(f"/{whole}")
    return sorted(changed)


def _check_filesystem(subject: Subject) -> Finding:
    if subject.recorded is None:
        return unknown("nothing was recorded to hold the file system against")
    return compare(subject.recorded, list_filesystem(cache=subject.hashes))


def _check_pins(subject: Subject) -> Finding:
    pins = subject.build.get("pins")
    if not pins:
        return unknown("this is no image, so there are no pins to hold the versions against")
    wrong, unpinned = [], []
    for section, aside in (("packages", ()), ("beside", tuple(subject.build["aside"]))):
        for name, package in pins[section].items():
            try:
                version = extras.distribution(name, aside).version
            except importlib.metadata.PackageNotFoundError:
                if not (name == "torch_musa" and _simulated()):
                    wrong.append(f"{name} is not installed")
                continue
            if not package["version"]:
                unpinned.append(f"{name} {version}")
            elif not _fits(version, package["version"]):
                wrong.append(f"{name} {version} instead of {package['version']}")
    if wrong:
        return fail(
            "; ".join(wrong), "build the image again from its locks, or correct images/<image>/pins.toml"
        )
    if unpinned:
        return warn(f"not pinned, found: {', '.join(unpinned)}", "write these versions into pins.toml")
    return ok(f"{len(pins['packages']) + len(pins['beside'])} versions as pinned")


def _fits(version: str, pinned: str) -> bool:
    if Version(version).public == pinned:
        return True
    try:
        return Version(version) in SpecifierSet(pinned, prereleases=True)
    except InvalidSpecifier:
        return False


def _simulated() -> bool:
    return any(True for _ in importlib.metadata.distributions(name="musa-sim"))


def _check_vendor(subject: Subject) -> Finding:
    """The vendor's packages are those of the base: none lies over them in this environment."""
    names = {canonicalize_name(name) for name in subject.build.get("vendor", ())}
    if not names:
        return unknown("this is no image, so nobody said which packages are the vendor's")
    found = subject.environment.distributions
    replaced = sorted(name for name in names if name in found and not found[name].place.startswith(BELOW))
    if replaced:
        return fail(
            f"{', '.join(replaced)} of the vendor's base was replaced",
            "install nothing that brings its own torch",
        )
    if "torch" not in found:
        return fail("the base brings no torch", "use the vendor's base")
    return ok(f"torch {found['torch'].version} is the base's own, sha256:{found['torch'].sha256}")


def _check_series(_: Subject) -> Finding:
    from verl_musa.patching import load_series
    from verl_musa.patching.verify import verify

    series = load_series()
    report = verify(series)
    if report.drifted:
        row = report.drifted[0]
        return fail(
            f"{len(report.drifted)} targets drifted, first {row.target} of patch {row.patch}",
            "verl-musa patches verify",
            row.where,
        )
    checked = sum(1 for row in report.rows if row.found)
    return ok(f"series {series.digest}: {checked} targets fit")


def _check_lint(_: Subject) -> Finding:
    """`verl-musa lint --installed` of our own package. Upstream's files take minutes and can only be shown: ask for them by name."""
    if importlib.util.find_spec("verl_musa.cli.lint") is None:
        return unknown("this version has no `verl-musa lint`", "install one that has it")
    code = _python([*_CLI, "lint", "--installed", "verl-musa"], {}).returncode
    if code not in (0, 3):
        return fail(f"verl-musa exit {code}", "verl-musa lint --installed verl-musa")
    return ok(f"verl-musa exit {code}")


_CLI = ("-c", "import sys; from verl_musa.cli import main; sys.exit(main(sys.argv[1:]))")
_PLUGIN = """
import json
from verl.plugin.platform import get_platform
found = get_platform()
print(json.dumps([found.device_name, type(found).__module__, bool(getattr(found, "simulated", False))]))
"""


def _check_plugin(_: Subject) -> Finding:
    done = _python(["-c", _PLUGIN], {"VERL_PLATFORM": "musa"})
    if done.returncode != 0:
        return fail(
            f"verl does not come up with VERL_PLATFORM=musa: {_last(done)}",
            "read the whole error: verl-musa -v env",
        )
    name, module, simulated = json.loads(done.stdout.strip().splitlines()[-1])
    if (name, module) != ("musa", "verl_musa.device.platform"):
        return fail(
            f"verl's active platform is {name} of {module}",
            "install verl-musa so that its entry point is found",
        )
    return ok(f"verl's active platform is musa{', simulated' if simulated else ''}")


def _check_imports(_: Subject) -> Finding:
    """Each engine in a process of its own: one must not make another's import work."""
    with ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(_import, _ENGINES))
    good, bad, absent = ([text for status, text in found if status is wanted]
                         for wanted in (Status.OK, Status.FAIL, Status.UNKNOWN))  # fmt: skip
    if bad:
        return fail("; ".join(bad), "import it by hand in this environment to see the whole error")
    if absent:
        return unknown(f"imported: {', '.join(good)}; not installed: {', '.join(absent)}")
    return ok(", ".join(good))


def _import(name: str) -> tuple[Status, str]:
    module, needed = _ENGINES[name]
    try:
        version = extras.distribution(name, needed).version
    except importlib.metadata.PackageNotFoundError:
        if not (name == "torch_musa" and _simulated()):
            return Status.UNKNOWN, name
        version = "simulated"
    variables = {"PYTHONPATH": os.pathsep.join(map(str, extras.folders(needed)))}
    if _simulated():
        variables["SGLANG_USE_CPU_ENGINE"] = "1"  # as runs on the simulated device have it
    done = _python(["-c", f"import {module}"], variables)
    if done.returncode == 0:
        return Status.OK, f"{name} {version}"
    return Status.FAIL, f"{name} {version}: {_last(done)}"


_DEVICE = """
import json, torch, torch_musa
count = torch.musa.device_count()
total = float((torch.ones(4, device="musa") * 2).sum().cpu()) if count else 0.0
print(json.dumps([count, total, bool(getattr(torch_musa, "__simulator__", False))]))
"""


def _check_device(_: Subject) -> Finding:
    done = _python(["-c", _DEVICE], {})
    if done.returncode != 0:
        return fail(f"torch_musa does not work: {_last(done)}", "look at `verl-musa env`")
    count, total, simulated = json.loads(done.stdout.strip().splitlines()[-1])
    if not count:
        return unknown("there is no device here, so nothing was computed on one", "run it on a host with one")
    if total != 8.0:  # noqa: PLR2004  (four ones, doubled and summed)
        return fail(
            f"the sum of four twos is {total}", "the device computes wrongly: run the vendor's own checks"
        )
    return ok(f"{count} {'simulated ' if simulated else ''}devices compute")


def _python(arguments: Sequence[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run this environment's Python; its working directory holds nothing that could be imported."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": _own_path(variables.pop("PYTHONPATH", "")), **variables}
    try:
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=IMPORT_LIMIT_S,
            env=environment,
            cwd=os.sep,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(arguments, 124, "", f"no end within {IMPORT_LIMIT_S:.0f} s")


def _own_path(first: str) -> str:
    """What this process has on PYTHONPATH stays there: it is how this package itself may be found."""
    return os.pathsep.join(part for part in (first, os.environ.get("PYTHONPATH", "")) if part)


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1][:300] if lines else f"exit {done.returncode}"


PROVENANCE = Check("image.provenance", "what was recorded about this environment", _check_recorded)
PACKAGES = Check("image.packages", "every file of every package", _check_packages)
FILESYSTEM = Check("image.filesystem", "every file of the image", _check_filesystem)
PINS = Check("image.pins", "installed versions against pins.toml", _check_pins)
VENDOR = Check("image.vendor", "the vendor's torch is in place", _check_vendor)
SERIES = Check("image.patches", "fingerprints of the patch series", _check_series)
LINT = Check("image.lint", "rules of verl-musa lint for installed packages", _check_lint)
PLUGIN = Check("image.plugin", "verl's active platform", _check_plugin)
IMPORTS = Check("image.imports", "every engine can be imported", _check_imports)
DEVICE = Check("image.device", "torch_musa computes", _check_device)


def record(folder: Path | None = None, *, filesystem: bool = False) -> Provenance:
    """Record what this environment is made of; see :mod:`verl_musa.image.provenance`. ``filesystem``: and complete the SBOM."""
    from verl_musa.image.debian import add_to_sbom
    from verl_musa.image.provenance import (
        SBOM,
        environment_provenance,
        image_provenance,
        share_folder,
        write_provenance,
    )

    build = read_build_facts()
    sbom = share_folder() / SBOM
    if filesystem and sbom.is_file():
        add_to_sbom(sbom)
    found = (
        image_provenance(build)
        if filesystem
        else environment_provenance(read_environment(cached=False), build)
    )
    write_provenance(found, folder or share_folder())
    return found
