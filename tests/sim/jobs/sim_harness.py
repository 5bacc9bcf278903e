"""What every rank of a simulator test job does: run named checks and report them as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
FOLDER = Path(os.environ.get("SIM_JOB_FOLDER", "."))


class Checks:
    """Named checks of one rank; ``write`` leaves them where the test looks."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Runs the body as check ``name``; an exception is its result, not the end of the job."""
        if name in self.results:
            raise ValueError(f"two checks are named {name!r}")
        try:
            yield
        except Exception:  # noqa: BLE001  the test prints it
            self.results[name] = traceback.format_exc()
        else:
            self.results[name] = "ok"

    def write(self) -> None:
        """Writes ``rank<N>.json`` into the job's folder."""
        (FOLDER / f"rank{RANK}.json").write_text(json.dumps(self.results), encoding="utf-8")
        sys.stderr.flush()


def store_path(name: str) -> str:
    """A rendezvous file for ``torch.distributed.FileStore``, common to the job's ranks."""
    return str(FOLDER / f"store-{name}")
