"""Steps of a cluster, whose nodes are the workers of a run, by hand.

Letters: N nodes, G devices of each, m bytes of a gradient.
"""

import pytest

import simsgd
from simsgd.bench.advise import advise
from simsgd.results.cluster import Cluster
from simsgd.results.compute_times import ComputeTimes
from simsgd.results.network import Network, Way, reduce_and_broadcast
from simsgd.results.network_prices import prices
from simsgd.results.pricing import Pricing
from simsgd.results.step_times import step_times
from simsgd.settings import SettingError

from ..toy import TINY
from .test_step_times import made

# a thousand bytes a second between nodes, and ten thousand within them
TWO = Network("two", 8000.0, 0.5, within=Network("inner", 80_000.0, 0.25))
GIVEN = Pricing(compute_ms=3000, compress_ms=100, cluster="4x8")
ALL_REDUCE = 14 * (0.25 + 4000 / 8 / 1e4)  # a ring of 8 devices, 4000 bytes
ONE_AND_BACK = 16 * 0.25 + 4 * 7 / 8 * 0.4  # to one device of a node and back to all


def test_a_sum_at_one_and_back_is_four_halves_of_a_ring():
    assert reduce_and_broadcast(8) == Way(16, 3.5)
    assert reduce_and_broadcast(1) == Way(0, 0)


def test_nodes_of_which_each_serves_a_part_send_it_to_each_other(tmp_path):
    times = step_times(made(tmp_path, [{"collective": "all-to-all"}]), TWO, GIVEN).iloc[0]
    assert times["communication"] == pytest.approx(ONE_AND_BACK + 3 * (0.5 + 0.25))


def test_a_compressed_step_reduces_exchanges_and_broadcasts(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    times = step_times(run, TWO, GIVEN).iloc[0]
    assert times["communication"] == pytest.approx(ONE_AND_BACK + 3 * (0.5 + 1.0))
    assert times["total"] == pytest.approx(3 + 0.1 + ONE_AND_BACK + 4.5)
    assert times["dense"] == pytest.approx(3 + ALL_REDUCE + 6 * (0.5 + 1.0))
    assert times["latency"] == pytest.approx(16 * 0.25 + 3 * 0.5)
    assert times["messages"] == 3


def test_an_uncompressed_step_is_as_fast_as_itself(tmp_path):
    run = made(tmp_path, [{"collective": "all-reduce"}], payload=4000, relative_error=0)
    times = step_times(run, TWO, GIVEN).iloc[0]
    assert times["communication"] == pytest.approx(ALL_REDUCE + 6 * (0.5 + 1.0))
    assert times["total"] == pytest.approx(times["dense"])


def test_a_node_of_one_device_is_a_worker(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    alone = Pricing(compute_ms=3000, compress_ms=100, cluster="4x1")
    flat = step_times(run, Network("flat", 8000.0, 0.5), Pricing(3000, 100))
    assert step_times(run, TWO, alone).equals(flat)


def test_devices_share_what_a_node_was_measured_to_compute(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}], compute_seconds=2.0)
    shared = Pricing(compress_ms=0, cluster="4x8")
    assert step_times(run, TWO, shared)["compute"][0] == 0.25


def test_equal_devices_wait_for_nobody_in_any_rounding(tmp_path):
    for place, compute in enumerate((0.1, 0.3, 0.7, 1 / 3)):
        run = made(tmp_path, [{"collective": "all-gather"}], str(place), compute_seconds=compute)
        priced = Pricing(compress_ms=1000 * compute, cluster="4x8")
        inner = Network("inner", 7e4, compute / 9)
        times = step_times(run, Network("two", 7000.0, 0.1, within=inner), priced)
        assert times["stragglers"].tolist() == [0, 0]


def test_a_node_is_as_slow_as_its_slowest_device():
    law = ComputeTimes(0.1, 0.3)
    devices = law.drawn(5, 32)
    nodes = Cluster(4, 8).drawn(law, 5)
    assert nodes.shape == (5, 4)
    assert (nodes[:, 1] == devices[:, 8:16].max(1)).all()
    assert Cluster(4, 8).drawn(ComputeTimes(0.1), 5).shape == (5, 1)


@pytest.mark.parametrize("compute_ms", [3000, "lognormal:3000,1e-12"])
def test_nodes_of_local_sgd_add_up_inside_in_every_step(tmp_path, compute_ms):
    """Islands that exchange models every fourth step, whose devices all-reduce in the others."""
    run = simsgd.train(
        **{**TINY, "workers": 4, "epochs": 1}, algorithm="local", local_steps=4,
        runs_dir=tmp_path, quiet=True,
    )  # fmt: skip
    times = step_times(run, TWO, Pricing(compute_ms, 0, cluster="4x8"))
    sends = (run.steps["network_bytes"] > 0).to_numpy()
    assert 0 < sends.sum() < len(sends)
    m = run.steps["dense_bytes"][0]
    inside = 14 * (0.25 + m / 8 / 1e4)
    between = 6 * (0.5 + m / 4 / 1e3)
    assert times["communication"][~sends].tolist() == pytest.approx([inside] * sum(~sends))
    assert times["communication"][sends].tolist() == pytest.approx([inside + between] * sum(sends))
    assert times["total"].tolist() == pytest.approx((3 + times["communication"]).tolist(), rel=1e-6)


def test_advice_prices_a_cluster_as_a_run(tmp_path):
    settings = {**TINY, "compressor": "topk:0.1", "workers": 4, "epochs": 1}
    run = simsgd.train(**settings, runs_dir=tmp_path, quiet=True)
    how = {"compute_ms": 3, "compress_ms": 1, "cluster": "4x8"}
    link = "nvlink,10gbe"
    (row,) = prices([run], [Network.of(link)], Pricing(**how))
    shape = {"input_shape": "1x8x8", "model": TINY["model"], "model_config": TINY["model_config"]}
    advice = advise(link, "topk:0.1", **shape, **how)
    (offer,) = advice.offers[link]
    assert 1000 * offer.communication == pytest.approx(row["communication_ms"])
    assert 1000 * offer.total == pytest.approx(row["total_ms"])
    assert 1000 * offer.dense == pytest.approx(row["dense_ms"])
    assert 1000 * offer.latency == pytest.approx(row["latency_ms"])
    assert "mlp, 4 nodes of 8 devices on nvlink,10gbe: 2400 Gbit/s, 2 us within nodes" in (
        advice.summary()
    )


@pytest.mark.parametrize(
    ("spec", "inner", "outer"),
    [
        ("nvlink,10gbe", 2400e9, 10e9),
        ("nvlink,latency=1us,wan,bandwidth=1Gbit", 2400e9, 1e9),
        ("bandwidth=25Gbit,latency=5us,bandwidth=1Gbit,latency=1ms", 25e9, 1e9),
        ("bandwidth=25Gbit,latency=5us,1gbe", 25e9, 1e9),
    ],
)
def test_a_spec_may_name_two_networks(spec, inner, outer):
    network = Network.of(spec)
    assert (network.name, network.within.bandwidth, network.bandwidth) == (spec, inner, outer)


def test_a_public_function_takes_it(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    table = simsgd.network(run.folder, "nvlink,1gbe", cluster="4x8", compute_ms=1, compress_ms=1)
    assert table["network"].tolist() == ["nvlink,1gbe"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"cluster": "8x4"}, r"^cluster has 8 nodes, each a worker, and here are 4 workers, .*8x4"),
        ({"cluster": "4 x 8"}, r"^cluster must be how many nodes and how many devices of each"),
        ({"cluster": "4x0"}, r"^cluster must be how many nodes"),
        ({"cluster": "4x8", "network": "wan"}, r"^network is one network, and a cluster has one"),
        ({}, r"^network is two networks, and only a cluster has one within its nodes"),
        ({"cluster": "4x8", "overlap": "perfect"}, r"^overlap is not priced on a cluster"),
        ({"network": "nvlink,10gbe,10gbe", "cluster": "4x8"}, r"^network "),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, settings, error):
    run = made(tmp_path, [{"collective": "all-gather"}])
    with pytest.raises(SettingError, match=error):
        simsgd.network(run.folder, **{"network": "nvlink,10gbe", "compute_ms": 1, **settings})


def test_a_network_that_does_not_suit_one_run_names_the_run(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    with pytest.raises(SettingError, match=r"such as nvlink,10gbe \(of the run run\)$"):
        simsgd.network(run.folder, "nvlink", cluster="4x8", compute_ms=1)
