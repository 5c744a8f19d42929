"""What a model or a criterion remembers from call to call, and the modules that evaluate."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simsgd
from simsgd import SettingError

from .own_kinds import X, Y

ENGINES = ["loop", "vmap", "onepass", "threads", "auto"]


class Counting(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.linear, self.calls, self.weight = nn.Linear(3, 2), 0, weight

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * (1 + self.weight * self.calls)


class Noisy(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.linear, self.generator = nn.Linear(3, 2), make()

    def forward(self, x):
        if isinstance(self.generator, torch.Generator):
            return self.linear(x) + torch.randn(len(x), 2, generator=self.generator)
        return self.linear(x) + self.generator.random()


class Momentum(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            self.key.weight.data.mul_(0.5).add_(self.query.weight, alpha=0.5)
        return self.query(x) - self.key(x)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.one(x) if x.sum() > 0 else self.other(x)


class Centered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(2))

    def forward(self, output, target):
        self.center = 0.9 * self.center + 0.1 * output.detach().mean(0)
        return F.cross_entropy(output - self.center, target)


class Annealed:
    def __init__(self):
        self.seen = [0]

    def __call__(self, output, target):
        self.seen[0] += 1
        return F.cross_entropy(output, target) + self.seen[0] * output.pow(2).mean()

    def loss(self, output, target):
        return self(output, target)


def stepped(model, criterion=F.cross_entropy, steps=1, **settings):
    simulator = simsgd.Simulator(model, criterion, **{"workers": 4, "lr": 0.1, **settings})
    for _ in range(steps):
        simulator.step(X, Y)
    return simulator


KEPT = {
    "model changes the parameter key.weight in its forward": (Momentum, F.cross_entropy),
    "model keeps generator from": (
        lambda: Noisy(lambda: torch.Generator().manual_seed(3)),
        F.cross_entropy,
    ),
    "model keeps 0.generator from": (
        lambda: nn.Sequential(Noisy(lambda: random.Random(3))),
        lambda output, y: (output[:, 0].exp() - y).square().mean(),
    ),
    "model keeps 0.generator from one": (
        lambda: nn.Sequential(Noisy(lambda: np.random.default_rng(3))),
        lambda output, y: (output[:, 0].exp() - y).square().mean(),
    ),
    "model keeps calls from": (lambda: Counting(0.1), F.cross_entropy),
    "model keeps 0.calls from": (lambda: nn.Sequential(Counting(0.1)), F.cross_entropy),
    "criterion keeps center from": (lambda: nn.Linear(3, 2), Centered()),
    "criterion keeps seen from": (lambda: nn.Linear(3, 2), Annealed()),
    "criterion keeps seen from one call to the next": (lambda: nn.Linear(3, 2), Annealed().loss),
}


@pytest.mark.parametrize(("message", "made"), KEPT.items(), ids=KEPT)
def test_what_workers_would_share_is_refused(message, made):
    model, criterion = made
    before = copy.deepcopy(getattr(criterion, "__self__", criterion).__dict__)
    with pytest.raises(SettingError, match=message):
        stepped(model(), criterion)
    assert getattr(criterion, "__self__", criterion).__dict__.keys() == before.keys()
    if isinstance(criterion, Annealed):
        assert criterion.seen == [0]
    stepped(model(), criterion, workers=1, engine="loop")


def test_a_number_without_effect_is_taken():
    stepped(Counting(0), steps=2)


def test_a_criterion_that_reads_the_model_itself_is_taken():
    class Keeping(nn.Linear):
        def forward(self, x):
            self.penalty = super().forward(x).pow(2).mean()
            return super().forward(x)

    model = Keeping(3, 2)
    stepped(model, lambda output, y: F.cross_entropy(output, y) + model.penalty, engine="loop")


def test_a_branch_on_samples_is_each_workers_own():
    torch.manual_seed(0)
    model = Branching()
    apart = X.roll(4, 0)
    runs = {}
    for engine in ("loop", "auto"):
        simulator = simsgd.Simulator(copy.deepcopy(model), workers=4, lr=0.1, engine=engine)
        for batch in (X.abs(), X, apart):  # of the first all workers take the same branch
            simulator.step(batch, Y)
        runs[engine] = [p.detach() for p in simulator.model.parameters()]
    for one, other in zip(*runs.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_onepass_declines_a_branch_on_samples():
    with pytest.raises(SettingError, match=r"reads numbers of all workers' samples \(bool\)"):
        stepped(Branching(), engine="onepass")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("algorithm", ["allreduce", "local:local_steps=1"])
def test_frozen_batch_normalization_stays_frozen(engine, algorithm):
    if engine == "threads" and algorithm != "allreduce":
        pytest.skip("threads share one model")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    model[1].eval()
    plain = copy.deepcopy(model)
    simulator = simsgd.Simulator(model, workers=4, lr=0.1, engine=engine, algorithm=algorithm)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    x = X.double()
    for _ in range(3):
        simulator.step(x, Y)
        simulator.evaluation_model()  # in which all evaluates
        optimizer.zero_grad()
        F.cross_entropy(plain(x), Y).backward()
        optimizer.step()
    for one, other in zip(
        simulator.evaluation_model().parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert torch.equal(simulator.buffers["1.running_mean"], torch.zeros(4, 4).double())


def test_a_module_set_to_evaluate_in_between_does_from_then_on():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    simulator = stepped(model, engine="onepass")
    moved = simulator.buffers["1.running_mean"].clone()
    model[1].eval()
    simulator.step(X, Y)
    assert torch.equal(simulator.buffers["1.running_mean"], moved)
    model.eval()
    simulator.step(X, Y)
    assert (model.training, model[1].training) == (True, False)
    model[1].train()
    simulator.step(X, Y)
    assert not torch.equal(simulator.buffers["1.running_mean"], moved)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x):
        return self.norm(self.linear(x * self.mask))


@pytest.mark.parametrize("anew", [False, True])
def test_a_mask_that_is_changed_in_between_is_refused(anew):
    model = Masked()
    simulator = stepped(model, steps=2)
    simulator.evaluation_model()
    model(X)  # moves statistics that the workers have of their own
    simulator.step(X, Y)
    if anew:
        model.mask = torch.tensor([1.0, 0.0, 1.0])
    else:
        model.mask[1] = 0
    with pytest.raises(SettingError, match="has other numbers in mask by now"):
        simulator.step(X, Y)


def test_a_mask_of_the_workers_is_changed_where_they_have_it():
    torch.manual_seed(0)
    model = Masked()
    before = copy.deepcopy(model)
    before.mask[1] = 0
    simulator, other = stepped(model, steps=0), stepped(before, steps=0)
    simulator.buffers["mask"][:, 1] = 0
    assert torch.equal(simulator.step(X, Y).losses, other.step(X, Y).losses)


def test_a_batch_of_inference_mode_is_refused():
    with torch.inference_mode():
        x = X.clone()
    with pytest.raises(SettingError, match=r"batch has a tensor of torch\.inference_mode"):
        simsgd.Simulator(nn.Linear(3, 2), workers=4, lr=0.1).step(x, Y)


def test_a_cache_that_evaluation_fills_is_the_models_own():
    class Caching(Masked):
        def forward(self, x):
            if not self.training:
                self.mask[0] = 2
            return super().forward(x)

    simulator = stepped(Caching(), steps=2)
    simulator.evaluation_model()(X)
    simulator.step(X, Y)
    simulator.model.eval()(X)
    simulator.step(X, Y)
