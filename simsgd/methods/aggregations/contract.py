"""The contract of an aggregation rule.

Letters: W workers, L hosted here, n elements of one segment.
"""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from ...communication.messages import Message, SharedSparse, Sparse, TiledSparse
from ...communication.segments import Layout, Segment
from ...communication.transport import Channel
from ...registry import build, contract, is_own
from ...settings import SettingError
from ..compressors import Compressor, MultiRound
from ..method_class import MethodClass
from ..own_errors import explained, refuse_shape, require_dtype


@contract("aggregation")
class Aggregation(metaclass=MethodClass):
    """A rule by which the messages of all workers become one update. A frozen dataclass."""

    elementwise: ClassVar[bool] = False  # no element looks at another: segments may go together
    is_mean: ClassVar[bool] = False  # as compressors of several rounds and a downlink need
    needs_every_entry: ClassVar[bool] = False  # of each worker: no messages of a few entries
    needs_whole_gradient: ClassVar[bool] = False  # in one segment
    takes_uncompressed: ClassVar[bool] = False  # what is exempt from compression; else averaged

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor whose messages the rule cannot take."""
        if isinstance(compressor, MultiRound) and not self.is_mean:
            rule = "has no meaning for a compressor of several rounds, which need the mean"
            fix = "use a compressor that sends every entry, as sign does"
            raise SettingError("aggregate", None, rule, fix)
        if isinstance(compressor, MultiRound):
            return
        few = isinstance(compressor.probe(), Sparse | SharedSparse | TiledSparse)
        if few and self.needs_every_entry:
            rule, fix = "needs every entry of each worker", "use a compressor that sends all"
            raise SettingError("aggregate", None, rule, f"{fix}, as sign does")

    def check_workers(self, workers: int) -> None:
        """Raise `SettingError` for a number of workers that the rule cannot take."""

    def check_layout(self, layout: Layout) -> None:
        """Raise `SettingError` for a model that is cut into segments where the rule needs one."""
        if self.needs_whole_gradient and len(layout.segments) > 1:
            rule = f"compares whole gradients, and here are {len(layout.segments)} segments"
            raise SettingError("aggregate", None, rule, "set granularity model and compress_if all")

    @abstractmethod
    def aggregate(
        self, message: Message, segment: Segment, channel: Channel, at_server: bool
    ) -> tuple[Message, Tensor]:
        """Send the messages; return them as they arrive, and what comes of them, [n].

        `channel.gather` brings those of all workers together, [W, n]. `at_server`: only a server
        has to know the result.
        """


class ServerRule(Aggregation):
    """A rule of a server, which gathers the messages and sends the outcome to all, uncompressed."""

    takes_uncompressed = True

    def aggregate(
        self, message: Message, segment: Segment, channel: Channel, at_server: bool
    ) -> tuple[Message, Tensor]:
        """Return the messages, and what comes of them, [n]."""
        sent, rows = channel.gather(message, segment)
        outcome = self.of_rows(rows)
        if is_own(self):
            _check_outcome(self, "of_rows", outcome, segment, rows)
        channel.count_broadcast(outcome, segment)
        return sent, outcome

    @abstractmethod
    def of_rows(self, rows: Tensor) -> Tensor:
        """Return what comes of what all workers sent, [W, n]: the update, [n]."""


def aggregated_by(
    rule: Aggregation, message: Message, segment: Segment, channel: Channel, at_server: bool = False
) -> tuple[Message, Tensor]:
    """Return the messages as they arrive, and what a rule makes of them, [n].

    Raises `SettingError` for a rule of a user's own that gives something else.
    """
    if not is_own(rule):
        return rule.aggregate(message, segment, channel, at_server)
    with explained([("aggregation", rule)]):
        result: object = rule.aggregate(message, segment, channel, at_server)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Message):
            text = "has an aggregate that returns no pair of a message and a tensor"
            raise SettingError("aggregation", type(rule).__name__, text, "return message, mean")
        _check_outcome(rule, "aggregate", result[1], segment, message.template)
    return result


def _check_outcome(
    rule: Aggregation, call: str, outcome: object, segment: Segment, like: Tensor
) -> None:
    """Raise `SettingError` unless what comes of a rule is [n], of the dtype of `like`."""
    if not isinstance(outcome, Tensor) or tuple(outcome.shape) != (segment.n,):
        refuse_shape("aggregation", rule, call, outcome, (segment.n,))
    require_dtype("aggregation", rule, call, outcome, like.dtype)


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
