"""What a person writes through `.data` or NumPy between steps: followed, or told."""

import copy
from collections import deque
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd import SettingError, Simulator

X, Y = torch.rand(16, 6), torch.arange(16) % 3


def clipped(model):
    for p in model.parameters():
        p.data.clamp_(-0.1, 0.1)


def halved(model):
    model.weight.data = model.weight.data * 0.5


def flat(model):
    nn.utils.vector_to_parameters(torch.ones(21), model.parameters())


@pytest.mark.parametrize("write", [clipped, halved, flat])
@pytest.mark.parametrize("method", [{"algorithm": "local"}, {"algorithm": "dpsgd"}], ids=str)
@pytest.mark.parametrize("evaluated", [False, True])
def test_weights_that_workers_do_not_see_are_told(write, method, evaluated):
    model = nn.Linear(6, 3)
    simulator = Simulator(model, workers=4, lr=0.1, **method)
    simulator.step(X, Y)
    if evaluated:
        simulator.evaluation_model()
    simulator.step(X, Y)
    write(model)
    with pytest.raises(SettingError, match=r"^model has other parameters by now, which workers "):
        simulator.step(X, Y)


def test_weights_that_are_put_back_are_the_same():
    model = nn.Linear(6, 3)
    simulator = Simulator(model, workers=4, lr=0.1, algorithm="local")
    simulator.step(X, Y)
    state = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.weight.zero_()
    model.load_state_dict(state)
    simulator.step(X, Y)


class Masked(nn.Module):
    """Multiplies by a buffer that a person changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x):
        return self.linear(x) * self.mask


@pytest.mark.parametrize("method", [{}, {"algorithm": "local"}], ids=str)
@pytest.mark.parametrize(
    "write",
    [
        lambda mask: mask.data.copy_(torch.tensor([1.0, 0, 1])),
        lambda mask: mask.numpy().fill(0.5),
        lambda mask: setattr(mask, "data", torch.tensor([1.0, 0, 1])),
    ],
)
def test_a_mask_that_workers_do_not_see_is_told(write, method):
    model = Masked()
    simulator = Simulator(model, workers=4, lr=0.1, **method)
    simulator.step(X, Y)
    write(model.mask)
    with pytest.raises(SettingError, match=r"^model has other numbers in mask by now, of which "):
        simulator.step(X, Y)


@dataclass
class Inner:
    """An object in an object."""

    tensor: torch.Tensor


@dataclass(slots=True)
class Slotted:
    """An object without a dict."""

    value: float


class Holding(nn.Module):
    """Multiplies by numbers that it holds in another way than as a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.tensor, self.list, self.dict = torch.ones(3), [torch.ones(3)], {"k": torch.ones(3)}
        self.array = np.ones(3, np.float32)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.config = SimpleNamespace(tau=1.0, inner=Inner(torch.ones(3)))
        self.queue, self.scaled = deque([torch.ones(3)]), partial(torch.mul, torch.ones(3))
        self.slotted, self.long = Slotted(1.0), [1.0] * 5000
        self.unregistered = [nn.Linear(3, 3).requires_grad_(False)]

    def forward(self, x):
        scale = self.tensor * self.list[0] * self.dict["k"] * torch.from_numpy(self.array)
        scale = scale * self.slotted.value * self.long[-1]
        scale = self.scaled(scale) * self.config.tau * self.config.inner.tensor * self.queue[0]
        return self.unregistered[0](self.linear(x) * scale * self.frozen)


def through_data(model):
    model.tensor.data.mul_(0.9)


def of_a_list(model):
    model.list[0] = model.list[0] * 0.9


def in_a_list(model):
    model.list[0].data.mul_(0.9)


def of_a_dict(model):
    model.dict["k"] = model.dict["k"] * 0.9


def of_an_array(model):
    model.array *= 0.9


def of_the_frozen(model):
    model.frozen.data = 0.9 * model.frozen.data


def of_an_object(model):
    model.config.tau *= 0.9


def in_an_object(model):
    model.config.inner.tensor.data.mul_(0.9)


def of_slots(model):
    model.slotted.value *= 0.9


def of_a_long_list(model):
    model.long[-1] *= 0.9


def of_a_queue(model):
    model.queue.append(model.queue.popleft() * 0.9)


def of_a_partial(model):
    model.scaled.args[0].mul_(0.9)


def of_a_module_in_a_list(model):
    model.unregistered[0].weight.data.mul_(0.9)


@pytest.mark.parametrize(
    "write",
    [
        through_data, of_a_list, in_a_list, of_a_dict, of_an_array, of_the_frozen, of_an_object,
        in_an_object, of_slots, of_a_long_list, of_a_queue, of_a_partial, of_a_module_in_a_list,
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ["threads", "loop", "vmap", "onepass"])
def test_what_a_model_holds_is_followed(write, engine):
    model = Holding()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD([*plain.linear.parameters()], lr=0.1)
    simulator = Simulator(model, workers=4, lr=0.1, engine=engine)
    for _ in range(3):
        simulator.step(X, Y)
        optimizer.zero_grad()
        F.cross_entropy(plain(X), Y).backward()
        optimizer.step()
        for own in (model, plain):
            write(own)
    for p, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p, wanted, atol=1e-6)


class Odd:
    """Has no length, though it says so, as modules of torch.jit."""

    def __len__(self):
        raise NotImplementedError


def test_an_object_without_a_length_may_be_held():
    model = nn.Linear(6, 3)
    model.odd = Odd()
    Simulator(model, workers=4, lr=0.1, engine="threads").step(X, Y)
