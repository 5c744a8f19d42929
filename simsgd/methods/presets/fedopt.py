"""FedAdam, FedYogi and FedAdagrad."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset

_ROUND: dict[str, object] = {
    "algorithm": "fedavg",
    "local_steps": 10,
    "participation": 0.1,
    "optimizer": "SGD",
    "momentum": 0.0,
    "nesterov": False,
    "outer_lr": 0.1,
}


@register("preset", "fedadam")
@dataclass(frozen=True)
class FedAdam(Preset):
    """FedAvg with Adam at the server.

    d = mean_S y_i - x; m = 0.9 m + 0.1 d; v = 0.99 v + 0.01 d^2; x = x + lr m / (sqrt(v) + tau).
    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
    Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.

    Differs from the paper: 10 local steps in place of an epoch over a client's samples. The lr of
    the server, 0.1, and tau, 0.001, were tuned there for each task.
    """

    settings: ClassVar = {**_ROUND, "outer_optimizer": "fedadam", "outer_momentum": 0.9}


@register("preset", "fedyogi")
@dataclass(frozen=True)
class FedYogi(Preset):
    """FedAvg with Yogi at the server.

    d = mean_S y_i - x; m = 0.9 m + 0.1 d; v = v - 0.01 sign(v - d^2) d^2; x = x + lr m / (sqrt(v) +
    tau).
    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
    Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.

    Differs from the paper: 10 local steps in place of an epoch over a client's samples. The lr of
    the server, 0.1, and tau, 0.001, were tuned there for each task.
    """

    settings: ClassVar = {**_ROUND, "outer_optimizer": "fedyogi", "outer_momentum": 0.9}


@register("preset", "fedadagrad")
@dataclass(frozen=True)
class FedAdagrad(Preset):
    """FedAvg with Adagrad at the server.

    d = mean_S y_i - x; v = v + d^2; x = x + lr d / (sqrt(v) + tau).
    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
    Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.

    Differs from the paper: 10 local steps in place of an epoch over a client's samples. The lr of
    the server, 0.1, and tau, 0.001, were tuned there for each task.
    """

    settings: ClassVar = {**_ROUND, "outer_optimizer": "fedadagrad", "outer_momentum": 0.0}
