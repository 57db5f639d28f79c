"""Links between ranks, by name: what a message takes, and what its bytes take. For plans on paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from types import MappingProxyType


@dataclass(frozen=True)
class Link:
    """One way, for one rank, as NCCL or gloo use it."""

    name: str
    bytes_per_s: float
    message_s: float  # until a message has come, besides its bytes

    def send_s(self, size: int) -> float:
        return self.message_s + size / self.bytes_per_s

    def gather_s(self, size: int, count: int) -> float:
        """So many bytes of each of `count` ranks, for all of them."""
        return self._rounds(count) + (count - 1) * size / self.bytes_per_s

    def sum_s(self, size: int, count: int) -> float:
        """Added up over `count` ranks, in a ring."""
        return 2 * self._rounds(count) + 2 * (count - 1) / count * size / self.bytes_per_s

    def broadcast_s(self, size: int, count: int) -> float:
        """Of one rank, to all `count`, in a tree."""
        return ceil(log2(count)) * self.send_s(size) if count > 1 else 0.0

    def _rounds(self, count: int) -> float:
        return ceil(log2(count)) * self.message_s if count > 1 else 0.0


# From data sheets, at 80 % of the rate; a message of NCCL takes a kernel at both ends.
LINKS: Mapping[str, Link] = MappingProxyType(
    {
        "nvlink": Link("nvlink", 360e9, 12e-6),  # of an H200, within a rack
        "infiniband": Link("infiniband", 40e9, 20e-6),  # 400 Gbit/s for each GPU
        "ethernet": Link("ethernet", 10e9, 60e-6),  # 100 Gbit/s for each GPU
        "loopback": Link("loopback", 1.5e9, 150e-6),  # gloo between processes of one host
    }
)
