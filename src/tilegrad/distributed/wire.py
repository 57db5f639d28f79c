"""Lines of JSON over a connection, and how a connection ends.

What is sent before a process ends is read before the end is seen: TCP keeps the order. So a rank that says something
and then goes has been heard, however late the other side reads; nobody has to wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import weakref
from collections.abc import Mapping
from typing import Any

LARGEST = 1 << 20  # of a line: more is not ours
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # a host without power is noticed in 30 s
CLOSED, LOST = (
    "closed",
    "lost",
)  # the other process closed it, as the system does when it ends; or nothing comes through


class Wire:
    """One end of a connection."""

    def __init__(self, sock: socket.socket):
        self.socket, self.ended = sock, ""
        self._rest, self._sending = b"", threading.Lock()
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        _open.add(self)

    def send(self, message: Mapping[str, Any]) -> None:
        """Where the other side is gone, this says nothing: reading tells."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Wait for messages. None, and `ended`, where the connection has come to its end."""
        try:
            found = self.socket.recv(1 << 16)
        except ConnectionError:
            found, self.ended = b"", CLOSED
        except OSError:  # no route, no answer from the other host, or we have closed it ourselves
            found, self.ended = b"", LOST
        if not found:
            self.ended = self.ended or CLOSED
            return []
        *lines, self._rest = (self._rest + found).split(b"\n")
        if len(self._rest) > LARGEST:
            self.ended = LOST
        return [message for line in lines if (message := _parsed(line)) is not None]

    def finish(self) -> None:
        """Say no more: the other side reads what was said, and then the end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        _open.discard(self)
        self.socket.close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


# A child made by `fork`, such as a worker that loads data, has a copy of every connection. While it has, the connection
# does not end with the parent, and nobody would notice that the rank is gone.

_open: weakref.WeakSet[Wire] = weakref.WeakSet()


def _close_in_child() -> None:
    for line in list(_open):
        line.socket.close()
        line._sending = threading.Lock()  # nobody is left in the child who could release the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


# -- making connections ------------------------------------------------------------------------------------------------


def listen() -> socket.socket:
    """A port of any number, on all addresses of this host. Accepting does not block."""
    found = None
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a kernel that has it, and a network that has not
            found = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    found = found or socket.create_server(("", 0))
    found.setblocking(False)
    return found


def own_addresses() -> list[str]:
    """Names of this host that others may know, the most likely one first. The master's is one of them only on the
    master's host: the first of a mesh may live elsewhere."""
    master, found = os.environ.get("MASTER_ADDR", ""), list[str]()
    with contextlib.suppress(OSError):
        for family, _, _, _, place in socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[:1] if master else ():
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(place)  # sends nothing: the address on the way to the master
                found = [*([master] if _is_here(family, place[0]) else []), str(probe.getsockname()[0])]
    return list(dict.fromkeys([*found, socket.gethostname(), "127.0.0.1"]))


def _is_here(family: int, address: Any) -> bool:
    """Is it an address of this host? Nobody can listen at another."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
