"""Send each entry as a power of two, rounded at random.

Letters: L workers hosted here, n elements of one segment, k of them given, u uniform in [0, 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import compiled_loops
from ...communication.messages import Joined, Powers, State
from ...communication.messages.joined import coded_by_segment
from ...communication.messages.powers_of_two import LEAST, MOST, NEGATIVE
from ...keyed_random import RandomKey
from ...registry import register
from .contract import Quantizer, StepInfo
from .group import Group


@register("compressor", "natural")
@dataclass(frozen=True)
class Natural(Quantizer):
    """Each worker sends each entry as a power of two, one of the two beside it at random.

    C(x) = sign(x) 2^e (1 + (u < |x| / 2^e - 1)), e = floor(log2 |x|). Unbiased, with
    E||C(x) - x||^2 <= 1/8 ||x||^2. 1 byte an entry: a sign and 7 bits for 2^-108 to 2^18 and 0.
    Magnitudes above 2^18 arrive as 2^18, and a memory keeps the rest; those below 2^-108,
    subnormal numbers among them, arrive as 2^-108 or 0, unbiased still.
    Horvath et al., "Natural Compression for Distributed Deep Learning", MSML 2022,
    https://arxiv.org/abs/1905.10988.

    Differs from the paper: 7 bits of exponent in place of 8, so that an entry takes a byte.
    """

    biased = False

    def quantize(
        self, values: Tensor, counts: Tensor | None, state: State, step: StepInfo
    ) -> Powers:
        """Return the power of two for each of `values` [L, k]."""
        scales = torch.empty(len(values), 0, device=values.device)
        return Powers(_powers(values, step.key), scales, values.dtype, counts)

    def quantize_group(self, values: Tensor, group: Group) -> Joined:
        """Return the power of two for each of `values` [L, P]."""
        scales = torch.empty(len(values), 0, device=values.device)
        codes = _rounded(values, group.uniform(values))
        whole = Powers(codes, scales, values.dtype, None)
        return coded_by_segment(group.cuts, whole, scales)


def _powers(values: Tensor, key: RandomKey) -> Tensor:
    """Return the code of a power of two for each of `values` [L, k], uint8."""
    if compiled_loops.takes(values):
        from .rounding_kernels import powers

        return powers(values, key.keys())
    return _rounded(values, key.uniform(values.shape[1], values.dtype))


def _rounded(values: Tensor, u: Tensor) -> Tensor:
    """Return the same by the numbers `u` [L, k]."""
    size = values.abs()
    mantissa, exponent = torch.frexp(size)  # size = 2 mantissa * 2^(exponent - 1)
    up = u < 2 * mantissa - 1
    codes = (exponent - LEAST).add_(up).clamp_(1, 1 + MOST - LEAST)
    small = size < 2.0**LEAST
    codes = torch.where(small, (u * 2.0**LEAST < size).int(), codes)
    codes.add_((values < 0).int() * NEGATIVE)
    return codes.to(torch.uint8)
