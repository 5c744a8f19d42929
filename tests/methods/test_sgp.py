"""SGP: push-sum keeps what there is, and finds the mean along links that go one way."""

import pytest
import torch
import torch.nn.functional as F

from simsgd import SettingError, Simulator
from simsgd.bench.consensus import gossip
from simsgd.communication.topology import topology
from simsgd.methods.algorithms.sgp import SGP

from .. import toy

W, STEPS = 5, 9
ARROWS = "0 > 1\n1 > 2\n2 > 3\n3 > 4\n4 > 0\n0 > 2\n0 > 3\n3 > 1\n"  # degrees 3, 1, 1, 2, 1


@pytest.fixture
def graph(tmp_path):
    """Return a file of links one way, of which no two workers send and receive equally many."""
    file = tmp_path / "arrows.txt"
    file.write_text(ARROWS)
    return str(file)


def weights_of(simulator):
    return [
        own.algorithm_state["weight"][:, 0].clone() for own in simulator.components.segment_states
    ]


def trained(algorithm="sgp", steps=STEPS, **settings):
    simulator = Simulator(toy.mlp(), workers=W, lr=0.1, algorithm=algorithm, **settings)
    weights, records = [], []
    for x, y in toy.batches(steps, 3 * W):
        records.append(simulator.step(x, y, 0))
        weights.append(weights_of(simulator) if algorithm == "sgp" else [])
    return simulator, records, weights


def test_who_sends_divides_by_its_links_and_itself(graph):
    a = topology(graph, W, one_way=True).at(0).weights
    assert torch.equal(a[:, 0], torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0], dtype=torch.float64))
    assert torch.equal(a[:, 1], torch.tensor([0.0, 0.5, 0.5, 0.0, 0.0], dtype=torch.float64))
    assert torch.equal(a.sum(0), torch.ones(W, dtype=torch.float64))
    assert (a.sum(1) - 1).abs().max() > 0.2


@pytest.mark.parametrize("name", ["arrows", "random-peer", "one-peer", "ring"])
def test_push_sum_alone_finds_the_mean_and_loses_nothing(name, graph):
    """With lr 0: z comes to the mean of the starts, and weights add up to W at every step."""
    name = graph if name == "arrows" else name
    x = torch.randn(W, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean, algorithm = x.mean(0), SGP(topology=name)
    before = (x - mean).norm()
    distances = gossip(algorithm, "none", x, 100)
    assert distances[-1] < 1e-9 < distances[0]
    torch.testing.assert_close(x, mean.expand_as(x), rtol=0, atol=1e-9)
    assert before > 1


@pytest.mark.parametrize("name", ["arrows", "random-peer", "one-peer"])
def test_weights_add_up_to_the_workers_at_every_step(name, graph):
    _, _, weights = trained(topology=graph if name == "arrows" else name)
    for step in weights:
        for own in step:
            assert float(own.sum()) == pytest.approx(W, abs=1e-12)
            assert (own > 0).all()
    apart = max(float((own - 1).abs().max()) for step in weights for own in step)
    assert (apart > 0.2) == (name != "one-peer")
    assert name != "one-peer" or apart == 0


@pytest.mark.parametrize("name", ["arrows", "random-peer"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_stochastic_gradient_push_is_its_formulas(name, momentum, graph):
    """Gradients at z, steps of x: with momentum the paper's Algorithm 3, without it its first."""
    name = graph if name == "arrows" else name
    simulator, _, weights = trained(topology=name, momentum=momentum)
    models = [toy.mlp() for _ in range(W)]
    names = [n for n, _ in models[0].named_parameters()]
    x = [[p.detach().clone() for p in own.parameters()] for own in models]
    u = [[torch.zeros_like(p) for p in own] for own in x]
    w = torch.ones(W, dtype=torch.float64)
    for step, (data, y) in enumerate(toy.batches(STEPS, 3 * W)):
        for i, (own, a, b) in enumerate(zip(models, data.chunk(W), y.chunk(W), strict=True)):
            parameters = list(own.parameters())
            gradients = torch.autograd.grad(F.cross_entropy(own(a), b), parameters)
            for k, g in enumerate(gradients):
                u[i][k] = momentum * u[i][k] + g
                x[i][k] = x[i][k] - 0.1 * u[i][k]
        mixing = topology(name, W, one_way=True).at(step).weights
        for k in range(len(names)):
            stacked = torch.stack([own[k] for own in x])
            mixed = torch.einsum("ij,j...->i...", mixing, stacked)
            for i in range(W):
                x[i][k] = mixed[i]
        w = mixing @ w
        for i, own in enumerate(models):
            for p, total in zip(own.parameters(), x[i], strict=True):
                p.data.copy_(total / w[i])
        torch.testing.assert_close(weights[step][0], w, rtol=0, atol=1e-14)
    for k, n in enumerate(names):
        wanted = torch.stack([list(own.parameters())[k].detach() for own in models])
        torch.testing.assert_close(simulator.parameters()[n], wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["one-peer", "ring"])
def test_where_rows_add_up_to_one_too_it_is_dpsgd(name):
    one, _, _ = trained(topology=name, momentum=0.9)
    other, _, _ = trained("dpsgd", topology=name, momentum=0.9)
    for n, value in other.parameters().items():
        torch.testing.assert_close(one.parameters()[n], value, rtol=0, atol=1e-13)


def test_a_model_and_a_weight_a_tensor_go_to_each_that_a_worker_sends_to(graph):
    _, [first, *_], _ = trained(topology=graph)
    size = 8 * sum(p.numel() + 1 for p in toy.mlp().parameters())
    assert first.payload_bytes == [size * degree for degree in (3, 1, 1, 2, 1)]
    _, [first, *_], _ = trained(topology="one-peer")
    assert first.payload_bytes == [size] * W
    assert first.bytes.on_links()[1] == [size] * W


def test_a_random_peer_is_another_worker_and_changes():
    whole = topology("random-peer", W, one_way=True)
    for mixing in whole.rounds:
        assert mixing.degree.tolist() == [1] * W
        assert torch.equal(mixing.own, torch.full((W,), 0.5, dtype=torch.float64))
    assert len({tuple(m.weights.flatten().tolist()) for m in whole.rounds}) > 10


@pytest.mark.parametrize("name", ["arrows", "random-peer"])
@pytest.mark.parametrize("algorithm", ["dpsgd", "choco"])
def test_links_one_way_are_refused_by_whom_they_would_mislead(algorithm, name, graph):
    name = graph if name == "arrows" else name
    with pytest.raises(SettingError, match="go one way, which only sgp allows"):
        Simulator(toy.mlp(), workers=W, lr=0.1, algorithm=algorithm, topology=name)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0 > 1\n1 > 2\n2 > 3\n3 > 4\n", "does not lead from every worker to every other"),
        ("0 > 5\n", "has no edge between two of the workers 0 to 4 in entry 1"),
        ("0 > 1\n1 2\n", "has edges with > and without"),
    ],
)
def test_links_that_cannot_be_are_refused(tmp_path, text, error):
    (tmp_path / "arrows.txt").write_text(text)
    with pytest.raises(SettingError, match=error):
        topology(str(tmp_path / "arrows.txt"), W, one_way=True)


def test_weights_of_a_file_need_columns_that_add_up_to_one(tmp_path):
    file = tmp_path / "weights.txt"
    file.write_text("0.5 0.25\n0.5 0.75\n")
    assert topology(str(file), 2, one_way=True).at(0).weights[0].tolist() == [0.5, 0.25]
    file = tmp_path / "others.txt"
    file.write_text("0.5 0.5\n0.25 0.75\n")
    with pytest.raises(SettingError, match=r"has a column of weights that adds up to 0\.75"):
        topology(str(file), 2, one_way=True)
