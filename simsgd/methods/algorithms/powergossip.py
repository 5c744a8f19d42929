"""PowerGossip: neighbors look for what their models differ by, in a few directions at a time.

Letters: W workers, L hosted here, n = rows * cols elements of one segment, r rank, D the most
neighbors that a worker has, X [rows, cols] its matrix, a and b its sides as they are multiplied.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ...communication.messages import Dense, State
from ...communication.mixing import Mixing
from ...communication.segments import Layout, Segment
from ...keyed_random import RandomKey
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError, require
from ..compressors import Compressor
from ..compressors.powersgd_factors import living, normal, orthonormal
from .contract import ExchangeContext, Exchanged
from .dpsgd import DPSGD


@register("algorithm", "powergossip")
@dataclass(frozen=True)
class PowerGossip(DPSGD):
    """On each link a step of power iteration finds the main direction of the models' difference.

    Two neighbors i and j hold the same p. Each sends X p, with columns of p made orthonormal; both
    know q = (X_j - X_i) p, and X_i = X_i + w_ij q p^T. The next iteration begins from q with the
    transposed matrices. So r rows values or r cols ones go over each link, in turn, whatever the
    models do; there is no step size to choose. The mean of the models is kept. With all directions
    of a square matrix it is dpsgd. Tensors of one dimension go whole, as there, and no other
    compressor has a place.
    Vogels, Karimireddy, Jaggi, "Practical Low-Rank Communication Compression in Decentralized Deep
    Learning", NeurIPS 2020, https://arxiv.org/abs/2008.01425.

    Differs from the code: the first step exchanges too; directions are drawn for each link and
    tensor, and again where two models do not differ. The error that is recorded is that of rounding
    alone: nobody knows the whole difference.
    """

    rank: int = 1  # r, of a difference, at least 1
    iterations: int = 1  # of one multiplication each, in a step, at least 1
    workers: int = field(default=1, repr=False, metadata=NOT_A_SETTING)  # W
    takes_groups = False
    neighbors_may_vary = False

    def __post_init__(self) -> None:
        for name in ("rank", "iterations"):
            value = getattr(self, name)
            require(value >= 1, name, value, "must be at least 1")

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor beside the algorithm's own."""
        super().check_compressor(compressor)
        if compressor.compresses:
            rule = "must be none with algorithm powergossip, which compresses differences itself"
            raise SettingError("compressor", None, rule, "use choco, or leave the compressor out")

    def for_layout(self, layout: Layout, workers: int) -> Self:
        """Return the algorithm for W workers. Raises `SettingError` for segments of several."""
        if any(len(segment.shape) < 2 and not segment.dense for segment in layout.segments):
            rule = "must be layer with algorithm powergossip, which compresses matrices"
            raise SettingError("granularity", None, rule, "leave granularity out")
        return replace(self, workers=workers)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return both factors of each link, zeros until they are drawn, [L, D, rows or cols, r]."""
        if segment.dense:
            return {}
        rows, cols, width = self._sizes(segment)
        most = int(self.graph(self.workers).at(0).degree.max())
        return {
            "p": x.new_zeros(len(x), most, rows, width),
            "q": x.new_zeros(len(x), most, cols, width),
        }

    def _sizes(self, segment: Segment) -> tuple[int, int, int]:
        rows = segment.shape[0]
        cols = segment.n // rows
        return rows, cols, min(self.rank, rows, cols)

    def repeats_after(self, epoch: int) -> int:
        """Return 2 steps where these end with factors of unlike sides, else 1."""
        return 1 + self.iterations % 2

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Move neighbors' models towards each other, along the directions in which they differ."""
        segment, mixing = context.segment, self.mixing(context)
        if segment.dense:
            return super().parameters(x, context, state)
        links = _Links.of(mixing, context, x)
        rows, cols, _ = self._sizes(segment)
        matrices, sent = x.view(len(x), rows, cols), list[Dense]()
        for number in range(self.iterations):
            turn = context.step.number * self.iterations + number
            given, found = ("q", "p") if turn % 2 == 0 else ("p", "q")
            own = matrices if given == "q" else matrices.mT  # [L, a, b]
            basis = links.basis(state[given], turn)  # [L, D, b, r]
            products = _apart(own @ _together(basis), basis)  # [L, D, a, r]
            message, rounded, arrived = context.channel.swap(products.flatten(2), segment, mixing)
            difference = (arrived - rounded).view_as(products)  # (X_j - X_i) p
            own.add_(_together(difference * links.weights) @ _together(basis).mT)
            state[found].copy_(difference * links.signs)
            sent.append(message)
        values = torch.cat([message.values for message in sent], dim=1)
        return Exchanged.of(values, Dense(values, sent[0].wire_dtype))


@dataclass(frozen=True)
class _Links:
    """What the hosted workers know of the links to their neighbors."""

    weights: Tensor  # w_ij, [L, D, 1, 1], 0 behind the last neighbor
    signs: Tensor  # 1 to a neighbor of a higher id, -1 to one of a lower, 0 behind them
    key: RandomKey  # of the links, [L D]: both ends have the same

    @classmethod
    def of(cls, mixing: Mixing, context: ExchangeContext, x: Tensor) -> "_Links":
        hosted = context.channel.hosted
        others = mixing.neighbors[hosted]  # [L, D]
        own = torch.arange(context.workers)[hosted].unsqueeze(1)
        there = others >= 0
        weights = mixing.weights[own, others].where(there, 0)
        signs = (others - own).sign().where(there, 0)
        ids = torch.minimum(own, others) * context.workers + torch.maximum(own, others)
        key = replace(context.step.key, workers=ids.flatten().to(x.device))
        return cls(_wide(weights).to(x), _wide(signs).to(x), key.fold_in("links"))

    def basis(self, factor: Tensor, turn: int) -> Tensor:
        """Return the columns of `factor` [L, D, b, r], drawn where they are zero, orthonormal."""
        shape = factor.shape[2:]
        pairs = self.key.fold_in(turn).uniform(2 * shape.numel(), factor.dtype)
        drawn = normal(*pairs.unflatten(1, (2, *shape)).unbind(1))  # [L D, b, r]
        return orthonormal(living(factor.flatten(0, 1), drawn)).reshape(factor.shape)


def _wide(values: Tensor) -> Tensor:
    return values[:, :, None, None]


def _together(factors: Tensor) -> Tensor:
    """Return factors [L, D, a, r] side by side, [L, a, D r]."""
    whole: Tensor = factors.transpose(1, 2).flatten(2)
    return whole


def _apart(products: Tensor, like: Tensor) -> Tensor:
    """Return what is side by side, [L, a, D r], by link, [L, D, a, r], as `like` [L, D, b, r]."""
    each: Tensor = products.unflatten(2, (like.shape[1], like.shape[3]))
    return each.transpose(1, 2)
