"""What a run on several hosts runs in: asked of the head, since the machine that starts the run may have another environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_musa.cluster.fleet import Fleet, failure
from verl_musa.cluster.hosts import Host
from verl_musa.errors import HostError

ASK_S = 180.0
"""Every file of every package is read once, which may lie on a slow disk."""


@dataclass(frozen=True)
class Software:
    """What the head runs in; that the other hosts hold the same is preflight's business.

    Attributes:
        host: its name.
        image: ``{"kind", "sha256", "packages"}``, see :func:`verl_musa.image.current.image_with`.
        series: digest of the patch series.
        provenance: what is kept beside the run.
        changed: which file of its image somebody has changed, and how that was found; empty where nobody has.
    """

    host: str
    image: Mapping[str, Any]
    series: str
    provenance: Mapping[str, Any]
    changed: Mapping[str, str]

    @property
    def items(self) -> dict[str, Any]:
        """The items of a lock that are facts of the hosts."""
        return {"image": dict(self.image), "patches": {"series": self.series}}


def software_of(fleet: Fleet, head: Host, extras: Sequence[str]) -> Software:
    """Ask the head.

    Raises:
        HostError: it does not answer, or cannot say.
    """
    answered = fleet.call(head, "software", {"extras": list(extras)}, timeout_s=ASK_S)
    if not answered.ok or answered.answer is None:
        raise failure(answered, "what it runs in")
    said = answered.answer
    try:
        return Software(head.name, said["image"], said["series"], said["provenance"], said["changed"])
    except KeyError as error:
        raise HostError(
            "the head did not say what it runs in",
            where=head.name,
            found=f"an answer without {error}",
            expected="image, series, provenance, changed",
            fix="install the same verl-musa on all hosts",
        ) from error
