"""The optimizers of torch that step one set of parameters, one for each class that is asked for.

What they keep is found by the name of a parameter, so that it stays where groups change.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from ..settings import SettingError, require, shown
from .checkpoint_check import StateDict
from .optimizer_class import is_of_torch, optimizer_arguments, optimizer_class
from .parameter_groups import GroupPlan, Settings

_AMSGRAD = {"amsgrad": "max_exp_avg_sq"}
_KEPT_IF = {  # what torch makes at the first step only, and only where a setting asks for it
    "RMSprop": {"momentum": "momentum_buffer", "centered": "grad_avg"},
    "Adam": _AMSGRAD,
    "AdamW": _AMSGRAD,
}


class TorchOptimizers:
    """Optimizers of torch for `params`, rebuilt only where a class or a group changes.

    If parameters are stepped `together`, a call acts on all of a group, where torch has such calls.
    """

    def __init__(self, params: dict[str, nn.Parameter], together: bool = False) -> None:
        self.together = together
        self.params = params
        self.inners: dict[str, torch.optim.Optimizer] = {}  # by the name of the class
        self._set: dict[torch.optim.Optimizer, list[Settings]] = {}  # options set before a step
        self._names: dict[Tensor, str] = {p: name for name, p in params.items()}

    def follow(self, plans: Sequence[GroupPlan]) -> None:
        """Take over what each group is stepped with from now on.

        Raises `SettingError` for values that an optimizer refuses.
        """
        before, self.inners, self._set = self.inners, {}, {}
        for kind in dict.fromkeys(plan.optimizer for plan in plans):
            own = [plan for plan in plans if plan.optimizer == kind]
            takes = optimizer_arguments(kind)
            values = [{k: v for k, v in plan.options.items() if k in takes} for plan in own]
            names = [plan.names for plan in own]
            inner = before.get(kind)
            if inner is None or self._grouped(inner) != names:
                again = self._built(kind, names, values)
                self._carry(inner, again)
                inner = again
            self.inners[kind], self._set[inner] = inner, values
            for group, given in zip(inner.param_groups, values, strict=True):
                group.update(given)
                _complete(inner, kind, group)

    def step(self, gradients: dict[str, Tensor]) -> None:
        """Move the parameters along {name: [*shape]}; those that are missing stay as they are."""
        for name, parameter in self.params.items():
            parameter.grad = gradients.get(name)
        for inner in self.inners.values():
            with _in_few_calls(inner) if self.together else nullcontext():
                inner.step() if is_of_torch(type(inner)) else self._step_own(inner)
            inner.zero_grad(set_to_none=True)

    def _step_own(self, inner: torch.optim.Optimizer) -> None:
        """Take a step of a user's own, whose parameters stay where they are in memory.

        Raises `SettingError` for one that keeps what belongs to no parameter.
        """
        places = {p: p.detach() for p in self.params.values()}
        groups = [*zip(inner.param_groups, self._set.get(inner, ()), strict=False)]
        before = [{key: group.get(key) for key in given} for group, given in groups]
        inner.step()
        for parameter, place in places.items():
            if parameter.data_ptr() != place.data_ptr():  # it was assigned, as p.data = ...
                parameter.data = place.copy_(parameter.detach())
        for (group, _), own in zip(groups, before, strict=True):
            written = next((key for key in own if group.get(key) is not own[key]), None)
            rule = f"writes {written} in its step, which is set before each"
            fix = "keep a factor of it under another key"
            same = written is None or group[written] == own[written]
            require(same, "optimizer", type(inner).__name__, rule, fix)
        strange = next((key for key in inner.state if key not in places), None)
        rule = f"keeps state of {shown(strange)}, which is no parameter"
        fix = "keep it in the state of each parameter, or in a group"
        require(strange is None, "optimizer", type(inner).__name__, rule, fix)

    def steps_done(self) -> dict[str, int]:
        """Return the steps that an optimizer such as Adam counts, by parameter."""
        return {name: int(own["step"]) for name, own in self.kept().items() if "step" in own}

    @torch.no_grad()
    def step_frozen(self, momenta: Mapping[str, Tensor]) -> None:
        """Move the parameters by lr m / (sqrt(v) + eps), m {name: [*shape]}, and keep Adam's v.

        v is corrected for its bias as it is after the steps that were counted. Weight decay acts
        as the optimizer has it: AdamW's shrinks the parameter, Adam's is added to what it moves by.
        """
        kept, homes = self.kept(), self._homes
        for name, momentum in momenta.items():
            parameter, own = self.params[name], kept[name]
            inner = homes[parameter]
            [group] = [g for g in inner.param_groups if any(p is parameter for p in g["params"])]
            variance = own.get("max_exp_avg_sq", own["exp_avg_sq"])
            variance = variance / (1 - group["betas"][1] ** int(own["step"]))
            moved = momentum / variance.sqrt().add_(group["eps"])
            if group["weight_decay"] and isinstance(inner, torch.optim.AdamW):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            elif group["weight_decay"]:
                moved.add_(parameter, alpha=group["weight_decay"])
            parameter.sub_(moved, alpha=group["lr"])

    def reset(self) -> None:
        """Start again: momenta and counts are dropped."""
        groups = self.groups()
        kinds = [kind for kind, inner in self.inners.items() for _ in inner.param_groups]
        self.set_groups(groups, kinds)

    def kept(self) -> dict[str, StateDict]:
        """Return what is kept of each parameter, by name: those alone that were stepped."""
        return {
            self._names[parameter]: own
            for inner in self.inners.values()
            for parameter, own in inner.state.items()
            if own
        }

    def keep(self, kept: Mapping[str, StateDict]) -> None:
        """Put back what was kept of parameters; numbers without dimensions keep their dtype."""
        homes = self._homes
        for name, own in kept.items():
            parameter = self.params[name]
            homes[parameter].state[parameter] = {
                key: value.to("cpu" if key == "step" else parameter.device, copy=True)
                if isinstance(value, Tensor)
                else value
                for key, value in own.items()
            }

    def groups(self) -> list[StateDict]:
        """Return the options of each group as torch's `state_dict` has them, with the optimizer."""
        numbers = {parameter: number for number, parameter in enumerate(self.params.values())}
        return [
            {**group, "params": [numbers[p] for p in group["params"]], "optimizer": str(kind)}
            for kind, inner in self.inners.items()
            for group in inner.param_groups
        ]

    def set_groups(self, groups: Sequence[StateDict], kinds: Sequence[str]) -> None:
        """Take over what `groups` returned, of optimizers by the names `kinds`, one a group."""
        every = list(self.params)
        self.inners = {}
        for kind in dict.fromkeys(kinds):
            own = [group for group, other in zip(groups, kinds, strict=True) if other == kind]
            names = [tuple(every[number] for number in group["params"]) for group in own]
            options = [
                {k: v for k, v in group.items() if k not in ("params", "optimizer")}
                for group in own
            ]
            takes = optimizer_arguments(kind)  # some are kept in no group
            given = [{"lr": 0.0, **{k: v for k, v in o.items() if k in takes}} for o in options]
            self.inners[kind] = self._built(kind, names, given)
            for group, saved in zip(self.inners[kind].param_groups, options, strict=True):
                group.update(saved)

    @property
    def _homes(self) -> dict[nn.Parameter, torch.optim.Optimizer]:
        return {
            p: inner
            for inner in self.inners.values()
            for group in inner.param_groups
            for p in group["params"]
        }

    def _grouped(self, inner: torch.optim.Optimizer) -> list[tuple[str, ...]]:
        return [tuple(self._names[p] for p in group["params"]) for group in inner.param_groups]

    def _carry(self, before: torch.optim.Optimizer | None, now: torch.optim.Optimizer) -> None:
        """Let the parameters that both step go on from what was kept of them."""
        if before is None:
            return
        stays = {p for group in now.param_groups for p in group["params"]}
        now.state.update({p: own for p, own in before.state.items() if p in stays})

    def _built(
        self, kind: str, names: Sequence[tuple[str, ...]], values: Sequence[Settings]
    ) -> torch.optim.Optimizer:
        groups = [
            {"params": [self.params[name] for name in own], **given}
            for own, given in zip(names, values, strict=True)
        ]
        try:
            for given in values[1:]:  # torch checks the values of the first alone
                optimizer_class(kind)([nn.Parameter(torch.zeros(1, 1))], **given)
            return optimizer_class(kind)(groups, **values[0])
        except (IndexError, TypeError, ValueError) as wrong:
            others = "2D" in str(wrong)  # as Muon puts it
            fix = 'set param_groups, as [{"params": "dim!=2", "optimizer": "AdamW"}]'
            rule = f"refuses its settings: {wrong}"
            raise SettingError("optimizer", kind, rule, fix if others else "") from wrong
        except Exception as wrong:  # whatever the user's own code raises
            if is_of_torch(optimizer_class(kind)):
                raise
            rule = f"cannot be made of groups of parameters: {type(wrong).__name__}: {wrong}"
            raise SettingError("optimizer", kind, rule) from wrong


@contextmanager
def _in_few_calls(inner: torch.optim.Optimizer) -> Iterator[None]:
    """Let a call act on all parameters of a group meanwhile, unless its options say how."""
    chosen = [
        g for g in inner.param_groups if g.get("foreach", True) is None and not g.get("fused")
    ]
    for group in chosen:
        group["foreach"] = True
    yield
    for group in chosen:
        group["foreach"] = None


def _complete(inner: torch.optim.Optimizer, kind: str, group: Settings) -> None:
    """Begin with zeros what a setting asks for that was not in force in the steps before."""
    for setting, key in _KEPT_IF.get(kind, {}).items():
        for parameter in group["params"] if group.get(setting) else ():
            own = inner.state.get(parameter)
            if own and key not in own:
                own[key] = torch.zeros_like(parameter)
