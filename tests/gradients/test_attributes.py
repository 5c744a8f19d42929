"""What a person changes in a model between steps holds in every engine."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import simsgd
from simsgd.gradients.attributes import attributes_kept

X, Y = torch.linspace(-2, 2, 16 * 3 * 36).sin().view(16, 3, 6, 6), torch.arange(16) % 2


class Warm(nn.Sequential):
    warmth = 1.0

    def forward(self, x):
        return super().forward(x) / self.warmth


def _net():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1), nn.Flatten(), nn.Linear(64, 2)
    return Warm(*layers).double()


def _patch(model):
    last = model[4]
    last.forward = lambda x: 3 * nn.Linear.forward(last, x)


CHANGES = {
    "p": lambda model: setattr(model[2], "p", 0.6),
    "eps": lambda model: setattr(model[1], "eps", 0.5),
    "an attribute": lambda model: setattr(model, "warmth", 4.0),
    "a tensor": lambda model: setattr(model, "warmth", torch.tensor(4.0)),
    "a hook": lambda model: model[0].register_forward_hook(lambda own, given, out: 2 * out),
    "evaluation": lambda model: model[1].eval(),
}


def _trained(engine, change, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        simulator = simsgd.Simulator(_net(), workers=4, lr=0.1, engine=engine)
        for step in range(4):
            if step == 2:
                change(simulator.model)
            simulator.step(X.double(), Y)
    finally:
        torch.set_num_threads(before)
    return torch.cat([p.detach().flatten() for p in simulator.model.parameters()])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("engine", ["vmap", "onepass", "threads"])
def test_a_change_between_steps_is_followed(engine, change):
    threads = 2 if engine == "threads" else 1
    wanted = _trained("loop", CHANGES[change], 1)
    found = _trained(engine, CHANGES[change], threads)
    assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert not torch.equal(wanted, _trained("loop", copy.copy, 1))


@pytest.mark.parametrize("engine", ["vmap", "onepass"])
def test_a_method_set_in_between_is_followed(engine):
    wanted = _trained("loop", _patch, 1)
    assert_close(_trained(engine, _patch, 1), wanted, rtol=1e-9, atol=1e-12)


def test_threads_refuse_a_method_that_holds_the_weights():
    with pytest.raises(simsgd.SettingError, match="in the forward that was set on 4"):
        _trained("threads", _patch, 2)


def test_a_hook_on_a_parameter_is_refused_at_any_step():
    simulator = simsgd.Simulator(_net(), workers=4, lr=0.1)
    simulator.step(X.double(), Y)
    simulator.model[0].weight.register_hook(lambda gradient: 0 * gradient)
    with pytest.raises(simsgd.SettingError, match=r"has a hook on 0\.weight"):
        simulator.step(X.double(), Y)


class Switched(nn.Module):
    """Goes by a layer or past it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.by, self.last = (nn.Linear(6, n) for n in (6, 6, 2))
        self.stage = 0

    def forward(self, x):
        x = self.first(x).tanh()
        return self.last(self.by(x).tanh() if self.stage % 2 else x)


@pytest.mark.parametrize("engine", ["loop", "vmap", "onepass"])
@pytest.mark.parametrize("stages", [[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], range(40)])
def test_a_layer_that_a_switch_turns_on_or_off_is_trained_as_by_torch(engine, stages):
    x, y = torch.linspace(-2, 2, 48).sin().view(8, 6).double(), torch.arange(8) % 2
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    plain, own = Switched().double(), Switched().double()
    optimizer = torch.optim.SGD(plain.parameters(), **settings)
    simulator = simsgd.Simulator(own, workers=4, engine=engine, **settings)
    for stage in stages:
        plain.stage = own.stage = stage
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimizer.step()
        simulator.step(x, y)
    assert_close([*own.parameters()], [*plain.parameters()], rtol=1e-9, atol=1e-12)


ON = [False]


class Elsewhere(Switched):
    """Is switched by what is no attribute of it."""

    def forward(self, x):
        x = self.first(x).tanh()
        return self.last(self.by(x).tanh() if ON[0] else x)


@pytest.mark.parametrize("engine", ["loop", "vmap", "onepass"])
def test_a_layer_that_something_else_turns_on_is_trained(engine):
    x, y = torch.linspace(-2, 2, 48).sin().view(8, 6), torch.arange(8) % 2
    model = Elsewhere()
    before = copy.deepcopy(model.by)
    simulator = simsgd.Simulator(model, workers=4, lr=0.1, momentum=0.9, engine=engine)
    try:
        for ON[0] in (False, False, True):
            assert torch.equal(model.by.weight, before.weight)
            simulator.step(x, y)
    finally:
        ON[0] = False
    assert not torch.equal(model.by.weight, before.weight)


def test_attributes_are_put_back_and_what_they_hold():
    model = _net()
    model.table, model.seen = {1: 2}, [3]
    held = model.table, model.seen
    with attributes_kept(model):
        model.warmth, model.new = 5.0, 6
        model.table[7] = 8
        model.seen.append(9)
        model.seen = []
    assert (model.table, model.seen, model.warmth) == ({1: 2}, [3], 1.0)
    assert (model.table is held[0], model.seen is held[1]) == (True, True)
    assert not hasattr(model, "new")
