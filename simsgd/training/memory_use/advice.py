"""Advises which setting to lower, and to what, when a device runs out of memory.

Letters: W workers, b samples each.
"""

import dataclasses

import torch

from ...communication.transport import is_initialized
from ...config import Config
from ...units import in_units
from ..experiment import Experiment
from .estimate import Footprint, footprint_of

_UNKNOWN = "lower --worker-chunk, then --batch-size"


def relief(config: Config) -> str:
    """Return what the run needs, what there is, and the setting to lower, in one line.

    The need is that of `--dry-run`, found on the CPU.
    """
    there = capacity(config.device)
    if there is None or is_initialized():
        return _UNKNOWN
    try:
        need = footprint_of(Experiment.of(dataclasses.replace(config, device="cpu", resume=None)))
    except Exception:  # it is a guess on the way out: what made the run end is what matters
        return _UNKNOWN
    told = f"it needs about {in_units(need.total)} of {in_units(there)}"
    return f"{told}; {lower(need, there, config)}"


def capacity(device: str) -> int | None:
    """Return the bytes of a GPU that this process has or could have; None for a CPU."""
    if not device.startswith("cuda"):
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device)


def lower(need: Footprint, there: int, config: Config) -> str:
    """Return the setting to lower so that what is needed fits into the bytes that are there."""
    lasting, workers = sum(need.lasting.values()), config.workers
    part = max(need.passing, key=lambda name: need.passing[name])
    most, room = need.passing[part], there - lasting
    if most <= room:
        return f"it should fit: end what else is on the device, or {_batch(config, 0.5)}"
    if part.startswith("activations") and room > 0:
        chunk = need.chunk_size * room // most
        if chunk >= 1:
            return f"lower --worker-chunk from {need.chunk_size} to {chunk}"
        return _batch(config, need.chunk_size * room / most)
    each = sum(size for name, size in need.lasting.items() if "workers" in name) / workers
    fewer = int(workers - (need.total - there) / each) if each else 0
    if fewer >= 1:
        return f"lower --workers from {workers} to {fewer}"
    return "use a smaller model, or a larger device"


def _batch(config: Config, share: float) -> str:
    samples = config.pass_batch
    fewer = int(samples * share)
    if fewer < 1:
        return "use a smaller model, or a larger device"
    return f"lower --batch-size from {samples} to {fewer}"
