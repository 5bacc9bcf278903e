"""Live progress: one line that is redrawn on a terminal, one plain line a step elsewhere."""

from __future__ import annotations

import time
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from verl_musa.observe import metrics

ETA_STEPS = 10


class Display(Protocol):
    """What the runner tells a user."""

    def note(self, text: str) -> None:
        """Show a line that stays."""

    def phase(self, text: str) -> None:
        """Show what is being waited for."""

    def step(self, step: int, total: int | None, data: dict[str, Any]) -> None:
        """Show a finished step."""

    def close(self) -> None:
        """Stop redrawing; later notes are plain lines."""


def open_display(console: Console | None = None) -> Display:
    """The display that fits where the output goes."""
    console = console or Console(soft_wrap=True, highlight=False)
    return LiveDisplay(console) if console.is_terminal else LineDisplay(console)


def step_line(step: int, total: int | None, data: dict[str, Any], left_s: float | None) -> str:
    """One line with what matters of a step; what verl did not log is left out."""
    shown: list[str] = [f"step {step}/{total}" if total else f"step {step}"]
    fields: list[tuple[str, float | None, str]] = [
        ("reward", metrics.number(data, metrics.SCORE), ".3f"),
        ("kl", metrics.number(data, "actor/kl_loss", "actor/reward_kl_penalty", "actor/ppo_kl"), ".2e"),
        ("entropy", metrics.number(data, "actor/entropy"), ".3f"),
        ("length", metrics.number(data, "response_length/mean"), ".1f"),
        ("tok/s", metrics.tokens_per_second(data), ".0f"),
        ("device GiB", metrics.device_memory(data), ".2f"),
        ("prob diff", metrics.number(data, metrics.HELD_EACH_STEP["rollout_probs_diff_max"]), ".1e"),
        ("s/step", metrics.number(data, "perf/time_per_step"), ".1f"),
    ]
    shown += [f"{name} {value:{form}}" for name, value, form in fields if value is not None]
    shown += [f"{name} {value:.3f}" for name, value in metrics.validation_scores(data).items()]
    if left_s is not None:
        shown.append(f"left {duration(left_s)}")
    return "  ".join(shown)


def duration(seconds: float) -> str:
    """Seconds as ``h:mm:ss``."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


class _Eta:
    """Time left, from when the last steps were seen."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float]] = []

    def left(self, step: int, total: int | None, now: float) -> float | None:
        self._seen = [*self._seen[-ETA_STEPS:], (step, now)]
        first_step, first_time = self._seen[0]
        if total is None or step <= first_step:
            return None
        return (total - step) * (now - first_time) / (step - first_step)


class LineDisplay:
    """Plain lines, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._eta = _Eta()
        self._phase = ""
        self._stepped = False

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)

    def phase(self, text: str) -> None:
        """Print the phase when it changed, up to the first step: from then on each step has its line."""
        if text != self._phase and not self._stepped:
            self._phase = text
            self.note(f"… {text}")

    def step(self, step: int, total: int | None, data: dict[str, Any]) -> None:
        """Print the step's line."""
        self._stepped = True
        self.note(step_line(step, total, data, self._eta.left(step, total, time.monotonic())))

    def close(self) -> None:
        """Nothing to stop: every line was printed at once."""


class LiveDisplay:
    """Step lines that stay, and below them one redrawn line: what is waited for and for how long."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._eta = _Eta()
        self._phase = "starting"
        self._since = time.monotonic()
        self._live = Live(console=console, get_renderable=self._waiting, refresh_per_second=2, transient=True)
        self._live.start()

    def _waiting(self) -> Text:
        return Text(f"  {self._phase} ({duration(time.monotonic() - self._since)})", style="dim")

    def note(self, text: str) -> None:
        """Print a line above the redrawn one."""
        self._console.print(text, markup=False)

    def phase(self, text: str) -> None:
        """Set what is waited for."""
        if text != self._phase:
            self._phase, self._since = text, time.monotonic()

    def step(self, step: int, total: int | None, data: dict[str, Any]) -> None:
        """Print the step's line and start to wait for the next."""
        self.note(step_line(step, total, data, self._eta.left(step, total, time.monotonic())))
        self._since = time.monotonic()

    def close(self) -> None:
        """Remove the redrawn line."""
        self._live.stop()
