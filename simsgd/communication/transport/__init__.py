"""Where the other workers are, and the scales that everything said passes over.

The workers are rows of tensors here, or some of them are rows in other processes, which talk by
`torch.distributed`; no other room knows of it.
"""

from .channel import Channel
from .contract import Transport, rides_all_reduce
from .distributed import Distributed
from .in_process import InProcess
from .process_group import (
    RankLost,
    counted,
    group,
    is_first,
    is_launched,
    is_together,
    launched_group,
    restarts,
    speak_for,
    told_by_all,
    told_by_first,
)

__all__ = [
    "Channel",
    "Distributed",
    "InProcess",
    "RankLost",
    "Transport",
    "counted",
    "group",
    "is_first",
    "is_launched",
    "is_together",
    "launched_group",
    "restarts",
    "rides_all_reduce",
    "speak_for",
    "told_by_all",
    "told_by_first",
]
