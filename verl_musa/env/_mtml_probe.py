"""Prints what mthreads-ml-py (``pymtml``) knows as one JSON line.

Run by path in a process of its own: the driver's library may hang or crash, and neither must reach the command line.

    {"missing": true} | {"error": text} | {"driver": text | null, "devices": [{...}]}
"""

from __future__ import annotations

import json
from typing import Any


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _ask(library: Any, name: str, *arguments: Any) -> Any:
    """The answer of ``name``; None where this version of the library lacks it or refuses this one question."""
    function = getattr(library, name, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except Exception:  # noqa: BLE001  (each field may fail alone, e.g. on a virtual GPU; it is then unknown)
        return None


def _device(library: Any, index: int) -> dict[str, Any]:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    memory = _ask(library, "nvmlDeviceGetMemoryInfo", handle)
    load = _ask(library, "nvmlDeviceGetUtilizationRates", handle)
    name = _ask(library, "nvmlDeviceGetName", handle)
    uuid = _ask(library, "nvmlDeviceGetUUID", handle)
    return {
        "index": index,
        "name": None if name is None else _text(name),
        "uuid": None if uuid is None else _text(uuid),
        "memory_total_mib": None if memory is None else int(memory.total) // 2**20,
        "memory_used_mib": None if memory is None else int(memory.used) // 2**20,
        "utilization_percent": None if load is None else int(load.gpu),
    }


def _read() -> dict[str, Any]:
    try:
        import pymtml
    except ImportError as error:
        return {"missing": True} if error.name == "pymtml" else {"error": f"{type(error).__name__}: {error}"}
    try:
        pymtml.nvmlInit()
        driver = _ask(pymtml, "nvmlSystemGetDriverVersion")
        devices = [_device(pymtml, index) for index in range(pymtml.nvmlDeviceGetCount())]
    except Exception as error:  # noqa: BLE001  (the library's errors are classes made at run time)
        return {"error": f"{type(error).__name__}: {error}"}
    return {"driver": None if driver is None else _text(driver), "devices": devices}


if __name__ == "__main__":
    print(json.dumps(_read()))  # noqa: T201  (the answer)
