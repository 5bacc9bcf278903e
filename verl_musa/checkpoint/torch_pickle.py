"""Pickles of objects of torch's classes, written where torch is not imported.

Importing it takes longer than converting a model of some GiB. The bytes are those that torch's own code writes for the same objects; the tests compare them.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

INDEX_PROTOCOL = 4
"""What ``pickle.dump`` uses by itself up to Python 3.13; torch's writer leaves it at that."""

SAVE_PROTOCOL = 2
"""torch.save's own."""


@dataclass(frozen=True, eq=False, slots=True)
class Global:
    """A class, function or constant of a module, by its name."""

    module: str
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """What a callable returns for some arguments; one that is named several times is ``shared``."""

    function: Global
    arguments: tuple[Any, ...]
    shared: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Instance:
    """An object that is made without calling its ``__init__``, and then given its state, where it has any."""

    kind: Global
    state: Any = None


@dataclass(frozen=True, eq=False, slots=True)
class Persistent:
    """What the reader looks up elsewhere, by an id."""

    identity: tuple[Any, ...]


# Python's own pickler: unlike the one in C it lets a global be written that is not imported here. Not in typeshed.
_Base: Any = pickle._Pickler  # noqa: SLF001


class _Pickler(_Base):
    """Writes the stand-ins of this module as what they stand for."""

    dispatch: ClassVar[dict[type, Callable[..., None]]] = dict(_Base.dispatch)

    def __init__(self, stream: io.BytesIO, protocol: int) -> None:
        super().__init__(stream, protocol)
        self._numbered = 0

    def memoize(self, obj: Any) -> None:
        """Number an object, and remember only what may come again: the rest of an index is tens of thousands of objects."""
        self.write(self.put(self._numbered))
        if isinstance(obj, str | Global) or getattr(obj, "shared", False):
            self.memo[id(obj)] = self._numbered, obj
        self._numbered += 1

    def _global(self, value: Global) -> None:
        if self.proto >= INDEX_PROTOCOL:
            self.save(value.module)
            self.save(value.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        self.memoize(value)

    def _call(self, value: Call) -> None:
        self.save(value.function)
        self.save(value.arguments)
        self.write(pickle.REDUCE)
        self.memoize(value)

    def _instance(self, value: Instance) -> None:
        self.save(value.kind)
        self.save(())
        self.write(pickle.NEWOBJ)
        self.memoize(value)
        if value.state is not None:
            self.save(value.state)
            self.write(pickle.BUILD)

    def _persistent(self, value: Persistent) -> None:
        self.save(value.identity)
        self.write(pickle.BINPERSID)

    dispatch |= {Global: _global, Call: _call, Instance: _instance, Persistent: _persistent}


def dumps(value: Any, protocol: int) -> bytes:
    """Pickle plain values and the stand-ins of this module."""
    stream = io.BytesIO()
    _Pickler(stream, protocol).dump(value)
    return stream.getvalue()
