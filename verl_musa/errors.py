"""The one family of errors that reaches a user.

Each message names the place (file and line, or host), what was found, what was expected and the next step, so
that nobody has to read a traceback for a foreseeable mistake. ``verl-musa -v`` shows the traceback all the same.
"""

from __future__ import annotations

from typing import ClassVar


class VerlMusaError(Exception):
    """A foreseeable mistake: bad input or an environment that does not fit.

    Args:
        message: one sentence that says what is wrong.
        where: ``file:line``, a path or a host.
        found: what was seen there.
        expected: what would have been right.
        fix: the next step for the user.
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        found: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.found = found
        self.expected = expected
        self.fix = fix

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        details = [("found", self.found), ("expected", self.expected), ("next step", self.fix)]
        return "\n".join([head, *(f"  {label + ':':<10} {text}" for label, text in details if text)])


class RecipeError(VerlMusaError):
    """A recipe, an override or a `site.yaml` that cannot be used as it stands."""


class DataError(VerlMusaError):
    """A data set, model folder or reward function that cannot be used as it stands."""


class CheckpointError(VerlMusaError):
    """Weights that cannot be converted, written or trusted as they stand."""


class HostError(VerlMusaError):
    """A host that cannot run the job: memory, ports, missing packages."""


class LintError(VerlMusaError):
    """Something that the lint was asked for and cannot look at: a path, a distribution, a rule, its configuration."""


class ImageError(VerlMusaError):
    """An image, its pins or an environment's provenance that cannot be used or trusted as it stands."""


class RunError(VerlMusaError):
    """A run directory that cannot be used as asked (resume, name clash)."""


class JobFailedError(VerlMusaError):
    """The job was started and failed on its own: a worker died, training crashed, a proof was missing."""

    exit_code: ClassVar[int] = 1


class HostLostError(JobFailedError):
    """A host was lost while the job ran on it: killed, unreachable, or its Ray ended.

    Args:
        message: as in the other errors.
        lost: the names of those hosts.
        details: as in the other errors.
    """

    def __init__(self, message: str, *, lost: tuple[str, ...], **details: str | None) -> None:
        super().__init__(message, **details)
        self.lost = lost
