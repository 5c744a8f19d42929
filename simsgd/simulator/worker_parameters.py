"""The parameters that workers train: one model for all, or a model for each.

Letters: W workers, L hosted here, n elements of one segment.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..communication.segments import Layout, Segment
from ..gradients.contract import Tensors
from ..gradients.same_bits import same_bits
from ..keyed_random import RandomKey
from ..methods.algorithms import Algorithm
from ..settings import require
from .room import check_room
from .state_groups import grouped

Rows = Callable[[Tensor], Tensor]  # [W, ...] of [L, ...], or the other way round
_BLOCK = 1 << 20  # numbers in float64 at a time


class Parameters(ABC):
    """The parameters of all workers. `trained` are those that an optimizer steps."""

    trained: dict[str, nn.Parameter]
    per_worker: bool  # what `read` returns has a row a worker
    has_models: bool = False  # each worker has a model of its own
    workers: int  # that are hosted here, L

    @abstractmethod
    def read(self) -> Tensors:
        """Return the parameters to take gradients at: {name: [*shape]}, or [L, *shape] each."""

    def segments(self, layout: Layout) -> list[Tensor]:
        """Return a tensor [L, n] for each segment, of the dtype and place of its parameters."""
        firsts = [self.trained[segment.parameters[0]].detach() for segment in layout.segments]
        return [
            first.new_empty(1).expand(self.workers, segment.n)
            for first, segment in zip(firsts, layout.segments, strict=True)
        ]

    def optimizer_rows(self, rows: Rows) -> Rows:
        """Return `rows` if the optimizer steps a row a worker, else what changes nothing."""
        return lambda own: own

    def freeze(self, names: Sequence[str]) -> None:  # noqa: B027 - an algorithm may move models
        """Take note that no optimizer may move these parameters in the step in hand."""

    def stepped(self) -> None:  # noqa: B027 - most have nothing to note
        """Take note that a step ended."""

    @abstractmethod
    def average(self, rows: Rows, weights: Tensor | None = None) -> Tensors:
        """Return the mean over workers, {name: [*shape]}; `rows` gives [W, ...] for [L, ...].

        `weights` [W] add up to 1; None: equal ones.
        """

    def of_worker(self, worker: int, rows: Rows) -> Tensors:
        """Return the parameters of one worker, {name: [*shape]}."""
        return self.average(rows)

    def consensus_distance(self, rows: Rows) -> float:
        """Return the consensus distance, sqrt(mean_i ||x_i - mean||^2)."""
        return 0.0

    @torch.no_grad()
    def load_average(
        self,
        model: nn.Module,
        buffers: Tensors,
        carried: Collection[str],
        rows: Rows,
        how: str,
        worker: int | None,
        weights: Tensor | None = None,
    ) -> nn.Module:
        """Return the model with parameters and statistics to evaluate with; see `evaluation_model`.

        `buffers` are the workers' own, {name: [L, *shape]}, those in `carried` left alone; `how` is
        "mean" or "rank0". `weights` [W] are those of the workers in a mean, None: equal ones.
        """
        average = self.average(rows, weights) if worker is None else self.of_worker(worker, rows)
        params: dict[str, Tensor] = dict(model.named_parameters())
        for name, value in average.items():
            params[name].copy_(value)
        for name, buffer in model.named_buffers():
            if name in carried:
                continue
            own = rows(buffers[name])  # [W, ...], or [W, G, ...] of devices
            own = own if own.dim() == buffer.dim() + 1 else _of_nodes(own, how, worker)
            averaged = how == "mean" and own.is_floating_point() and worker is None
            buffer.copy_(_mean(own, weights) if averaged else own[worker or 0])
        return model.eval()

    def state_dict(self, rows: Rows) -> Tensors:
        """Return all that a resumed simulation needs: {name: tensor}, rows of all W workers."""
        return {name: p.detach() for name, p in self.trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Tensors, hosted: slice) -> None:
        """Take over what `state_dict` returned."""
        for name, parameter in self.trained.items():
            parameter.copy_(state[name])


def parameters_of(
    algorithm: Algorithm,
    params: dict[str, nn.Parameter],
    layout: Layout,
    key: RandomKey,
    together: bool = False,
) -> Parameters:
    """Return the workers' parameters, as the algorithm wants them; all begin with `params`.

    If segments go `together`, models per worker lie so that those of a kind follow each other.
    Raises `SettingError` if memory cannot hold the past models that some read.
    """
    delays = algorithm.delays(key.seed, key.workers)
    if delays is not None:
        past = algorithm.longest_delay + 1
        check_room(params.values(), past, "staleness", algorithm.longest_delay)
        return StaleParameters(params, delays, algorithm.longest_delay)
    if algorithm.parameters_per_worker:
        return WorkerParameters(params, layout, len(key.workers), together)
    return SharedParameters(params, len(key.workers))


class SharedParameters(Parameters):
    """All workers share the model's own parameters."""

    per_worker = False

    def __init__(self, params: dict[str, nn.Parameter], workers: int) -> None:
        self.trained = params
        self.workers = workers
        self._frozen: Tensors = {}

    def freeze(self, names: Sequence[str]) -> None:
        """Keep the parameters, which may be exchanged with others, to put them back."""
        self._frozen = {name: self.trained[name].detach().clone() for name in names}

    @torch.no_grad()
    def stepped(self) -> None:
        """Put back what is frozen."""
        for name, value in self._frozen.items():
            self.trained[name].copy_(value)
        self._frozen = {}

    def read(self) -> Tensors:
        """Return the model's parameters."""
        return dict(self.trained)

    def average(self, rows: Rows, weights: Tensor | None = None) -> Tensors:
        """Return the model's parameters."""
        return {name: p.detach() for name, p in self.trained.items()}


class StaleParameters(SharedParameters):
    """All share one model, and each worker reads it as it was some steps ago."""

    per_worker = True

    def __init__(self, params: dict[str, nn.Parameter], delays: Tensor, longest: int) -> None:
        super().__init__(params, len(delays))
        self.delays = delays  # steps, [L] int64
        self.past = {  # the newest first, [longest + 1, *shape]
            name: torch.stack([p.detach()] * (longest + 1)) for name, p in params.items()
        }

    def read(self) -> Tensors:
        """Return the model as each worker knows it, {name: [L, *shape]}."""
        return {name: past[self.delays.to(past.device)] for name, past in self.past.items()}

    def stepped(self) -> None:
        """Remember the model as it is now."""
        super().stepped()
        for name, past in self.past.items():
            past.copy_(past.roll(1, dims=0))
            past[0].copy_(self.trained[name].detach())

    def state_dict(self, rows: Rows) -> Tensors:
        """Return the model, and the models before it."""
        past = {f"past {name}": value for name, value in self.past.items()}
        return {**super().state_dict(rows), **past}

    def load_state_dict(self, state: Tensors, hosted: slice) -> None:
        """Take over what `state_dict` returned."""
        super().load_state_dict(state, hosted)
        for name, past in self.past.items():
            past.copy_(state[f"past {name}"])


class WorkerParameters(Parameters):
    """Each worker has a model of its own; all start from the same.

    The parameters of a segment lie end to end in one [L, n], so that an exchange changes them in
    place whatever the granularity; `trained` are views of these. If segments go `together`, so do
    all of one dtype, in one [L, P].
    """

    per_worker = True
    has_models = True

    def __init__(
        self, params: dict[str, nn.Parameter], layout: Layout, workers: int, together: bool = False
    ) -> None:
        begun = {name: p.detach().unsqueeze(0) for name, p in params.items()}
        self.workers = workers
        self._segments = [piece.repeat(workers, 1) for piece in layout.split(begun)]  # [L, n] each
        if together:
            self._segments = _end_to_end(layout.segments, self._segments)
        self._layout = layout
        views = self._views()
        self.trained = {name: nn.Parameter(views[name]) for name in params}
        self._model = params
        self._note()

    def __deepcopy__(self, memo: dict[int, object]) -> "WorkerParameters":
        copied = WorkerParameters.__new__(WorkerParameters)
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        for name, view in copied._views().items():
            copied.trained[name].data = view  # torch copies each parameter by itself
        copied._note()
        return copied

    def _views(self) -> Tensors:
        """Return the parameters in the segments, {name: [L, *shape]}."""
        views = {}
        for segment, piece in zip(self._layout.segments, self._segments, strict=True):
            parts = piece.split([math.prod(shape) for shape in segment.shapes], dim=1)
            for name, shape, part in zip(segment.parameters, segment.shapes, parts, strict=True):
                views[name] = part.view(self.workers, *shape)
        return views

    def optimizer_rows(self, rows: Rows) -> Rows:
        """Return `rows`: the optimizer keeps a row a worker."""
        return rows

    def segments(self, layout: Layout) -> list[Tensor]:
        """Return the workers' parameters, [L, n] for each segment."""
        return self._segments

    def read(self) -> Tensors:
        """Return the workers' parameters, {name: [L, *shape]}.

        Raises `SettingError` if somebody changed the model, from which workers only start.
        """
        rule = "has other parameters by now, which workers with models of their own do not see"
        fix = "load them before the Simulator is made"
        same = all(same_bits(self._model[n], p) for n, p in self._begun.items())
        if len(self._begun) < len(self._model):  # where the numbers are not looked at
            same = same and _changes(self._model) == self._changes
        require(same, "model", None, rule, fix)
        return dict(self.trained)

    def load_average(self, model: nn.Module, *how: Any) -> nn.Module:
        """Return the model with the mean of the workers' parameters, or those of one."""
        loaded = super().load_average(model, *how)
        self._note()
        return loaded

    def _note(self) -> None:
        """Take note of what the model has, to find that somebody changed it."""
        self._changes = _changes(self._model)
        here = {n: p for n, p in self._model.items() if p.device.type == "cpu"}
        self._begun = {name: p.detach().clone() for name, p in here.items()}

    def average(self, rows: Rows, weights: Tensor | None = None) -> Tensors:
        """Return the mean of all workers' models."""
        return {name: _mean(rows(p.detach()), weights) for name, p in self.trained.items()}

    def of_worker(self, worker: int, rows: Rows) -> Tensors:
        """Return one worker's model."""
        return {name: rows(p.detach())[worker] for name, p in self.trained.items()}

    def consensus_distance(self, rows: Rows) -> float:
        """Return the consensus distance."""
        square = 0.0
        for piece in self._segments:
            all_rows = rows(piece)  # [W, n]
            for some in all_rows.split(max(1, _BLOCK // len(all_rows)), dim=1):
                own = some.double()
                square += float((own - own.mean(0)).square_().sum(1).mean())
        return math.sqrt(square)

    def state_dict(self, rows: Rows) -> Tensors:
        """Return all workers' parameters, {name: [W, *shape]}."""
        return {name: rows(p.detach()) for name, p in self.trained.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Tensors, hosted: slice) -> None:
        """Take over what `state_dict` returned, of the workers hosted here."""
        for name, parameter in self.trained.items():
            parameter.copy_(state[name][hosted])


def _changes(params: Mapping[str, Tensor]) -> list[int]:
    """Return how often each was changed in place."""
    return [p._version for p in params.values()]


def _end_to_end(segments: Sequence[Segment], pieces: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of `pieces` [L, n], in their order, that lie by kind in one [L, P] a dtype."""
    of_segment = dict(zip(segments, pieces, strict=True))
    placed: dict[Segment, Tensor] = {}
    for dtype in dict.fromkeys(piece.dtype for piece in pieces):
        own = [s for s in grouped(segments, True) if of_segment[s].dtype == dtype]
        flat = torch.cat([of_segment[s] for s in own], dim=1)  # [L, P]
        placed |= dict(zip(own, flat.split([s.n for s in own], dim=1), strict=True))
    return [placed[segment] for segment in segments]


def _of_nodes(rows: Tensor, how: str, worker: int | None) -> Tensor:
    """Return a row for each node [W, ...] of its devices' buffers [W, G, ...]: mean, or first."""
    averaged = rows.is_floating_point() and (how == "mean" or worker is not None)
    return rows.mean(1) if averaged else rows[:, 0]


def _mean(rows: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of `rows` [W, ...] by `weights` [W]; of equal rows it is exactly these."""
    if weights is None:
        return rows.mean(0)
    first = rows[0]
    mean: Tensor = first + torch.tensordot(weights.to(rows), rows - first, 1)
    return mean
