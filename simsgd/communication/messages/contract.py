"""The contract of a message: what workers put on the network, and its exact length in bytes.

A message holds L workers' payloads for one segment, already rounded to what arrives: a memory
that subtracts it keeps the rounding error as well.

Letters: L workers hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..wire import Wire

State = dict[str, Tensor]  # plain, updated in place, saved verbatim; rows are workers
Header = dict[str, Any]  # what both ends know without sending it


class Message(ABC):
    """L workers' payloads for one segment."""

    @property
    @abstractmethod
    def summable(self) -> bool:
        """Whether it may ride an all-reduce: the sum of two messages is such a message."""

    @abstractmethod
    def on_wire(self, wire: Wire) -> "Message":
        """Return the message as it arrives when sent in the given form."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """Return what each message stands for, [L, n]."""

    @property
    def template(self) -> Tensor:
        """A tensor of the shape [L, n], dtype and device of `to_dense`, whose values mean nothing.

        Where it can be had so, it is a view of one element, and nothing is made dense.
        """
        return self.to_dense()

    @abstractmethod
    def sum(self) -> Tensor:
        """Return the sum over workers, [n], added in the order of workers."""

    def mean_of_senders(self) -> Tensor:
        """Return the mean of each element over the workers that sent it, [n]; 0 if nobody did."""
        return self.sum().div_(len(self.payload_bytes()))

    @property
    def parts(self) -> "Sequence[Message]":
        """The messages that are counted one by one: this one, or those that are `Joined`."""
        return (self,)

    @property
    def row_bytes(self) -> int | None:
        """The bytes of each row, where shapes alone decide them; None: what is sent does."""
        return None

    def fault(self) -> str:
        """Return what is wrong with a message that somebody made by hand, or "". It waits.

        What to do comes after a semicolon, if anything does.
        """
        return ""

    @abstractmethod
    def payload_bytes(self) -> Tensor:
        """Return the bytes of each worker's payload, [L] int64: the length of what `pack` makes."""

    @abstractmethod
    def entries(self) -> Tensor:
        """Return how many numbers each worker's payload holds, indices and scales apart, [L]."""

    @abstractmethod
    def explained(self, row: int) -> str:
        """Return the arithmetic of the payload of worker `row`, as "9 values x 4 B + ...".

        Terms are made by `term`; what they come to is `payload_bytes()[row]`.
        """

    @abstractmethod
    def pack(self, row: int) -> Tensor:
        """Return the buffer that worker `row` sends, uint8."""

    @abstractmethod
    def header(self) -> Header:
        """Return what `unpack` needs beside the buffers."""

    @classmethod
    @abstractmethod
    def unpack(cls, buffers: Sequence[Tensor], header: Header) -> "Message":
        """Return the message whose rows were packed into `buffers`."""

    @abstractmethod
    def subtract_from_(self, x: Tensor) -> None:
        """Subtract in place what each message stands for from `x` [L, n]."""

    @abstractmethod
    def clear_(self, x: Tensor) -> None:
        """Zero in place the entries of `x` [L, n] that were selected to be sent.

        A message that sends all entries selects none.
        """

    @property
    def has_zero(self) -> bool:
        """Whether zeros can be sent between the values, where `spread` puts them."""
        return False

    def spread(self, column: Tensor, width: int, counts: Tensor) -> "Message":
        """Return the values [L, k] at other columns [L, k] among `width`, and zeros between.

        `counts` [L] is how many columns of each row are then sent; a value for column `width` is
        padding. Only a message that `has_zero` can do so.
        """
        raise NotImplementedError


def rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values as they come out of a trip in another dtype."""
    return values.to(dtype).to(values.dtype)


@lru_cache(maxsize=4096)  # a step asks for the same of every segment
def one_element(rows: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor [rows, n] that is a view of one element, and never written to."""
    return torch.empty((), dtype=dtype, device=device).expand(rows, n)


def for_each_row(number: int, like: Tensor) -> Tensor:
    """Return a number for each row of `like` [L, ...], [L] int64, to be read only."""
    return _filled(number, len(like), like.device)


@lru_cache(maxsize=4096)  # a step asks for the same of every segment
def _filled(number: int, rows: int, device: torch.device) -> Tensor:
    return torch.full((rows,), number, dtype=torch.int64, device=device)


def term(number: int, one: str, many: str, size: int, unit: str = "B") -> str:
    """Return one product of a payload's arithmetic; bits are rounded up to whole bytes.

    >>> term(68, "index", "indices", 4), term(1, "scale", "scales", 4)
    ('68 indices x 4 B', '1 scale x 4 B')
    >>> term(1640, "code", "codes", 9, "bit")
    '1,640 codes x 9 bits'
    """
    plural = "s" if unit == "bit" and size != 1 else ""
    return f"{number:,} {one if number == 1 else many} x {size:,} {unit}{plural}"
