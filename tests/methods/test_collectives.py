"""Sparse messages become their mean in several ways, and nothing is lost in any.

Letters: W workers, n elements of one segment, k kept.
"""

import pytest
import torch

import simsgd
from simsgd import Simulator
from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import Dense, Sparse
from simsgd.communication.segments import Segment
from simsgd.communication.transport import Channel, InProcess
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.algorithms import AllReduce, ExchangeContext
from simsgd.methods.collectives import exchange_sparse, received_bytes
from simsgd.methods.collectives.gtopk import merged
from simsgd.methods.collectives.oktopk import of_region, region
from simsgd.methods.compressors import StepInfo, composed
from simsgd.methods.memories import DGC, Residual
from simsgd.simulator.step_bytes import sizes

from ..toy import TINY, batches, mlp, normal

WAYS = ("allgather", "gtopk", "oktopk", "cltk", "dense", "auto")
CASES = [(way, w) for way in WAYS for w in (1, 2, 3, 4, 7, 8)]


def segment(n):
    return Segment("s", ("s",), (torch.Size([n]),), dense=False)


def exchanged(way, x, k, step=0, wire=None):
    """Return what was accepted, the mean, and the bytes of the step."""
    message = composed(f"topk:{k / x.shape[1]}").compress(x, {}, None)
    assert message.index.shape[1] == k
    channel = Channel(InProcess(), Ledger(len(x)), wire or Wire())
    sent, mean = exchange_sparse(way, message, x, step, segment(x.shape[1]), channel)
    return sent, mean, channel.ledger.close(0)


def like(workers, n, seed=0):
    """Return gradients that have something in common, [W, n]."""
    return normal(1, n, seed + 100, torch.float64) + normal(workers, n, seed, torch.float64)


@pytest.mark.parametrize(("way", "received"), [("allgather", 120_000), ("gtopk", 32_000)])
def test_a_worker_receives_the_bytes_that_the_papers_say(way, received):
    """A million entries, a thousand kept, 16 workers, 8 bytes an entry."""
    assert counted(way).received_bytes == received


def counted(way):
    return sizes(
        {"w": (1000, 1000)}, compressor="topk:0.001", workers=16, collective=way, compress_if="all"
    )


@pytest.mark.slow
def test_oktopk_brings_less_than_six_k_words_and_cltk_half_of_that():
    assert 15_000 < counted("oktopk").received_bytes < 22_500
    assert counted("cltk").received_bytes == 4000 * 15 // 16 + 2 * 4000 * 15 // 16


@pytest.mark.parametrize(("way", "workers"), CASES)
def test_what_was_accepted_adds_up_to_the_mean_times_the_workers(way, workers):
    for seed in range(3):
        x = like(workers, 200, seed)
        sent, mean, _ = exchanged(way, x, 12, step=seed)
        assert torch.allclose(sent.to_dense().sum(0), workers * mean, atol=1e-12)
        own = sent.to_dense()
        assert torch.equal(own, x.where(own != 0, 0))  # each entry whole, or not at all
        assert (mean != 0).sum() >= 1


@pytest.mark.parametrize(("way", "workers"), CASES)
@pytest.mark.parametrize("memory", [Residual(), DGC(0.0)])
def test_nothing_is_lost_only_delayed(way, workers, memory):
    algorithm, compressor = AllReduce(collective=way), composed("topk:0.05")
    own = segment(100)
    channel = Channel(InProcess(), Ledger(workers), Wire())
    state = memory.init(torch.zeros(workers, 100, dtype=torch.float64), dense=False)
    fed = moved = 0
    for number in range(6):
        gradient = like(workers, 100, number)
        compensated = memory.compensate(gradient, state)
        key = RandomKey(0, torch.arange(workers)).fold_in(number, "s")
        step = StepInfo(key, number, segment="s")
        context = ExchangeContext(compressor, {}, step, own, channel)
        message, mean = algorithm.gradients(compensated, context)
        memory.update(compensated, message, state)
        fed, moved = fed + gradient.sum(0), moved + workers * mean
    assert torch.allclose(fed, moved + state["residual"].sum(0), atol=1e-11)
    assert state["residual"].abs().sum() > 0


@pytest.mark.parametrize("way", ["gtopk", "oktopk"])
def test_at_most_k_entries_move(way):
    _, mean, _ = exchanged(way, like(8, 300), 10)
    assert (mean != 0).sum() == 10


def test_gtopk_is_the_tree_of_merges_of_its_paper():
    x = like(8, 60)
    groups = [{int(i): float(v[i]) for i in v.abs().topk(5).indices} for v in x]
    while len(groups) > 1:
        groups = [largest_of(a, b) for a, b in zip(groups[::2], groups[1::2], strict=True)]
    _, mean, _ = exchanged("gtopk", x, 5)
    assert {int(i): pytest.approx(8 * float(mean[i])) for i in mean.nonzero()[:, 0]} == groups[0]


@pytest.mark.parametrize("workers", [3, 5, 6, 7, 12])
def test_gtopk_of_other_numbers_merges_the_rest_into_the_first_before(workers):
    x = like(workers, 60)
    groups = [{int(i): float(v[i]) for i in v.abs().topk(5).indices} for v in x]
    pairs = 1 << (workers.bit_length() - 1)
    extra = workers - pairs
    first = [largest_of(a, b) for a, b in zip(groups[:extra], groups[pairs:], strict=True)]
    groups = [*first, *groups[extra:pairs]]
    while len(groups) > 1:
        groups = [largest_of(a, b) for a, b in zip(groups[::2], groups[1::2], strict=True)]
    _, mean, step = exchanged("gtopk", x, 5)
    found = {int(i): pytest.approx(workers * float(mean[i])) for i in mean.nonzero()[:, 0]}
    assert found == groups[0]
    _, received = step.on_links()
    most = (workers - 1).bit_length() * 5 * (8 + 4)
    assert max(received) == most
    assert received[pairs:] == [most] * extra  # no more than the worker that it goes with


def test_gtopk_of_three_workers_rejects_what_any_merge_of_a_group_dropped():
    """Worker 2 goes with worker 0, whose 3 its 5 drops; then both lose against worker 1's 9."""
    x = torch.zeros(3, 6, dtype=torch.float64)
    x[0, 0], x[1, 1], x[2, 2] = 3.0, 9.0, 5.0
    sent, mean, _ = exchanged("gtopk", x, 1)
    assert (3 * mean).tolist() == [0, 9.0, 0, 0, 0, 0]
    assert sent.entries().tolist() == [0, 1, 0]
    x[1, 1], x[1, 0] = 0.0, 9.0  # the place that was dropped comes back, without worker 0's 3
    sent, mean, _ = exchanged("gtopk", x, 1)
    assert (3 * mean).tolist() == [9.0, 0, 0, 0, 0, 0]
    assert sent.entries().tolist() == [0, 1, 0]


def largest_of(one, other):
    total = {i: one.get(i, 0) + other.get(i, 0) for i in {*one, *other}}
    return dict(sorted(total.items(), key=lambda pair: -abs(pair[1]))[:5])


def test_a_place_that_a_merge_dropped_is_rejected_though_another_group_brings_it_back():
    """Worker 0's 3 at place 0 is dropped in the first merge, and that of 2 and 3 stays."""
    x = torch.zeros(4, 6, dtype=torch.float64)
    x[0, 0], x[1, 1], x[2, 0], x[3, 2] = 3.0, 5.0, 9.0, 1.0
    sent, mean, _ = exchanged("gtopk", x, 1)
    assert (4 * mean).tolist() == [9.0, 0, 0, 0, 0, 0]
    assert sent.entries().tolist() == [0, 0, 1, 0]


def test_of_equal_magnitudes_the_lowest_place_is_kept_whoever_merges():
    places = torch.tensor([[1, 4]]), torch.tensor([[2, 4]])
    one, other = (Sparse.of(torch.tensor([[1.0, 0.5]]), index, 6) for index in places)
    for pair in ((one, other), (other, one)):
        assert merged(*pair).index.tolist() == [[1, 2]]
        assert merged(*pair).values.tolist() == [[1.0, 1.0]]


def test_a_place_that_both_have_is_kept_once_though_nothing_else_is_there():
    one = Sparse.of(torch.tensor([[1.0, 0.0]]), torch.tensor([[1, 4]]), 6)
    assert merged(one, one).index.tolist() == [[1, 4]]
    assert merged(one, one).values.tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize("workers", [2, 3, 8, 16])
def test_oktopk_is_the_top_k_of_the_sum_of_what_all_chose(workers):
    x = like(workers, 5000)
    sent, mean, _ = exchanged("oktopk", x, 100)
    chosen = torch.zeros_like(x).scatter_(1, x.abs().topk(100).indices, 1.0) * x
    total = chosen.sum(0)
    kept = total.abs().topk(100).indices
    assert torch.allclose(workers * mean, torch.zeros_like(total).index_put((kept,), total[kept]))
    assert torch.equal(sent.to_dense() != 0, (chosen != 0) & (mean != 0))


def test_regions_are_as_large_as_others_whatever_the_pattern():
    for stride in (1, 3, 16, 64):
        own = region(torch.arange(0, stride * 16_000, stride), 16).bincount(minlength=16)
        assert 900 < own.min() <= own.max() < 1100
    assert of_region(1000, 16, 10**6) == 63 + 4 * 8
    assert of_region(1000, 1, 10**6) == 1000


@pytest.mark.parametrize("workers", [3, 4, 8])
def test_the_leader_of_the_step_chooses_the_places_of_all(workers):
    x = like(workers, 200)
    for step in (0, 1, workers + 1):
        sent, mean, _ = exchanged("cltk", x, 10, step)
        index = x[step % workers].abs().topk(10).indices.sort().values
        assert torch.allclose(mean[index], x[:, index].mean(0))
        assert (mean != 0).sum() == 10
        assert torch.equal(sent.index, index.expand(workers, -1))


def test_cltk_and_dense_take_values_in_fewer_bits_and_keep_the_error():
    x = like(4, 50)
    for way in ("cltk", "dense"):
        sent, mean, _ = exchanged(way, x, 5, wire=Wire("float16"))
        assert torch.allclose(sent.to_dense().sum(0), 4 * mean, atol=1e-12)
        assert not torch.equal(sent.to_dense(), x.where(sent.to_dense() != 0, 0))


def test_dense_is_the_mean_of_an_all_gather():
    x = like(4, 50)
    gathered, dense = exchanged("allgather", x, 5), exchanged("dense", x, 5)
    assert torch.allclose(gathered[1], dense[1])
    assert (int(gathered[2].payload[0]), int(dense[2].payload[0])) == (5 * (8 + 4), 50 * 8)


@pytest.mark.parametrize("way", WAYS[:-1])
def test_the_bytes_of_what_was_accepted_are_all_that_was_handed_over(way):
    sent, _, counted_bytes = exchanged(way, like(4, 200), 12)
    assert sent.payload_bytes().tolist() == counted_bytes.payload.tolist()


@pytest.mark.parametrize("wire", [Wire(), Wire(index_dtype="packed")], ids=["int32", "packed"])
@pytest.mark.parametrize(("n", "k", "workers"), [(1000, 10, 8), (500, 50, 4), (100, 60, 2)])
def test_auto_knows_what_each_would_bring_and_takes_the_least(n, k, workers, wire):
    x = like(workers, n)
    message = composed(f"topk:{k / n}").compress(x, {}, None)
    known = received_bytes(message, workers, wire)
    assert set(known) == {*WAYS[:-1]}
    measured = {}
    for way in known:
        arriving = exchanged(way, x, k, wire=wire)[2].on_links()[1]
        measured[way] = sum(arriving) / workers
        off = 0.25 if way == "oktopk" else 0  # whose regions are not as full as they may be
        assert measured[way] == pytest.approx(known[way], rel=off, abs=2)
    chosen = min(known, key=lambda way: known[way])
    assert exchanged("auto", x, k, wire=wire)[2].payload.tolist() == (
        exchanged(chosen, x, k, wire=wire)[2].payload.tolist()
    )


def test_auto_leaves_out_what_cannot_be():
    three = composed("topk:0.1").compress(like(3, 50), {}, None)
    assert set(received_bytes(three, 3, Wire())) == {*WAYS} - {"auto"}
    assert set(received_bytes(three, 4, Wire("float16"))) == {"allgather", "cltk", "dense"}
    assert set(received_bytes(three, 4, Wire(index_dtype="gap16"))) == {"allgather", "dense"}


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize(("way", "workers"), [(way, w) for way in WAYS for w in (3, 4)])
def test_a_resumed_simulation_goes_on_to_the_last_bit(way, workers):
    """With cltk the leader is another in each step, and all memories differ."""
    how = {"workers": workers, "collective": way, "compressor": "topk:0.2", "lr": 0.1}
    how |= {"memory": "dgc:momentum=0.9"}
    whole, half, resumed = (Simulator(mlp(seed), **how) for seed in (0, 0, 1))
    data = list(batches(6, workers * 4))
    for own in data[:3]:
        half.step(*own)
    resumed.load_state_dict(half.state_dict())
    for own in data:
        whole.step(*own)
    records = [resumed.step(*own) for own in data[3:]]
    assert all(record.relative_error > 0 for record in records)
    for name, value in whole.parameters().items():
        assert torch.equal(value, resumed.parameters()[name]), name
    kept, again = whole.state_dict()["voices"], resumed.state_dict()["voices"]
    for name, own in kept.items():
        for key, value in own["memory"].items():
            assert torch.equal(value, again[name]["memory"][key]), (name, key)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("way", WAYS[1:])
def test_a_run_that_was_stopped_and_resumed_is_the_whole_one(tmp_path, way):
    how = {**TINY, "workers": 3, "collective": way, "compressor": "topk:0.1", "quiet": True}
    whole = simsgd.train(**how, epochs=2, runs_dir=tmp_path, name="whole")
    short = simsgd.train(**how, epochs=1, runs_dir=tmp_path, name="short")
    resumed = simsgd.train(resume=short.folder, epochs=2, quiet=True)
    columns = ["loss", "payload_bytes", "received_bytes", "relative_error", "memory_norm"]
    assert resumed.steps[columns].equals(whole.steps[columns])
    assert resumed.config["collective"] == way


def test_what_is_sent_whole_is_all_reduced_whatever_the_collective():
    channel = Channel(InProcess(), Ledger(4), Wire())
    key = RandomKey(0, torch.arange(4)).fold_in(0, "s")
    own = Segment("s", ("s",), (torch.Size([9]),), dense=True)
    context = ExchangeContext(composed("none"), {}, StepInfo(key), own, channel)
    message, _ = AllReduce(collective="gtopk").gradients(like(4, 9), context)
    assert isinstance(message, Dense)
    assert [t.collective for t in channel.ledger.transfers] == ["all-reduce"]
