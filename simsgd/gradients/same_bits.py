"""Finds that somebody wrote into a tensor past autograd's count of that, as through `.data`.

It is looked for on the CPU alone: nothing here waits for another device.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_EXACT = 1 << 16  # elements of which all count
_SAMPLED = 1 << 12  # of those of larger ones


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one dtype hold the same bits; True on another device."""
    if one.device.type != "cpu" or one.device != other.device:
        return True
    return one.shape == other.shape and np.array_equal(_bits(one), _bits(other))


def digest(tensor: Tensor) -> object:
    """Return what differs if a tensor holds other bits, of a large one if some are others.

    None on another device, and for what has no bits of its own.
    """
    plain = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)
    if tensor.device.type != "cpu" or not plain:
        return None
    if tensor.numel() <= _EXACT:
        return hash(_bits(tensor).tobytes())
    some = tensor.detach().flatten()[:: tensor.numel() // _SAMPLED]
    return hash(_bits(some).tobytes())


def _bits(tensor: Tensor) -> NDArray[np.uint8]:
    numbers = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    bits: NDArray[np.uint8] = numbers.view(torch.uint8).numpy()
    return bits
