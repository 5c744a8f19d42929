"""Packs numbers into bytes: the dtype of values, the coding of indices.

Letters: n elements of one segment, k kept.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .. import compiled_loops
from ..settings import INDEX_CODINGS, VALUE_DTYPES, require

_INT32_MAX = 2**31 - 1
LONGEST_GAP = 1 << 16  # from one entry to the next in gap16, whose run lengths end at 65535


@dataclass(frozen=True)
class Wire:
    """The form of values and indices on the network."""

    value_dtype: str | None = None  # float64, float32, float16, bfloat16; None: the gradient's own
    index_dtype: str = "int32"  # int32, int64, packed (ceil(log2 n) bits each) or gap16

    def __post_init__(self) -> None:
        require(
            self.value_dtype is None or self.value_dtype in VALUE_DTYPES,
            "value_dtype",
            self.value_dtype,
            f"must be one of {', '.join(VALUE_DTYPES)}",
        )
        require(
            self.index_dtype in INDEX_CODINGS,
            "index_dtype",
            self.index_dtype,
            f"must be one of {', '.join(INDEX_CODINGS)}",
        )

    def dtype(self, own: torch.dtype) -> torch.dtype:
        """Return the dtype that values computed in `own` travel in."""
        return own if self.value_dtype is None else _named(self.value_dtype)


def index_bits(coding: str, n: int) -> int:
    """Return the bits that one index into `n` elements takes."""
    return {"int32": 32, "int64": 64, "gap16": 16}.get(coding, (n - 1).bit_length())


def value_bytes(values: Tensor) -> Tensor:
    """Return the memory of values as bytes, uint8 on the CPU.

    >>> value_bytes(torch.arange(3, dtype=torch.int16)[1::2])  # one value, of stride 2
    tensor([1, 0], dtype=torch.uint8)
    """
    flat = values.detach().cpu().contiguous().flatten()
    # Torch takes one value of any stride as contiguous, and shows only those of stride 1 as bytes.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def bytes_value(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values whose memory the bytes are."""
    return buffer.clone().view(dtype)


def pack_index(index: Tensor, n: int, coding: str) -> Tensor:
    """Return indices into `n` elements, [k] int64, as uint8 of `ceil(k * index_bits / 8)`.

    For gap16 they ascend, no more than `LONGEST_GAP` from one to the next, see `fillers`.
    Raises `SettingError` for int32 where n does not fit.
    """
    if coding == "gap16":
        return value_bytes(runs(index).to(torch.uint16))
    if coding == "int64":
        return value_bytes(index)
    if coding == "int32":
        check_index_width(n, coding)
        return value_bytes(index.to(torch.int32))
    return pack_bits(index, index_bits(coding, n))


def unpack_index(buffer: Tensor, n: int, k: int, coding: str) -> Tensor:
    """Return the `k` indices that `pack_index` packed, [k] int64."""
    if coding == "gap16":
        return (bytes_value(buffer, torch.uint16).long() + 1).cumsum(0) - 1
    if coding == "packed":
        return unpack_bits(buffer, index_bits(coding, n), k)
    return bytes_value(buffer, _named(coding)).long()


def check_index_width(n: int, coding: str) -> None:
    """Raise `SettingError` where an index into `n` elements does not fit the coding."""
    fits = coding != "int32" or n - 1 <= _INT32_MAX
    require(fits, "index_dtype", coding, f"cannot index {n} elements", "use packed or int64")


def runs(index: Tensor) -> Tensor:
    """Return how many elements are passed over before each of ascending indices, [..., k]."""
    before_first = index.new_full((*index.shape[:-1], 1), -1)
    return index.diff(dim=-1, prepend=before_first) - 1


def fillers(index: Tensor) -> Tensor:
    """Return how many entries of value zero gap16 needs before each ascending index, [..., k].

    Each filler lies `LONGEST_GAP` after the entry before it.
    """
    return runs(index) // LONGEST_GAP


def pack_bits(numbers: Tensor, width: int) -> Tensor:
    """Return non-negative numbers [k] of `width` bits each, high bit first, as uint8."""
    if width == 1:
        return torch.from_numpy(np.packbits(numbers.cpu().numpy().astype(bool)))
    if _compiled(numbers, width):
        from .wire_kernels import packed

        return packed(numbers, width)
    places = np.arange(width - 1, -1, -1)
    bits = (numbers.long().cpu().numpy()[:, None] >> places) & 1  # [k, width]
    return torch.from_numpy(np.packbits(bits.astype(np.uint8).ravel()))


def unpack_bits(buffer: Tensor, width: int, k: int) -> Tensor:
    """Return the `k` numbers that `pack_bits` packed, [k] int64."""
    if _compiled(buffer, width) and 8 * len(buffer) >= k * width:
        from .wire_kernels import unpacked

        return unpacked(buffer, width, k, False, torch.int64)
    bits = np.unpackbits(buffer.cpu().numpy(), count=k * width).reshape(k, width)
    places = 1 << np.arange(width - 1, -1, -1, dtype=np.int64)
    return torch.from_numpy(bits.astype(np.int64) @ places)


def pack_signed(numbers: Tensor, width: int) -> Tensor:
    """Return signed numbers [k] as a sign bit and `width` - 1 bits of magnitude, as uint8."""
    if _compiled(numbers, width):
        from .wire_kernels import packed

        return packed(numbers, width)
    signed = numbers.long()
    return pack_bits(signed.abs() + ((signed < 0).long() << width - 1), width)


def unpack_signed(buffer: Tensor, width: int, k: int, dtype: torch.dtype) -> Tensor:
    """Return the `k` numbers that `pack_signed` packed, [k]."""
    if _compiled(buffer, width) and 8 * len(buffer) >= k * width:
        from .wire_kernels import unpacked

        return unpacked(buffer, width, k, True, dtype)
    coded, top = unpack_bits(buffer, width, k), 1 << width - 1
    return torch.where(coded >= top, top - coded, coded).to(dtype)


def _compiled(numbers: Tensor, width: int) -> bool:
    return 1 < width <= 56 and compiled_loops.takes(numbers)


def _named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
