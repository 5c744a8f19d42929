"""The optimizers that a regime names, of one model or of a model per worker.

Letters: W workers, L hosted here, P all parameters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..settings import require
from .checkpoint_check import StateDict
from .optimizer_rows import (
    BEGUN,
    one_of_all,
    one_of_row,
    rows_agree,
    rows_of_all,
    rows_of_each,
    template_of,
    was_begun,
)
from .parameter_groups import GroupPlan, Settings, members_of, plans
from .torch_optimizers import TorchOptimizers

Rows = Callable[[Tensor], Tensor]
_ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop",
    "ASGD",
)  # fmt: skip


class KeptState(NamedTuple):
    """What the workers' optimizers keep of a parameter."""

    name: str
    rows: Tensor  # [L, m]
    set_all: Callable[[Tensor], None]  # lets all workers go on from numbers [m]


class RegimeOptimizer:
    """Optimizers of torch.optim whose classes, groups and settings follow a regime.

    They are rebuilt only where a class or a group changes: a new lr keeps the momentum. Settings
    that both classes take carry over.

    With `like`, the model's own parameters {name: [*shape]}, `params` are [L, *shape], a model for
    each worker, and worker w has what a torch optimizer of its own would have. Element-wise
    optimizers step all rows at once as long as that is the same; the others, and those of which
    some worker skips a step, step one worker after the other.
    """

    def __init__(
        self,
        params: dict[str, nn.Parameter],
        like: Mapping[str, Tensor] | None = None,
        together: bool = False,
    ) -> None:
        self.params = params
        self.decayed: dict[str, Tensor] = {}  # momentum of the penalties alone, see `add_penalties`
        self._like = params if like is None else like
        self._has_rows = like is not None
        self._together = together
        self._sets = [TorchOptimizers(params, together)]  # one, or one for each worker hosted here
        self._plans: list[GroupPlan] = []
        self._members: tuple[object, list[tuple[str, ...]]] = (None, [])
        self._idle: dict[str, Tensor] = {}

    @property
    def inner(self) -> torch.optim.Optimizer | None:
        """The first of torch's optimizers; None before a regime was followed."""
        return next(iter(self._sets[0].inners.values()), None)

    @property
    def inners(self) -> list[torch.optim.Optimizer]:
        """All of torch's optimizers."""
        return [inner for own in self._sets for inner in own.inners.values()]

    def follow(self, settings: Settings) -> None:
        """Take over the settings now in force.

        Raises `SettingError` for a missing lr or values that the optimizer refuses.
        """
        require("lr" in settings, "lr", None, "is not set", "give it, or set it in a regime")
        self._plans = self.plans(settings)
        if self._has_rows and any(plan.optimizer not in _ELEMENTWISE for plan in self._plans):
            self._set_apart()
        for own in self._sets:
            own.follow(self._plans)

    def plans(self, settings: Settings) -> list[GroupPlan]:
        """Return what each group of parameters is stepped with."""
        groups = settings.get("param_groups", ())
        chosen = [group.params for group in groups]
        if self._members[0] != chosen:
            self._members = chosen, members_of(groups, self._like)
        return plans(settings, self._members[1])

    def rates(self) -> dict[str, float]:
        """Return the learning rates of the groups' parameters, {name: lr}; none without groups."""
        if len(self._plans) == 1:
            return {}
        return {name: float(plan.options["lr"]) for plan in self._plans for name in plan.names}

    def add_penalties(
        self,
        gradients: dict[str, Tensor],
        penalties: dict[str, Tensor],
        momentum: float,
        nesterov: bool,
    ) -> None:
        """Add `penalties` d {name: [*shape]}, with their own momentum, to `gradients` in place.

        buf = momentum * buf + d, and buf (Nesterov: d + momentum * buf) is added; without momentum
        that is d. Where a memory owns the gradient's momentum, this makes weight decay what it is
        in momentum SGD; it never passes the compressor.
        """
        for name, penalty in penalties.items():
            if not momentum:
                gradients[name].add_(penalty)
                continue
            buffer = self.decayed.setdefault(name, torch.zeros_like(penalty))
            buffer.mul_(momentum).add_(penalty)
            gradients[name].add_(penalty.add_(buffer, alpha=momentum) if nesterov else buffer)

    def reset(self) -> None:
        """Start again: momenta and counts are dropped."""
        for own in self._sets:
            own.reset()
        self.decayed.clear()

    def kept_states(self, rows: Rows) -> Iterator[KeptState]:
        """Yield what the workers' optimizers keep of each parameter, counts of steps too.

        `rows` returns [W] for [L]. Who never stepped a parameter has zeros; what nobody stepped is
        left out.
        """
        for name, kept in self._kept_rows().items():
            if not rows(kept[BEGUN]).any():
                continue
            keys = [k for k, v in kept.items() if isinstance(v, Tensor) and k != BEGUN]
            flat = [kept[key].reshape(len(kept[BEGUN]), -1) for key in keys]
            whole = torch.cat([own.to(self.params[name]) for own in flat], dim=1)
            yield KeptState(name, whole, partial(self._set_kept, name, kept, keys))

    def _set_kept(self, name: str, kept: StateDict, keys: Sequence[str], numbers: Tensor) -> None:
        """Let all workers go on from the numbers [m] of a parameter, for these keys."""
        sizes = [kept[key][0].numel() for key in keys]
        for key, part in zip(keys, numbers.split(sizes), strict=True):
            kept[key].copy_(part.view(kept[key].shape[1:]).expand_as(kept[key]))
        kept[BEGUN].fill_(True)
        for row, own in enumerate(self._sets):
            own.keep({name: one_of_row(kept, row) if self._apart else one_of_all(kept)})

    def step_per_worker(self, gradients: dict[str, Tensor]) -> None:
        """Take a step of lr / W along each row of {name: [W, *shape]}, one after the other."""
        if not gradients:
            return
        workers = len(next(iter(gradients.values())))
        groups = [group for inner in self.inners for group in inner.param_groups]
        rates = [group["lr"] for group in groups]
        for group, lr in zip(groups, rates, strict=True):
            group["lr"] = lr / workers
        for row in range(workers):
            self.step({name: value[row] for name, value in gradients.items()})
        for group, lr in zip(groups, rates, strict=True):
            group["lr"] = lr

    @contextmanager
    def rows_kept(self, idle: dict[str, Tensor]) -> Iterator[None]:
        """Let the rows {name: [L] bool} of parameters and momenta stay as they are meanwhile."""
        if idle and not self._rows_suffice():
            self._set_apart()
            for own in self._sets:
                own.follow(self._plans)
        if not idle or self._apart:
            self._idle = {name: rows.cpu() for name, rows in idle.items()}
            yield
            self._idle = {}
            return
        kept = {}
        for name, chosen in idle.items():
            p = self.params[name]
            rows = chosen.nonzero().flatten().to(p.device)
            kept[name] = rows, p.detach()[rows], {k: v[rows] for k, v in self._rows_of(name)}
        yield
        for name, (rows, before, momenta) in kept.items():
            p = self.params[name]
            p.detach().index_copy_(0, rows, before)
            for key, value in self._rows_of(name):
                value.index_copy_(0, rows, momenta.get(key, torch.zeros_like(value[rows])))

    def step(self, gradients: dict[str, Tensor]) -> None:
        """Move the parameters along {name: [*shape]}; those that are missing stay as they are."""
        if not self._apart:
            self._sets[0].step(gradients)
            return
        for row, own in enumerate(self._sets):
            own.step(
                {
                    name: value[row]
                    for name, value in gradients.items()
                    if name not in self._idle or not self._idle[name][row]
                }
            )

    def step_frozen_after(self, steps: int, gradients: dict[str, Tensor]) -> None:
        """Take a step of Adam, or along `gradients` as momenta after so many of a parameter."""
        late = self._sets[0].steps_done()
        frozen = {name: m for name, m in gradients.items() if late.get(name, 0) >= steps}
        early = {name: g for name, g in gradients.items() if name not in frozen}
        if early:
            self.step(early)
        self._sets[0].step_frozen(frozen)

    def state_dict(self, rows: Rows = lambda own: own) -> StateDict:
        """Return all that a resumed run needs.

        Where workers have parameters of their own, `rows` returns [W, ...] for [L, ...].
        """
        first = self._sets[0]
        numbers = {name: number for number, name in enumerate(self.params)}
        kept = first.kept() if self._rows_suffice() else self._kept_rows()
        state = {
            numbers[name]: {
                key: rows(value) if isinstance(value, Tensor) and value.dim() else value
                for key, value in kept[name].items()
            }
            for name in sorted(kept, key=numbers.__getitem__)
        }
        groups = first.groups()
        kinds = {group["optimizer"] for group in groups}
        if len(kinds) == 1:  # as torch has it
            groups = [{k: v for k, v in group.items() if k != "optimizer"} for group in groups]
        decayed = {name: rows(buffer) for name, buffer in self.decayed.items()}
        name = str(next(iter(first.inners), ""))
        inner = {"state": state, "param_groups": groups} if first.inners else None
        return {"name": name, "inner": inner, "decayed": decayed}

    def load_state_dict(self, state: StateDict, rows: Rows = lambda own: own) -> None:
        """Take over what `state_dict` returned; `rows` returns [L, ...] for [W, ...]."""
        self.decayed = {
            name: rows(buffer).to(self.params[name], copy=True)
            for name, buffer in state["decayed"].items()
        }
        if state["inner"] is None:
            return
        names, groups = list(self.params), state["inner"]["param_groups"]
        known = {str(kind): kind for own in self._sets for kind in own.inners}
        given = [group.get("optimizer", state["name"]) for group in groups]
        kinds = [known.get(kind, kind) for kind in given]
        kept = {
            names[number]: {
                key: rows(value) if isinstance(value, Tensor) and value.dim() else value
                for key, value in own.items()
            }
            for number, own in state["inner"]["state"].items()
        }
        together = all(kind in _ELEMENTWISE for kind in kinds) and all(
            map(rows_agree, kept.values())
        )
        if self._has_rows and not together:
            self._set_apart()
        for row, own in enumerate(self._sets):
            own.set_groups(groups, kinds)
            begun = {n: s for n, s in kept.items() if was_begun(s, row if self._apart else None)}
            own.keep(
                {
                    name: one_of_row(saved, row) if self._apart else one_of_all(saved)
                    for name, saved in begun.items()
                }
            )

    @property
    def _apart(self) -> bool:
        return self._sets[0].params is not self.params

    def _rows_suffice(self) -> bool:
        """Return whether all that is kept of a worker is its row: no count of all rows."""
        return not self._has_rows or all(
            plan.optimizer == "SGD" and not plan.options.get("dampening") for plan in self._plans
        )

    def _set_apart(self) -> None:
        """Give each worker optimizers of its own, which go on from what is kept."""
        if self._apart:
            return
        whole = self._sets[0]
        workers = len(next(iter(self.params.values())))
        self._sets = [
            TorchOptimizers({n: nn.Parameter(p.detach()[row]) for n, p in self.params.items()})
            for row in range(workers)
        ]
        for row, own in enumerate(self._sets):
            if whole.inners:
                own.set_groups(whole.groups(), [g["optimizer"] for g in whole.groups()])
            own.keep({name: one_of_row(kept, row) for name, kept in whole.kept().items()})

    def _rows_of(self, name: str) -> list[tuple[str, Tensor]]:
        """Return what the optimizer keeps in the form of a parameter."""
        shape = self.params[name].shape
        own = self._sets[0].kept().get(name, {})
        return [(k, v) for k, v in own.items() if isinstance(v, Tensor) and v.shape == shape]

    def _kept_rows(self) -> dict[str, StateDict]:
        """Return what is kept of each parameter with a row a worker, {name: {key: [L, ...]}}.

        That is of all parameters, so that processes that host other workers return the same keys.
        """
        kept, rows = [own.kept() for own in self._sets], dict[str, StateDict]()
        for name, p in self.params.items():
            if not self._apart and name in kept[0]:
                rows[name] = rows_of_all(kept[0][name], len(p), p.device)
                continue
            each = [own.get(name) for own in kept] if self._apart else [None] * len(p)
            found = next((own for own in each if own), None)
            template = template_of(self._plans, name, p.detach()[0]) if found is None else found
            rows[name] = rows_of_each(each, template, p)
        return {name: own for name, own in rows.items() if len(own) > 1}
