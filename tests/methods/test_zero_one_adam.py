"""0/1 Adam: signs of gradients, a variance that is seldom updated, and then local steps."""

import pytest
import torch
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.methods.algorithms.zero_one_adam import ZeroOneAdam

from .. import toy

W = 3


def layer():
    torch.manual_seed(0)
    return nn.Linear(6, 3, bias=False).double()  # 18 entries, 6 of each worker


def signs(x):
    scale = (x.norm() / len(x) ** 0.5).float().double()
    return torch.where(x < 0, -scale, scale)


class BothWays:
    """Signs of what workers have, and of each chunk of their mean, each with error feedback."""

    def __init__(self):
        self.own, self.chunks = torch.zeros(W, 18).double(), torch.zeros(W, 6).double()

    def mean(self, rows):
        self.own += rows
        sent = torch.stack([signs(row) for row in self.own])
        self.own -= sent
        self.chunks += sent.mean(0).view(W, 6)
        served = torch.stack([signs(row) for row in self.chunks])
        self.chunks -= served
        return served.flatten()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_zero_one_adam_is_its_formulas_while_the_lr_changes(decay):
    freeze, beta, beta2, eps, steps = 5, 0.8, 0.9, 1e-3, 15
    rates = [0.05, 0.02, 0.1]
    spec = f"freeze_step={freeze},kappa=2,local_scaler=2,most_local=4,beta={beta},beta2={beta2}"
    simulator = Simulator(
        layer(), workers=W, method="zero_one_adam", algorithm=f"zero_one_adam:{spec},eps={eps}",
        regime={e: {"optimizer": "SGD", "lr": lr} for e, lr in enumerate(rates)},
        weight_decay=decay,
    )  # fmt: skip
    x = layer().weight.detach().flatten().repeat(W, 1)
    m, v, a, summed, both = torch.zeros_like(x), torch.zeros(18).double(), x[0], 0.0, BothWays()
    for t, (data, y) in enumerate(toy.batches(steps, 4 * W)):
        lr = rates[t % 3]
        record = simulator.step(data, y, t % 3)
        rows = []
        for i, (part, target) in enumerate(zip(data.chunk(W), y.chunk(W), strict=True)):
            weight = x[i].view(3, 6).clone().requires_grad_()
            nn.functional.cross_entropy(part @ weight.T, target).backward()
            rows.append(weight.grad.flatten())
        g = torch.stack(rows)
        x = x * (1 - lr * decay)
        if t < freeze:
            if t in (0, 1, 2, 4):
                mean = g.mean(0)
                v = beta2 * v + (1 - beta2) * mean**2
                assert record.payload_bytes == [18 * 8] * W
            else:
                mean = both.mean(g)
                assert record.payload_bytes == [4 + 3 + 4 + 1] * W
            m = beta * m + (1 - beta) * mean
            x = x - lr * m / (v.sqrt() + eps)
            a = x[0]
        else:
            m = beta * m + (1 - beta) * g
            x = x - lr * m / (v.sqrt() + eps)
            summed += lr
            if t in (5, 6, 7, 11):  # intervals of 1, 1, 2 and 4
                u = both.mean((a - x) * (v.sqrt() + eps))
                m = (u / summed).expand(W, 18)
                a = a - u / (v.sqrt() + eps)
                x, summed = a.expand(W, 18), 0.0
                assert record.payload_bytes == [4 + 3 + 4 + 1] * W
            else:
                assert record.payload_bytes == [0] * W
        held = simulator.parameters()["weight"].flatten(1)
        torch.testing.assert_close(held, x, rtol=0, atol=1e-9)
    assert simulator.consensus_distance() > 1e-4


def test_intervals_of_updates_and_of_exchanges_double():
    algorithm = ZeroOneAdam(freeze_step=10, kappa=2, local_scaler=3, most_local=8)
    assert [t for t in range(25) if algorithm.updates_variance(t)] == [0, 1, 2, 4, 6, 10, 14, 22]
    assert [algorithm.interval(t) for t in (0, 9, 10, 12, 13, 15, 16, 18, 19, 99)] == [
        1, 1, 1, 1, 2, 2, 4, 4, 8, 8,
    ]  # fmt: skip


def test_without_compression_and_local_steps_it_is_adam_without_its_corrections():
    """One worker, and v updated at every step: m / sqrt(v) of what Adam keeps."""
    simulator = Simulator(
        layer(), workers=1, lr=0.05, method="zero_one_adam", compressor="none",
        algorithm="zero_one_adam:kappa=1000",
    )  # fmt: skip
    weight = layer().weight
    adam = torch.optim.Adam([weight], lr=0.05)
    for x, y in toy.batches(6, 8):
        simulator.step(x, y, 0)
        adam.zero_grad()
        nn.functional.cross_entropy(x @ weight.T, y).backward()
        before = weight.detach().clone()
        adam.step()
        kept = adam.state[weight]
        moved = kept["exp_avg"] / (kept["exp_avg_sq"].sqrt() + 1e-8)
        weight.data.copy_(before - 0.05 * moved)
    torch.testing.assert_close(simulator.parameters()["weight"][0], weight, rtol=0, atol=1e-12)


def test_workers_agree_after_the_last_step_if_asked():
    simulator = Simulator(
        toy.mlp(), workers=W, lr=0.01, method="zero_one_adam", final_exchange=True,
        algorithm="zero_one_adam:freeze_step=2,local_scaler=1",
    )  # fmt: skip
    *first, last = toy.batches(11, 3 * W)
    for x, y in first:
        simulator.step(x, y, 0)
    assert simulator.consensus_distance() > 1e-6
    simulator.step(*last, 0, last=True)
    assert simulator.consensus_distance() < 1e-14


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"optimizer": "RMSprop", "nesterov": None}, "must be SGD with algorithm zero_one_adam"),
        ({"compressor": "topk:0.1"}, "must be a quantizer with algorithm zero_one_adam"),
        ({"memory": "residual"}, "must be none with algorithm zero_one_adam"),
        ({"algorithm": "zero_one_adam:most_local=6"}, "must be a power of 2"),
        ({"algorithm": "zero_one_adam:kappa=0"}, "must be at least 1"),
        ({"algorithm": "zero_one_adam:beta2=1"}, r"must lie in \[0, 1\)"),
        ({"algorithm": "zero_one_adam:eps=0"}, "must be greater than 0"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(settings, error):
    with pytest.raises(SettingError, match=error):
        Simulator(toy.mlp(), **{"workers": W, "lr": 0.1, "method": "zero_one_adam", **settings})
