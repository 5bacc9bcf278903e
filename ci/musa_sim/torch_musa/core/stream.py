"""Streams and events. All work is synchronous: a stream only has an identity, an event only a time."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import torch

from torch_musa import _C
from torch_musa.core.device import index_of

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]

_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1.value)


class Event(torch.Event):
    """A point in a stream's work."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Self:
        """Raises NotImplementedError for interprocess events."""
        if interprocess:
            raise NotImplementedError("the simulated musa device has no events between processes")
        event: Self = super().__new__(cls, device="musa", enable_timing=enable_timing, blocking=blocking)
        event._timed = enable_timing
        return event

    _timed: bool

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds from this event to ``end_event``; both recorded, both with ``enable_timing=True``."""
        if not (self._timed and getattr(end_event, "_timed", True)):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        return float(_C.event_elapsed_ms(self.event_id, end_event.event_id))


class Stream(torch.Stream):
    """A queue of work on a device."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Self:
        """A new stream on ``device``; ``stream_id``/``device_index``/``device_type`` name an existing one."""
        if kwargs:
            known: Self = super().__new__(cls, **kwargs)
            return known
        made: Self = super().__new__(cls, device=torch.device("musa", index_of(device)), priority=priority)
        return made

    @property
    def musa_stream(self) -> int:
        """The raw handle; here the stream's number."""
        return self.stream_id

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records ``event`` (a new one by default) here and returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Makes later work here wait for ``event``."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Makes later work here wait for what ``stream`` holds now."""
        self.wait_event(Event() if stream.device.type != "musa" else _recorded(stream))

    def __repr__(self) -> str:
        return f"<torch.musa.Stream device={self.device} musa_stream={self.stream_id:#x}>"


def _recorded(stream: torch.Stream) -> Event:
    event = Event()
    event.record(stream)
    return event


class ExternalStream(Stream):
    """A stream made elsewhere, by its handle."""

    def __new__(cls, stream_ptr: int, device: Any = None, **_kwargs: Any) -> Self:
        """Wraps ``stream_ptr``, a number from ``Stream.musa_stream``."""
        known: Self = super().__new__(
            cls, stream_id=stream_ptr, device_index=index_of(device), device_type=_DEVICE_TYPE
        )
        return known


def _wrap(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=_DEVICE_TYPE)


def current_stream(device: Any = None) -> Stream:
    """The stream that new work on ``device`` joins."""
    _C.ensure_initialized()
    return _wrap(torch.accelerator.current_stream(torch.device("musa", index_of(device))))


def default_stream(device: Any = None) -> Stream:
    """The device's stream number 0."""
    _C.ensure_initialized()
    _C.check_ordinal(index_of(device))
    return Stream(stream_id=0, device_index=index_of(device), device_type=_DEVICE_TYPE)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes ``stream`` current on its device, without changing the current device."""
    if stream is not None:
        _C.set_stream(stream.stream_id, stream.device_index)


class StreamContext:
    """Makes a stream, and its device, current inside; ``None`` changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: tuple[int, Stream] | None = None

    def __enter__(self) -> None:
        if self.stream is None:
            return
        target = self.stream.device_index
        self._previous = (int(_C.current_device()), current_stream(target))
        _C.set_device(target)
        set_stream(self.stream)

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            device, stream = self._previous
            set_stream(stream)
            _C.set_device(device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """``with torch.musa.stream(s):`` runs the block on ``s``."""
    return StreamContext(stream)
