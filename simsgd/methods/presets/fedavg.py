"""FedAvg, FedAvgM and FedProx."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset

_ROUND: dict[str, object] = {
    "local_steps": 10,
    "participation": 0.1,
    "optimizer": "SGD",
    "momentum": 0.0,
    "nesterov": False,
}


@register("preset", "fedavg")
@dataclass(frozen=True)
class FedAvg(Preset):
    """A tenth of the clients take 10 steps of plain SGD; their average is the next model.

    x = sum_S n_i y_i / sum_S n_i.
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.

    Differs from the paper: 10 local steps in place of epochs over a client's samples.
    """

    settings: ClassVar = {"algorithm": "fedavg", **_ROUND}


@register("preset", "fedavgm")
@dataclass(frozen=True)
class FedAvgM(Preset):
    """FedAvg with momentum at the server.

    v = 0.9 v + x - mean_S y_i; x = x - v.
    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019, https://arxiv.org/abs/1909.06335.

    Differs from the paper: 10 local steps in place of an epoch over a client's samples.
    """

    settings: ClassVar = {
        "algorithm": "fedavg",
        **_ROUND,
        "outer_optimizer": "sgd",
        "outer_lr": 1.0,
        "outer_momentum": 0.9,
    }


@register("preset", "fedprox")
@dataclass(frozen=True)
class FedProx(Preset):
    """FedAvg whose clients are held near the model with which the round begins.

    Clients step along g + mu (y_i - x), mu = 0.01.
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
    MLSys 2020, https://arxiv.org/abs/1812.06127.

    Differs from the paper: clients are drawn with equal chances and weighted by their samples, as
    in FedAvg, and all take as many steps.
    """

    settings: ClassVar = {"algorithm": "fedprox:mu=0.01", **_ROUND}
