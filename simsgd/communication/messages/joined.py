"""The messages for several segments, sent as they are and added up together.

Letters: L workers hosted here, S segments, n elements of one of them, P of all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..cuts import Cuts, numbers
from ..wire import Wire
from .cast import Cast
from .contract import Header, Message, one_element
from .dense import Dense
from .quantized import Quantized, in_order
from .shared_sparse import SharedSparse
from .signs import Signs
from .sparse import Sparse

Split = Callable[[Message], Sequence[Message]]


@dataclass(frozen=True, eq=False)
class Joined(Message):
    """A message for each of S segments, whose elements lie end to end.

    Each is counted, and packed, by itself. Where all were made together, `whole` stands for the
    same numbers, [L, P], so that one call adds up or takes out all of them; `split` finds the
    messages in it. Its own bytes mean nothing.
    """

    cuts: Cuts
    given: Sequence[Message] = ()  # without `whole`
    whole: Message | None = None
    split: Split | None = None

    @classmethod
    def of(cls, cuts: Cuts, parts: Sequence[Message]) -> "Joined":
        """Return the messages of S segments that were made one by one."""
        return cls(cuts, given=parts)

    @classmethod
    def made_together(cls, cuts: Cuts, whole: Message, split: Split) -> "Joined":
        """Return the messages that `split` finds in `whole`."""
        return cls(cuts, whole=whole, split=split)

    @cached_property
    def parts(self) -> Sequence[Message]:
        """The message for each segment."""
        if self.split is None or self.whole is None:
            return self.given
        return self.split(self.whole)

    @property
    def summable(self) -> bool:
        """Whether each message is."""
        return all(part.summable for part in self.parts)

    def on_wire(self, wire: Wire) -> "Joined":
        """Return the messages as they arrive."""
        if self.split is not None and self.whole is not None:
            return Joined.made_together(self.cuts, self.whole.on_wire(wire), self.split)
        return Joined.of(self.cuts, [part.on_wire(wire) for part in self.parts])

    def to_dense(self) -> Tensor:
        """Return what all messages stand for, [L, P]."""
        if self.whole is not None:
            return self.whole.to_dense()
        return torch.cat([part.to_dense() for part in self.parts], dim=1)

    @property
    def template(self) -> Tensor:
        """A view of one element, of the shape, dtype and device of `to_dense`, [L, n]."""
        if self.whole is not None:
            return self.whole.template
        first = self.parts[0].template
        return one_element(len(first), self.cuts.total, first.dtype, first.device)

    def sum(self) -> Tensor:
        """Return the sum over workers, [P]."""
        if self.whole is not None:
            return self.whole.sum()
        return torch.cat([part.sum() for part in self.parts])

    def mean_of_senders(self) -> Tensor:
        """Return the mean of each element over the workers that sent it, [P]."""
        return torch.cat([part.mean_of_senders() for part in self.parts])

    def payload_bytes(self) -> Tensor:
        """Return the bytes of all messages of each worker, [L] int64."""
        return torch.stack([part.payload_bytes() for part in self.parts]).sum(0)

    def entries(self) -> Tensor:
        """Return the numbers in all messages of each worker, [L] int64."""
        return torch.stack([part.entries() for part in self.parts]).sum(0)

    def explained(self, row: int) -> str:
        """Return the arithmetic of each message, one after the other."""
        return " + ".join(part.explained(row) for part in self.parts)

    def pack(self, row: int) -> Tensor:
        """Return the buffers of worker `row`, one after the other, uint8."""
        return torch.cat([part.pack(row).cpu() for part in self.parts])

    def header(self) -> Header:
        """Return the headers and the lengths [S, L] of all messages."""
        kinds = [(type(part), part.header()) for part in self.parts]
        lengths = [part.payload_bytes().tolist() for part in self.parts]
        return {"sizes": self.cuts.sizes, "kinds": kinds, "lengths": lengths}

    @classmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Joined":
        """Return the messages of packed rows."""
        lengths = zip(*header["lengths"], strict=True)  # of each worker's buffers
        rows = [b.split(list(own)) for b, own in zip(buffers, lengths, strict=True)]
        parts = [
            kind.unpack(own, inner)
            for (kind, inner), own in zip(header["kinds"], zip(*rows, strict=True), strict=True)
        ]
        return cls.of(Cuts(header["sizes"]), parts)

    def subtract_from_(self, x: Tensor) -> None:
        """Subtract what all messages stand for from `x` [L, P]."""
        if self.whole is not None:
            self.whole.subtract_from_(x)
            return
        for part, own in zip(self.parts, self.cuts.split(x), strict=True):
            part.subtract_from_(own)

    def clear_(self, x: Tensor) -> None:
        """Zero the entries of `x` [L, P] that were selected."""
        if self.whole is not None:
            self.whole.clear_(x)
            return
        for part, own in zip(self.parts, self.cuts.split(x), strict=True):
            part.clear_(own)


def dense_group(cuts: Cuts, whole: Dense) -> Joined:
    """Return the messages of segments whose values lie end to end in a dense one, [L, P]."""

    def split(whole: Message) -> list[Message]:
        values = cuts.split(whole.to_dense())
        assert isinstance(whole, Dense)
        return [replace(whole, values=own) for own in values]

    return Joined.made_together(cuts, whole, split)


@dataclass(frozen=True)
class Decoded(Cast):
    """What codes of several segments stand for, [L, P], which are sent as codes."""

    def sum(self) -> Tensor:
        """Return the sum over workers, [P], as codes have it."""
        return in_order(self.values)


def coded_group(cuts: Cuts, parts: Sequence[Message], values: Tensor) -> Joined:
    """Return the messages `parts` of segments, which stand for `values` [L, P]."""
    return Joined.made_together(cuts, Decoded.of(values), lambda _: parts)


def coded_by_segment(cuts: Cuts, whole: Quantized, scales: Tensor) -> Joined:
    """Return the messages of segments whose codes lie end to end in `whole`, [L, P].

    The scales of `whole` are given for each code, [L, P], or there are none. `scales` [L, S m] are
    those of the segments, m each, as they are sent.
    """
    own = scales.tensor_split(len(cuts.sizes), dim=1)
    codes = cuts.split(whole.codes)
    parts = [replace(whole, codes=c, scales=s) for c, s in zip(codes, own, strict=True)]
    return coded_group(cuts, parts, whole.values())


def sparse_group(cuts: Cuts, kept: Cuts, values: Tensor, index: Tensor) -> Joined:
    """Return the messages of values [L, K] at places [L, K] among P, in the order of segments.

    `kept` is how many are in each segment.
    """

    def split(whole: Message) -> list[Message]:
        assert isinstance(whole, Sparse)
        assert isinstance(whole.inner, Dense)
        inner = whole.inner
        places = kept.split(whole.index - cuts.begin(kept, index.device))
        pieces = zip(kept.split(whole.values), places, cuts.sizes, strict=True)
        return [
            replace(whole, inner=replace(inner, values=own), index=place, n=n)
            for own, place, n in pieces
        ]

    return Joined.made_together(cuts, Sparse.of(values, index, cuts.total), split)


def shared_group(cuts: Cuts, kept: Cuts, values: Tensor, index: Tensor) -> Joined:
    """Return the messages of values [L, K] at places [K] among P that all workers share."""

    def split(whole: Message) -> list[Message]:
        assert isinstance(whole, SharedSparse)
        assert isinstance(whole.inner, Dense)
        places = kept.split(whole.index - cuts.begin(kept, index.device))
        pieces = zip(kept.split(whole.values), places, cuts.sizes, strict=True)
        inner = whole.inner
        return [SharedSparse(replace(inner, values=own), at, n) for own, at, n in pieces]

    return Joined.made_together(cuts, SharedSparse.of(values, index, cuts.total), split)


def marked_group(cuts: Cuts, mask: Tensor, values: Tensor, most: Cuts | None = None) -> Joined:
    """Return the messages of those of the values [L, P] where `mask` [L, P] is true.

    They are those of `Sparse.where` for each segment, or the largest of them where there are more
    than `most` of it, of equal magnitudes the first. It waits for the device once.
    """
    device = mask.device
    found = mask.cumsum(1)  # [L, P]
    until = cuts.until(found)
    ends = until.tolist()
    widest = [max(1, *own) for own in zip(*[_steps(row) for row in ends], strict=True)]
    whole = _marked(mask, found, values, max(1, max(row[-1] for row in ends)))
    if most is not None:
        whole, until = _at_most(most, cuts, whole, until)
        widest = [min(pair) for pair in zip(widest, most.sizes, strict=True)]

    def split(whole: Message) -> list[Message]:
        assert isinstance(whole, Sparse)
        assert isinstance(whole.inner, Dense)
        inner, kept = whole.inner, Cuts(tuple(widest))
        counts, place = until.diff(dim=1), kept.place(device)
        sent = place < kept.spread(counts)  # [L, K]
        column = (kept.spread(until[:, :-1]) + place).clamp_(max=whole.index.shape[1] - 1)
        own = whole.index.gather(1, column) - cuts.begin(kept, device)
        index = own.where(sent, kept.repeated(cuts.sizes, device))
        chosen = whole.values.gather(1, column).masked_fill_(~sent, 0)
        rows = counts.unbind(1)
        pieces = zip(kept.split(chosen), kept.split(index), cuts.sizes, rows, strict=True)
        return [
            replace(whole, inner=replace(inner, values=v, counts=c), index=i, n=n, counts=c)
            for v, i, n, c in pieces
        ]

    return Joined.made_together(cuts, whole, split)


def signed_group(found: Joined, scales: Tensor) -> Joined:
    """Return messages of sparse segments as signs times `scales` [L, S], float32, one each."""
    sparse, cuts = found.whole, found.cuts
    assert isinstance(sparse, Sparse)
    dtype = sparse.values.dtype
    size = pad(cuts.spread(scales.to(dtype)), (0, 1)).gather(1, sparse.index)  # 0 of padding
    values = torch.where(sparse.values < 0, -size, size)  # [L, K]

    def split(sent: Message) -> list[Message]:
        assert isinstance(sent, Sparse)
        parts = [part for part in found.parts if isinstance(part, Sparse)]
        own = zip(parts, scales.split(1, dim=1), strict=True)
        return [
            replace(
                part,
                inner=Signs(part.values < 0, scale, dtype, part.counts, num_scales=1),
                coding=sent.coding,
            )
            for part, scale in own
        ]

    whole = replace(sparse, inner=Decoded(values, dtype, sparse.counts))
    return Joined.made_together(cuts, whole, split)


def _marked(mask: Tensor, found: Tensor, values: Tensor, k: int) -> Sparse:
    """Return the message of values where `mask` is true, k at most in a row; it waits for nothing.

    `found` is how many there are up to each. What a row lacks is padding, of value 0 and place P.
    """
    n = mask.shape[1]
    turn = found.sub(1).masked_fill_(~mask, k)  # [L, P]: the last column takes the rest
    place = torch.arange(n, device=mask.device).expand_as(turn)
    index = place.new_full((len(mask), k + 1), n).scatter_(1, turn, place)
    chosen = values.new_zeros(len(mask), k + 1).scatter_(1, turn, values)
    counts = found[:, -1]
    padding = torch.arange(k, device=mask.device) >= counts.unsqueeze(1)
    chosen = chosen[:, :k].masked_fill(padding, 0)
    return Sparse.of(chosen, index[:, :k].contiguous(), n, counts)


def _at_most(most: Cuts, cuts: Cuts, found: Sparse, until: Tensor) -> tuple[Sparse, Tensor]:
    """Return the largest entries of each segment of a message, and how many until each edge.

    `until` [L, S + 1] is that of `found`.
    """
    width, device = found.index.shape[1], found.index.device
    counts = until.diff(dim=1).minimum(numbers(most.sizes, device))  # [L, S]
    order = found.values.abs().sort(dim=1, descending=True, stable=True).indices  # [L, K]
    owner = pad(cuts.owner(device), (0, 1), value=len(cuts.sizes))[found.index]  # S of padding
    owner, by_segment = owner.gather(1, order).sort(dim=1, stable=True)
    rank = torch.arange(width, device=device) - until.gather(1, owner)  # in its segment
    kept = rank < pad(counts, (0, 1)).gather(1, owner)
    mask = torch.zeros_like(kept).scatter_(1, order.gather(1, by_segment), kept)
    of_kept = _marked(mask, mask.cumsum(1), found.values, min(width, most.total))
    index = pad(found.index, (0, 1), value=found.n).gather(1, of_kept.index)
    whole = Sparse.of(of_kept.values, index, found.n, of_kept.counts)
    return whole, pad(counts.cumsum(1), (1, 0))


def _steps(until: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(until)]
