"""The ground truth of every row, through the recipe's own reward function, in a process that may hang or die."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_musa.data.check_tally import Tally
from verl_musa.data.digests import Seen, digest
from verl_musa.reward import Child, ChildDiedError, ChildError, ChildTimeoutError

START_SECONDS = 120.0
"""Longest time for importing the reward's file."""

BATCH_SECONDS = 120.0
"""Longest time for one batch of calls."""

ROW_SECONDS = 10.0
"""Longest time for the calls of one row, once its batch took too long."""

BATCH = 256
"""Rows that are scored with one request."""

FORMS = ("{}", "\\boxed{{{}}}", "#### {}")
"""How the right answer is given to the function: it should pay for one of these, and not for an empty response."""


@dataclass(frozen=True)
class RewardFunction:
    """What to call.

    Attributes:
        file: its Python file.
        name: the function in it.
        kwargs: verl's ``reward_kwargs``.
        judged: whether it asks a reward model, which is stood in for; what it pays then says nothing.
    """

    file: Path
    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    judged: bool = False


@dataclass
class Rewards:
    """Asks the function about each distinct pair of data source and ground truth.

    Attributes:
        function: what to call.
    """

    function: RewardFunction
    raised: Tally = field(default_factory=Tally)
    unpaid: Tally = field(default_factory=Tally)
    distinct: int = 0
    line: int | None = None
    """Line of the file in which the first error was raised."""

    given_up: str = ""
    """Why no further rows were looked at."""

    def __post_init__(self) -> None:
        self._seen = Seen()
        self._child: Child | None = None
        self._waiting: list[tuple[Path, int, list[dict[str, Any]]]] = []

    def look(self, file: Path, rows: Sequence[tuple[int, str, Any, Any]]) -> None:
        """Look at some rows of a file: (number, data source, ground truth, extra_info)."""
        if self.given_up:
            return
        keys = [digest([str(source), json.dumps(truth, default=str)]) for _, source, truth, _ in rows]
        for (number, source, truth, extra), new in zip(rows, self._seen.add(keys), strict=True):
            if new:
                self.distinct += 1
                self._waiting.append((file, number, _samples(source, truth, extra)))
        while len(self._waiting) >= BATCH:
            self._score(self._waiting[:BATCH])
            del self._waiting[:BATCH]

    def finish(self) -> None:
        """Score what is waiting, and end the process."""
        if self._waiting and not self.given_up:
            self._score(self._waiting)
        self._waiting = []
        self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _score(self, rows: Sequence[tuple[Path, int, list[dict[str, Any]]]]) -> None:
        try:
            results = self._ask([sample for _, _, samples in rows for sample in samples], BATCH_SECONDS)
        except (ChildTimeoutError, ChildDiedError):
            self._one_by_one(rows)
            return
        except ChildError as error:
            self.given_up = f"{self.function.file.name} cannot be loaded: {error}"
            return
        at = 0
        for file, number, samples in rows:
            self._judge(file, number, samples, results[at : at + len(samples)])
            at += len(samples)

    def _one_by_one(self, rows: Sequence[tuple[Path, int, list[dict[str, Any]]]]) -> None:
        """Find the row that hangs or kills the function; the rest is not looked at then."""
        for file, number, samples in rows:
            try:
                self._judge(file, number, samples, self._ask(samples, ROW_SECONDS))
            except ChildError as error:
                truth = samples[0]["ground_truth"]
                self.raised.add(file, number, f"{self.function.name} on ground truth {truth!r}: {error}")
                self.given_up = "it hung or died"
                return

    def _ask(self, samples: list[dict[str, Any]], seconds: float) -> list[Any]:
        child = self._child or self._start()
        self._child = None  # gone, should it fail
        results: list[Any] = child.ask({"samples": samples}, seconds)["results"]
        self._child = child
        return results

    def _start(self) -> Child:
        with tempfile.TemporaryDirectory(prefix="verl-musa-reward-") as scratch:
            job = Path(scratch, "job.json")
            job.write_text(
                json.dumps(
                    {
                        "file": str(self.function.file),
                        "function": self.function.name,
                        "kwargs": self.function.kwargs,
                        "reward_model": self.function.judged,
                    }
                ),
                encoding="utf-8",
            )
            script = Path(__file__).with_name("_probe.py")
            # -P as verl does it: the recipe folder is not on the import path of its reward function.
            return Child([sys.executable, "-P", str(script), "--serve", str(job)], os.environ, START_SECONDS)

    def _judge(self, file: Path, number: int, samples: list[dict[str, Any]], results: Sequence[Any]) -> None:
        truth = samples[0]["ground_truth"]
        error = next((result for result in results if isinstance(result, dict)), None)
        if error is not None:
            self.line = self.line or error.get("line")
            self.raised.add(file, number, f"ground truth {truth!r}: {error['error'][:200]}")
            return
        *paid, nothing = results
        if not self.function.judged and max(paid) <= nothing:
            self.unpaid.add(
                file, number, f"ground truth {truth!r} earns {max(paid):g}, an empty response {nothing:g}"
            )


def _samples(source: str, truth: Any, extra: Any) -> list[dict[str, Any]]:
    """The calls for one row: the right answer in each form, then nothing."""
    plain = json.loads(json.dumps(truth, default=str))
    # verl adds these two to extra_info before it calls the function.
    info = {
        **(json.loads(json.dumps(extra, default=str)) or {}),
        "num_turns": None,
        "rollout_reward_scores": {},
    }
    responses = [form.format(plain) for form in FORMS] + [""]
    return [
        {"data_source": source, "solution_str": response, "ground_truth": plain, "extra_info": info}
        for response in responses
    ]
