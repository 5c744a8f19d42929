import math
import subprocess
import sys

import pytest

from simsgd.results.network import (
    COLLECTIVES,
    NETWORKS,
    Network,
    Way,
    gloo_all_reduce,
    neighbor_exchange,
    networks_of,
    pairwise_all_to_all,
    parameter_server,
    ring_all_gather,
    ring_all_reduce,
    tree_all_reduce,
    way_of,
)
from simsgd.settings import SettingError

SLOW = Network("slow", bandwidth=8000.0, latency=0.5)  # a thousand bytes a second


def seconds(way, num_bytes, network=SLOW):
    return network.seconds(way.hops, way.share * num_bytes)


# by hand


def test_a_ring_all_reduce_of_a_thousand_bytes_among_four_takes_six_hops_of_a_quarter():
    assert seconds(ring_all_reduce(4), 1000) == 6 * (0.5 + 0.25)


def test_a_tree_all_reduce_goes_up_two_levels_and_down_again_with_the_whole_buffer():
    assert seconds(tree_all_reduce(4), 1000) == 2 * 2 * (0.5 + 1.0)


@pytest.mark.parametrize(("workers", "depth"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_a_tree_is_as_deep_as_the_logarithm_rounded_up(workers, depth):
    assert tree_all_reduce(workers) == Way(2 * depth, 2 * depth)


def test_a_ring_all_gather_among_four_passes_three_whole_buffers_on():
    assert seconds(ring_all_gather(4), 1000) == 3 * (0.5 + 1.0)


def test_an_all_to_all_among_four_sends_a_quarter_to_each_of_three_in_turn():
    assert seconds(pairwise_all_to_all(4), 1000) == 3 * (0.5 + 0.25)


def test_a_parameter_server_among_four_receives_three_together_and_answers_three():
    assert seconds(parameter_server(4), 1000) == 0.5 + 3 * 1.0


def test_headers_take_their_part_of_the_bandwidth():
    link = Network.of("bandwidth=1MB,latency=1ms,framing=1.5")
    assert link.seconds(2, 1e6) == 2e-3 + 1.5
    with pytest.raises(SettingError, match=r"must have a framing of at least 1"):
        Network.of("1gbe,framing=0.9")


def test_two_neighbors_receive_one_after_the_other():
    assert seconds(neighbor_exchange(2), 1000) == 2 * (0.5 + 1.0)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("all_reduce", ["ring", "tree"])
def test_alone_a_worker_sends_nothing(collective, all_reduce):
    assert way_of(collective, 1, degree=2, all_reduce=all_reduce) == Way(0, 0)


def test_each_collective_of_the_ledger_has_its_way():
    ways = {name: way_of(name, 8) for name in COLLECTIVES if name != "neighbours"}
    server = parameter_server(8)
    assert ways == {
        "all-reduce": ring_all_reduce(8),
        "all-gather": ring_all_gather(8),
        "all-to-all": pairwise_all_to_all(8),
        "gather": server,
        "broadcast": server,
    }
    assert way_of("neighbours", 8, degree=3) == neighbor_exchange(3)
    assert way_of("all-reduce", 8, all_reduce="tree") == tree_all_reduce(8)


# a ring, hop by hop


def stepped_ring(buffers):
    """Return bytes passed on each hop of an all-gather: all workers pass on what they got last."""
    count = len(buffers)
    for hop in range(count - 1):
        yield max(buffers[(worker - hop) % count] for worker in range(count))


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_the_formula_of_the_ring_is_what_its_hops_take(workers):
    gathered = sum(SLOW.seconds(1, size) for size in stepped_ring([1000.0] * workers))
    assert seconds(ring_all_gather(workers), 1000) == pytest.approx(gathered, rel=1e-14)
    shares = [1000 / workers] * workers  # an all-reduce passes a share round twice
    reduced = 2 * sum(SLOW.seconds(1, size) for size in stepped_ring(shares))
    assert seconds(ring_all_reduce(workers), 1000) == pytest.approx(reduced, rel=1e-14)


@pytest.mark.parametrize(("size", "hop"), [(8000.0, 2.0), (4000.0, 1.0), (2000.0, 0.75)])
def test_gloos_ring_hides_a_latency_behind_the_other_chunk(size, hop):
    """Of 4 workers' hops, half a second of latency each; a quarter goes in two chunks by turns."""
    link = [0.0, 0.0]  # when each chunk has arrived
    free = 0.0  # when the link is
    for _ in range(6):
        for chunk in range(2):
            free = max(free, link[chunk]) + size / 4 / 2 / 1000
            link[chunk] = free + 0.5
    assert link[1] == pytest.approx(6 * hop + 0.5, abs=0.26)
    assert gloo_all_reduce(4).seconds(SLOW, 1, size) == 6 * hop
    assert gloo_all_reduce(4).seconds(SLOW, 3, 3 * size) == 18 * hop


def test_a_ring_waits_for_the_largest_buffer_at_every_hop():
    assert list(stepped_ring([10, 1000, 20, 30])) == [1000] * 3


# what others publish


@pytest.mark.parametrize("workers", [2, 8, 64])
def test_bus_bandwidth_is_that_of_nccl_tests(workers):
    """NVIDIA nccl-tests, doc/PERFORMANCE.md: busbw = S/t * 2 (n - 1)/n, and * (n - 1)/n of nS."""
    free = Network("free", bandwidth=8e9, latency=0.0)  # 1 GB/s
    reduced = 1e6 / seconds(ring_all_reduce(workers), 1e6, free) * 2 * (workers - 1) / workers
    whole = 1e6 * workers
    gathered = whole / seconds(ring_all_gather(workers), 1e6, free) * (workers - 1) / workers
    assert (reduced, gathered) == (pytest.approx(1e9), pytest.approx(1e9))


def test_a_rings_bytes_hardly_grow_with_workers_and_a_servers_grow_linearly():
    """Baidu Research, "Bringing HPC Techniques to Deep Learning", 2017."""
    assert ring_all_reduce(1000).share / ring_all_reduce(10).share == pytest.approx(1.11)
    assert parameter_server(1000).share / parameter_server(10).share == 111


@pytest.mark.parametrize("workers", [4, 16, 64])
def test_a_sparse_all_gather_wins_on_bytes_below_a_density_of_one_in_w(workers):
    """Of n entries, k with a 4-byte index each: 8 k (W - 1) < 8 n (W - 1) / W iff k < n / W."""
    n = 6400
    dense = ring_all_reduce(workers).share * 4 * n
    at_break_even = ring_all_gather(workers).share * 8 * (n // workers)
    assert at_break_even == pytest.approx(dense)


def test_latency_of_a_ring_is_linear_and_of_a_tree_logarithmic():
    """NVIDIA, "Massively Scale Your Deep Learning Training with NCCL 2.4", 2019."""
    assert (ring_all_reduce(1024).hops, tree_all_reduce(1024).hops) == (2046, 20)


# specs


@pytest.mark.parametrize(
    ("spec", "bandwidth", "latency"),
    [
        ("1gbe", 1e9, 50e-6),
        ("wan", 1e8, 0.05),
        ("bandwidth=10Gbit,latency=50us", 1e10, 50e-6),
        ("latency=2us, bandwidth=300GB/s", 2.4e12, 2e-6),
        ("bandwidth=2.5Mbit/s,latency=1s", 2.5e6, 1.0),
        ("10gbe,latency=0us", 1e10, 0.0),
    ],
)
def test_a_network_is_a_name_or_its_numbers_or_both(spec, bandwidth, latency):
    network = Network.of(spec)
    assert (network.name, network.bandwidth, network.latency) == (spec, bandwidth, latency)


def test_the_names_run_from_slow_to_fast():
    bandwidths = [network.bandwidth for network in NETWORKS.values()]
    assert bandwidths == sorted(bandwidths)
    assert all(0 < network.latency < math.inf for network in NETWORKS.values())


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("10gb", "is not known, got 10gb; did you mean 10gbe"),
        ("", "is not known, got ''"),
        ("bandwidth=10Gbit", "lacks its latency"),
        ("latency=1us", "lacks its bandwidth"),
        ("bandwidth=10Gb,latency=1us", "must have its bandwidth as a number and one of Gbit"),
        ("bandwidth=fast,latency=1us", "must have its bandwidth as a number"),
        ("10gbe,latency=-1us", "has latency -1us, which must be a finite number of at least 0"),
        ("10gbe,speed=3", "has no setting speed"),
        ("bandwidth=0Gbit,latency=0s", "must have a bandwidth greater than 0"),
    ],
)
def test_a_wrong_network_is_refused_in_one_line(spec, error):
    with pytest.raises(SettingError, match=f"^network {error}"):
        Network.of(spec)


def test_a_network_given_twice_is_one():
    assert [n.name for n in networks_of(["wan", "10gbe", "wan"])] == ["wan", "10gbe"]


@pytest.mark.parametrize("room", ["results.network", "results.step_times"])
def test_pricing_loads_no_torch(room):
    code = f"import sys, simsgd.{room}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
