"""PowerGossip: power iteration on the difference of two models, link by link."""

import pytest
import torch
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.communication.ledger import Ledger
from simsgd.communication.segments import Layout
from simsgd.communication.topology import topology
from simsgd.communication.transport import Channel, InProcess
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.algorithms import ExchangeContext
from simsgd.methods.algorithms.powergossip import PowerGossip
from simsgd.methods.compressors import StepInfo
from simsgd.methods.compressors.none import NoCompression
from simsgd.simulator.step_bytes import sizes

from .. import toy

ROWS, COLS = 7, 5


class Rounds:
    """Exchanges of one matrix of each worker, `x` [W, rows, cols], without any training."""

    def __init__(self, x, wire=None, **settings):
        self.workers = len(x)
        layout = Layout.of({"m": x.shape[1:]}, "layer", "all")
        self.algorithm = PowerGossip(**settings).for_layout(layout, self.workers)
        self.segment = layout.segments[0]
        self.channel = Channel(InProcess(), Ledger(self.workers), wire or Wire())
        self.state = self.algorithm.init(x.flatten(1), self.segment)
        self.x, self.step = x, 0

    def go(self, steps=1):
        for _ in range(steps):
            key = RandomKey(0, torch.arange(self.workers)).fold_in(self.step)
            info = StepInfo(key, self.step, segment="m")
            context = ExchangeContext(NoCompression(), {}, info, self.segment, self.channel)
            self.algorithm.parameters(self.x.view(self.workers, -1), context, self.state)
            self.step += 1
        return self.x


def models(workers, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(workers, ROWS, COLS, generator=generator, dtype=torch.float64)


def test_two_workers_with_all_directions_get_the_mean_at_once():
    x = models(2)
    mean = x.mean(0)
    Rounds(x, rank=9).go()
    torch.testing.assert_close(x, mean.expand_as(x), rtol=0, atol=1e-13)


def test_a_difference_of_rank_one_is_gone_after_two_multiplications():
    x = models(2)
    x[1] = x[0] + torch.outer(x[1, :, 0], x[1, 0])
    mean = x.mean(0)
    rounds = Rounds(x)
    first = (rounds.go()[0] - x[1]).norm()
    assert first > 1e-3
    torch.testing.assert_close(rounds.go(), mean.expand_as(x), rtol=0, atol=1e-13)


def test_the_direction_of_the_largest_difference_is_found():
    """While two models stay apart, p and q come to the first singular vectors."""
    start = models(2)
    rounds = Rounds(start.clone())
    for _ in range(200):
        rounds.x = start.clone()
        rounds.go()
    left, _, right = torch.linalg.svd(start[1] - start[0])
    for name, vector in (("p", left[:, 0]), ("q", right[0])):
        found = rounds.state[name][0, 0, :, 0]
        assert abs(float(found @ vector / found.norm())) == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "iterations"), [(1, 1), (1, 3), (2, 2), (9, 1)])
@pytest.mark.parametrize("graph", ["ring", "star"])
def test_workers_come_together_at_their_mean(graph, rank, iterations):
    x = models(5)
    mean = x.mean(0)
    before = (x - mean).norm()
    Rounds(x, topology=graph, rank=rank, iterations=iterations).go(400)
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=1e-13)
    assert (x - mean).norm() < 1e-6 * before


@pytest.mark.parametrize("graph", ["ring", "star", "path"])
def test_powergossip_is_the_loop_over_links(graph):
    """From the directions of a first step on, against a loop over pairs with nothing in common."""
    x, rank = models(5), 2
    rounds = Rounds(x, topology=graph, rank=rank)
    weights = topology(graph, 5).at(0).weights
    links = [(i, j) for i in range(5) for j in range(i + 1, 5) if weights[i, j]]
    rounds.go()
    neighbors = topology(graph, 5).at(0).neighbors.tolist()
    found = {(i, j): rounds.state["p"][i, neighbors[i].index(j)].clone() for i, j in links}
    wanted = x.clone()
    for step in range(1, 6):
        moved = torch.zeros_like(wanted)
        for i, j in links:
            basis, _ = torch.linalg.qr(found[i, j])
            difference = wanted[j] - wanted[i]
            if step % 2:
                found[i, j] = difference.T @ basis
                step_ = basis @ found[i, j].T
            else:
                found[i, j] = difference @ basis
                step_ = found[i, j] @ basis.T
            moved[i] += weights[i, j] * step_
            moved[j] -= weights[i, j] * step_
        wanted += moved
        torch.testing.assert_close(rounds.go(), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_both_ends_of_a_link_hold_the_same_directions_whatever_is_rounded(graph):
    rounds = Rounds(models(5), wire=Wire("float16"), topology=graph)
    rounds.go(5)
    neighbors = topology(graph, 5).at(0).neighbors.tolist()
    for i in range(5):
        for at, j in enumerate(neighbors[i]):
            for value in rounds.state.values():
                other = value[j, neighbors[j].index(i)] if j >= 0 else torch.zeros_like(value[0, 0])
                assert torch.equal(value[i, at], other)


@pytest.mark.parametrize("graph", ["ring", "star"])
def test_with_all_directions_a_square_matrix_is_mixed_as_by_dpsgd(graph):
    settings = {"workers": 5, "lr": 0.1, "momentum": 0.9, "topology": graph}
    layers = [nn.Linear(6, 6).double() for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    one = Simulator(layers[0], algorithm="powergossip:rank=6", **settings)
    other = Simulator(layers[1], algorithm="dpsgd", **settings)
    for x, y in toy.batches(6, 15):
        one.step(x, y, 0)
        other.step(x, y, 0)
    assert one.consensus_distance() > 1e-3
    for name, value in other.parameters().items():
        torch.testing.assert_close(one.parameters()[name], value, rtol=0, atol=1e-11)


def test_models_that_do_not_differ_stay():
    x = models(1).repeat(4, 1, 1)
    before = x.clone()
    assert torch.equal(Rounds(x).go(3), before)


def test_rows_and_columns_go_over_each_link_in_turn():
    shapes = {"m": (30, 20), "b": (30,)}
    size = lambda **more: sizes(shapes, workers=6, topology="ring", **more)  # noqa: E731
    one = size(algorithm="powergossip")
    assert one.step_payloads == (2 * 4 * (30 + 30), 2 * 4 * (20 + 30))
    assert size(algorithm="powergossip:rank=3").step_payloads == (2 * 4 * 120, 2 * 4 * 90)
    assert size(algorithm="powergossip:iterations=2").step_payloads == (2 * 4 * (50 + 30),)
    assert size(algorithm="powergossip:rank=99").step_payloads == (2 * 4 * 630, 2 * 4 * 430)
    star = sizes(shapes, workers=6, topology="star", algorithm="powergossip")
    assert star.step_payloads == (5 * 4 * 60, 5 * 4 * 50)


def test_bytes_of_steps_are_those_of_the_links():
    simulator = Simulator(
        toy.mlp(), workers=5, lr=0.1, algorithm="powergossip", topology="path"
    )  # fmt: skip
    rows, cols, biases = 8 + 3, 6 + 8, 8 + 3
    for step, (x, y) in enumerate(toy.batches(4, 15)):
        record = simulator.step(x, y, 0)
        size = 8 * ((cols if step % 2 else rows) + biases)
        assert record.payload_bytes == [size * degree for degree in (1, 2, 2, 2, 1)]
        assert record.bytes.on_links()[1] == record.payload_bytes
        assert record.network_bytes == sum(record.payload_bytes)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"compressor": "topk:0.1"}, "must be none with algorithm powergossip"),
        ({"granularity": "model"}, "granularity must be layer with algorithm powergossip"),
        ({"topology": "one-peer"}, "has neighbors that change"),
        ({"algorithm": "powergossip:rank=0"}, "must be at least 1"),
        ({"algorithm": "powergossip:iterations=0"}, "must be at least 1"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(settings, error):
    with pytest.raises(SettingError, match=error):
        Simulator(toy.mlp(), **{"workers": 4, "lr": 0.1, "algorithm": "powergossip", **settings})
