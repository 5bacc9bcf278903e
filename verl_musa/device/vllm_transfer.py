"""verl's weight transfer to a vLLM server, with bounds: no wait without an end, no shared memory left behind.

verl 0.9.1's sender and receiver wait for each other without a limit, so that a server that cannot load its weights hangs the
job. Here each wait is bounded, and the sender learns within a second that its server's update has failed.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from multiprocessing import resource_tracker, shared_memory
from typing import Any, ClassVar

import torch
import zmq
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as upstream

LIMIT_ENV = "VERL_MUSA_VLLM_SYNC_TIMEOUT_S"
# Of one wait, not of the whole transfer: loading one bucket may take that long, no longer.
LIMIT_S = 600.0
LOOK_EVERY_MS = 500

Failure = Callable[[], BaseException | None]


class WeightSyncError(RuntimeError):
    """A weight update did not get through."""


def limit_s() -> float:
    """Return the bound of one wait in seconds.

    Raises:
        ValueError: the variable is no positive number.
    """
    text = os.environ.get(LIMIT_ENV, str(LIMIT_S))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{LIMIT_ENV}: found {text!r}; expected seconds, above 0")
    return value


class BoundedSocket:
    """A zmq socket whose waits have a bound and look after the peer meanwhile.

    Args:
        socket: the zmq socket.
        handle: its address, for messages.
        failure: what made the peer fail, or None while it is well.
    """

    def __init__(self, socket: Any, handle: str, failure: Failure) -> None:
        self._socket = socket
        self._handle = handle
        self._failure = failure
        self._limit_s = limit_s()
        # A message that nobody took must not hold up the end of the process.
        socket.setsockopt(zmq.LINGER, 0)

    def send_pyobj(self, value: Any) -> None:
        """Send as zmq does; see _wait for what it raises."""
        self._wait(zmq.POLLOUT, "no receiver took the message")
        self._socket.send_pyobj(value)

    def send(self, value: bytes) -> None:
        """Send as zmq does; see _wait for what it raises."""
        self._wait(zmq.POLLOUT, "no sender took the answer")
        self._socket.send(value)

    def recv(self) -> bytes:
        """Receive as zmq does; see _wait for what it raises."""
        self._wait(zmq.POLLIN, "no answer")
        return bytes(self._socket.recv())

    def recv_pyobj(self) -> Any:
        """Receive as zmq does; see _wait for what it raises."""
        self._wait(zmq.POLLIN, "no message")
        return self._socket.recv_pyobj()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _wait(self, event: int, what: str) -> None:
        """Wait until the socket is ready.

        Raises:
            WeightSyncError: it is not within the bound, or the peer has failed.
        """
        deadline = time.monotonic() + self._limit_s
        while not self._socket.poll(LOOK_EVERY_MS, event):
            failure = self._failure()
            if failure is not None:
                raise WeightSyncError(
                    f"{self._handle}: the vLLM server could not take the weights"
                ) from failure
            if time.monotonic() > deadline:
                raise WeightSyncError(
                    f"{self._handle}: {what} within {self._limit_s:.0f} s: look into the other side's log "
                    f"(trainer or vLLM worker); {LIMIT_ENV} sets the bound"
                )


def _let_go(memory: Any) -> None:
    """Give up shared memory that cannot be closed: a transfer failed, and its error still holds a view.

    The error must be heard, not the failure to close. The mapping ends with the last view.
    """
    memory._buf = memory._mmap = None
    memory.close()


def _well() -> BaseException | None:
    return None


class BoundedWeightSender(upstream.BucketedWeightSender):
    """verl's sender with bounded waits; its shared memory is gone afterwards, whatever happened."""

    socket: Any
    shm: Any

    failure: ClassVar[Failure] = staticmethod(_well)
    """What made the server fail in the update that is being sent; set by the rollout adapter."""

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket = BoundedSocket(self.socket, self.zmq_handle, type(self).failure)

    def _init_buffer(self) -> None:
        """Make the buffer and tell the receiver; unlike upstream, remember the memory before anything can fail.

        Raises:
            WeightSyncError: the receiver does not answer.
        """
        if not self.use_shm:
            super()._init_buffer()
            return
        self.shm = shared_memory.SharedMemory(
            f"verl_weights_{uuid.uuid4().hex}", create=True, size=self.bucket_size
        )
        # A slice: closing then fails while a view is left, where the whole would be unmapped under it.
        self.buffer = torch.frombuffer(self.shm.buf[: self.bucket_size], dtype=torch.uint8)
        self.socket.send_pyobj({"name": self.shm.name, "size": self.bucket_size})
        self.socket.recv()

    def _cleanup(self) -> None:
        memory = self.shm
        if memory is not None:
            # Unlinking signs it off; where both sides have one tracker, the receiver has done so already.
            resource_tracker.register(memory._name, "shared_memory")
        try:
            super()._cleanup()
        except BufferError:
            _let_go(self.shm)
            self.shm.unlink()
            self.shm = None


class BoundedWeightReceiver(upstream.BucketedWeightReceiver):
    """verl's receiver with bounded waits, which leaves the sender's memory to the sender."""

    socket: Any
    shm: Any

    def _init_socket(self) -> None:
        super()._init_socket()
        self.socket = BoundedSocket(self.socket, self.zmq_handle, _well)

    def _init_buffer(self) -> None:
        super()._init_buffer()
        if self.shm is not None:
            # Python 3.11 has whoever attaches unlink it at exit, too; it is the sender's.
            resource_tracker.unregister(self.shm._name, "shared_memory")

    def _cleanup(self) -> None:
        try:
            super()._cleanup()
        except BufferError:
            _let_go(self.shm)
            self.shm = None
            if self.socket is not None:
                self.socket.close()
                self.socket = None


def install() -> None:
    """Make verl's own code in this process use them, wherever it looks them up later."""
    upstream.BucketedWeightSender = BoundedWeightSender
    upstream.BucketedWeightReceiver = BoundedWeightReceiver
