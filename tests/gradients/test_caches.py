"""A model or a loss may keep tables that it makes at first, as of positions."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import simsgd

SHARED = {}


class Attribute(nn.Module):
    """Has a table that grows with the longest text so far."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.cache = nn.Linear(4, 4), nn.Linear(4, 3), None

    def table(self, x):
        if self.cache is None or len(self.cache) < x.shape[1]:
            self.cache = torch.arange(x.shape[1], dtype=x.dtype)
        return self.cache[: x.shape[1]]

    def forward(self, x):
        x = self.first(x)
        return self.last(self.table(x) @ x)


class OfEachBatch(Attribute):
    def table(self, x):
        if self.cache is None or len(self.cache) != len(x):
            self.cache = torch.ones(len(x), x.shape[1], dtype=x.dtype)
        return self.cache.unsqueeze(1)

    def forward(self, x):
        x = self.first(x)
        return self.last((self.table(x) @ x).squeeze(1))


class OfEachLength(Attribute):
    def __init__(self):
        super().__init__()
        self.cache = {}

    def table(self, x):
        return self.cache.setdefault(x.shape[1], torch.arange(x.shape[1], dtype=x.dtype))


class Elsewhere(Attribute):
    def table(self, x):
        return SHARED.setdefault(x.shape[1], torch.arange(x.shape[1], dtype=x.dtype))


class Property(Attribute):
    @functools.cached_property
    def all(self):
        return torch.arange(9, dtype=self.first.weight.dtype)

    def table(self, x):
        return self.all[: x.shape[1]]


class Loss:
    """Makes the weights of its classes when it is first called."""

    weight = None

    def __call__(self, output, target):
        if self.weight is None:
            self.weight = torch.tensor([1.0, 2.0, 3.0], dtype=output.dtype)
        return (F.cross_entropy(output, target, reduction="none") * self.weight[target]).mean()


@pytest.mark.parametrize("engine", ["onepass", "vmap", "loop"])
@pytest.mark.parametrize("kind", [Attribute, OfEachBatch, OfEachLength, Elsewhere, Property])
def test_tables_are_made_as_without_simsgd(kind, engine):
    own, plain, loss = kind(), kind(), Loss()
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    simulator = simsgd.Simulator(own, Loss(), workers=4, lr=0.1, engine=engine)
    for b, length in ((8, 5), (8, 7), (8, 3), (16, 7), (8, 9)):
        x, y = torch.linspace(-2, 2, b * length * 4).sin().view(b, length, 4), torch.arange(b) % 3
        simulator.step(x, y)
        optimizer.zero_grad()
        loss(plain(x), y).backward()
        optimizer.step()
    SHARED.clear()
    assert_close([*own.parameters()], [*plain.parameters()], rtol=1e-4, atol=1e-6)
