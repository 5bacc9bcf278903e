from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from verl_musa.run.signals import InterruptedRunError, Signals


@pytest.fixture(autouse=True)
def _not_under_nohup() -> Iterator[None]:
    """The tests themselves may run under nohup, where a hangup is ignored from the start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_the_first_signal_interrupts_and_later_ones_only_speak(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Signals():
        with pytest.raises(InterruptedRunError, match="interrupted by SIGHUP"):
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGINT)
    assert "still ending" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_held_signals_do_not_interrupt(capfd: pytest.CaptureFixture[str]) -> None:
    with Signals() as signals:
        signals.hold()
        os.kill(os.getpid(), signal.SIGTERM)
    assert "still ending" in capfd.readouterr().err


def test_a_hangup_under_nohup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
