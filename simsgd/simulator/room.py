"""Refuses more workers, or older models, than memory can hold, before anything is allocated."""

import os
from collections.abc import Iterable

import torch
from torch import Tensor

from ..settings import SettingError
from ..units import in_units


def check_room(params: Iterable[Tensor], copies: int, name: str, value: object) -> None:
    """Raise `SettingError` for the setting `name` if `copies` of the parameters cannot fit.

    The copies are the least that a step needs; what is left over may still be too little.
    """
    tensors = list(params)
    each = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    there = memory_of(tensors[0].device)
    if there is None or copies * each <= there:
        return
    rule = f"needs at least {in_units(copies * each)} of memory, and there are {in_units(there)}"
    raise SettingError(name, value, rule, f"at most {there // each} fit")


def memory_of(device: torch.device) -> int | None:
    """Return the bytes of a device's memory, used or not; None if the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None
