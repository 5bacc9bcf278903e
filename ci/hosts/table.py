"""The table of faults of docs/faults.md: fault -> who says it, of which host, in how many seconds, in which words.

    VERL_MUSA_FAULT_TABLE=FILE nox -s integration -- tests/integration/test_preflight_hosts.py tests/integration/test_faults.py
    python ci/hosts/table.py FILE        # writes docs/faults.md and docs/faults.zh-CN.md from that run's results

The tests append one line of JSON for each fault that was put into hosts and found. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- table -->\n", "<!-- end -->\n"
DOCUMENTS = ("faults.md", "faults.zh-CN.md")
LONGEST = 220


RESULTS = "VERL_MUSA_FAULT_TABLE"
"""Variable with the file that tests add their results to; without it they add none."""


LIMIT_S = 30.0
"""Within which a fault is to be named, on a machine that has nothing else to do."""


def bound() -> float:
    """``LIMIT_S``, longer by as much as this machine is busier than it can be."""
    return LIMIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def note(fault: str, found_by: str, host: str, seconds: float, message: str) -> None:
    """Add a result to the file that ``VERL_MUSA_FAULT_TABLE`` names, if it does."""
    file = os.environ.get(RESULTS)
    if file:
        values = {
            "fault": fault,
            "found_by": found_by,
            "host": host,
            "seconds": round(seconds, 1),
            "message": message,
        }
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(values, ensure_ascii=False) + "\n")


def rows_of(lines: Sequence[str]) -> list[dict[str, str]]:
    """The last result of each fault, in the order in which they were first seen.

    Raises:
        ValueError: a line is no result.
    """
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        value = json.loads(line)
        missing = {"fault", "found_by", "host", "seconds", "message"} - set(value)
        if missing:
            raise ValueError(f"not a result, {', '.join(sorted(missing))} missing: {line[:100]}")
        found[value["fault"]] = {key: str(text) for key, text in value.items()}
    return list(found.values())


def cell(text: str) -> str:
    """A text as one cell of a Markdown table, without what changes with each run."""
    text = re.sub(r"/tmp/[^\s,;:'\"]*/", "…/", " ".join(text.split()))  # noqa: S108  (folders of the test run)
    text = re.sub(r"\b(10\.20[12])\.\d{1,3}\.(\d{1,3})\b", r"\1.0.\2", text)
    short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    return short.replace("|", "\\|").replace("<", "&lt;")


def render(rows: Sequence[dict[str, str]], document: str) -> str:
    """The document with these rows in the place of its table."""
    columns = ("fault", "found_by", "host", "seconds", "message")
    lines = [f"| {' | '.join(cell(row[column]) for column in columns)} |\n" for row in rows]
    slowest = max(float(row["seconds"]) for row in rows)
    head = "| fault | found by | host | seconds | in these words |\n|---|---|---|---|---|\n"
    foot = f"\n{len(rows)} faults, the slowest {slowest:.1f} s\n"
    before, _, rest = document.partition(START)
    _, _, after = rest.partition(END)
    return "".join([before, START, head, *lines, foot, END, after])


def main(arguments: Sequence[str]) -> int:
    """Write both documents from the results named on the command line."""
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    rows = rows_of(Path(arguments[0]).read_text(encoding="utf-8").splitlines())
    if not rows:
        raise SystemExit(f"{arguments[0]} has no results")
    for name in DOCUMENTS:
        file = ROOT / "docs" / name
        file.write_text(render(rows, file.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{len(rows)} faults written to {' and '.join(DOCUMENTS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
