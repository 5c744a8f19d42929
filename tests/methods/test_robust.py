"""Robust aggregation under attack, against what the formulas say of rows of numbers."""

import itertools
from statistics import NormalDist

import pytest
import torch
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.keyed_random import RandomKey
from simsgd.methods.aggregations.krum import Krum
from simsgd.methods.aggregations.median import Median
from simsgd.methods.aggregations.trimmed_mean import TrimmedMean
from simsgd.methods.algorithms import AllReduce
from simsgd.methods.attacks import attack_of
from simsgd.methods.compressors.none import NoCompression

from ..toy import normal
from .test_aggregation import exchange

W, N = 7, 30


def rows(workers=W):
    return normal(workers, N, dtype=torch.float64)


def replaced(spec, gradients, seed=0, step=0):
    """Return what the workers send under an attack where they have the gradients [W, n]."""
    sent = gradients.clone()
    key = RandomKey(seed, torch.arange(len(sent))).fold_in(step)
    attack_of(spec).replace_([sent], key, lambda own: own)
    return sent


def test_one_worker_does_not_move_the_median_of_three():
    x = torch.tensor([[1e9, -1e9], [1.0, 2.0], [2.0, 1.0]])
    assert Median().of_rows(x).tolist() == [2.0, 1.0]


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    x = torch.tensor([[4.0], [1.0], [2.0], [100.0]])
    assert Median().of_rows(x).tolist() == [3.0]


@pytest.mark.parametrize(("beta", "cut"), [(0.0, 0), (0.1, 0), (0.2, 1), (0.3, 2), (0.49, 3)])
def test_a_trimmed_mean_leaves_out_as_many_at_each_end(beta, cut):
    x = rows()
    kept = [sorted(column)[cut : W - cut] for column in x.T.tolist()]
    expected = torch.tensor([sum(column) / len(column) for column in kept], dtype=torch.float64)
    torch.testing.assert_close(TrimmedMean(beta).of_rows(x), expected, rtol=1e-12, atol=1e-12)


def test_a_fraction_of_ten_workers_is_counted_as_it_is_written():
    x = torch.arange(10.0).unsqueeze(1)  # 0.3 * 10 is 3, and below it in binary
    assert TrimmedMean(0.3).of_rows(x**3).item() == sum(n**3 for n in range(3, 7)) / 4


@pytest.mark.parametrize("m", [1, 2, 4])
def test_krum_takes_the_gradients_nearest_to_their_neighbors(m):
    x = rows()
    x[2] += 100
    scores = []
    for i in range(W):
        far = sorted(((x[i] - x[j]) ** 2).sum().item() for j in range(W) if j != i)
        scores.append((sum(far[: W - 1 - 2]), i))
    best = [i for _, i in sorted(scores)[:m]]
    assert 2 not in best
    torch.testing.assert_close(Krum(1, m).of_rows(x), x[best].mean(0), rtol=1e-12, atol=1e-12)


def test_of_equal_gradients_krum_takes_the_first():
    assert Krum(1, 2).chosen(torch.ones(5, 3)).tolist() == [0, 1]


def test_the_fraction_of_a_trimmed_mean_is_counted_as_it_is_written():
    given = torch.arange(100.0, dtype=torch.float64).square().unsqueeze(1)
    assert int(0.29 * 100) == 28
    assert torch.equal(TrimmedMean(0.29).of_rows(given), given[29:71].mean(0))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean:0.3"])
def test_a_server_gathers_and_sends_back_what_is_exempt_too(rule):
    x = normal(4, 33)
    message, aggregated, ledger = exchange(AllReduce(rule), x, NoCompression(), dense=True)
    sent = [(t.direction, t.collective, t.payload.tolist()) for t in ledger.transfers]
    assert sent == [("up", "gather", [132] * 4), ("down", "broadcast", [132] * 4)]
    assert not torch.allclose(aggregated, x.mean(0))
    assert torch.equal(message.to_dense(), x)


def test_only_the_first_workers_attack():
    x = rows()
    for spec in ("sign-flip:2,scale=3", "noise:2", "alie:2"):
        sent = replaced(spec, x)
        assert torch.equal(sent[2:], x[2:])
        assert not torch.equal(sent[:2], x[:2])
    assert torch.equal(replaced("sign-flip:2,scale=3", x)[:2], -3 * x[:2])


def test_noise_is_normal_and_another_at_each_step_and_of_each_worker():
    x = torch.zeros(2, 20_000, dtype=torch.float64)
    first, second = replaced("noise:2,std=3", x), replaced("noise:2,std=3", x, step=1)
    for one, other in itertools.pairwise([first[0], first[1], second[0], second[1]]):
        assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 0.03
    assert first.std().item() == pytest.approx(3, rel=0.02)
    assert (first.abs() < 3).double().mean().item() == pytest.approx(0.6827, abs=0.01)


def test_a_little_is_enough():
    x = rows()
    others = x[2:]
    z = NormalDist().inv_cdf((5 - 2) / 5)  # s = 7 // 2 + 1 - 2 = 2 of the 5 others
    expected = others.mean(0) - z * ((others - others.mean(0)) ** 2).mean(0).sqrt()
    sent = replaced("alie:2", x)
    torch.testing.assert_close(sent[:2], expected.expand(2, N), rtol=1e-12, atol=1e-12)


def loss_after(steps, **settings):
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    x = torch.randn(8 * 8, 6, dtype=torch.float64)
    y = (x @ torch.randn(6, 3, dtype=torch.float64)).argmax(1)
    simulator = Simulator(model, nn.functional.cross_entropy, workers=8, lr=0.5, **settings)
    for _ in range(steps):
        simulator.step(x, y)
    return nn.functional.cross_entropy(simulator.evaluation_model()(x), y).item()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign-flip:2,scale=10", "noise:2,std=100"])
def test_robust_rules_train_where_the_mean_does_not(attack):
    whole = {"granularity": "model", "compress_if": "all"}
    assert loss_after(60, attack=attack) > 2
    for rule in ("median", "trimmed-mean:0.25", "krum:2", "krum:2,m=4"):
        assert loss_after(60, attack=attack, aggregate=rule, **whole) < 0.7


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"aggregate": "krum:1"}, "aggregate compares whole gradients, and here are 2 segments"),
        ({"aggregate": "krum:3"}, "aggregate needs at least 9 workers for 3 attackers, and has 8"),
        ({"aggregate": "krum:1,m=9"}, "aggregate takes 9 of 8 workers"),
        ({"aggregate": "trimmed-mean:0.5"}, r"has beta 0.5, which must lie in \[0, 0.5\)"),
        ({"aggregate": "median", "compressor": "topk:0.1"}, "needs every entry of each worker"),
        ({"aggregate": "median", "compressor": "powersgd:1"}, "has no meaning for a compressor"),
        ({"aggregate": "median", "downlink": "sign"}, "has no effect with aggregate median"),
        ({"attack": "sign-flip:8"}, "attack leaves nobody of the 8 workers to train"),
        ({"attack": "sign-flip:0"}, "attack needs at least 1 attacker"),
        ({"attack": "alie:5"}, "attack has no z for so many of 8 workers"),
        ({"attack": "noise:1,std=0"}, "has std 0, which must be above 0"),
        ({"attack": "lie"}, "attack is not known, got lie; did you mean alie"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, error):
    with pytest.raises(SettingError, match=error):
        loss_after(1, **settings)
