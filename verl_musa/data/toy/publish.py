"""The command line of a ``make_assets.py`` and its folder, which appears complete or not at all."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


class AssetError(Exception):
    """A foreseeable mistake: the message says what was found, what was expected and what to do."""


def say(text: str) -> None:
    """Print one progress line at once, so that it is seen through a pipe."""
    print(f"[make_assets] {text}", flush=True)  # noqa: T201 - the script's own output


def require_free(out: Path) -> None:
    """Refuse a folder that is in use.

    Raises:
        AssetError: ``out`` is a file or holds anything.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AssetError(
            f"{out}: exists and is not an empty folder; expected a new one: remove it or name another"
        )


def prepare_libraries() -> None:
    """Make torch deterministic and transformers quiet and offline, for this process."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    # One thread: sums are then added in one order, whatever the machine's core count.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


@contextlib.contextmanager
def publishing(out: Path) -> Iterator[Path]:
    """Give a folder to write into, which becomes ``out`` if the block ends well and is removed if it does not.

    Raises:
        AssetError: ``out`` holds something already.
    """
    require_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield work
        _publish_modes(work)
        _sync_tree(work)
        work.rename(out)
    finally:
        # After the rename there is nothing left to remove.
        shutil.rmtree(work, ignore_errors=True)


def _publish_modes(folder: Path) -> None:
    """Make ``folder`` readable by all: mkdtemp and safetensors leave it to the owner, and Ray workers may be others."""
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def _sync_tree(folder: Path) -> None:
    """Flush every file and folder below ``folder`` to disk, so that the rename can't precede the contents."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_manifest(folder: Path, recipe: str, seed: int, facts: dict[str, Any]) -> None:
    """Write manifest.json: what made the files, and the SHA-256 and size of each. No time stamp: same seed, same bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    packages = ("torch", "transformers", "tokenizers", "safetensors", "pyarrow")
    manifest = {
        "schema": 1,
        "recipe": recipe,
        "seed": seed,
        **facts,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "files": {
            path.relative_to(folder).as_posix(): {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "bytes": path.stat().st_size,
            }
            for path in files
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def parse_args(recipe: str, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line of the script that makes the assets of ``recipe``: out, seed, pretrain_steps."""
    parser = argparse.ArgumentParser(description=f"Make models, tokenizer and data of the recipe {recipe}.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to make (new or empty)"
    )
    parser.add_argument(
        "--seed", type=int, required=True, metavar="N", help="same seed, same files; 0 or more"
    )
    parser.add_argument(
        "--pretrain-steps",
        type=int,
        metavar="N",
        help="steps of each phase, for tests: with few steps the model knows nothing and RL will not learn",
    )
    args = parser.parse_args(argv)
    if args.seed < 0:
        parser.error(f"--seed: found {args.seed}, expected 0 or more")
    if args.pretrain_steps is not None and args.pretrain_steps < 1:
        parser.error(f"--pretrain-steps: found {args.pretrain_steps}, expected 1 or more")
    return args


def run_script(recipe: str, argv: Sequence[str] | None, make: Callable[[Path, int, int | None], None]) -> int:
    """Be the script that makes the assets of ``recipe``; return its exit code: 0, or 2 for a foreseeable mistake.

    ``make`` gets the folder to fill, the seed, and the steps of each phase (None: as many as the recipe needs).
    """
    args = parse_args(recipe, argv)
    start = time.monotonic()
    try:
        require_free(args.out)  # before the heavy imports, so that a mistake shows at once
        prepare_libraries()
        with publishing(args.out) as work:
            make(work, args.seed, args.pretrain_steps)
    except (AssetError, OSError) as error:
        print(f"make_assets.py: error: {error}", file=sys.stderr)  # noqa: T201 - the script's own output
        return 2
    say(f"done in {time.monotonic() - start:.0f} s: {args.out}")
    return 0
