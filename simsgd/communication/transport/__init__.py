"""Carries messages between workers, and counts them.

The workers are rows of tensors here, or some of them are rows in other processes, which are
reached by `torch.distributed`; no other room knows of it.
"""

from .channel import Channel, Observer
from .contract import Transport, rides_all_reduce
from .distributed import Distributed
from .fusion import Exchange, fused
from .in_process import InProcess
from .node_ranks import NodeRanks
from .process_group import (
    Bucket,
    RankLost,
    all_gather_object,
    broadcast_object,
    counted,
    group,
    is_initialized,
    is_rank_zero,
    is_torchrun,
    launched_group,
    launched_number,
    odd_rank,
    register_hook,
    restarts,
)
from .timing import Measured, of_all_ranks

__all__ = [
    "Bucket",
    "Channel",
    "Distributed",
    "Exchange",
    "InProcess",
    "Measured",
    "NodeRanks",
    "Observer",
    "RankLost",
    "Transport",
    "all_gather_object",
    "broadcast_object",
    "counted",
    "fused",
    "group",
    "is_initialized",
    "is_rank_zero",
    "is_torchrun",
    "launched_group",
    "launched_number",
    "odd_rank",
    "of_all_ranks",
    "register_hook",
    "restarts",
    "rides_all_reduce",
]
