"""The run directory: its names, how it is made and how it is found again."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from verl_musa.errors import RunError

RECORD = "run.json"


@dataclass(frozen=True)
class RunDirectory:
    """The paths inside ``runs/<recipe>/<run-id>``."""

    path: Path

    @property
    def record(self) -> Path:
        """``run.json``."""
        return self.path / RECORD

    @property
    def config(self) -> Path:
        """Verl's whole composed config."""
        return self.path / "config.yaml"

    @property
    def runtime_env(self) -> Path:
        """Ray's ``runtime_env`` of the job; secrets masked."""
        return self.path / "runtime_env.yaml"

    @property
    def launch(self) -> Path:
        """The command by hand."""
        return self.path / "launch.sh"

    @property
    def metrics(self) -> Path:
        """One object a step."""
        return self.path / "metrics.jsonl"

    @property
    def report(self) -> Path:
        """The summary for people."""
        return self.path / "report.md"

    @property
    def provenance(self) -> Path:
        """What the image or environment is made of."""
        return self.path / "provenance.json"

    @property
    def gate(self) -> Path:
        """What the correctness gate found."""
        return self.path / "gate.json"

    @property
    def triage(self) -> Path:
        """The card of a run that failed, for programs."""
        return self.path / "triage.json"

    @property
    def clocks(self) -> Path:
        """How far each host's clock is from the head's, where the run has several hosts."""
        return self.logs / "clocks.json"

    @property
    def logs(self) -> Path:
        """Logs, proofs and verl's own metrics files."""
        return self.path / "logs"

    @property
    def proofs(self) -> Path:
        """What each worker that owns a device wrote about itself."""
        return self.logs / "proof"

    @property
    def patches(self) -> Path:
        """What each process wrote about the patches that it applied."""
        return self.logs / "patches"

    @property
    def checkpoints(self) -> Path:
        """Verl's ``trainer.default_local_dir``."""
        return self.path / "checkpoints"

    def create(self) -> None:
        """Make the directory and its folders.

        Raises:
            RunError: it is there already, or cannot be made.
        """
        try:
            self.path.mkdir(parents=True)
            for folder in (self.logs, self.proofs, self.checkpoints):
                folder.mkdir()
        except OSError as error:
            raise RunError(
                "the run directory cannot be made",
                where=str(self.path),
                found=str(error),
                expected="a new folder that can be written to",
                fix="check the rights and the space there, or choose another place with --runs-dir",
            ) from error


def new_run_id() -> str:
    """A run id that sorts by time: UTC to the second, then six random hex digits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def find_run(runs_dir: Path, recipe: str, named: str) -> RunDirectory:
    """The run called ``named``: a path, a run id, or a unique prefix of one of this recipe's runs.

    Raises:
        RunError: none or several fit.
    """
    given = Path(named)
    if given.is_dir() and (given / RECORD).is_file():
        return RunDirectory(given.resolve())
    folder = (runs_dir / recipe).resolve()
    return _only_one(folder, f"*/{RECORD}", named, "no run of this recipe")


def find_any_run(runs_dir: Path, named: str) -> RunDirectory:
    """The run called ``named`` of whatever recipe: a run id or a unique prefix of one.

    Raises:
        RunError: none or several fit.
    """
    return _only_one(runs_dir.resolve(), f"*/*/{RECORD}", named, "no run at all")


def _only_one(folder: Path, pattern: str, named: str, none: str) -> RunDirectory:
    runs = sorted((path.parent for path in folder.glob(pattern)), key=lambda run: run.name)
    fitting = [run for run in runs if run.name == named] or [
        run for run in runs if run.name.startswith(named)
    ]
    if len(fitting) == 1:
        return RunDirectory(fitting[0])
    names = ", ".join(run.name for run in (fitting or runs)[-5:]) or none
    raise RunError(
        f"{'several runs begin' if fitting else 'no run begins'} with {named!r}",
        where=str(folder),
        found=names,
        expected="a run id, a unique prefix of one, or the path of a run directory",
        fix="name one of those"
        if runs
        else "start a new run without --resume, or give its folder with --runs-dir",
    )
