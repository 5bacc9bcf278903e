"""Part of the probe: listens on the ports that the job will use and dials every other host's. Python 3.8 or newer.

All hosts run it at once. Each listens on its training address until every peer has called or the agreed time is over, and dials the
others until each call has a result; a host that comes up late is dialled again. One word tells what became of a call:

    ok          our listener over there answered
    dropped     nothing came back: a firewall drops, or nobody has the address
    refused     the other end said no, although our listener is there: a firewall rejects
    no route    this host or a router knows no way
    stranger    somebody else answered
"""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
from typing import Any

from verl_musa.cluster.preflight.probe import within

AGAIN_S = 0.25
SETTLED_S = 3.2
"""A call without an answer this long after the peer was seen alive is dropped: two repetitions of its first packet are over."""

REFUSED_S = 0.8
PULL_S = 3.0
LARGEST_LINE = 256
CHUNK = 1 << 16
DISCARD = 9


class Call:
    """One port of one peer that is dialled."""

    def __init__(self, peer: str, address: str, port: int) -> None:
        self.peer, self.address, self.port = peer, address, port
        self.status: str | None = None
        self.last = "dropped"
        self.error = ""
        self.again = 0.0
        self.began = 0.0
        self.took = 0.0
        self.link: socket.socket | None = None
        self.heard = b""
        self.sent = False

    def finish(self, status: str, error: str = "") -> None:
        """Note the result."""
        self.status, self.error = status, error or self.error
        if self.link is not None:
            self.link.close()
            self.link = None


class Mesh:
    """The calls of one host, in one loop."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.nonce, self.me, self.address = parameters["nonce"], parameters["me"], parameters["address"]
        self.until = time.monotonic() + max(
            1.0, min(parameters["until"] - time.time(), parameters["seconds"] - 2)
        )
        self.family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.selector = selectors.DefaultSelector()
        self.bound: dict[str, str] = {}
        self.expected = {(peer, int(port)) for peer, ports in parameters["expect"].items() for port in ports}
        self.callers: dict[str, str] = {}
        self.calls = [
            Call(one["host"], one["address"], port) for one in parameters["dial"] for port in one["ports"]
        ]
        self.alive: dict[str, float] = {}
        self.clocks: dict[str, list[float]] = {}
        self.pulls: list[dict[str, Any]] = list(parameters.get("pulls", []))
        self.pulled: dict[str, dict[str, Any]] = {}
        self.threads: list[threading.Thread] = []
        self.payload = parameters.get("payload", 0)

    def listen(self, ports: list[int]) -> None:
        """Open the listeners; what cannot be opened is noted by the kernel's word for it."""
        for port in ports:
            server = socket.socket(self.family, socket.SOCK_STREAM)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((self.address, port))
                server.listen(512)
            except OSError as error:
                server.close()
                self.bound[str(port)] = errno.errorcode.get(error.errno or 0, str(error))
                self.expected = {one for one in self.expected if one[1] != port}
                continue
            server.setblocking(False)
            self.bound[str(port)] = "ok"
            self.selector.register(server, selectors.EVENT_READ, ("server", port))

    def run(self) -> None:
        """Serve and dial until all is known or the time is over."""
        while time.monotonic() < self.until:
            now = time.monotonic()
            for call in self.calls:
                self._step(call, now)
            self._start_pulls()
            dialled = all(call.status for call in self.calls)
            if (
                dialled
                and not self.expected
                and not self.pulls
                and not any(one.is_alive() for one in self.threads)
            ):
                return
            for key, _ in self.selector.select(0.05):
                kind, what = key.data
                getattr(self, "_on_" + kind)(key.fileobj, what)
        for call in self.calls:
            if call.status is None:
                self._forget(call)
                call.finish(call.last)

    def _step(self, call: Call, now: float) -> None:
        if call.status is not None:
            return
        if call.link is None:
            if now >= call.again:
                self._dial(call, now)
            return
        seen = self.alive.get(call.peer)
        if seen is not None and now - max(seen, call.began) > SETTLED_S:
            self._forget(call)
            call.finish("stranger" if call.sent else "dropped")

    def _dial(self, call: Call, now: float) -> None:
        link = socket.socket(socket.AF_INET6 if ":" in call.address else socket.AF_INET, socket.SOCK_STREAM)
        link.setblocking(False)
        call.link, call.began, call.sent, call.heard = link, now, False, b""
        code = link.connect_ex((call.address, call.port))
        if code not in (0, errno.EINPROGRESS):
            self._failed(call, code)
            return
        self.selector.register(link, selectors.EVENT_WRITE, ("dialled", call))

    def _failed(self, call: Call, code: int) -> None:
        """A call came back with an error: dial again while the peer may still be starting."""
        now = time.monotonic()
        self._forget(call)
        if call.link is not None:
            call.link.close()
        call.link, call.again = None, now + AGAIN_S
        call.error = errno.errorcode.get(code, str(code))
        if code in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
            call.last = "no route"
        elif code == errno.ETIMEDOUT:
            call.last = "dropped"
        else:
            call.last = "refused"
        seen = self.alive.get(call.peer)
        if seen is not None and now - seen > REFUSED_S:
            call.finish(call.last)

    def _forget(self, call: Call) -> None:
        if call.link is not None and call.link in self.selector.get_map():
            self.selector.unregister(call.link)

    def _on_dialled(self, link: socket.socket, call: Call) -> None:
        code = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._failed(call, code)
            return
        call.took, call.sent = time.monotonic() - call.began, True
        self.selector.modify(link, selectors.EVENT_READ, ("answered", call))
        try:
            link.send(f"{self.nonce} {self.me} {call.port}\n".encode())
        except OSError as error:
            self._failed(call, error.errno or 0)

    def _on_answered(self, link: socket.socket, call: Call) -> None:
        try:
            data = link.recv(LARGEST_LINE)
        except OSError as error:
            self._failed(call, error.errno or 0)
            return
        call.heard += data
        if data and b"\n" not in call.heard and len(call.heard) < LARGEST_LINE:
            return
        words = call.heard.decode("utf-8", "replace").split()
        self._forget(call)
        now = time.monotonic()
        if len(words) == 3 and words[0] == self.nonce and words[1] == call.peer:
            self.alive.setdefault(call.peer, now)
            self._note_clock(call, float(words[2]), now)
            call.finish("ok")
        else:
            call.finish("stranger")

    def _note_clock(self, call: Call, theirs: float, now: float) -> None:
        """How far the peer's clock is ahead of ours, and how long the question took; the quickest answer counts."""
        took = now - call.began
        middle = time.time() - took / 2
        known = self.clocks.get(call.peer)
        if known is None or took < known[1]:
            self.clocks[call.peer] = [theirs - middle, took]

    def _on_server(self, server: socket.socket, port: int) -> None:
        try:
            link, source = server.accept()
        except OSError:
            return
        link.setblocking(False)
        self.selector.register(link, selectors.EVENT_READ, ("asked", (port, source[0])))

    def _on_asked(self, link: socket.socket, what: tuple[int, str]) -> None:
        port, source = what
        self.selector.unregister(link)
        try:
            words = link.recv(LARGEST_LINE).decode("utf-8", "replace").split()
            if len(words) == 3 and words[0] == self.nonce and words[2] == str(port):
                link.send(f"{self.nonce} {self.me} {time.time():.6f}\n".encode())
                self.callers[words[1]] = source
                self.expected.discard((words[1], port))
            elif len(words) == 3 and words[0] == self.nonce and words[2] == "pull":
                self._serve(link, words[1])
                return
        except OSError as error:
            self.bound[f"{port} from {source}"] = str(error)
        link.close()

    def _serve(self, link: socket.socket, peer: str) -> None:
        link.setblocking(True)
        link.settimeout(PULL_S)
        thread = threading.Thread(target=send_payload, args=(link, self.payload), daemon=True)
        thread.start()
        self.threads.append(thread)
        self.expected.discard((peer, -1))

    def _start_pulls(self) -> None:
        """Ask each chosen peer for the payload once its port has answered."""
        for asked in list(self.pulls):
            key = (asked["host"], asked["port"])
            status = next(
                (call.status for call in self.calls if (call.peer, call.port) == key), "not dialled"
            )
            if status is None:
                continue
            self.pulls.remove(asked)
            self.pulled[asked["host"]] = {"error": "not ended" if status == "ok" else "not reached"}
            if status == "ok":
                thread = threading.Thread(target=self._fetch, args=(asked,), daemon=True)
                thread.start()
                self.threads.append(thread)

    def _fetch(self, asked: dict[str, Any]) -> None:
        began, count, error = time.monotonic(), 0, ""
        try:
            with socket.create_connection((asked["address"], asked["port"]), timeout=PULL_S) as link:
                link.sendall(f"{self.nonce} {self.me} pull\n".encode())
                while count < self.payload and time.monotonic() - began < PULL_S:
                    data = link.recv(CHUNK)
                    if not data:
                        break
                    count += len(data)
        except OSError as problem:
            error = str(problem)
        self.pulled[asked["host"]] = {
            "bytes": count,
            "wanted": self.payload,
            "seconds": time.monotonic() - began,
            "error": error,
        }


def send_payload(link: socket.socket, size: int) -> None:
    """Send ``size`` bytes and hang up."""
    block = bytes(CHUNK)
    try:
        for _ in range(0, size, CHUNK):
            link.sendall(block)
    except OSError:
        return  # the other end counts what arrived
    finally:
        link.close()


def source_towards(address: str) -> dict[str, Any]:
    """The own address that packets to ``address`` carry; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, DISCARD))
            return {"source": probe.getsockname()[0]}
    except OSError as error:
        return {"error": error.strerror or str(error)}


def mesh_part(parameters: dict[str, Any]) -> dict[str, Any]:
    """What became of each call of this host."""
    mesh = Mesh(parameters)
    mesh.listen(parameters["listen"])
    mesh.run()
    calls: dict[str, dict[str, Any]] = {}
    for call in mesh.calls:
        calls.setdefault(call.peer, {})[str(call.port)] = {
            "status": call.status, "ms": round(call.took * 1000, 2), "error": call.error}  # fmt: skip
    routes = {one["host"]: within(2, source_towards, one["address"])[0] for one in parameters["dial"]}
    return {"bound": mesh.bound, "calls": calls, "callers": mesh.callers, "clocks": mesh.clocks, "pulled": mesh.pulled,
            "routes": routes, "uncalled": len(mesh.expected)}  # fmt: skip
