"""Counts the bytes that the devices of a node send each other in a step.

What each device has, m bytes, is summed at the first, and what comes of it goes back to all: a
reduce-scatter and a gather, then a scatter and an all-gather, as for long messages in Thakur,
Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 2005.

Letters: N nodes, G devices of each, m bytes of a device's buffer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class WithinNodes:
    """Bytes that leave and reach each device of a node in a step."""

    sent: tuple[int, ...]  # [G]
    received: tuple[int, ...]  # [G]
    nodes: int = 1  # N
    active: int = 1  # nodes of these that trained; the others send nothing

    @classmethod
    def of(
        cls, sizes: Sequence[tuple[int, int]], devices: int, nodes: int = 1, active: int = 1
    ) -> Self:
        """Return those of a step; `sizes` are numbers and bytes of each, for each dtype.

        >>> WithinNodes.of([(10, 4)], devices=2).sent
        (60, 60)
        """
        sent = received = (0,) * devices
        for numel, itemsize in sizes:
            chunks = [itemsize * own for own in chunk_sizes(numel, devices)]
            leaving, arriving = _of_buffer(chunks)
            sent = tuple(a + b for a, b in zip(sent, leaving, strict=True))
            received = tuple(a + b for a, b in zip(received, arriving, strict=True))
        return cls(sent, received, nodes, active)

    @property
    def total(self) -> int:
        """Bytes that all devices of all nodes together send."""
        return self.active * sum(self.sent)

    @property
    def mean(self) -> int:
        """Bytes that a device sends, and receives, the mean over all devices of all nodes."""
        return round(self.total / (self.nodes * len(self.sent)))

    @property
    def busiest(self) -> int:
        """Bytes on the link of a device that carries most, one way."""
        return max(*self.sent, *self.received) if self.active else 0


def chunk_sizes(numel: int, devices: int) -> list[int]:
    """Return of how many numbers each device has the sum, [G], as `torch.tensor_split` divides."""
    least, more = divmod(numel, devices)
    return [least + (device < more) for device in range(devices)]


def _of_buffer(chunks: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the bytes that leave and reach each device, whose sums have `chunks` bytes, [G]."""
    whole, others = sum(chunks), len(chunks) - 1
    sent, received = [], []
    for device, own in enumerate(chunks):
        after = chunks[(device + 1) % len(chunks)]  # that the next one in the ring has already
        leaving, arriving = whole - own, others * own  # reduce-scatter
        if device == 0:
            leaving, arriving = leaving + whole - own, arriving + whole - own  # scatter, gather
        else:
            leaving, arriving = leaving + own, arriving + own
        sent.append(leaving + whole - after)  # all-gather
        received.append(arriving + whole - own)
    return sent, received
