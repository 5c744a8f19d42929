"""Losses that train what is not the model's: refused, as no engine gives it a right gradient."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simsgd
from simsgd import SettingError, Simulator

X, Y = torch.rand(16, 6), torch.arange(16) % 3
TOLD = r"^model and its loss give a gradient to a tensor of shape \[{}\] that is not the model's, "


class Scaled(nn.Module):
    """A loss with a temperature."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, output, target):
        return F.cross_entropy(output * self.temperature, target)


class Hiding(nn.Module):
    """Uses a layer that it does not register."""

    def __init__(self, hidden):
        super().__init__()
        self.linear, self.hidden = nn.Linear(6, 3), [hidden]

    def forward(self, x):
        return self.linear(x) + self.hidden[0](x)


def closure():
    temperature = nn.Parameter(torch.ones(1))
    return nn.Linear(6, 3), lambda output, target: F.cross_entropy(output * temperature, target)


CASES = {
    "closure": closure,
    "bound": lambda: (nn.Linear(6, 3), Scaled().forward),
    "partial": lambda: (nn.Linear(6, 3), partial(lambda own, o, t: own(o, t), Scaled())),
    "model": lambda: (Hiding(nn.Linear(6, 3, bias=False)), F.cross_entropy),
}


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "onepass"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_not_the_models_is_not_trained_in_silence(case, engine):
    model, criterion = CASES[case]()
    simulator = Simulator(model, criterion, workers=4, lr=0.1, engine=engine)
    with pytest.raises(SettingError, match=TOLD.format("3, 6" if case == "model" else "1")):
        simulator.step(X, Y)


def test_one_worker_in_a_loop_gives_it_the_gradient_of_a_plain_loop():
    own = Scaled()
    model = nn.Linear(6, 3)
    F.cross_entropy(model(X) * own.temperature, Y).backward()
    wanted, own.temperature.grad = own.temperature.grad, None
    told = TOLD.format("1") + ".*or use engine loop"
    with pytest.raises(SettingError, match=told):
        Simulator(model, own.forward, workers=1, lr=0.1).step(X, Y)
    Simulator(model, own.forward, workers=1, lr=0.1, engine="loop").step(X, Y)
    assert torch.allclose(own.temperature.grad, wanted)


@pytest.mark.parametrize("given", ["closure", "partial"])
def test_a_loss_may_read_the_model_of_another_simulator(given):
    critic = nn.Linear(3, 1)
    other = Simulator(critic, lambda output, _: output.mean(), workers=4, lr=0.1)
    loss = lambda own, output, _: own(output).mean()  # noqa: E731
    criterion = partial(loss, critic)
    if given == "closure":
        criterion = lambda output, target: loss(critic, output, target)  # noqa: E731
    Simulator(nn.Linear(6, 3), criterion, workers=4, lr=0.1).step(X, Y)
    other.step(torch.rand(8, 3), torch.zeros(8))


def test_a_loss_may_read_the_model_itself_and_what_is_frozen():
    model = nn.Linear(6, 3)
    penalty = lambda output, target: F.cross_entropy(output, target) + model.weight.norm()  # noqa: E731
    Simulator(model, penalty, workers=4, lr=0.1).step(X, Y)
    Simulator(Hiding(nn.Linear(6, 3).requires_grad_(False)), workers=4, lr=0.1).step(X, Y)


@pytest.mark.parametrize("place", ["input", "target", "computed"])
def test_a_batch_that_requires_a_gradient_is_refused(place):
    batch = [X, F.one_hot(Y, 3).float()]
    number = place == "target"
    batch[number] = batch[number].clone().requires_grad_()
    if place == "computed":
        batch[0] = nn.Linear(6, 6)(X)
    simulator = Simulator(nn.Linear(6, 3), workers=4, lr=0.1)
    told = r"^batch requires a gradient, which a step gives to the model alone; give x\.detach\(\)"
    with pytest.raises(SettingError, match=told):
        simulator.step(*batch)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_without_gradients_is_told(tmp_path, mode):
    with (
        mode(),
        pytest.raises(SettingError, match=r"^model is trained within torch\.no_grad\(\) or "),
    ):
        simsgd.train(model="mlp", dataset="digits", workers=2, epochs=1, lr=0.1, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
