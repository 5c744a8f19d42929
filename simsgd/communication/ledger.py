"""Counts the bytes of every step, by worker, segment and direction.

Letters: W simulated workers, L workers hosted here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

NEIGHBORS = "neighbours"  # the collective, as network tables and run folders spell it


@dataclass(frozen=True)
class Transfer:
    """What the hosted workers put into one collective, or take out of it."""

    segment: str
    direction: str  # up: from the workers; down: to them
    collective: str  # all-reduce, all-gather, all-to-all, gather, broadcast or NEIGHBORS
    payload: Tensor  # bytes of each worker's buffer, sent or received, [L] int64
    degree: Tensor | None = None  # neighbors that each of all workers sends it to, [W] int64
    links: Tensor | None = None  # whether row receives from column, of all workers, [W, W] bool
    operation: str = ""  # and dtype that it is done in: only messages of one go together

    @property
    def handed_over(self) -> Tensor:
        """Bytes that each worker sends or receives, a copy for each neighbor, [W]."""
        return self.payload if self.degree is None else self.payload * self.degree

    def on_network(self, workers: int) -> Tensor:
        """Return the bytes that all workers together put on the network, int64.

        Ring all-reduce: each of W workers sends 2 (W - 1) / W of its buffer (Patarasu, Yuan,
        "Bandwidth optimal all-reduce algorithms", JPDC 2009). All-gather: each worker's buffer
        reaches the W - 1 others, one copy each. All-to-all: each worker sends (W - 1) / W of its
        buffer, a W-th to each other. Gather and broadcast: one of the workers is the other end, so
        that W - 1 of W equal buffers travel once. To neighbors goes a copy each.
        """
        times, share = _crossings(self.collective, workers)
        return self.handed_over.sum() * times // share


@dataclass(frozen=True)
class StepBytes:
    """The bytes of one step; tensors stay on the device until somebody reads them."""

    payload: Tensor  # that each worker sent, [W] int64
    downlink: Tensor  # that each received from a server, [W] int64
    network: Tensor  # of all workers together, int64
    dense: int  # of one worker's uncompressed gradient
    transfers: Sequence[Transfer] = ()  # of all W workers

    def on_links(self) -> tuple[list[int], list[int]]:
        """Return the bytes that leave and reach each worker by its link, [W] each.

        This waits for the device. Each worker has one link, and worker 0 hosts the server.
        """
        sent = received = torch.zeros(len(self.payload), dtype=torch.int64)
        for transfer in self.transfers:
            leaving, arriving = bytes_on_links(transfer)
            sent, received = sent + leaving, received + arriving
        return sent.tolist(), received.tolist()


class Ledger:
    """Collects the transfers of a step.

    It counts the bytes of all `workers` simulated workers, whatever number of processes hosts them.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.transfers: list[Transfer] = []

    def add(self, transfer: Transfer) -> None:
        """Record a transfer of the current step."""
        self.transfers.append(transfer)

    def close(self, dense: int, rows: Callable[[Tensor], Tensor] = lambda own: own) -> StepBytes:
        """Return the bytes of the step and begin the next; `dense` as in `StepBytes`.

        `rows` returns [W, ...] for [L, ...], where other processes host the other workers.
        """
        if not self.transfers:  # nothing was sent, as between the exchanges of local SGD
            nothing = torch.zeros(self.workers, dtype=torch.int64)
            return StepBytes(nothing, nothing, nothing.sum(), dense)
        payloads = rows(torch.stack([t.payload for t in self.transfers], dim=1))  # [W, transfers]
        pairs = zip(self.transfers, payloads.unbind(1), strict=True)
        transfers = [replace(t, payload=payload) for t, payload in pairs]
        handed = payloads
        if any(t.degree is not None for t in transfers):
            handed = torch.stack([t.handed_over for t in transfers], dim=1)  # [W, transfers]
        ways = tuple((t.direction, t.collective) for t in transfers)
        up, times, share = _constants(ways, self.workers, payloads.device)
        payload = (handed * up).sum(1)  # [W]
        downlink = handed.sum(1) - payload
        network = (handed.sum(0) * times // share).sum()
        self.transfers = []
        return StepBytes(payload, downlink, network, dense, transfers)


def _crossings(collective: str, workers: int) -> tuple[int, int]:
    """Return how often the bytes of all workers cross the network, as a fraction."""
    if collective == NEIGHBORS:
        return 1, 1
    if collective == "all-gather":
        return workers - 1, 1
    return (2 if collective == "all-reduce" else 1) * (workers - 1), workers


def bytes_on_links(transfer: Transfer) -> tuple[Tensor, Tensor]:
    """Return the bytes that leave and reach each worker in a transfer of all W, [W] int64 each.

    This waits for the device. In an all-gather a worker passes on all buffers but that which its
    neighbor in the ring has. In an all-to-all it receives a W-th of each of the others'.
    """
    own, workers = transfer.payload.cpu(), len(transfer.payload)
    if transfer.collective == NEIGHBORS:
        handed = transfer.handed_over.cpu()
        if transfer.links is None:
            return handed, handed
        return handed, transfer.links.to(own) @ own
    if transfer.collective == "all-reduce":
        share = own * 2 * (workers - 1) // workers
        return share, share
    if transfer.collective == "all-gather":
        return own.sum() - own.roll(-1), own.sum() - own
    if transfer.collective == "all-to-all":
        return own * (workers - 1) // workers, (own.sum() - own) // workers
    others = own.clone()
    others[0] = 0
    server = torch.zeros_like(own)
    server[0] = others.sum()
    return (others, server) if transfer.collective == "gather" else (server, others)


@lru_cache(maxsize=64)  # a step has the same transfers as the last
def _constants(
    ways: tuple[tuple[str, str], ...], workers: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return of transfers whether they go up, and the crossings of their bytes, [transfers]."""
    fractions = [_crossings(collective, workers) for _, collective in ways]
    up = [direction == "up" for direction, _ in ways]
    columns = up, *zip(*fractions, strict=True)
    return tuple(torch.tensor(column, dtype=torch.int64, device=device) for column in columns)  # type: ignore[return-value]
