"""Workers in several processes.

Letters: W workers, L hosted here, R ranks (processes), L = W / R, n elements of one segment.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor

from ...settings import SettingError, require
from ..ledger import NEIGHBORS
from ..messages import Dense, Foreign, Joined, Message, SharedSparse
from ..mixing import Mixing
from ..wire import value_bytes
from .contract import Passed, Transport, outcome, rides_all_reduce
from .hops import Hops
from .joined_rows import moved, on_cpu, outcomes, unpacked, unpacked_outcomes
from .node_ranks import NodeRanks
from .process_group import broadcast_object, collective_device, collective_errors
from .timing import Stopwatch


class Distributed(Transport):
    """Rank r of R hosts the workers from r L to (r + 1) L; the group of processes stands already.

    What leaves for a worker is the buffer that `pack` made. Dense values in the dtype that they are
    computed in ride an all-reduce. All else is gathered as it is packed, unpacked by every rank,
    and added up in the order of workers, as in one process: no all-reduce adds narrow values in a
    wider dtype, as the simulation does. A `stopwatch` times each collective.

    With `partial_sums` each rank adds up its own workers first, and the ranks' sums of n values
    ride an all-reduce: fast where a rank hosts many, but no worker's buffer is on the network, and
    sums may differ from those of one process in the last bit.

    With a `node`, whose first device this is, its ranks are the first devices of all nodes.
    """

    def __init__(
        self, workers: int, partial_sums: bool = False, node: NodeRanks | None = None
    ) -> None:
        self.node = node
        self.group = None if node is None else node.firsts
        self.hops = Hops(self.group)
        self.rank, self.ranks = self.hops.rank, self.hops.ranks
        rule = f"must be a multiple of the {self.ranks} ranks"
        require(workers % self.ranks == 0, "workers", workers, rule)
        self.workers = workers
        self.partial_sums = partial_sums
        self.fuses = not partial_sums
        self.sent = torch.zeros(workers // self.ranks, dtype=torch.int64)  # bytes handed over, [L]
        self.stopwatch: Stopwatch | None = None

    def hosted(self, workers: int) -> slice:
        """Return the L workers of this rank."""
        assert workers == self.workers, "made for another number of workers"
        own = workers // self.ranks
        return slice(self.rank * own, (self.rank + 1) * own)

    def start_stopwatch(self) -> None:
        """Time every collective from now on: all ranks wait for each other before it."""
        self.stopwatch = Stopwatch(dist.barrier)

    def all_reduce_mean(self, message: Message) -> Tensor:
        """Return the mean over all workers, [n], the same on every rank."""
        if isinstance(message, SharedSparse):
            values = self.all_reduce_mean(message.inner)  # [k]
            return values.new_zeros(message.n).index_copy_(0, message.index, values)
        if self.partial_sums:
            return self._reduced(message.sum().unsqueeze(0))
        if rides_all_reduce(message):
            packed = message.unpack(self._packed(message), on_cpu(message.header()))
            return self._reduced(packed.to_dense().to(message.template.device))
        return self.gather_mean(message)

    def gather_mean(self, message: Message) -> Tensor:
        """Return the mean over all workers, [n]: every rank acts as the server."""
        if self.partial_sums:
            return self.all_reduce_mean(message)
        mean = self._gathered(message).sum().div_(self.workers)
        return mean.to(message.template.device)

    def mean_of_senders(self, message: Message) -> Tensor:
        """Return the mean over the workers that sent an element, [n], the same on every rank.

        What all workers send alike is the mean over all of them.
        """
        if message.summable:
            return self.all_reduce_mean(message)
        return self._gathered(message).mean_of_senders().to(message.template.device)

    def vote(self, message: Message) -> Tensor:
        """Return the sign of the sum of all workers' signs, [n], which rank 0 counts."""
        if self.partial_sums:
            return outcome(self._all_reduce(message.to_dense().sign().sum(0), dist.ReduceOp.SUM))
        arrived = self._buffers(self._packed(message), to_all=False)
        lengths = self._lengths(message)
        sent = outcomes(message if arrived is None else unpacked(message, arrived, lengths))
        sent = sent.to(collective_device())
        self._broadcast(sent)
        return unpacked_outcomes(sent.cpu(), message).to(message.template)

    def all_reduce_max(self, numbers: Tensor) -> Tensor:
        """Return the largest over all workers, [1, n]."""
        self.sent += numbers[0].numel() * numbers.element_size()
        return self._all_reduce(numbers.amax(0, keepdim=True), dist.ReduceOp.MAX)

    def neighbor_mean(self, message: Message, mixing: Mixing) -> Tensor:
        """Return the weighted sums of the hosted workers over their neighbors, [L, n].

        Each worker's buffer goes to each neighbor in another process; within one it is a row.
        """
        values = message.to_dense()  # [L, n]
        own = self.hosted(self.workers)
        weights = mixing.weights
        receives = weights != 0  # [W, W]: row i receives from column j
        self.sent += mixing.degree[own] * message.payload_bytes().cpu()
        gathered = values.new_zeros(self.workers, values.shape[1])
        gathered[own] = values
        lengths = self._lengths(message)
        for other, buffer in self._from_others(message, receives).items():
            arrived = unpacked(message, [buffer], lengths[other : other + 1])
            gathered[other] = arrived.to_dense()[0].to(values)
        return mixing.times(gathered, own)

    def passed_on(self, message: Passed, sources: Sequence[int]) -> Passed:
        """Return the message whose rows are what arrived from the sources, or was here."""
        own = self.hosted(self.workers)
        receives = torch.zeros(self.workers, self.workers, dtype=torch.bool)
        receives[torch.arange(self.workers), torch.tensor(sources)] = True
        copies = receives.fill_diagonal_(False).sum(0)[own]
        self.sent += copies * message.payload_bytes().cpu()
        arrived = self._from_others(message, receives)
        arrived |= {w: message.pack(row) for row, w in enumerate(range(own.start, own.stop))}
        lengths = self._lengths(message)
        buffers = [arrived[worker] for worker in sources[own]]
        rows = unpacked(message, buffers, [lengths[w] for w in sources[own] if lengths])
        received: Passed = moved(rows, message.template.device)
        return received

    def swap(self, message: Dense, mixing: Mixing) -> Tensor:
        """Return what each neighbor sent to the hosted workers, [L, D, k].

        Each buffer goes to the process of the one neighbor that it is for; within one it is a row.
        """
        places = mixing.neighbors.shape[1]
        values = message.to_dense().unflatten(1, (places, -1))  # [L, D, k]
        parts = Dense(values.flatten(0, 1), message.wire_dtype)  # [L D, k]
        size, per = int(parts.payload_bytes()[0]), len(self.sent)
        ranges = [range(rank * per, (rank + 1) * per) for rank in range(self.ranks)]
        own, first = ranges[self.rank], self.rank * per
        self.sent += mixing.degree[first : first + per] * size
        arrived, arriving = torch.zeros_like(values), list[tuple[int, int]]()
        going, coming = dict[int, Tensor](), dict[int, Tensor]()
        for other, theirs in enumerate(ranges):
            asked = list(_links_between(mixing, theirs, own))
            if other == self.rank:
                for i, at, j, back in asked:
                    arrived[j - first, back] = values[i - first, at]
                continue
            leaving = _links_between(mixing, own, theirs)
            packed = [parts.pack((i - first) * places + at) for i, at, _, _ in leaving]
            going[other] = _joined(packed).to(collective_device())
            coming[other] = going[other].new_empty(size * len(asked))
            arriving += [(j - first, back) for _, _, j, back in asked]
        self._exchange(going, coming)
        if arriving:
            buffers = _joined(list(coming.values())).cpu().split(size)
            rows = parts.unpack(buffers, on_cpu(parts.header())).to_dense()
            arrived.index_put_(
                torch.tensor(arriving, device=values.device).unbind(1), rows.to(values)
            )
        return arrived

    def weighted_mean(self, message: Message, weights: Tensor) -> Tensor:
        """Return the weighted sum over all workers, [n], which rank 0 makes of what it gathers."""
        values, own = message.template, weights[self.hosted(self.workers)]
        packed = [message.pack(row) if w else _EMPTY for row, w in enumerate(own.tolist())]
        arrived, lengths = self._buffers(packed, to_all=False), self._lengths(message)
        total = values.new_zeros(values.shape[1])
        if arrived is not None:
            sent = [buffer for buffer, w in zip(arrived, weights.tolist(), strict=True) if w]
            kept = [own for own, w in zip(lengths, weights.tolist(), strict=False) if w]
            rows = unpacked(message, sent, kept).to_dense()
            total = (weights[weights > 0].to(rows) @ rows).to(total)
        total = total.to(collective_device())
        self._broadcast(total)
        return total.to(values.device)

    def all_gather(self, message: Message) -> Tensor:
        """Return what each worker's message stands for, [W, n], unpacked by every rank."""
        return self._gathered(message).to_dense().to(message.template.device)

    def broadcast(self, message: Message) -> Message:
        """Return rank 0's message [1, n], which it packs, on every rank, in place of their own."""
        packed = message.pack(0).to(collective_device())
        size = torch.tensor([len(packed)], device=collective_device())
        header = broadcast_object(on_cpu(message.header()), self.group)
        with collective_errors():
            dist.broadcast(size, src=0, group=self.group)
        if self.rank:
            packed = packed.new_empty(int(size))
        self._broadcast(packed)
        return message.unpack([packed.cpu()], header)

    def all_gather_rows(self, own: Tensor) -> Tensor:
        """Return the rows of all workers, [W, ...], the same on every rank."""
        size = own.numel() * own.element_size()
        if not size:
            return own.new_empty(self.workers, *own.shape[1:])
        flat = value_bytes(own).to(collective_device())
        parts = [torch.empty_like(flat) for _ in range(self.ranks)]
        with collective_errors():
            dist.all_gather(parts, flat, group=self.group)
        whole = torch.cat(parts).to(own.device).view(own.dtype)
        return whole.view(self.workers, *own.shape[1:])

    def _reduced(self, own: Tensor) -> Tensor:
        """Return the sum over all ranks' rows `own` [..., n], over W.

        In float16 it is divided before it is added: a sum of values that fit need not fit.
        """
        self.sent += own[0].numel() * own.element_size()
        if own.dtype == torch.float16:
            return self._all_reduce((own / self.workers).sum(0), dist.ReduceOp.SUM)
        return self._all_reduce(own.sum(0), dist.ReduceOp.SUM).div_(self.workers)

    def _all_reduce(self, own: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        total = own.to(collective_device(), copy=True).contiguous()
        with self._carried("all-reduce", total.numel() * total.element_size()):
            dist.all_reduce(total, how, group=self.group)
        return total.to(own.device)

    def _broadcast(self, values: Tensor) -> None:
        """Put rank 0's values into those of the others."""
        with self._carried("broadcast", values.numel() * values.element_size()):
            self.hops.broadcast(values)

    @contextmanager
    def _carried(self, collective: str, num_bytes: int, degree: int = 0) -> Iterator[None]:
        """Time what is done within, if there is a stopwatch; its errors mean a lost rank."""
        watch = self.stopwatch
        timed = nullcontext() if watch is None else watch.time(collective, num_bytes, degree)
        with collective_errors(), timed:
            yield

    def _packed(self, message: Message) -> list[Tensor]:
        """Return the buffers of the hosted workers, uint8."""
        if any(isinstance(part, Foreign) for part in message.parts):
            rule = "cannot send between processes: only the worker's own process can decode it"
            raise SettingError("compressor", None, rule, "use a compressor of simsgd")
        return [message.pack(row) for row in range(len(self.sent))]

    def _gathered(self, message: Message) -> Message:
        """Return the messages of all workers, on the CPU."""
        arrived = self._buffers(self._packed(message), to_all=True)
        assert arrived is not None
        return unpacked(message, arrived, self._lengths(message))

    def _lengths(self, message: Message) -> list[list[int]]:
        """Return the bytes of joined messages of each worker, [W][S]; nothing of another message.

        All ranks must call this.
        """
        if not isinstance(message, Joined):
            return []
        own = torch.stack([part.payload_bytes() for part in message.parts], dim=1)  # [L, S]
        lengths: list[list[int]] = self.all_gather_rows(own).tolist()
        return lengths

    def _from_others(self, message: Message, receives: Tensor) -> dict[int, Tensor]:
        """Return {worker: buffer} of those in other processes from whom hosted ones receive.

        `receives` [W, W]: row i receives from column j.

        Sizes go first, then the buffers, each straight to the process that wants it.
        """
        per = len(self.sent)
        packed = self._packed(message)
        sizes = self._all_sizes(packed)
        wanted = receives.unflatten(0, (self.ranks, per)).any(1).tolist()  # [ranks][W]
        going, coming, arriving = dict[int, Tensor](), dict[int, Tensor](), list[int]()
        for other in range(self.ranks):
            if other == self.rank:
                continue
            theirs = range(other * per, (other + 1) * per)
            leaving = [packed[r] for r in range(per) if wanted[other][self.rank * per + r]]
            asked = [worker for worker in theirs if wanted[self.rank][worker]]
            going[other] = _joined(leaving).to(collective_device())
            coming[other] = going[other].new_empty(sum(sizes[worker] for worker in asked))
            arriving += asked
        links = torch.tensor(wanted).unflatten(1, (self.ranks, per)).any(2).fill_diagonal_(False)
        pairs = int(links.sum(0).max()) <= 1 and int(links.sum(1).max()) <= 1
        self._exchange(going, coming, whole=pairs)
        arrived = _joined(list(coming.values())).cpu()
        buffers = arrived.split([sizes[worker] for worker in arriving])
        return dict(zip(arriving, buffers, strict=True))

    def _exchange(
        self, going: dict[int, Tensor], coming: dict[int, Tensor], whole: bool = False
    ) -> None:
        """Send a buffer to each rank of `going`, and fill those of `coming`, {rank: uint8}.

        With `whole` each rank sends to one other at most, and receives from one.
        """
        total, degree = sum(map(len, going.values())), sum(len(g) > 0 for g in going.values())
        with self._carried(NEIGHBORS, total // max(1, degree), degree):
            self.hops.exchange(going, coming, whole)

    def _buffers(self, own: Sequence[Tensor], to_all: bool) -> list[Tensor] | None:
        """Return all workers' buffers, uint8, for the L hosted ones'."""
        sizes = self._all_sizes(own)
        of_ranks = torch.tensor(sizes).view(self.ranks, -1).sum(1).tolist()
        self.sent += torch.tensor([len(buffer) for buffer in own])
        whole = torch.cat(list(own)).to(collective_device())
        collective = "all-gather" if to_all else "gather"
        with self._carried(collective, len(whole)):
            carry = self.hops.ring_all_gather if to_all else self.hops.gather
            gathered = carry(whole, of_ranks)
        return None if gathered is None else list(torch.cat(gathered).cpu().split(sizes))

    def _all_sizes(self, buffers: Sequence[Tensor]) -> list[int]:
        """Return the length of every worker's buffer, [W], for those of the hosted ones."""
        lengths = torch.tensor([len(buffer) for buffer in buffers])
        sizes: list[int] = self.all_gather_rows(lengths).tolist()
        return sizes


def _links_between(
    mixing: Mixing, senders: range, receivers: range
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the links: from whom, at which of its places, to whom, and at which of its."""
    for i in senders:
        pairs = zip(mixing.neighbors[i].tolist(), mixing.places_back[i].tolist(), strict=True)
        for at, (j, back) in enumerate(pairs):
            if j in receivers:
                yield i, at, j, back


def _joined(buffers: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(buffers)) if buffers else _EMPTY


_EMPTY = torch.zeros(0, dtype=torch.uint8)
