"""FedAvg: local SGD of some workers in each round.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n].
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ...communication.messages import Message, State
from ...communication.segments import Segment
from ...recipe import Recipe
from ...registry import NOT_A_SETTING, register
from ...settings import SettingError, count, require
from ..compressors import Compressor
from ..outer_optimizers import OuterOptimizer, move_, outer_optimizer_of, state_of
from .client_rounds import ClientRounds, draw_order, steps_of_epochs
from .contract import ExchangeContext, Exchanged, Round
from .local import LocalSGD

_MOST_CLIENTS = 10_000_000
_MOST_EPOCHS = 10_000  # through the samples of a client in a round


@register("algorithm", "fedavg")
@dataclass(frozen=True)
class FedAvg(LocalSGD):
    """Local SGD in which only some workers, drawn for each round, train.

    Their models are averaged by the number of samples that each holds, and every worker begins the
    next round from the average, with a new optimizer: clients keep nothing between rounds. The
    others compute nothing, and keep what their memories hold. With N `clients`, workers are those
    who train at once: each acts for another client in each round, and what clients keep waits for
    them. With `local_epochs` a client takes ceil(E n_i / b) steps, n_i its samples, b those of a
    step, and a round lasts until the largest of those drawn is done. Buffers, such as BatchNorm
    statistics, are each client's own, or sent and averaged as the models are, or the server's: then
    every round begins with those of the start, which nobody changes. With an outer optimizer the
    average is not the next model: its difference to the last one is the negative of a gradient.
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.
    """

    participation: float = 0.5  # fraction of workers in a round, in (0, 1]
    client_buffers: str = "local"  # local, average or server
    outer_optimizer: str | None = None  # its spec; none: the average is the next model
    outer_lr: float = 1.0  # lr of the outer optimizer, greater than 0
    outer_momentum: float = 0.0  # its momentum, in [0, 1)
    clients: int | None = None  # N, as many as workers drawn a round; none: workers are the clients
    local_epochs: int | None = None  # E, of each client in a round; none: local_steps of each
    rounds: ClientRounds | None = field(  # of local epochs
        default=None, repr=False, compare=False, metadata=NOT_A_SETTING
    )
    inner_state: str = field(default="reset", kw_only=True)  # or keep, or average: momenta
    workers_send_alike = False
    takes_groups = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.participation <= 1:
            raise SettingError("participation", self.participation, "must lie in (0, 1]")
        if self.client_buffers not in ("local", "average", "server"):
            rule = "must be local, average or server"
            raise SettingError("client_buffers", self.client_buffers, rule)
        for name in ("clients", "local_epochs"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "must be at least 1")
        rule = f"must be at most {_MOST_CLIENTS:,}, which are drawn from in each round"
        require((self.clients or 1) <= _MOST_CLIENTS, "clients", self.clients, rule)
        rule = f"must be at most {_MOST_EPOCHS:,} in a round"
        require((self.local_epochs or 1) <= _MOST_EPOCHS, "local_epochs", self.local_epochs, rule)
        self._outer  # noqa: B018 - reads the spec, and refuses a wrong one

    @functools.cached_property
    def _outer(self) -> OuterOptimizer | None:
        if self.outer_optimizer is None:
            return None
        return outer_optimizer_of(self.outer_optimizer, self.outer_lr, self.outer_momentum)

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for settings that do not go with each other."""
        super().check(recipe)
        if self.outer_optimizer is None:
            rule, fix = "has no effect without outer_optimizer", "set outer_optimizer too, as sgd"
            require(self.outer_lr == 1, "outer_lr", self.outer_lr, rule, fix)
            require(self.outer_momentum == 0, "outer_momentum", self.outer_momentum, rule, fix)
        if recipe.local_epochs is not None and recipe.local_steps is not None:
            raise SettingError("local_epochs", None, "and local_steps were both given", "give one")
        if self.clients is None:
            return
        rule = f"must be at least the {recipe.workers} workers, who act for so many at once"
        require(self.clients >= recipe.workers, "clients", self.clients, rule)
        chosen = recipe.participation is not None or self.participation != 0.5
        rule, fix = "has no effect with clients", "each round has as many of them as workers"
        require(not chosen, "participation", self.participation, rule, fix)
        rule = "must be 0 with clients, whose rounds have as many steps in every epoch"
        require(self.post_local_from == 0, "post_local_from", self.post_local_from, rule)
        rule = "must be reset or average with clients, which keep no optimizer between rounds"
        require(self.inner_state != "keep", "inner_state", self.inner_state, rule)

    def check_compressor(self, compressor: Compressor) -> None:
        """Raise `SettingError` for a compressor that keeps something of each client."""
        super().check_compressor(compressor)
        three = compressor.for_shape(torch.Size((4, 5))).init(torch.zeros(3, 20))
        if self.clients is not None and any(len(value) == 3 for value in three.values()):
            rule = "keeps a state of each worker, and workers act for other clients in each round"
            raise SettingError("compressor", None, rule, "use another, or leave out clients")

    def for_clients(self, workers: int, samples: Tensor | None, batch: int | None) -> Self:
        """Return the algorithm for clients that hold so many `samples` [N], `batch` in a step.

        Raises `SettingError` for local epochs of who knows how many.
        """
        every = self if self.clients is None else replace(self, participation=1.0)  # of the workers
        if self.local_epochs is None:
            return every
        if samples is None or batch is None:
            rule = "needs samples that are fixed to clients"
            fix = "set partition to iid-fixed, or give a Simulator samples and worker_batch"
            raise SettingError("local_epochs", self.local_epochs, rule, fix)
        steps = steps_of_epochs(samples, self.local_epochs, batch)
        drawn = workers if self.clients else count(self.participation, workers)
        rounds = ClientRounds(steps, drawn)
        return replace(every, local_steps=int(steps.max()), rounds=rounds)

    def steps_of(self, client: int, current: Round) -> int:
        """Return how many steps a client takes in a round, at most all."""
        return current.steps if self.rounds is None else int(self.rounds.steps[client])

    def round_of(self, seed: int, workers: int, step: int, epoch: int) -> Round:
        """Return the round of a step, which is how many were done before it."""
        if self.rounds is not None:
            return self.rounds.at(seed, step)
        return super().round_of(seed, workers, step, epoch)

    def begin_round(self, x: Tensor, state: State) -> None:
        """Let all go on from the common model, whatever became of the last round."""
        x.copy_(state["anchor"].expand_as(x))

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the common model and the outer optimizer's state, [1, n]."""
        state = super().init(x, segment)
        return state if self._outer is None else {**state, **state_of(self._outer, state["anchor"])}

    def move(self, state: State, mean: Tensor, lr: float | Tensor) -> None:
        """Move the common model along the mean difference [n], or by a step of the optimizer."""
        if self._outer is None:
            super().move(state, mean, lr)
        else:
            move_(self._outer.at_rate(lr), state["anchor"], mean.neg(), state)

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged | None:
        """Agree on a model, if the round ends; who was not drawn keeps what the memory holds."""
        workers, step = context.workers, context.step
        drawn = self.drawn(step.key.seed, workers, step.number, step.epoch)
        waits = (~drawn[context.channel.hosted]).nonzero().flatten().to(x.device)
        memory = context.memory_state
        kept = {n: value[waits] for n, value in memory.items() if len(value) == len(x)}
        exchanged = super().parameters(x, context, state)
        for name, rows in kept.items():
            memory[name] = memory[name].index_copy(0, waits, rows)
        return exchanged

    def participants(self, seed: int, workers: int, step: int, epoch: int) -> Tensor | None:
        """Return which workers train in a step, [W] bool: those drawn whose steps are not done."""
        drawn = self.drawn(seed, workers, step, epoch)
        if self.rounds is None:
            return None if self.clients else drawn
        acts_for = self.clients_of(seed, workers, step, epoch)
        steps = self.rounds.steps if acts_for is None else self.rounds.steps[acts_for]  # [W]
        return drawn & (step - self.rounds.at(seed, step).begin < steps)

    def drawn(self, seed: int, workers: int, step: int, epoch: int) -> Tensor:
        """Return which workers take part in the round of a step, [W] bool."""
        if self.clients:
            return torch.ones(workers, dtype=torch.bool)
        order = draw_order(seed, self.round_of(seed, workers, step, epoch).number, workers)
        participants = torch.zeros(workers, dtype=torch.bool)
        participants[order[: count(self.participation, workers)]] = True
        return participants

    def clients_of(self, seed: int, workers: int, step: int, epoch: int) -> Tensor | None:
        """Return which clients the workers act for in a step, ids [W]; None: for themselves."""
        if not self.clients:
            return None
        current = self.round_of(seed, workers, step, epoch)
        order = draw_order(seed, current.number, self.clients)
        return order[:workers].sort().values

    def weights(
        self, seed: int, workers: int, step: int, epoch: int, samples: Tensor | None
    ) -> Tensor:
        """Return each worker's weight in the round of a step, [W] float64; 0 if not drawn."""
        drawn = self.drawn(seed, workers, step, epoch)
        acts_for = self.clients_of(seed, workers, step, epoch)
        held = torch.ones(workers) if samples is None else samples
        held = held[acts_for] if acts_for is not None and samples is not None else held
        weights = held.to(torch.float64) * drawn
        return weights / weights.sum()

    def aggregated(self, message: Message, context: ExchangeContext) -> tuple[Message, Tensor]:
        """Return the messages of those drawn as they arrive, and their weighted mean, [n]."""
        step = context.step
        weights = self.weights(
            step.key.seed, context.workers, step.number, step.epoch, context.samples
        )
        return context.channel.weighted_mean(message, context.segment, weights)
