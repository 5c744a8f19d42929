import math

import networkx as nx
import pytest
import torch

from simsgd.communication.topology import about, topology
from simsgd.settings import SettingError

from ..reference_data import each

SIZES = {  # of graphs that have one for these numbers of workers
    "complete": [2, 3, 16],
    "ring": [2, 3, 16],
    "torus": [9, 12, 16, 36],
    "star": [2, 5, 16],
    "path": [2, 5, 16],
    "exponential": [2, 3, 7, 16],
    "hypercube": [2, 4, 16],
    "expander": [3, 7, 11, 13],
    "margulis": [4, 9, 16],
    "social": [32],
    "erdos-renyi:0.5": [8, 16],
}
ALL = [(name, size) for name, sizes in SIZES.items() for size in sizes]


def test_every_topology_is_tried():
    known = {name.partition(":")[0] for name in SIZES} | {"one-peer", "random-peer", "FILE"}
    assert known == set(about())


@pytest.mark.parametrize(("name", "workers"), ALL)
def test_weights_are_symmetric_doubly_stochastic_and_connected(name, workers):
    w = topology(name, workers).at(0).weights
    ones = torch.ones(workers, dtype=torch.float64)
    assert torch.equal(w, w.T)
    assert torch.allclose(w.sum(1), ones, atol=1e-12, rtol=0)
    assert (w >= 0).all()
    assert nx.is_connected(topology(name, workers).graph())
    assert topology(name, workers).at(0).spectral_gap > 1e-3


@each("topologies", lambda c: "_ours" in c["name"] or c["expected"]["doubly_stochastic"]
      if "expected" in c else False)  # fmt: skip
def test_weights_are_those_of_the_reference_where_these_add_up_to_one(case):
    mixing = topology(case["params"]["topology"], case["params"]["n"]).at(0)
    wanted = torch.tensor(case["expected"]["matrix"], dtype=torch.float64)
    gap = case["expected"]["spectral_gap_1_minus_second_largest_abs_eigenvalue"]
    assert torch.allclose(mixing.weights, wanted, atol=1e-8)
    assert mixing.spectral_gap == pytest.approx(gap, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "workers", "gap"),
    [("ring", 4, 2 / 3), ("ring", 16, 0.05075), ("ring", 36, 0.01013), ("ring", 8, 0.19526),
     ("ring", 64, 0.00321), ("torus", 16, 0.4), ("torus", 36, 0.2), ("torus", 64, 0.11716),
     ("complete", 16, 1.0)],
)  # fmt: skip
def test_spectral_gaps_are_those_printed_with_choco(name, workers, gap):
    assert topology(name, workers).at(0).spectral_gap == pytest.approx(gap, abs=5e-6)


@pytest.mark.parametrize(
    ("name", "workers", "degrees"),
    [("ring", 5, [2] * 5), ("ring", 2, [1, 1]), ("star", 4, [3, 1, 1, 1]), ("path", 3, [1, 2, 1]),
     ("torus", 9, [4] * 9), ("complete", 4, [3] * 4), ("hypercube", 8, [3] * 8),
     ("exponential", 8, [5] * 8), ("one-peer", 8, [1] * 8)],
)  # fmt: skip
def test_the_degree_is_to_how_many_others_a_worker_sends(name, workers, degrees):
    assert topology(name, workers).at(0).degree.tolist() == degrees


def test_the_social_graph_has_a_largest_degree_of_14():
    assert topology("social", 32).at(0).degree.max() == 14


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_one_peer_averages_exactly_after_as_many_rounds_as_the_number_has_bits(workers):
    graph = topology("one-peer", workers)
    assert len(graph.rounds) == int(math.log2(workers))
    whole = torch.eye(workers, dtype=torch.float64)
    for step in range(len(graph.rounds)):
        whole = graph.at(step).weights @ whole
    assert torch.allclose(whole, torch.full_like(whole, 1 / workers))


@pytest.mark.parametrize("workers", [3, 6, 16])
def test_every_round_of_one_peer_keeps_the_mean(workers):
    for mixing in topology("one-peer", workers).rounds:
        assert torch.allclose(mixing.weights.sum(0), torch.ones(workers, dtype=torch.float64))


@pytest.mark.parametrize("workers", [16, 64, 100])
def test_many_workers_mix_as_few_do(workers):
    mixing = topology("ring", workers).at(0)
    rows = torch.randn(workers, 7, dtype=torch.float64)
    assert torch.allclose(mixing.times(rows), mixing.weights @ rows, atol=1e-14)
    part = slice(workers // 4, workers // 2)
    assert torch.allclose(mixing.times(rows, part), (mixing.weights @ rows)[part], atol=1e-14)


@pytest.mark.parametrize("text", ["0 1\n1 2\n2 0\n", "# a triangle\n0, 1\n1, 2 # here\n\n0, 2\n"])
def test_a_file_of_edges_is_a_graph(tmp_path, text):
    file = tmp_path / "edges.txt"
    file.write_text(text)
    assert torch.equal(topology(str(file), 3).at(0).weights, topology("ring", 3).at(0).weights)


def test_a_file_of_weights_is_taken_as_it_is(tmp_path):
    file = tmp_path / "weights.csv"
    file.write_text("0.5,0.5\n0.5,0.5\n")
    assert topology(str(file), 2).at(0).weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_weights_of_two_workers_that_may_be_edges_are_refused(tmp_path):
    file = tmp_path / "edges.txt"
    for text in ("0 1\n1 0\n", "1 0\n0 1\n"):
        file.write_text(text)
        with pytest.raises(SettingError, match="is the edge between 2 workers as well as their"):
            topology(str(file), 2)
    file.write_text("0.0 1.0\n1.0 0.0\n")
    assert topology(str(file), 2).at(0).weights.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0 3\n", "has no edge between two of the workers 0 to 2 in entry 1"),
        ("0 1\n1 1\n", "in entry 2"),
        ("0 1\n1 2.5\n", "in entry 2"),
        ("0 1\n", "falls into 2 parts"),
        ("0 one\n", "cannot be read as numbers"),
        ("0.5 0.5 0\n0.5 0.5 0\n0 0 0.9\n", "has a row of weights that adds up to 0.9"),
        ("0.5 0.5 0\n0 0.5 0.5\n0.5 0 0.5\n", "has weights that are not symmetric"),
        ("2 -1 0\n-1 2 0\n0 0 1\n", "has weights below 0"),
        ("nan 1 0\n1 0 0\n0 0 1\n", "has weights below 0 or not finite"),
        ("1 0 0\n0 1 0\n0 0 1\n", "falls into 3 parts"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, error):
    file = tmp_path / "graph.txt"
    file.write_text(text)
    with pytest.raises(SettingError, match=error):
        topology(str(file), 3)


@pytest.mark.parametrize(
    ("name", "workers", "error"),
    [
        ("torus", 8, "has sides 2 x 4 for 8 workers; both must be at least 3"),
        ("torus", 4, "has sides 2 x 2"),
        ("torus", 7, "has sides 1 x 7"),
        ("social", 16, "is a graph of 32 workers, not 16"),
        ("hypercube", 12, "needs a power of 2"),
        ("expander", 8, "needs a prime number"),
        ("margulis", 8, "needs a square number"),
        ("ring", 1, "workers must be at least 2 for gossip"),
        ("erdos-renyi", 8, "needs a number"),
        ("erdos-renyi:2", 8, "needs a probability"),
        ("erdos-renyi:0.01", 16, "falls into"),
        ("ring:3", 8, "does not take these numbers"),
        ("rings", 8, "did you mean ring"),
        ("./nothing.txt", 8, "names a file that does not exist"),
    ],
)
def test_a_graph_that_does_not_exist_is_refused(name, workers, error):
    with pytest.raises(SettingError, match=error):
        topology(name, workers)
