"""What a worker wants to say: its gradient and what it could not say before.

Letters: L workers hosted here, n elements of one segment.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ..communication.messages import Message, State
from ..registry import register
from ..settings import SettingError, require


class Memory(ABC):
    """Settings of one method, as a frozen dataclass; its state lives apart.

    A memory that declares the fields `momentum` and `nesterov` owns the momentum: the optimizer
    then has none. None stands for the regime's, which `with_momentum` fills in.
    """

    keeps_nothing: ClassVar[bool] = False  # has no state between steps
    needs_mean_of_all: ClassVar[bool] = False  # `on_aggregate` needs the mean over all workers
    needs_exact_state: ClassVar[bool] = False  # its state must not be rounded between steps

    @property
    def owns_momentum(self) -> bool:
        """Whether it has the momentum, so that the optimizer must not."""
        return hasattr(self, "momentum")

    @property
    def inertia(self) -> tuple[float, bool]:
        """Momentum, and whether it is Nesterov's, that it has in the optimizer's place, else 0."""
        return getattr(self, "momentum", None) or 0.0, bool(getattr(self, "nesterov", False))

    @property
    def keeps_lr(self) -> bool:
        """Whether it collects lr times the gradient: see `at_rate`; the optimizer's lr is 1."""
        return False

    def with_momentum(self, momentum: float, nesterov: bool) -> "Memory":
        """Return the memory with the regime's momentum where its own settings name none."""
        usual = {"momentum": momentum, "nesterov": nesterov}
        missing = {name: value for name, value in usual.items() if getattr(self, name, 0) is None}
        return replace(cast(Any, self), **missing) if missing else self

    def with_lr(self) -> "Memory":
        """Return the memory that collects lr times the gradient.

        Raises `SettingError` for one that cannot.
        """
        rule = "needs memory residual, which collects lr times the gradient"
        raise SettingError("lr_in_memory", None, rule, "set memory=residual")

    def at_rate(self, lr: float) -> "Memory":
        """Return the memory while the learning rate is `lr`."""
        return self

    @abstractmethod
    def init(self, like: Tensor, dense: bool) -> State:
        """Return the state before the first step for a segment like `like`, [L, n].

        What goes `dense` keeps no residual.
        """

    @abstractmethod
    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return what each worker wants to say, [L, n], given its gradient, [L, n].

        The result may be the state itself: read it, do not write it.
        """

    @abstractmethod
    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Store what stays behind when `message` was sent for `compensated` [L, n]."""

    def on_aggregate(self, aggregated: Tensor, state: State) -> Tensor:
        """Return what the optimizer gets, [n], of the `aggregated` messages of all workers, [n]."""
        return aggregated


@register("memory", "none")
@dataclass(frozen=True)
class NoMemory(Memory):
    """What is not sent is lost."""

    keeps_nothing = True

    def init(self, like: Tensor, dense: bool) -> State:
        """Return nothing."""
        return {}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return the gradient, [L, n]."""
        return grad

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Keep nothing."""


@register("memory", "residual")
@dataclass(frozen=True)
class Residual(Memory):
    """What is not sent is added to the next gradient.

    said = beta e + gamma g, and e = said - sent, from the first step on, when e is zero.

    Rounding and quantization errors stay behind as well, so that (beta = gamma = 1) what was sent
    and what is kept always add up to what came in.
    Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error
    Feedback Fixes SignSGD", ICML 2019, https://arxiv.org/abs/1901.09847.

    `lr=true` is Algorithm 1 of the latter: the memory collects lr g, and the parameters move by
    what is heard as it is. With a constant lr this is the same. When lr falls to a tenth, what was
    kept at the old lr moves the parameters as far as it would have, ten times further than without
    `lr=true`, which gives it the new lr.
    """

    beta: float = 1.0  # weight of the residual
    gamma: float = 1.0  # weight of the gradient
    lr: bool = False  # keep lr times the gradient; the optimizer's lr is then 1

    def __post_init__(self) -> None:
        for name in ("beta", "gamma"):
            value = getattr(self, name)
            require(0 <= value < math.inf, name, value, "must be a number of at least 0")

    @property
    def keeps_lr(self) -> bool:
        """Whether `lr` is set."""
        return self.lr

    def with_lr(self) -> "Residual":
        """Return the memory with `lr=true`."""
        return replace(self, lr=True)

    def at_rate(self, lr: float) -> "Residual":
        """Return the memory while the learning rate is `lr`: with `lr=true`, gamma times it."""
        return replace(self, gamma=self.gamma * lr, lr=False) if self.lr else self

    def init(self, like: Tensor, dense: bool) -> State:
        """Return a residual of zeros, [L, n]."""
        return {} if dense else {"residual": torch.zeros_like(like)}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return beta * residual + gamma * gradient, [L, n]."""
        assert not self.lr, "at_rate makes it known"
        if "residual" in state:
            aged = state["residual"] if self.beta == 1 else state["residual"].mul_(self.beta)
            return aged.add_(grad, alpha=self.gamma)
        return grad if self.gamma == 1 else grad * self.gamma

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Subtract what was sent from the residual."""
        if "residual" in state:
            message.subtract_from_(state["residual"])


@register("memory", "ef21")
@dataclass(frozen=True)
class EF21(Memory):
    """Each worker keeps an estimate of its gradient and sends what is to be added to it.

    said = g - h, h = h + sent; all move along the mean of all workers' h, which everybody keeps by
    adding what is heard. Nothing is added up over steps, so that no residual grows. h begins at
    zero: the first message is the compressed gradient, as in the paper. What goes dense is passed
    on as it is. Use it with a deterministic, biased compressor, as topk.
    Richtarik, Sokolov, Fatkhullin, "EF21", NeurIPS 2021, https://arxiv.org/abs/2106.05203.
    """

    needs_mean_of_all = True
    needs_exact_state = True

    def init(self, like: Tensor, dense: bool) -> State:
        """Return h [L, n] and the mean of all h, one row for all workers, [1, n]: zeros."""
        if dense:
            return {}
        return {"estimate": torch.zeros_like(like), "heard": torch.zeros_like(like[:1])}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return gradient - h, [L, n]."""
        return grad - state["estimate"] if "estimate" in state else grad

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Add what was sent to h."""
        if "estimate" in state:
            state["estimate"].add_(message.to_dense())

    def on_aggregate(self, aggregated: Tensor, state: State) -> Tensor:
        """Add the aggregate to the mean of all h, and return a copy of that, [n]."""
        if "heard" not in state:
            return aggregated
        return state["heard"].add_(aggregated)[0].clone()


@register("memory", "momentum")
@dataclass(frozen=True)
class LocalMomentum(Memory):
    """Each worker says its momentum, and what is not sent is lost.

    u = m u + g (Nesterov: g + m u is said). With compressor `sign:scale=none` and aggregate vote
    this is Signum.
    Bernstein et al., "signSGD", ICML 2018, https://arxiv.org/abs/1802.04434.

    Differs from the paper: g is not weighed by 1 - m, which changes no sign.
    """

    momentum: float | None = None  # m in [0, 1); None: the regime's
    nesterov: bool | None = None  # Nesterov's form; None: the regime's

    def __post_init__(self) -> None:
        _check_momentum(self.momentum)

    def init(self, like: Tensor, dense: bool) -> State:
        """Return u: zeros, [L, n]."""
        return {"momentum": torch.zeros_like(like)}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return the momentum, [L, n]."""
        return _moved(state["momentum"], grad, self.momentum, self.nesterov)

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Keep nothing."""


@register("memory", "dgc")
@dataclass(frozen=True)
class DGC(Memory):
    """Momentum before compression, and momentum factor masking.

    u = m u + g, v = v + u (Nesterov: u = m (u + g), v = v + u + g); v is what a worker wants to
    say; where it was sent, both u and v are zeroed.
    Lin et al., "Deep Gradient Compression", ICLR 2018, https://arxiv.org/abs/1712.01887.

    Differs from the paper: v keeps the rounding error of float16 values. What goes dense gets the
    momentum and neither accumulation nor masking, so that it equals momentum SGD; the same holds
    for a step at which nothing is pruned, so that compression may begin late without a jump.
    """

    momentum: float | None = None  # m in [0, 1); None: the regime's
    nesterov: bool | None = None  # Nesterov's form; None: the regime's
    masking: bool = True  # zero u where v was sent

    def __post_init__(self) -> None:
        _check_momentum(self.momentum)

    def init(self, like: Tensor, dense: bool) -> State:
        """Return u, and v unless `dense`: zeros, [L, n]."""
        momentum = {"momentum": torch.zeros_like(like)}
        return momentum if dense else momentum | {"residual": torch.zeros_like(like)}

    def compensate(self, grad: Tensor, state: State) -> Tensor:
        """Return v, [L, n]; for what goes dense, the momentum."""
        new = _moved(state["momentum"], grad, self.momentum, self.nesterov)
        return state["residual"].add_(new) if "residual" in state else new

    def update(self, compensated: Tensor, message: Message, state: State) -> None:
        """Take what was sent out of v, and zero u there."""
        if "residual" in state:
            message.subtract_from_(state["residual"])
        if "residual" in state and self.masking:
            message.clear_(state["momentum"])


def _check_momentum(m: float | None) -> None:
    require(m is None or 0 <= m < 1, "momentum", m, "must lie in [0, 1)")


def _moved(u: Tensor, grad: Tensor, m: float | None, nesterov: bool | None) -> Tensor:
    """Return u = m u + g, in place; Nesterov: u = m (u + g) in place, and u + g."""
    if nesterov:
        return u.add_(grad).mul_(m or 0.0) + grad
    return u.mul_(m or 0.0).add_(grad)
