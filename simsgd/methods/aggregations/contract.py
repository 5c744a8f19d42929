"""The contract of an aggregation rule.

Letters: W workers, L hosted here, n elements of one segment.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from ...communication.messages import Message
from ...communication.segments import Segment
from ...communication.transport import Channel
from ...registry import build, contract
from ...settings import SettingError
from ..compressors import Compressor, MultiRound


@contract("aggregation")
class Aggregation(ABC):
    """A rule by which the messages of all workers become one update. A frozen dataclass."""

    is_mean: ClassVar[bool] = False  # as compressors of several rounds and a downlink need

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor whose messages the rule cannot take."""
        if isinstance(compressor, MultiRound) and not self.is_mean:
            rule = "has no meaning for a compressor of several rounds, which need the mean"
            fix = "use a compressor that sends every entry, as sign does"
            raise SettingError("aggregate", None, rule, fix)

    @abstractmethod
    def aggregate(
        self, message: Message, segment: Segment, channel: Channel, at_server: bool
    ) -> tuple[Message, Tensor]:
        """Send the messages; return them as they arrive, and what comes of them, [n].

        `channel.gather` brings those of all workers together, [W, n]. `at_server`: only a server
        has to know the result.
        """


def aggregation_of(spec: str) -> Aggregation:
    """Return the rule of a spec. Raises `SettingError` for several, or an unknown one."""
    try:
        parts = build("aggregation", spec)
    except SettingError as wrong:
        raise SettingError("aggregate", wrong.value, wrong.rule, wrong.fix) from wrong
    if len(parts) != 1:
        raise SettingError("aggregate", spec, "must be one rule")
    rule: Aggregation = parts[0]
    return rule
