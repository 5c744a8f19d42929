"""Send an orthonormal update of each matrix: of low rank (Dion), or of some rows (Dion2).

Letters: L workers hosted here, n = rows * cols elements of one segment, r rank, M the momentum that
a memory keeps of each worker as a matrix, P [rows, r] and Q, R [cols, r] factors, s the shorter
side of a matrix, k of its rows or columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ...communication.cuts import Cuts
from ...communication.messages import Dense, LowRank, SharedSparse, State
from ...communication.messages.joined import dense_group, shared_group
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError, count, require
from .contract import MultiRound, Rounds, StepInfo
from .group import Group
from .kinds import Shape, apart, by_kind, end_to_end, exchanged
from .power_iteration import low_rank_group, power_iteration, products
from .powersgd_factors import alive, orthonormal, product
from .topk_selection import largest

_STEPS, _COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)  # of Newton and Schulz, as Muon has them


@dataclass(frozen=True)
class _OfMatrices(MultiRound):
    """What both have: a matrix, and an update that is scaled by its shape."""

    shape: tuple[int, ...] = field(
        default=(), repr=False, metadata=NOT_A_SETTING, kw_only=True
    )  # of the segment
    biased = True

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the method for a parameter of this shape.

        Raises `SettingError` if it is no matrix.
        """
        if len(shape) < 2:
            name = type(self).__name__.lower()
            rule = f"{name} needs granularity layer, and parameters of two dimensions or more"
            raise SettingError("compressor", None, rule, "the others go dense by default")
        return replace(self, shape=tuple(shape))

    @property
    def group_key(self) -> object:
        """The settings: matrices of any shapes go together."""
        return replace(self, shape=())

    @property
    def _matrix(self) -> tuple[int, int]:
        return self.shape[0], math.prod(self.shape[1:])

    @property
    def _scale(self) -> float:
        """What the update is multiplied by: sqrt(rows / cols)."""
        rows, cols = self._matrix
        return math.sqrt(rows / cols)


@register("compressor", "dion")
@dataclass(frozen=True)
class Dion(_OfMatrices):
    """All workers find one orthonormal update of rank r for their momenta by power iteration.

    With memory residual, which adds the gradient to M, and plain SGD:
        P = orthonormal(mean over workers of M Q)
        R = mean over workers of M^T P
        M = M - (1 - mu) P R^T, and Q = R with columns of length 1
        X = X - lr sqrt(rows / cols) P Q^T
    Two all-reduces a step carry (rows + cols) r values, as PowerSGD's. The momentum is what a
    worker has not sent: use memory residual, and an optimizer without momentum.
    Ahn, Xu, Abreu, Langford, "Dion: Distributed Orthonormalized Updates", 2025,
    https://arxiv.org/abs/2504.05295.

    Differs from the paper: columns are made orthonormal one after the other, in place of a QR with
    random sketches, and one that depends on those before it becomes zero.
    """

    rank: int  # r, at most rows and cols, at least 1
    momentum: float = 0.95  # mu in [0, 1)

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or self.rank < 1:
            raise SettingError("rank", self.rank, "must be a whole number of at least 1")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "must lie in [0, 1)")

    def init(self, like: Tensor) -> State:
        """Return Q of zeros, to be drawn at the first step, [L, cols, r]."""
        return {"q": like.new_zeros(len(like), self._matrix[1], min(self.rank, *self._matrix))}

    def rounds(self, x: Tensor, state: State, step: StepInfo) -> Rounds:
        """Yield the factors of each worker's `x` [L, n]."""
        rows, cols = self._matrix
        matrix = x.unflatten(1, self._matrix)  # [L, rows, cols]
        q = alive(state["q"], step.key.fold_in("q"))  # [L, cols, r]
        _, mean = yield Dense.of(product(matrix, q).flatten(1))
        p = orthonormal(mean.unflatten(1, (rows, q.shape[2])))  # [1, rows, r]
        _, mean = yield Dense.of(product(matrix.mT, p).flatten(1))
        r = mean.unflatten(1, (cols, q.shape[2]))  # [1, cols, r]
        unit = of_length_one(r)
        state["q"].copy_(unit)
        update = (p @ unit.mT).mul_(self._scale).flatten(1)  # [1, n]
        return LowRank.of(p * (1 - self.momentum), r, len(x)), update

    def rounds_of_group(self, x: Tensor, group: Group) -> Rounds:
        """Yield the factors of all matrices in `x` [L, P]."""
        fitted = [own for own in group.compressors if isinstance(own, Dion)]
        shapes = [own._matrix for own in fitted]
        widths = [min(self.rank, *shape) for shape in shapes]
        p, r, q = yield from power_iteration(x, group, shapes, widths, of_length_one)
        message = low_rank_group(group, [own * (1 - self.momentum) for own in p], r, len(x))
        update = products(p, q)
        torch._foreach_mul_(group.cuts.split(update), [own._scale for own in fitted])
        return message, update


@register("compressor", "dion2")
@dataclass(frozen=True)
class Dion2(_OfMatrices):
    """All workers send the rows of their momenta that are largest on average, made orthonormal.

    With memory residual, which adds the gradient to M, and plain SGD:
        the k rows of the largest mean sum of magnitudes are chosen (columns, if these are fewer)
        O = NewtonSchulz(mean over workers of these rows of M)
        these rows of M are multiplied by `decay`
        these rows of X are moved by -lr sqrt(rows / cols) O
    k = ceil(fraction s). Two all-reduces a step carry s sums and the k rows.
    Ahn et al., "Dion2: A Simple Method to Shrink Matrix in Muon", 2025,
    https://arxiv.org/abs/2512.16928.

    Differs from the paper, where M is of the mean gradient, which is sent whole: here each worker
    has its own, and what is not sent stays in it.
    """

    needs_mean = True
    fraction: float = 0.25  # of rows, or columns, that are sent, in (0, 1]
    decay: float = 0.95  # of the rows that were sent, in [0, 1]

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "fraction", self.fraction, "must lie in (0, 1]")
        require(0 <= self.decay <= 1, "decay", self.decay, "must lie in [0, 1]")

    def rounds(self, x: Tensor, state: State, step: StepInfo) -> Rounds:
        """Yield the sums of rows of each worker's `x` [L, n], and then the rows chosen."""
        _, mean = yield Dense.of(self._sums(x.unflatten(1, self._matrix)))
        chosen = self._chosen(mean)[0]  # [k, other side]
        index = chosen.flatten()
        _, mean = yield Dense.of(x[:, index])
        part = newton_schulz(mean.view(1, *chosen.shape)).mul_(self._scale)
        update = x.new_zeros(1, x.shape[1]).index_copy_(1, index, part.flatten(1))
        return SharedSparse.of(x[:, index] * (1 - self.decay), index, x.shape[1]), update

    def rounds_of_group(self, x: Tensor, group: Group) -> Rounds:
        """Yield the same for all matrices in `x` [L, P]: those of one shape go together."""
        fitted = [own for own in group.compressors if isinstance(own, Dion2)]
        kinds: list[Shape] = [own._matrix for own in fitted]
        of_kind = dict(zip(kinds, fitted, strict=True))
        pieces = zip(group.cuts.split(x), kinds, strict=True)
        stacked = by_kind(kinds, [own.unflatten(1, shape) for own, shape in pieces])
        sums = {kind: of_kind[kind]._sums(own) for kind, own in stacked.items()}
        mean = yield from exchanged(sums, kinds, [(min(kind),) for kind in kinds])

        chosen = {k: of_kind[k]._chosen(own) for k, own in by_kind(kinds, mean).items()}
        lines = {kind: own.shape[1:] for kind, own in chosen.items()}  # (k, other side)
        kept = Cuts(tuple(lines[kind].numel() for kind in kinds))
        places = torch.cat(apart(chosen, kinds, lambda own: own.flatten(1)), dim=1)[0]
        index = places + group.cuts.begin(kept, x.device)
        _, mean_of_all = yield dense_group(kept, Dense.of(x[:, index]))
        pieces = zip(kept.split(mean_of_all), kinds, strict=True)
        means = [own.view(1, *lines[kind]) for own, kind in pieces]
        parts = {
            kind: newton_schulz(own).mul_(of_kind[kind]._scale)
            for kind, own in by_kind(kinds, means).items()
        }
        update = x.new_zeros(1, x.shape[1]).index_copy_(1, index, end_to_end(parts, kinds, 1))
        return shared_group(group.cuts, kept, x[:, index] * (1 - self.decay), index), update

    def _sums(self, matrices: Tensor) -> Tensor:
        """Return the sums of magnitudes of the lines of `matrices` [..., rows, cols], [..., s]."""
        rows, cols = self._matrix
        lines = matrices.mT.contiguous() if rows > cols else matrices
        return lines.abs().sum(2)

    def _chosen(self, sums: Tensor) -> Tensor:
        """Return the places in a matrix of the k lines with the largest `sums` [C, s].

        They are [C, k, other side].
        """
        rows, cols = self._matrix
        place = torch.arange(rows * cols, device=sums.device).view(rows, cols)
        place = place.T if rows > cols else place  # [s, other side]
        return place[largest(sums, count(self.fraction, len(place)))]


def of_length_one(matrix: Tensor) -> Tensor:
    """Return each matrix [L, cols, r] with columns of length 1; zero stays zero."""
    length = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
    return matrix / torch.where(length > 0, length, 1.0)


def newton_schulz(matrix: Tensor) -> Tensor:
    """Return nearly orthonormal rows for each matrix [L, k, m], k <= m: five steps, as of Muon.

    Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
    https://kellerjordan.github.io/posts/muon.
    """
    a, b, c = _COEFFICIENTS
    short = matrix if matrix.shape[1] <= matrix.shape[2] else matrix.mT
    length = torch.linalg.matrix_norm(short, keepdim=True)
    x = short / length.clamp(min=1e-7)
    for _ in range(_STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    rows: Tensor = x if matrix.shape[1] <= matrix.shape[2] else x.mT.clone()
    return rows
