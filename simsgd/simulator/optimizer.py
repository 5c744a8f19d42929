"""The optimizer that a regime names, and where weight decay acts.

Letters: P all parameters.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..settings import SettingError, require
from .checkpoint_check import StateDict
from .regime import Settings, optimizer_arguments, optimizer_class

Rows = Callable[[Tensor], Tensor]
_Inner = dict[int, StateDict]  # what torch's optimizer keeps of each parameter, by its number
_AMSGRAD = {"amsgrad": "max_exp_avg_sq"}
_KEPT_IF = {  # what torch makes at the first step only, and only where a setting asks for it
    "RMSprop": {"momentum": "momentum_buffer", "centered": "grad_avg"},
    "Adam": _AMSGRAD,
    "AdamW": _AMSGRAD,
}


class RegimeOptimizer:
    """A torch.optim optimizer whose class and settings follow a regime.

    It is rebuilt only when the class changes: a new lr keeps the momentum. Settings that both
    classes take carry over.
    """

    def __init__(self, params: dict[str, nn.Parameter]) -> None:
        self.params = params
        self.name = ""
        self.inner: torch.optim.Optimizer | None = None
        self.decayed: dict[str, Tensor] = {}  # momentum of the penalties alone, see `add_penalties`

    def follow(self, settings: Settings) -> None:
        """Take over the settings now in force.

        Raises `SettingError` for a missing lr or values that the optimizer refuses.
        """
        name = settings.get("optimizer", "SGD")
        takes = optimizer_arguments(name)
        values = {key: value for key, value in settings.items() if key in takes}
        require("lr" in values, "regime", None, "sets no lr", "set it there or give lr")
        if name != self.name:
            self._build(name, values)
        assert self.inner is not None
        for group in self.inner.param_groups:
            group.update(values)
        self._complete(name, values)

    def _complete(self, name: str, values: Settings) -> None:
        """Begin with zeros what a setting asks for that was not in force in the steps before."""
        assert self.inner is not None
        for setting, key in _KEPT_IF.get(name, {}).items():
            for parameter, own in self.inner.state.items() if values.get(setting) else ():
                if own and key not in own:
                    own[key] = torch.zeros_like(parameter)

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
        assert self.inner is not None
        self.inner.state.clear()
        self.decayed.clear()

    def step_per_worker(self, gradients: dict[str, Tensor]) -> None:
        """Take a step of lr / W along each row of {name: [W, *shape]}, one after the other."""
        assert self.inner is not None
        if not gradients:
            return
        workers = len(next(iter(gradients.values())))
        rates = [group["lr"] for group in self.inner.param_groups]
        for group, lr in zip(self.inner.param_groups, rates, strict=True):
            group["lr"] = lr / workers
        for row in range(workers):
            self.step({name: value[row] for name, value in gradients.items()})
        for group, lr in zip(self.inner.param_groups, rates, strict=True):
            group["lr"] = lr

    @contextmanager
    def rows_kept(self, idle: dict[str, Tensor]) -> Iterator[None]:
        """Put back the rows {name: [L] bool} of parameters and momenta after what is done."""
        kept = {}
        for name, chosen in idle.items():
            p = self.params[name]
            rows = chosen.nonzero().flatten().to(p.device)
            kept[name] = rows, p.detach()[rows], {k: v[rows] for k, v in self._rows_of(p).items()}
        yield
        for name, (rows, own, momenta) in kept.items():
            p = self.params[name]
            p.detach().index_copy_(0, rows, own)
            for key, value in self._rows_of(p).items():
                value.index_copy_(0, rows, momenta.get(key, torch.zeros_like(value[rows])))

    def _rows_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return what the optimizer keeps in the form of a parameter."""
        assert self.inner is not None
        own = self.inner.state.get(parameter, {})
        return {
            key: value
            for key, value in own.items()
            if isinstance(value, Tensor) and value.shape == parameter.shape
        }

    def step(self, gradients: dict[str, Tensor]) -> None:
        """Move the parameters along {name: [*shape]}; those that are missing stay as they are."""
        assert self.inner is not None
        for name, parameter in self.params.items():
            parameter.grad = gradients.get(name)
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)

    def state_dict(self, rows: Rows = lambda own: own) -> StateDict:
        """Return all that a resumed run needs.

        Where workers have parameters of their own, `rows` returns [W, ...] for [L, ...].
        """
        inner = None if self.inner is None else self.inner.state_dict()
        if inner is not None:
            inner["state"] = self._mapped(inner["state"], rows)
        decayed = {name: rows(buffer) for name, buffer in self.decayed.items()}
        return {"name": self.name, "inner": inner, "decayed": decayed}

    def load_state_dict(self, state: StateDict, rows: Rows = lambda own: own) -> None:
        """Take over what `state_dict` returned; `rows` returns [L, ...] for [W, ...]."""
        self.decayed = {
            name: rows(buffer).to(self.params[name], copy=True)
            for name, buffer in state["decayed"].items()
        }
        if state["inner"] is not None:
            self._build(state["name"], {"lr": 0.0})
            assert self.inner is not None
            inner = copy.deepcopy(state["inner"])
            inner["state"] = self._mapped(inner["state"], rows)
            self.inner.load_state_dict(inner)
            self._restore_scalars(inner["state"])

    def _restore_scalars(self, state: _Inner) -> None:
        """Put numbers without dimensions back in their own dtype; torch gives them its parameter's.

        NAdam keeps its product of momenta in float32 beside parameters of float64.
        """
        assert self.inner is not None
        for number, parameter in enumerate(self.params.values()):
            own = self.inner.state[parameter] if number in state else {}
            for name, value in own.items():
                if isinstance(value, Tensor) and not value.dim():
                    own[name] = state[number][name].to(value.device)

    def _mapped(self, state: _Inner, rows: Rows) -> _Inner:
        """Return an optimizer's state with `rows` of all that has the form of a parameter."""
        return {
            number: {
                name: rows(value) if isinstance(value, Tensor) and value.dim() else value
                for name, value in own.items()
            }
            for number, own in state.items()
        }

    def _build(self, name: str, values: Settings) -> None:
        chosen = optimizer_class(name)
        try:
            self.inner = chosen(list(self.params.values()), **values)
        except (TypeError, ValueError) as wrong:
            raise SettingError("optimizer", name, f"refuses its settings: {wrong}") from wrong
        self.name = name
