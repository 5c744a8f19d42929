"""Squares of per-sample gradients through torch's recurrent layers, against a loop."""

import pytest
import torch
from torch import nn

from simsgd.gradients.sample_squares import sample_squares


class Reader(nn.Module):
    """Reads six features two at a time."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.last = kind(2, 3, num_layers=2, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.inner(x.unflatten(1, (3, 2)))[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 3)])  # workers, samples of each
@pytest.mark.parametrize("per_worker", [False, True])
def test_squares_of_a_recurrent_layer_are_those_of_a_loop(kind, shape, per_worker):
    torch.manual_seed(0)
    model = Reader(kind).double()
    x, y = torch.randn(*shape, 6, dtype=torch.float64), torch.randint(3, shape)
    params = dict(model.named_parameters())
    own = {n: torch.stack([p.detach()] * len(x)) for n, p in params.items()}
    keys = torch.arange(len(x))
    given = own if per_worker else params
    found = sample_squares(model, nn.functional.cross_entropy, given, {}, x, y, keys, per_worker)
    for worker, (inputs, targets) in enumerate(zip(x, y, strict=True)):
        right = {name: torch.zeros_like(p) for name, p in params.items()}
        for sample in range(len(inputs)):
            one = slice(sample, sample + 1)
            loss = nn.functional.cross_entropy(model(inputs[one]), targets[one])
            for name, g in zip(params, torch.autograd.grad(loss, params.values()), strict=True):
                right[name] += (g / len(inputs)) ** 2
        for name, value in right.items():
            torch.testing.assert_close(found[name][worker], value, rtol=1e-10, atol=1e-12)
