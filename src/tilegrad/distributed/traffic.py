"""What a rank tells others, counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """Bytes that a rank sent and received, by kind. Sums and combined parts count what the rank puts in."""

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0  # sent, one to each peer of an exchange
    combined_bytes: int = 0  # parts of reductions
    gathers: int = 0  # of those
    summed_bytes: int = 0  # gradients that ranks share
    sums: int = 0  # of those
    broadcast_bytes: int = 0  # gradients that the first rank makes for all
    broadcasts: int = 0  # of those
    waited_s: float = 0.0  # for other ranks

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]
