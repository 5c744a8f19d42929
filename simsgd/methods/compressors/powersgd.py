"""Send two thin factors of each gradient matrix.

Letters: L workers hosted here, n = rows * cols elements of one segment, r rank, M the compensated
gradient as a matrix, P [rows, r] and Q [cols, r] its factors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ...communication.messages import Dense, LowRank, State
from ...communication.messages.joined import dense_group
from ...keyed_random import RandomKey
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError, require
from .contract import MultiRound, Rounds, StepInfo
from .group import Group
from .power_iteration import low_rank_group, power_iteration
from .powersgd_factors import alive, orthonormal, product, unit

VARIANTS = ("paper", "package")


@register("compressor", "powersgd")
@dataclass(frozen=True)
class PowerSGD(MultiRound):
    """All workers find one low-rank approximation of their mean gradient by power iteration.

    Algorithm 1, with M the gradient and the error [rows, cols], rows the first dimension:
        P = mean over workers of M Q
        P = orthonormal(P)
        Q = mean over workers of M^T P
        all get P Q^T, and each keeps the error M - P Q^T
    Q goes on to the next step (warm start). Two all-reduces a step carry (rows + cols) r values.
    Biased: use it with memory residual, which keeps the error against the aggregated P Q^T.
    Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, https://arxiv.org/abs/1905.13727.

    `variant=package` does half an iteration a step, as the authors' later package does: even ones
    P = orthonormal(P), Q = M^T P, odd ones Q = orthonormal(Q), P = M Q; one all-reduce carries Q,
    or P; each worker's error is against its own P Q^T, before the mean. A segment is compressed if
    that shrinks it by more than `min_compression_rate`, where the dimensions of the raw tensor are
    added up.

    Differs from the paper: a column of P that depends on those before it becomes zero, not
    amplified rounding noise, and a column of Q that is zero is drawn again, so that a gradient that
    was zero once still counts later. Nothing is added to norms. Q is kept up to the scale of its
    columns, which the next P does not depend on, so that huge and tiny gradients stay finite.
    """

    rank: int  # r, at most rows and cols, at least 1
    variant: str = "paper"  # paper: P and Q each step; package: in turn
    min_compression_rate: float | None = None  # send whole what shrinks less; paper 0, package 2
    start_compressing_after_num_steps: int | None = None  # send all whole; paper 0, package 100
    num_iters_per_step: int = 1  # half-iterations a step, of variant=package
    shape: tuple[int, ...] = field(default=(), repr=False, metadata=NOT_A_SETTING)  # of the segment
    biased = True

    def __post_init__(self) -> None:
        if not (isinstance(self.rank, int) and self.rank >= 1):
            raise SettingError("rank", self.rank, "must be a whole number of at least 1")
        rule = f"must be one of {', '.join(VARIANTS)}"
        require(self.variant in VARIANTS, "variant", self.variant, rule)
        for name in ("min_compression_rate", "start_compressing_after_num_steps"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise SettingError(name, value, "must be at least 0")
        iters = self.num_iters_per_step
        require(iters >= 1, "num_iters_per_step", iters, "must be at least 1")
        if iters != 1 and self.variant != "package":
            rule = "must be 1 with variant=paper"
            raise SettingError("num_iters_per_step", iters, rule, "add variant=package")

    def for_shape(self, shape: Sequence[int]) -> Self:
        """Return the method for a parameter of this shape.

        Raises `SettingError` if it is no matrix.
        """
        fitted = replace(self, shape=tuple(shape))
        fitted._check_matrix()
        return fitted

    def skip_to(self, step: int, state: State) -> None:
        """Set the number of steps done."""
        state["steps"].fill_(step)

    def init(self, like: Tensor) -> State:
        """Return factors of zeros, to be drawn at the first step, and the number of steps done.

        The latter stays on the CPU, where reading it waits for no device.
        """
        steps = torch.zeros(len(like), dtype=torch.int64)
        if self.sends_whole:
            return {"steps": steps}
        state = {"steps": steps, "q": like.new_zeros(len(like), self._matrix[1], self.width)}
        if self.variant == "package":
            state["p"] = like.new_zeros(len(like), self._matrix[0], self.width)
        return state

    def rounds(self, x: Tensor, state: State, step: StepInfo) -> Rounds:
        """Yield factors of each worker's `x` [L, n], or all of it where it is not compressed."""
        start = self._start
        done = self._steps_done(state)
        state["steps"].add_(1)
        if self.sends_whole or done < start:
            sent, mean = yield Dense.of(x)
            return sent, mean
        matrix = x.unflatten(1, self._matrix)  # [L, rows, cols]
        if self.variant == "paper":
            return (yield from self._whole_iteration(matrix, state, step.key))
        return (yield from self._half_iterations(matrix, state, step.key, done - start))

    @property
    def group_key(self) -> object:
        """The settings, and whether a segment is compressed; only `variant=paper` has a form."""
        return (replace(self, shape=()), self.sends_whole) if self.variant == "paper" else None

    def rounds_of_group(self, x: Tensor, group: Group) -> Rounds:
        """Yield factors of all matrices in `x` [L, P], or all of it where it is not compressed."""
        done = self._steps_done(group.states[0])
        torch._foreach_add_([own["steps"] for own in group.states], 1)
        if self.sends_whole or done < self._start:
            sent, mean = yield dense_group(group.cuts, Dense.of(x))
            return sent, mean
        fitted = [own for own in group.compressors if isinstance(own, PowerSGD)]
        shapes, widths = [own._matrix for own in fitted], [own.width for own in fitted]
        p, q, _ = yield from power_iteration(x, group, shapes, widths, unit)
        message = low_rank_group(group, p, q, len(x))
        return message, message.to_dense()[:1]

    @property
    def _start(self) -> int:
        """Steps before the first that compresses."""
        if self.start_compressing_after_num_steps is not None:
            return self.start_compressing_after_num_steps
        return 100 if self.variant == "package" else 0

    def _steps_done(self, state: State) -> int:
        """Return the steps done, 0 where they do not matter."""
        counts = self._start > 0 or self.variant == "package"
        return int(state["steps"][0]) if counts else 0

    @property
    def width(self) -> int:
        """The rank in force: r, or the smaller side of the matrix."""
        return min(self.rank, *self._matrix)

    @property
    def is_of_full_rank(self) -> bool:
        """Whether the matrix is sent as factors, and has no more rows or columns than these."""
        return not self.sends_whole and self.width == min(self._matrix)

    @property
    def sends_whole(self) -> bool:
        """Whether the matrix is too small to compress."""
        rate = self.min_compression_rate
        if self.variant == "paper":
            rate = 0 if rate is None else rate
            return math.prod(self.shape) <= rate * self.width * sum(self._matrix)
        rate = 2 if rate is None else rate
        width = min(self.rank, *self.shape)
        return math.prod(self.shape) <= rate * 0.5 * self.num_iters_per_step * width * sum(
            self.shape
        )

    @property
    def _matrix(self) -> tuple[int, int]:
        self._check_matrix()
        return self.shape[0], math.prod(self.shape[1:])

    def _check_matrix(self) -> None:
        if len(self.shape) < 2:
            rule = "powersgd needs granularity layer, and parameters of two dimensions or more"
            raise SettingError("compressor", None, rule, "the others go dense by default")

    def _whole_iteration(self, matrix: Tensor, state: State, key: RandomKey) -> Rounds:
        rows, cols = self._matrix
        q = alive(state["q"], key.fold_in("q"))  # [L, cols, r]
        _, mean = yield Dense.of(product(matrix, q).flatten(1))
        p = orthonormal(mean.unflatten(1, (rows, self.width)))  # [1, rows, r]
        _, mean = yield Dense.of(product(matrix.mT, p).flatten(1))
        q = mean.unflatten(1, (cols, self.width))  # [1, cols, r]
        state["q"].copy_(unit(q))
        message = LowRank.of(p, q, len(matrix))
        return message, message.to_dense()[: len(q)]

    def _half_iterations(self, matrix: Tensor, state: State, key: RandomKey, done: int) -> Rounds:
        """Take away from M what each half-iteration found, for the next one to work on."""
        iters, rest = self.num_iters_per_step, matrix
        own: dict[str, list[Tensor]] = {"p": [], "q": []}
        aggregated = []
        for turn in range(done * iters, done * iters + iters):
            known, sought = ("p", "q") if turn % 2 == 0 else ("q", "p")
            given = orthonormal(
                alive(state[known], key.fold_in(known, turn))
            )  # [L, rows or cols, r]
            found = product(rest.mT if sought == "q" else rest, given)
            sent, mean = yield Dense.of(found.flatten(1))
            local, shared = (x.unflatten(1, found.shape[1:]) for x in (sent.to_dense(), mean))
            state[known].copy_(given)
            state[sought].copy_(unit(shared))
            own[known].append(given)
            own[sought].append(local)
            rest = rest - _matrix_of(known, given, local)
            aggregated.append(_matrix_of(known, given[: len(shared)], shared))
        message = LowRank.of(torch.cat(own["p"], 2), torch.cat(own["q"], 2), len(matrix))
        return message, torch.stack(aggregated).sum(0).flatten(1)


def _matrix_of(known: str, given: Tensor, found: Tensor) -> Tensor:
    """Return P Q^T, P being the known factor or the one found."""
    return given @ found.mT if known == "p" else found @ given.mT
