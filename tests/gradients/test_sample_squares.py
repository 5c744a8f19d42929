import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd.gradients import sample_squares as squares
from simsgd.gradients.dropout import KeyedDropout, SampleDropout
from simsgd.gradients.sample_squares import sample_squares
from simsgd.keyed_random import RandomKey, uniform
from simsgd.settings import SettingError

from .. import toy

W, B = 3, 5


class Net(nn.Module):
    """Convolution, GroupNorm, dropout of two kinds, a parameter that nothing uses."""

    def __init__(self, p=0.0, norm=None):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = norm or nn.GroupNorm(2, 4)
        self.features = nn.Dropout2d(p)
        self.drop = nn.Dropout(p)
        self.fc = nn.Linear(4 * 16, 5)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        x = self.features(F.relu(self.norm(self.conv(x))))
        return self.fc(self.drop(x.flatten(1)))


def net(p=0.0, norm=None):
    torch.manual_seed(0)
    return Net(p, norm).double().train()


batch = functools.partial(toy.batch, W, B, shape=(1, 6, 6), dtype=torch.float64)


def keys():
    return RandomKey(0, torch.arange(W)).fold_in(0, "dropout").keys()


def squared(model):
    buffers = {name: torch.stack([b] * W) for name, b in model.named_buffers()}
    params = dict(model.named_parameters())
    return sample_squares(model, F.cross_entropy, params, buffers, *batch(), keys())


def one_by_one(model):
    """Return the same by one backward for each sample."""
    x, y = batch()
    total = {name: torch.zeros(W, *p.shape).double() for name, p in model.named_parameters()}
    for w in range(W):
        for z in range(B):
            with SampleDropout(keys()[w], torch.tensor(z)):
                loss = F.cross_entropy(model(x[w, z : z + 1]), y[w, z : z + 1])
            grads = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
            for value, grad in zip(total.values(), grads, strict=True):
                value[w] += (grad / B) ** 2
    return total


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_squares_are_those_of_one_backward_a_sample(p):
    ours, slow = squared(net(p)), one_by_one(net(p))
    assert ours.keys() == slow.keys()
    for name, value in slow.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-18)


def test_how_many_samples_go_at_once_does_not_matter(monkeypatch):
    whole = squared(net(0.4))
    monkeypatch.setattr(squares, "_NUMBERS", 2 * sum(p.numel() for p in net().parameters()))
    parts = squared(net(0.4))  # 2 + 2 + 1 samples
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-10, atol=1e-18)


def test_a_sample_alone_drops_what_it_drops_in_its_batch():
    model, x, key = net(0.4), batch()[0][0], keys()[0]
    with KeyedDropout(key):
        together = model(x)
    for z in range(B):
        with SampleDropout(key, torch.tensor(z)):
            torch.testing.assert_close(model(x[z : z + 1]), together[z : z + 1])


def test_numbers_can_be_skipped():
    whole = uniform(keys(), 20)
    skip = torch.tensor([0, 3, 12])
    some = uniform(keys(), 8, skip=skip)
    for row, part, first in zip(whole, some, skip.tolist(), strict=True):
        assert torch.equal(part, row[first : first + 8])


def test_batch_norm_in_training_is_refused():
    model = net(norm=nn.BatchNorm2d(4))
    error = r"variance needs the gradient of each sample.* \(norm is BatchNorm2d\); use another"
    with pytest.raises(SettingError, match=error):
        squared(model)


def test_batch_norm_that_only_evaluates_is_taken():
    model = net(norm=nn.BatchNorm2d(4))
    model.norm.eval()
    for name, value in one_by_one(model).items():
        torch.testing.assert_close(squared(model)[name], value, rtol=1e-10, atol=1e-18)
