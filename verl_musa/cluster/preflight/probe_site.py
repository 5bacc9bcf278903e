"""What the job's own Python is asked: versions by their metadata, the patch series, the image, the devices. Imports no torch."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-").replace(".", "-"), str(one.version))
    return dict(sorted(found.items()))


def _image(packages: dict[str, str]) -> dict[str, Any]:
    file = Path(sys.prefix) / "share/verl-musa/provenance.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))["content"]
        return {"kind": "image", "sha256": content.get("filesystem") or content["packages"]}
    except (OSError, ValueError, KeyError, TypeError):
        text = json.dumps(packages).encode()
        return {"kind": "environment", "sha256": hashlib.sha256(text).hexdigest()}


def _own() -> dict[str, Any]:
    """What verl-musa there says; of a folder of sources the version alone would not tell."""
    import verl_musa
    from verl_musa import extras
    from verl_musa.env import collect
    from verl_musa.patching import load_series

    root = Path(verl_musa.__file__).parent
    sources = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        sources.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    report = collect().to_json()
    aside: dict[str, str] = {}
    for name in sorted({name for names in extras.NEEDS.values() for name in names}):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            aside[name] = str(extras.distribution(name).version)
    return {
        "extras": aside,
        "series": load_series().digest,
        "sources": sources.hexdigest()[:16],
        "env": report,
    }


def _answer() -> dict[str, Any]:
    packages = _packages()
    found: dict[str, Any] = {
        "executable": sys.executable,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "packages": packages,
        "image": _image(packages),
    }
    try:
        found["own"] = _own()
    except Exception as error:  # noqa: BLE001  (any reason why it cannot be asked is the answer)
        found["own_error"] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    print(json.dumps(_answer()))  # noqa: T201  (the answer)
