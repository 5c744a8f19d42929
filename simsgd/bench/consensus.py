"""Tunes the consensus step size: how fast gossip alone brings workers together.

Letters: W workers, n elements each, x their numbers [W, n].
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..communication.ledger import Ledger
from ..communication.segments import Segment
from ..communication.square_sides import square_sides
from ..communication.topology import topology as graph_of
from ..communication.transport import Channel, InProcess
from ..communication.wire import Wire
from ..given_object import plain_arguments
from ..keyed_random import RandomKey
from ..methods.algorithms import ExchangeContext
from ..methods.algorithms.gossip import Gossip
from ..methods.compressors import StepInfo, composed
from ..registry import find
from ..results.figures.legends import Curve, name_curves
from ..results.figures.style import (
    BLUE,
    DARK_GRAY,
    GRAY,
    THEMES,
    Look,
    require_suffix,
    save,
    screen_look,
)
from ..results.figures.ticks import set_ticks
from ..settings import require, require_kind, unknown
from ..units import plain_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPSIZES = tuple(round(10 ** (-2 + place / 8), 4) for place in range(17))  # 0.01 to 1
_TUNED = ("choco", "deepsqueeze")
_MOST = 1 << 26  # numbers of all workers
_MOST_ROUNDS = 100_000


def gossip(exchange: Gossip, compressor: str, x: Tensor, rounds: int, seed: int = 0) -> list[float]:
    """Let workers gossip from `x` [W, n], in place, and return the consensus distances.

    The first is that of the start, then one a round; the distance is sqrt(mean_i ||x_i - mean||^2).
    """
    workers, n = x.shape
    segment = Segment("x", ("x",), (torch.Size([n]),), dense=False)
    method = composed(compressor).for_shape(square_sides(n))
    channel = Channel(InProcess(), Ledger(workers), Wire())
    key, state = RandomKey(seed, torch.arange(workers)), method.init(x)
    own, distances = exchange.init(x, segment), [distance(x)]
    for step in range(rounds):
        info = StepInfo(key.fold_in(step, "x"), step, segment="x")
        exchange.parameters(x, ExchangeContext(method, state, info, segment, channel), own)
        channel.ledger.transfers.clear()
        distances.append(distance(x))
    return distances


def distance(x: Tensor) -> float:
    """Return the consensus distance of `x` [W, n]."""
    return math.sqrt(float((x - x.mean(0)).double().square().sum(1).mean()))


@dataclass(frozen=True)
class Tuning:
    """What a sweep over consensus step sizes found."""

    title: str  # what was swept
    stepsizes: tuple[float, ...]
    contraction: tuple[float, ...]  # factor by which the distance falls in a round; 1 or more: none
    distances: tuple[tuple[float, ...], ...]  # by round, of each step size

    @property
    def best(self) -> float:
        """The step size of the fastest contraction."""
        return self.stepsizes[self.contraction.index(min(self.contraction))]

    def summary(self) -> str:
        """Return the table, and the best of it."""
        lines = [self.title, "", "gamma   contraction per round"]
        for gamma, factor in zip(self.stepsizes, self.contraction, strict=True):
            shown = f"{factor:.5f}" if factor < 1 else "does not contract"
            lines.append(f"{gamma:<7g} {shown}" + ("  <- best" if gamma == self.best else ""))
        fastest = min(self.contraction)
        if fastest >= 1:
            lines += [
                "",
                "no step size contracts: send more, or use a smaller --consensus-stepsize",
            ]
        else:
            halved = math.log(0.5) / math.log(fastest)
            lines += ["", f"--consensus-stepsize {self.best:g} halves it in {halved:.1f} rounds"]
        return "\n".join(lines)

    @screen_look()
    def plot(self) -> "Figure":
        """Return the figure: contraction by step size, and the distance by round of some."""
        from ..results.figures.canvas import NotebookFigure  # here: it imports matplotlib

        figure = NotebookFigure(8.4, 3.4)
        left, right = figure.subplots(1, 2)
        left.plot(self.stepsizes, self.contraction, color=BLUE, marker="s")
        left.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
        at, low = self.stepsizes.index(self.best), min(self.contraction)
        left.plot(self.best, low, "o", color=BLUE, markeredgecolor="white", markersize=8)
        left.set(xscale="log", xlabel="consensus step size", ylabel="contraction per round")
        left.set_ylim(low - 0.15 * (1 - low) - 1e-4, 1 + 0.6 * (1 - low) + 1e-4)
        set_ticks(left.xaxis, np.array(self.stepsizes), in_bytes=False)
        near = sorted({max(0, at - 4), at, min(len(self.stepsizes) - 1, at + 2)})
        curves = [self._curve(place, at) for place in near]
        for curve in curves:
            right.plot(curve.x, curve.y, color=curve.look.color, linestyle=curve.look.linestyle)
        right.set(yscale="log", xlabel="round", ylabel="consensus distance")
        set_ticks(right.yaxis, np.concatenate([curve.y for curve in curves]), in_bytes=False)
        name_curves(figure, [right], [curves], "lines")
        return figure

    def _curve(self, place: int, best: int) -> Curve:
        """Return the line of one step size, blue and solid that of the best."""
        gamma, distances = self.stepsizes[place], np.array(self.distances[place])
        finite = np.isfinite(distances)
        look = Look(BLUE) if place == best else Look(DARK_GRAY, "--" if place < best else "-.")
        name = f"{gamma:g}" + (" (best)" if place == best else "")
        return Curve(name, np.arange(len(distances))[finite].astype(float), distances[finite], look)


@plain_arguments
def tune_consensus(
    workers: int = 16,
    topology: str = "ring",
    compressor: str = "topk:0.01",
    algorithm: str = "choco",
    elements: int = 1000,
    rounds: int = 300,
    stepsizes: Sequence[float] = STEPSIZES,
    seed: int = 0,
    output: Path | str | None = None,
) -> Tuning:
    """Return how fast gossip with each consensus step size contracts, without training.

    Workers begin at numbers drawn from the normal distribution, `elements` each. The contraction is
    the mean factor of a round in the second half of `rounds`. `output` is a figure to write. Raises
    `SettingError` for whatever does not exist or has no such step size.
    """
    require_suffix(output)
    for name, spec in (("topology", topology), ("compressor", compressor)):
        require_kind(name, spec, str)
    if algorithm not in _TUNED:
        raise unknown("algorithm", algorithm, _TUNED)
    for name, value in (("workers", workers), ("elements", elements), ("rounds", rounds)):
        require(value >= 2, name, value, "must be at least 2")
    require(rounds <= _MOST_ROUNDS, "rounds", rounds, f"must be at most {_MOST_ROUNDS:,}")
    require_kind("stepsizes", stepsizes, Sequence, np.ndarray)
    stepsizes = plain_numbers(tuple(stepsizes))
    require(stepsizes != (), "stepsizes", None, "must be at least one")
    for gamma in stepsizes:
        require_kind("stepsizes", gamma, float)
    require(0 <= seed < 2**63, "seed", seed, "must lie in [0, 2**63)")
    rule = f"times {workers} workers must be at most {_MOST:,}"
    require(workers * elements <= _MOST, "elements", elements, rule)
    method = find("algorithm", algorithm)
    method().check_compressor(composed(compressor))
    start = torch.randn(workers, elements, generator=torch.Generator().manual_seed(seed)).double()
    gap = graph_of(topology, workers).at(0).spectral_gap
    found = []
    for gamma in stepsizes:
        exchange = replace(method(topology=topology), consensus_stepsize=gamma)
        found.append(tuple(gossip(exchange, compressor, start.clone(), rounds, seed)))
    title = (
        f"{algorithm} with {compressor} on {topology} of {workers} workers "
        f"(spectral gap {gap:.4f}), {elements:,} elements, {rounds} rounds"
    )
    tuning = Tuning(title, tuple(stepsizes), tuple(map(_contraction, found)), tuple(found))
    if output is not None:
        save(tuning.plot(), Path(output), THEMES["screen"].dpi)
    return tuning


def _contraction(distances: Sequence[float]) -> float:
    """Return the mean factor of a round in the second half, 0 if they came together before."""
    if not math.isfinite(distances[-1]):
        return math.inf
    above = [d for d in distances if d > 1e-10 * distances[0]]  # below, rounding is all there is
    half = len(above) // 2
    if len(above) < 3:
        return 0.0
    return float((above[-1] / above[half]) ** (1 / (len(above) - 1 - half)))
