"""Connections between ranks of one host: lines of a few bytes, which say where a message lies in shared memory.

Rule H1  What a rank has laid down stays as it is until all whom it has told of it have read it.
Rule H2  What one rank sends another on a channel comes in the order in which it was sent. Channels do not wait for each
         other.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import struct
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from .shared_memory import Block, SharedMemory, mapped

LINE = struct.Struct("=BBIIQQ")  # what it says, channel, block, segment, where in it, and how many bytes
ROOM = socket.CMSG_SPACE(array.array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0
CREDENTIALS = struct.Struct("3i")  # process, user, group


class Says(IntEnum):
    SEGMENT = 0  # here is the file of the next one of mine
    LIES = 1  # a message lies there
    READ = 2  # your block has been read


@dataclass(frozen=True)
class Mail:
    """A message that has come."""

    lane: Lane
    block: int
    data: Tensor  # its bytes

    def read(self) -> None:
        """It has been: the sender may use its memory again."""
        with contextlib.suppress(OSError):  # a sender that is gone needs no answer
            self.lane.say(Says.READ, block=self.block)


class Lane:
    """One end of a connection to a rank. `own`: the memory that this side lays its messages into."""

    def __init__(self, connection: socket.socket, own: SharedMemory, timeout_s: float):
        connection.setblocking(False)
        self.socket, self.own, self.timeout_s, self.ended = connection, own, timeout_s, False
        self._told = 0  # segments of ours that the other side knows
        self._theirs: list[Tensor] = []
        self._come: dict[int, deque[Mail]] = {}
        _open.add(self)

    def say(
        self, what: Says, channel: int = 0, block: int = 0, segment: int = 0, offset: int = 0, size: int = 0,
        files: Sequence[int] = (),
    ) -> None:  # fmt: skip
        line, rights = LINE.pack(what, channel, block, segment, offset, size), ()
        if files:
            rights = ((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files)),)
        end = time.monotonic() + self.timeout_s
        while True:
            try:
                self.socket.sendmsg([line], rights)
                return
            except BlockingIOError:  # the other side has not read for long; perhaps it cannot write, unless we read
                self.listen()
                wait_for([self], 0.1, writing=True)
                if time.monotonic() > end:
                    raise TimeoutError(f"nothing has been read for {self.timeout_s:g} s") from None

    def send(self, channel: int, block: Block, size: int) -> None:
        while self._told <= block.segment:
            self.say(Says.SEGMENT, files=[self.own.files[self._told]])
            self._told += 1
        self.say(Says.LIES, channel, block.number, block.segment, block.offset, size)

    def has(self, channel: int) -> bool:
        """Has a message come?"""
        return bool(self._come.get(channel)) or (self.listen() and bool(self._come.get(channel)))

    def take(self, channel: int) -> Mail:
        return self._come[channel].popleft()

    def listen(self) -> bool:
        """What has come by now, if anything."""
        some = False
        while not self.ended:
            try:
                line, rights, _, _ = self.socket.recvmsg(LINE.size, ROOM)
            except BlockingIOError:
                return some
            except OSError:
                line, rights = b"", []
            if len(line) < LINE.size:
                self.ended = True
                return some
            self._hear(line, rights)
            some = True
        return some

    def _hear(self, line: bytes, rights: Sequence[tuple[int, int, bytes]]) -> None:
        what, channel, number, segment, offset, size = LINE.unpack(line)
        match what:
            case Says.SEGMENT:
                files = array.array("i", rights[0][2])
                self._theirs.append(mapped(files[0]))
                os.close(files[0])
            case Says.LIES:
                data = self._theirs[segment][offset : offset + size]
                self._come.setdefault(channel, deque()).append(Mail(self, number, data))
            case Says.READ:
                block = self.own.blocks[number]
                block.readers -= 1
                if not block.readers:
                    self.own.give_back(block)

    def close(self) -> None:
        _open.discard(self)
        self.socket.close()


def wait_for(lanes: Iterable[Lane], seconds: float, *, writing: bool = False) -> None:
    """Until something comes over one of them, or can be written; and hear it."""
    poll, by_file = select.poll(), {lane.socket.fileno(): lane for lane in lanes if not lane.ended}
    for file in by_file:
        poll.register(file, select.POLLIN | (select.POLLOUT if writing else 0))
    for file, _ in poll.poll(seconds * 1e3):
        by_file[file].listen()


# A child made by `fork` has a copy of every connection: while it has, nobody notices that the rank is gone.

_open: weakref.WeakSet[Lane] = weakref.WeakSet()


def _close_in_child() -> None:
    for lane in list(_open):
        lane.socket.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


# -- making connections ------------------------------------------------------------------------------------------------


def host_name() -> str:
    """Of processes that can reach each other by sockets without a network; empty where that is not possible."""
    if not (hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET")):
        return ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino} {os.getuid()}"
    except OSError:
        return ""


def listen() -> socket.socket:
    """At an address without a file, which ends with the socket."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.bind(f"\0tilegrad {os.urandom(16).hex()}")
    found.listen(1024)
    return found


def connect(server: socket.socket, rank: int, addresses: dict[int, str], seconds: float) -> dict[int, socket.socket]:
    """Connections to all these ranks, which do the same: the later one dials."""
    found, end = dict[int, socket.socket](), time.monotonic() + seconds
    try:
        for other, address in addresses.items():
            if other < rank:
                found[other] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                found[other].settimeout(seconds)
                found[other].connect(f"\0{address}")
                found[other].send(rank.to_bytes(8))
        while len(found) < len(addresses):
            server.settimeout(max(0.01, end - time.monotonic()))
            connection, _ = server.accept()
            other = _who(connection, max(0.01, end - time.monotonic()))
            if other in addresses and other not in found:
                found[other] = connection
    except OSError:
        for connection in found.values():
            connection.close()
        raise
    return found


def _who(connection: socket.socket, seconds: float) -> int | None:
    """The rank that has dialled, if it is of the same user: anybody may."""
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    connection.settimeout(seconds)
    if CREDENTIALS.unpack(said)[1] != os.getuid() or len(number := connection.recv(8)) != 8:
        connection.close()
        return None
    return int.from_bytes(number)
