"""Models and losses that write into their inputs: each trial of a step gets a batch of its own."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simsgd
from simsgd import Simulator


class Normalizing(nn.Module):
    """Brings its input into place, in place."""

    def __init__(self, how):
        super().__init__()
        self.how, self.net = how, nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        if self.how == "method":
            x.sub_(0.5).mul_(3)
        elif self.how == "data":
            x.data.sub_(0.5).mul_(3)
        elif self.how == "mask":
            x[x < 0.3] = 0
        else:
            x = (x - 0.5) * 3
        return self.net(x)


def joined(output, target):
    target[target == 2] = 1
    return F.cross_entropy(output, target)


def trained(how, criterion=F.cross_entropy, **settings):
    torch.manual_seed(0)
    model = Normalizing(how)
    simulator = Simulator(model, criterion, workers=4, lr=0.1, **settings)
    for _ in range(3):
        simulator.step(torch.rand(16, 6), torch.randint(0, 3, (16,)))
    return torch.cat([p.flatten() for p in simulator.evaluation_model().parameters()])


@pytest.mark.parametrize("settings", [{}, {"algorithm": "local", "local_steps": 2}], ids=str)
@pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "onepass", "threads"])
@pytest.mark.parametrize("how", ["method", "data"])
def test_a_step_sees_the_batch_as_it_was_given(how, engine, settings):
    wanted = trained("apart", engine="loop", **settings)
    assert torch.allclose(trained(how, engine=engine, **settings), wanted, atol=1e-6)


def test_each_sample_is_seen_as_it_was_given_where_each_has_a_gradient():
    wanted = trained("apart", compressor="variance", engine="loop")
    assert torch.allclose(trained("method", compressor="variance"), wanted, atol=1e-6)


@pytest.mark.parametrize("engine", ["auto", "loop", "onepass", "threads"])
def test_pixels_may_be_set_in_place(engine):
    torch.manual_seed(0)
    model = Normalizing("mask")
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    simulator = Simulator(model, workers=4, lr=0.1, engine=engine)
    for _ in range(3):
        x, y = torch.rand(16, 6), torch.randint(0, 3, (16,))
        optimizer.zero_grad()
        F.cross_entropy(plain(x.clone()), y).backward()
        optimizer.step()
        simulator.step(x, y)
    for p, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p, wanted, atol=1e-6)


@pytest.mark.parametrize("criterion", [F.cross_entropy, joined])
def test_threads_may_write_into_a_batch_at_once(criterion):
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for _ in range(5):
            wanted = trained("mask", criterion, engine="loop")
            own = trained("mask", criterion, engine="threads")
            assert torch.allclose(own, wanted, atol=1e-6)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_a_loss_may_write_into_targets(engine):
    def apart(output, target):
        return F.cross_entropy(output, target.where(target != 2, 1))

    wanted = trained("apart", apart, engine="loop")
    assert torch.allclose(trained("apart", joined, engine=engine), wanted, atol=1e-6)


def test_a_run_sees_the_batch_as_it_was_given(tmp_path):
    def run(how):
        torch.manual_seed(0)
        data = torch.rand(64, 6), torch.arange(64) % 3
        return simsgd.train(
            model=Normalizing(how), dataset=(data, data), workers=4, batch_size=4, steps=4, lr=0.1,
            quiet=True, runs_dir=tmp_path,
        )  # fmt: skip

    own, other = (run(how).epochs for how in ("method", "apart"))
    assert own["train_loss"].tolist() == pytest.approx(other["train_loss"].tolist(), rel=1e-6)
    assert own["val_loss"].tolist() == pytest.approx(other["val_loss"].tolist(), rel=1e-6)


def test_a_metric_that_writes_into_the_output_leaves_the_loss(tmp_path):
    def zero(output, target):
        output.zero_()
        return output.mean()

    def run(**settings):
        torch.manual_seed(0)
        return simsgd.train(
            model="mlp", dataset="digits", workers=2, steps=2, lr=0.1, quiet=True, name=None,
            runs_dir=tmp_path, **settings,
        ).epochs["val_loss"].tolist()  # fmt: skip

    assert run(metric=zero, metric_mode="min") == run()
