"""A model or a loss may keep tables that it makes at first, and may replace its buffers."""

import contextlib
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
        if self.cache is None or self.cache.shape != x.shape[:2]:
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


@pytest.mark.parametrize("engine", ["onepass", "vmap", "loop", "threads"])
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


class Replacing(nn.Module):
    """Has a running mean that it puts into another memory at each call."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.way = nn.Linear(4, 4), nn.Linear(4, 3), way
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        x = self.first(x)
        new = (self.mean + x.detach().mean(0)) / 2
        if self.way == "data":
            self.mean.data = new
        else:
            self.mean.set_(new)
        return self.last((x - self.mean).tanh())


@pytest.mark.parametrize("engine", ["auto", "loop", "threads", "vmap", "onepass"])
@pytest.mark.parametrize("way", ["data", "set"])
def test_buffers_that_are_put_elsewhere_are_kept_or_refused(way, engine):
    own, plain = Replacing(way), Replacing(way)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    simulator = simsgd.Simulator(own, workers=1, lr=0.1, engine=engine)
    x, y = torch.linspace(-2, 2, 32).sin().view(8, 4), torch.arange(8) % 3
    if engine in ("vmap", "onepass"):
        with pytest.raises(simsgd.SettingError, match=r"^engine (declines|cannot)"):
            simulator.step(x, y)
        return
    for _ in range(3):
        simulator.step(x, y)
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    assert_close([*own.parameters()], [*plain.parameters()])
    assert_close(simulator.buffers["mean"][0], plain.mean)


class Teacher(nn.Module):
    """Moves a frozen copy of a layer as it computes."""

    def __init__(self):
        super().__init__()
        self.own, self.slow = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)

    def forward(self, x):
        self.slow.weight.data = (self.slow.weight.data + self.own.weight.data) / 2
        return self.own(x) + self.slow(x)


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("workers", [1, 2])
def test_parameters_that_the_forward_puts_elsewhere_are_refused(workers, engine):
    simulator = simsgd.Simulator(Teacher(), workers=workers, lr=0.1, engine=engine)
    with pytest.raises(
        simsgd.SettingError, match=r"^model (changes|gives) the parameter slow.weight"
    ):
        simulator.step(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64))


@contextlib.contextmanager
def declined():
    """Let an engine that was asked for say that it does not take a model."""
    try:
        yield
    except simsgd.SettingError as refused:
        if refused.name != "engine":
            raise
    except RuntimeError as wrong:  # of what torch differentiates
        if "differentiated" not in str(wrong):
            raise


def _penalized(model, weight):
    def criterion(output, target):
        own = sum(p.square().sum() for p in model.parameters()) if weight[0] else 0
        return F.cross_entropy(output, target) + weight[0] * own

    return criterion


def _again(model, weight):
    return lambda output, target: (
        F.cross_entropy(output, target)
        + weight[0] * F.mse_loss(output, model(torch.ones(2, 4)).detach())
    )


class Auxiliary(nn.Module):
    """Leaves a part of the loss behind."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.first(x)
        self.left = x.square().mean()
        return self.last(x)


def _with_left(model, weight):
    return lambda output, target: F.cross_entropy(output, target) + weight[0] * model.left


def _trained(engine, criterion, weights, algorithm):
    torch.manual_seed(0)
    model, weight = Auxiliary(), [0.0]
    settings = {"algorithm": algorithm, "lr": 0.1, "engine": engine}
    simulator = simsgd.Simulator(model, criterion(model, weight), workers=2, **settings)
    x, y = torch.linspace(-2, 2, 16).sin().view(4, 4), torch.arange(4) % 3
    for weight[0] in weights:
        simulator.step(x, y)
    return simulator.parameters()


def _of_gradients(model, weight):
    def criterion(output, target):
        loss = F.cross_entropy(output, target)
        gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
        return loss + weight[0] * sum(own.square().sum() for own in gradients)

    return criterion


READING = [
    (_penalized, [0.5, 0.5]), (_penalized, [0.0, 0.5]), (_again, [0.5, 0.5]),
    (_with_left, [0.5, 0.5]), (_with_left, [0.0, 0.5]), (_of_gradients, [0.5, 0.5]),
]  # fmt: skip


@pytest.mark.parametrize("engine", ["auto", "vmap", "onepass", "threads"])
@pytest.mark.parametrize(("criterion", "weights"), READING)
@pytest.mark.parametrize("algorithm", ["allreduce", "local"])
def test_a_criterion_that_reads_the_model_is_followed_or_refused(
    engine, criterion, weights, algorithm
):
    wanted = _trained("loop", criterion, weights, algorithm)
    may_decline = contextlib.nullcontext() if engine == "auto" else declined()
    with may_decline:
        found = _trained(engine, criterion, weights, algorithm)
        assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_models_that_are_trained_for_quantization_are_not_taken_together():
    quantization = pytest.importorskip("torch.ao.quantization")
    model = nn.Sequential(quantization.FakeQuantize(), nn.Linear(4, 3))
    simulator = simsgd.Simulator(model, workers=2, lr=0.1)
    assert simulator.engine_for(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)) != "onepass"
