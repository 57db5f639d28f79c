"""Connections between ranks of one host: lines of a few bytes, which say where a message lies in shared memory.

Rule H1  What a rank has laid down stays as it is until all whom it has told of it have read it.
Rule H2  What one rank sends another on a channel comes in the order in which it was sent. Channels do not wait for each
         other.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from .shared_memory import NO_FILES, SharedBlock, SharedMemory, mapped

LINE = struct.Struct("=BBIIQQ")  # what it says, channel, block, segment, where in it, and how many bytes
ROOM = socket.CMSG_SPACE(array.array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0
CREDENTIALS = struct.Struct("3i")  # process, user, group
SEGMENT, LIES, READ = range(3)  # here is the file of my next segment; a message lies there; your block has been read
NOTHING = torch.empty(0, dtype=torch.uint8)
Mail = tuple[int, Tensor]  # a message that has come: the sender's block, and the bytes in it


HALOS, PARTS, SUMS, TOTALS = CHANNELS = range(4)  # sums, and what the first tells; of a sum, that a piece is done


class Lane:
    """One end of a connection to a rank. `own`: the memory that this side lays its messages into; `come`: what has come
    on each channel; `ended`: why nothing more will; `meanwhile`: what is done until the other side reads."""

    def __init__(self, rank: int, connection: socket.socket, own: SharedMemory, timeout_s: float):
        connection.setblocking(False)
        self._send, self._receive = connection.sendmsg, connection.recvmsg
        self.rank, self.socket, self.own, self.timeout_s, self.ended = rank, connection, own, timeout_s, ""
        self.come = [deque[Mail]() for _ in CHANNELS]
        self.meanwhile: Callable[[], None] = self.listen
        self._told = 0  # segments of ours that the other side knows
        self._theirs: list[Tensor] = []
        _open.add(self)

    def send(self, channel: int, block: SharedBlock, size: int) -> None:
        """The first bytes of a block, of whose `readers` this is one."""
        while self._told <= block.segment:
            self.say(LINE.pack(SEGMENT, 0, 0, 0, 0, 0), self.own.files[self._told])
            self._told += 1
        self.say(LINE.pack(LIES, channel, block.number, block.segment, block.offset, size))

    def say(self, line: bytes, file: int | None = None) -> None:
        """What somebody who is gone is told is lost; who waits for an answer will see that."""
        rights = [] if file is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
        end = 0.0
        while not self.ended:
            try:
                self._send([line], rights)
                return
            except BlockingIOError:  # the other side has not read for long; perhaps it cannot write, unless we read
                now = time.monotonic()
                end = end or now + self.timeout_s
                if now > end:
                    self.ended = f"rank {self.rank} has read nothing for {self.timeout_s:g} s"
                self.meanwhile()
                _wait_to_write(self.socket, 0.1)
            except OSError:
                self.listen()  # what it has said before
                self._end()

    def listen(self) -> None:
        """To what has come by now, if anything."""
        receive, come, theirs = self._receive, self.come, self._theirs
        while not self.ended:
            try:
                line, rights, _, _ = receive(LINE.size, ROOM)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it has not read all before it ended: what it said comes first
                continue
            except OSError:
                line, rights = b"", []
            if len(line) < LINE.size:
                self._end()
                return
            what, channel, number, segment, offset, size = LINE.unpack(line)
            if what == LIES:
                come[channel].append((number, theirs[segment][offset : offset + size] if size else NOTHING))
            elif what == READ:
                self.own.has_read(number, self)
            else:
                self._meet_segment(rights)

    def _meet_segment(self, rights: list[tuple[int, int, bytes]]) -> None:
        try:
            if not rights:
                raise OSError("none is left")  # the system drops what a process has no place for
            (file,) = array.array("i", rights[0][2])
            try:
                self._theirs.append(mapped(file))
            finally:
                os.close(file)
        except OSError as error:
            what = error.strerror or str(error)
            self.ended = f"rank {self.rank}'s memory cannot be mapped here: {what}; try {NO_FILES}"

    def _end(self) -> None:
        self.ended = self.ended or f"the connection to rank {self.rank} has ended"

    def close(self) -> None:
        _open.discard(self)
        self.socket.close()


def _wait_to_write(connection: socket.socket, seconds: float) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN | select.POLLOUT)
    poll.poll(seconds * 1e3)


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
            caller = None
            try:
                caller = _who(connection, max(0.01, end - time.monotonic()))
            finally:
                if caller is None or caller not in addresses or caller in found:
                    connection.close()
                else:
                    found[caller] = connection
    except OSError:
        for connection in found.values():
            connection.close()
        raise
    return found


def _who(connection: socket.socket, seconds: float) -> int | None:
    """The rank that has dialled, if it is of the same user: anybody may."""
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    connection.settimeout(seconds)
    own = CREDENTIALS.unpack(said)[1] == os.getuid()
    return int.from_bytes(number) if own and len(number := connection.recv(8)) == 8 else None
