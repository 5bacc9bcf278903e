"""Sixteen bytes for each text, kept in arrays: what is equal is found among millions of rows in a few dozen megabytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

SIZE = 16


def digest(parts: Iterable[str]) -> bytes:
    """A digest of texts in order; half surrogates count too."""
    state = hashlib.blake2b(digest_size=SIZE)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "little"))
        state.update(raw)
    return state.digest()


def as_array(digests: Sequence[bytes]) -> Any:
    """The digests as a numpy array, each as two numbers in one."""
    import numpy as np

    return np.frombuffer(b"".join(digests), dtype=_kind())


def _kind() -> Any:
    import numpy as np

    return np.dtype(f"S{SIZE}")


class Seen:
    """Digests that were seen, sorted: 16 bytes each."""

    def __init__(self) -> None:
        import numpy as np

        self._known: Any = np.empty(0, dtype=_kind())

    def add(self, digests: Sequence[bytes]) -> list[bool]:
        """Remember ``digests`` and say of each whether it is new, here and in earlier calls."""
        import numpy as np

        if not digests:
            return []
        batch = as_array(digests)
        unique, first = np.unique(batch, return_index=True)
        places = np.searchsorted(self._known, unique)
        inside = np.minimum(places, max(0, len(self._known) - 1))
        known = (self._known[inside] == unique) if len(self._known) else np.zeros(len(unique), dtype=bool)
        fresh = np.zeros(len(batch), dtype=bool)
        fresh[first[~known]] = True
        self._known = np.insert(self._known, places[~known], unique[~known])
        return [bool(one) for one in fresh]

    def __len__(self) -> int:
        return len(self._known)
