"""SCAFFOLD."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "scaffold")
@dataclass(frozen=True)
class Scaffold(Preset):
    """FedAvg whose clients correct their drift by control variates.

    Clients step along g - c_i + c; c_i = c_i - c + (x - y_i) / (K lr); x = mean_S y_i; c = mean c_i
    over all clients.
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
    Federated Learning", ICML 2020, https://arxiv.org/abs/1910.06378, with option II.

    Differs from the paper: 10 local steps in place of epochs over a client's samples; models are
    weighted by samples.
    """

    settings: ClassVar = {
        "algorithm": "scaffold",
        "local_steps": 10,
        "participation": 0.2,
        "optimizer": "SGD",
        "momentum": 0.0,
        "nesterov": False,
    }
