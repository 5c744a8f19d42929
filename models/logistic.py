"""Logistic regression: one linear layer; for two classes, one weight vector, as it is written.

A convex problem, strongly convex by weight decay: f(a) = mean of log(1 + exp(-y a.x)) +
(weight_decay / 2) |a|^2. Papers on gossip set weight_decay to 1 / samples.
Koloskova, Stich, Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with
Compressed Communication", ICML 2019, section 5, https://arxiv.org/abs/1902.00340
"""

from math import prod

from torch import Tensor, nn
from torch.nn import functional

from ._vision import digits, of_any_shape

# For a batch of 128.
regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "weight_decay": 1e-4},
    19: {"lr": 0.01},
}
epochs = 25
input_transform = {"train": digits, "eval": digits}


def logistic(
    num_classes: int = 2, input_shape: tuple[int, ...] = (2000,), bias: bool = True
) -> nn.Module:
    """Return the network, all weights zero at first; `bias` adds an intercept.

    With two classes the score of class 0 is 0 and that of class 1 is a.x, so that cross-entropy is
    the logistic loss.
    """
    return of_any_shape(Logistic(prod(input_shape), num_classes, bias), input_shape)


class Logistic(nn.Module):
    """Scores that are linear in the input."""

    def __init__(self, features: int, num_classes: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1 if num_classes == 2 else num_classes, bias)
        nn.init.zeros_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores [B, num_classes] of x [B, ...]."""
        scores: Tensor = self.linear(x.flatten(1))
        return functional.pad(scores, (1, 0)) if scores.shape[1] == 1 else scores
