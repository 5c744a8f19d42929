"""The request for a figure: what every kind of figure is drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..metric import Metric
from ..network import Network
from ..outcome import metrics_of
from ..pricing import Pricing
from .appearance import Appearance
from .run_groups import Group
from .style import Theme


@dataclass(frozen=True)
class Request:
    """The runs, columns and settings of a figure; each kind takes those that concern it."""

    groups: Sequence[Group]
    x: str  # epoch, step, bytes, seconds or budget
    y: Sequence[str]  # columns, a panel each
    networks: Sequence[Network]
    pricing: Pricing
    smooth: int  # points of a running mean; 1: none
    theme: Theme
    appearance: Appearance
    size: int | None = None  # bytes of a worker, as far as which runs are taken
    ordered: bool = False  # whether the groups' order was asked for

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of the runs."""
        return metrics_of(run for group in self.groups for run in group.runs)
