"""What losses and models keep in variables around them: refused for workers, followed for one."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simsgd
from simsgd import SettingError, Simulator

CALLS = 0
BANK = []


def in_a_global(output, target):
    global CALLS
    CALLS += 1
    return F.cross_entropy(output, target) * (1 + 0.1 * CALLS)


def counting():
    calls = [0]

    def loss(output, target):
        calls[0] += 1
        return F.cross_entropy(output, target) * (1 + 0.1 * calls[0])

    return loss


def nonlocal_counting():
    calls = 0

    def loss(output, target):
        nonlocal calls
        calls += 1
        return F.cross_entropy(output, target) * (1 + 0.1 * calls)

    return loss


def centering():
    center = torch.zeros(3)

    def loss(output, target):
        center.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)
        return F.cross_entropy(output - center, target)

    return loss


def of_an_array():
    center = np.zeros(3, np.float32)

    def loss(output, target):
        center[:] = 0.9 * center + 0.1 * output.detach().mean(0).numpy()
        return F.cross_entropy(output - torch.from_numpy(center), target)

    return loss


def banking():
    bank = []

    def loss(output, target):
        bank.append(output.detach().mean(0))
        del bank[:-4]
        return F.cross_entropy(output, target) + (output.mean(0) - torch.stack(bank).mean(0)).norm()

    return loss


def through_a_helper():
    calls = [0]

    def count():
        calls[0] += 1
        return 1 + 0.1 * calls[0]

    return lambda output, target: F.cross_entropy(output, target) * count()


CASES = [counting, nonlocal_counting, centering, of_an_array, banking, through_a_helper]


def plain(model, criterion, given):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in given:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def batches(number=4):
    torch.manual_seed(0)
    return [(torch.rand(16, 6), torch.randint(0, 3, (16,))) for _ in range(number)]


@pytest.mark.parametrize("engine", ["auto", "loop", "onepass", "vmap"])
@pytest.mark.parametrize("case", [*CASES, lambda: in_a_global])
def test_what_workers_would_share_is_refused(case, engine):
    simulator = Simulator(nn.Linear(6, 3), case(), workers=4, lr=0.1, engine=engine)
    with pytest.raises(SettingError, match=r"^criterion keeps \w+ from one call to the next, whi"):
        simulator.step(*batches()[0])


@pytest.mark.parametrize(
    ("case", "engine"),
    [
        *((case, engine) for case in CASES for engine in ("auto", "loop", "tune")),
        *((case, engine) for case in CASES[:2] for engine in ("onepass", "vmap")),
    ],
)
def test_one_worker_keeps_it_as_a_plain_loop_does(case, engine):
    model = nn.Linear(6, 3)
    given, other = batches(), copy.deepcopy(model)
    simulator = Simulator(model, case(), workers=1, lr=0.1, engine=engine)
    losses = [simulator.step(x, y).loss for x, y in given]
    assert losses == pytest.approx(plain(other, case(), given), rel=1e-6)
    assert torch.allclose(model.weight, other.weight, atol=1e-6)


class Counting(nn.Module):
    """Keeps what it likes in its forward."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.seen = nn.Linear(6, 3), 0, []
        self.mean, self.table = torch.zeros(3), np.zeros(3, np.float32)

    def forward(self, x):
        self.calls += 1
        output = self.linear(x)
        self.mean.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)
        self.table[:] = self.mean.numpy()
        self.seen.append(float(output.detach().mean()))
        return output * 0.9**self.calls - self.mean + torch.from_numpy(self.table) + self.seen[-1]


def test_one_worker_keeps_what_a_model_keeps_as_a_plain_loop_does():
    model = Counting()
    given, other = batches(), copy.deepcopy(model)
    simulator = Simulator(model, F.cross_entropy, workers=1, lr=0.1)
    losses = [simulator.step(x, y).loss for x, y in given]
    assert losses == pytest.approx(plain(other, F.cross_entropy, given), rel=1e-6)
    assert (model.calls, len(model.seen)) == (other.calls, len(other.seen)) == (4, 4)


def test_a_run_of_one_worker_keeps_it_and_resumes_in_the_engine_it_took(tmp_path):
    data = torch.rand(48, 6), torch.arange(48) % 3
    settings = {"model": nn.Linear(6, 3), "dataset": (data, data), "runs_dir": tmp_path}
    run = simsgd.train(
        **settings, criterion=counting(), workers=1, batch_size=16, epochs=1, lr=0.1, quiet=True
    )
    assert run.config["engine"] == "loop"
    again = simsgd.train(**settings, criterion=counting(), resume=run.folder, epochs=2)
    assert len(again.epochs) == 2


@pytest.mark.parametrize("engine", ["auto", "loop", "onepass", "vmap"])
def test_what_the_loss_does_not_depend_on_may_be_kept(engine):
    seen = []

    def loss(output, target):
        seen.append(1)
        return F.cross_entropy(output, target)

    simulator = Simulator(nn.Linear(6, 3), loss, workers=4, lr=0.1, engine=engine)
    for x, y in batches():
        simulator.step(x, y)
    assert len(seen) in (4, 16)  # a call a step, or a worker
