"""What a run on several hosts runs in: asked of them, since the machine that starts the run may have another environment."""

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
    """What the head runs in; that the others' records say the same is preflight's business.

    Attributes:
        image: ``{"kind", "sha256", "packages"}``, see :func:`verl_musa.image.current.image_with`.
        series: digest of the patch series.
        provenance: what is kept beside the run.
        changed: host -> ``{"where", "found"}`` of a file of its image that somebody has changed.
    """

    image: Mapping[str, Any]
    series: str
    provenance: Mapping[str, Any]
    changed: Mapping[str, Mapping[str, str]]

    @property
    def items(self) -> dict[str, Any]:
        """The items of a lock that are facts of the hosts."""
        return {"image": dict(self.image), "patches": {"series": self.series}}


def software_of(fleet: Fleet, hosts: Sequence[Host], extras: Sequence[str]) -> Software:
    """Ask all hosts at once, the head first among them. Of another one that does not answer preflight says why.

    Raises:
        HostError: the head does not answer, or cannot say.
    """
    head = hosts[0]
    answers = fleet.call_all(
        hosts,
        "software",
        lambda host: {"extras": list(extras), "brief": host is not head},
        timeout_s=ASK_S,
    )
    answered = answers[head.name]
    if not answered.ok or answered.answer is None:
        raise failure(answered, "what it runs in")
    changed = {
        name: one.answer["changed"]
        for name, one in answers.items()
        if one.ok and one.answer is not None and one.answer.get("changed")
    }
    said = answered.answer
    try:
        return Software(said["image"], said["series"], said["provenance"], changed)
    except KeyError as error:
        raise HostError(
            "the head did not say what it runs in",
            where=head.name,
            found=f"an answer without {error}",
            expected="image, series, provenance",
            fix="install the same verl-musa on all hosts",
        ) from error
