from __future__ import annotations

import io

from rich.console import Console

from verl_musa.observe import display

DATA = {
    "critic/score/mean": 0.25,
    "actor/kl_loss": 0.001,
    "actor/entropy": 2.0,
    "response_length/mean": 12.0,
    "perf/total_num_tokens": 300,
    "perf/time_per_step": 3,
    "training/rollout_probs_diff_max": 2e-8,
}


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=200, soft_wrap=True, highlight=False), stream


def test_a_step_shows_what_matters_and_nothing_that_is_not_there() -> None:
    line = display.step_line(3, 20, DATA, 75.4)
    assert line.startswith("step 3/20  reward 0.250  kl 1.00e-03  entropy 2.000  length 12.0  tok/s 100")
    assert line.endswith("prob diff 2.0e-08  s/step 3.0  left 0:01:15")
    assert display.step_line(3, None, {}, None) == "step 3"


def test_plain_lines_without_a_terminal() -> None:
    target, stream = console(terminal=False)
    shown = display.open_display(target)
    assert isinstance(shown, display.LineDisplay)
    for _ in range(2):
        shown.phase("the first step")
    shown.note("[not markup]")
    shown.step(1, 2, DATA)
    shown.phase("step 2")
    shown.close()
    assert len(stream.getvalue().splitlines()) == 3
    assert stream.getvalue().splitlines()[:2] == ["… the first step", "[not markup]"]
    assert stream.getvalue().splitlines()[2].startswith("step 1/2  reward")


def test_a_terminal_gets_a_live_line_that_goes_away() -> None:
    target, stream = console(terminal=True)
    shown = display.open_display(target)
    assert isinstance(shown, display.LiveDisplay)
    shown.phase("Ray starts")
    assert "Ray starts (0:00:0" in shown._waiting().plain
    shown.step(1, 2, DATA)
    shown.close()
    assert "step 1/2" in stream.getvalue()


def test_time_left_comes_from_the_last_steps() -> None:
    eta = display._Eta()
    assert eta.left(1, 10, 100.0) is None
    assert eta.left(3, 10, 104.0) == 14.0
    assert eta.left(4, None, 106.0) is None
    assert display.duration(3725) == "1:02:05"
