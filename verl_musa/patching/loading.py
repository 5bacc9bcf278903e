"""Find patch files and load one. Standard library only: this runs inside every worker that meets a target."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

import verl_musa
from verl_musa.patching.model import Patch, PatchError

DIGEST_LENGTH = 16
"""Hex digits of a SHA-256 that travel in the environment: 64 bits against accidents, not against attackers."""


def patches_root() -> Path:
    """Return the folder of the series: inside the installed package, or beside it in a checkout.

    Raises:
        PatchError: neither is there.
    """
    package = Path(verl_musa.__file__).parent
    for folder in (package / "_patches", package.parent / "patches"):
        if (folder / "series.yaml").is_file():
            return folder
    raise PatchError(
        "the patch series is missing",
        where=str(package),
        expected="_patches/series.yaml in the package, or patches/series.yaml beside it",
        fix="reinstall verl-musa",
    )


def patch_file(root: Path, patch_id: str) -> Path:
    """Return where the patch ``folder-some-name`` lives: ``root/folder/some_name.py``."""
    folder, _, name = patch_id.partition("-")
    return root / folder / f"{name.replace('-', '_')}.py"


def digest(raw: bytes) -> str:
    """Return the short hash under which a file travels in a plan."""
    return hashlib.sha256(raw).hexdigest()[:DIGEST_LENGTH]


def load_patch(root: Path, patch_id: str, *, expected: str | None = None) -> Patch:
    """Execute a patch file and return the `PATCH` it declares.

    Each call executes the file afresh; a patch file has no side effects, so two threads may do so at once. The
    module is not put into ``sys.modules``: whoever pickles one of its functions then pickles it by value.

    Args:
        root: the folder of the series.
        patch_id: which one.
        expected: the file's digest in the launcher's plan.

    Raises:
        PatchError: the file is missing, differs from the launcher's, fails, or declares another id.
    """
    path = patch_file(root, patch_id)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PatchError("a patch of the series cannot be read", where=str(path), found=str(error)) from error
    if expected is not None and digest(raw) != expected:
        raise PatchError(
            "this host has another patch file than the launcher",
            where=str(path),
            found=digest(raw),
            expected=expected,
            fix="install the same verl-musa on every host",
        )
    module = ModuleType(f"verl_musa_patches.{patch_id.replace('-', '_')}")
    module.__file__ = str(path)
    try:
        exec(compile(raw, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102  (our own file)
    except PatchError:
        raise
    except Exception as error:
        raise PatchError(
            "a patch file fails when it is loaded",
            where=str(path),
            found=f"{type(error).__name__}: {error}",
            expected="declarations only; upstream is imported inside functions",
        ) from error
    patch = module.__dict__.get("PATCH")
    if not isinstance(patch, Patch) or patch.id != patch_id:
        found = patch.id if isinstance(patch, Patch) else "no PATCH"
        raise PatchError(
            "a patch file declares something else", where=str(path), found=found, expected=patch_id
        )
    return patch
