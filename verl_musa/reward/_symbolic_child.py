"""Says whether two LaTeX expressions are equal, by math-verify. Standard library and math-verify only; run by path, never imported.

    python -P _symbolic_child.py CPU_SECONDS MEMORY_BYTES

The first line that it prints is ``{"ready": true}``; then it answers each line ``[truth, answer]`` with ``{"equal": true|false}``.
The kernel ends it when one comparison has used CPU_SECONDS: a signal handler in Python would not run while a C function multiplies
numbers of a million digits. Processor time and not time of day, so that a busy machine changes no reward.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from typing import Any

_WARM_UP = (("\\frac{1}{2}", "\\frac{2}{4}"), ("\\{1,2\\}", "\\{2,1\\}"), ("x^{2}+1", "1+x^{2}"))
_NO_LIMIT = -1


def _allow(seconds: int) -> None:
    """Let the kernel end this process after ``seconds`` more of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # Rounded up: a limit in the past ends the process at once.
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _comparison() -> Any:
    from math_verify import LatexExtractionConfig, parse, verify

    # LaTeX only: the library's plain expressions go through sympy.parse_expr, which evaluates Python.
    latex = (LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),)

    def read(text: str) -> Any:
        found = parse("\\boxed{" + text + "}", latex, fallback_mode="no_fallback", parsing_timeout=_NO_LIMIT)
        return found[0] if found else None

    def equal(truth: str, answer: str) -> bool:
        gold, target = read(truth), read(answer)
        if gold is None or target is None:
            return False
        return bool(verify(gold, target, timeout_seconds=_NO_LIMIT))

    return equal


def _main() -> None:
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    # What anything prints goes to standard error; the answers have the pipe for themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    equal = _comparison()
    for truth, answer in _WARM_UP:
        equal(truth, answer)
    answers.write('{"ready": true}\n')
    answers.flush()
    for line in sys.stdin:
        truth, answer = json.loads(line)
        _allow(seconds)
        try:
            result: dict[str, Any] = {"equal": equal(truth, answer)}
        except Exception as error:  # noqa: BLE001  (whatever sympy meets in such an answer, MemoryError and RecursionError too)
            result = {"gave_up": type(error).__name__}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main()
