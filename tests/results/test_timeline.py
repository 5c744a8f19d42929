"""Overlap with backward: buckets, and a step's timeline against a simulation of events."""

import heapq
import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from simsgd.results.communication_times import pieces_of
from simsgd.results.figures import timeline
from simsgd.results.network import Network
from simsgd.results.pricing import Pricing, waited_for
from simsgd.results.run import Run
from simsgd.results.step_spans import step_spans
from simsgd.results.step_times import step_times
from simsgd.results.tables import EPOCH_COLUMNS, STEP_COLUMNS
from simsgd.results.timeline import (
    BUCKET,
    FIRST_BUCKET,
    Bucket,
    Overlap,
    Piece,
    duration,
    in_buckets,
    spans,
)
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder

FREE = Network("free", bandwidth=8000.0, latency=0.0)  # a thousand bytes a second
SLOW = Network("slow", bandwidth=8000.0, latency=0.5)


# buckets


@pytest.mark.parametrize("size", [None, 3000])
@pytest.mark.parametrize("seed", range(4))
def test_buckets_are_those_of_distributed_data_parallel(seed, size):
    """Its own function, on gradients in the order in which they come: the last layer's first."""
    sizes = np.random.default_rng(seed).integers(1, 400_000, 30) if size is None else (
        np.random.default_rng(seed).integers(1, 1500, 30)
    )  # fmt: skip
    overlap = Overlap.of("buckets" if size is None else f"buckets:{size}")
    pieces = [Piece(str(i), 4 * int(n), 1 - i / 40) for i, n in enumerate(sizes)]
    tensors = [torch.empty(int(n)) for n in reversed(sizes)]
    limits = [1 << 20, 25 << 20] if size is None else [size]
    expected, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    last = len(sizes) - 1
    assert in_buckets(pieces, overlap) == [[last - place for place in own] for own in expected]


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("none", ("none", 1 << 20, 25 << 20)),
        (False, ("none", 1 << 20, 25 << 20)),
        (True, ("perfect", 1 << 20, 25 << 20)),
        ("buckets", ("buckets", 1 << 20, 25 << 20)),
        ("buckets:25MB", ("buckets", 25_000_000, 25_000_000)),
    ],
)
def test_an_overlap_is_a_word_and_a_size(spec, found):
    overlap = Overlap.of(spec)
    assert (overlap.kind, overlap.first, overlap.size) == found


@pytest.mark.parametrize("spec", ["some", "", "buckets:", "buckets:0MB", "perfect:1MB", "5"])
def test_a_wrong_overlap_is_refused_in_one_line(spec):
    with pytest.raises(SettingError, match=r"^overlap must be"):
        Overlap.of(spec)


def test_buckets_and_messages_one_by_one_are_two_things():
    with pytest.raises(SettingError, match=r"^overlap says what is sent together, got buckets"):
        Pricing(fusion=False, overlap="buckets")


def test_the_sizes_of_buckets_are_the_defaults_of_distributed_data_parallel():
    default = inspect.signature(nn.parallel.DistributedDataParallel).parameters["bucket_cap_mb"]
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET
    assert default.default in (None, 25)  # None is 25 MiB
    assert BUCKET == 25 << 20


# the timeline


def test_a_timeline_by_hand():
    """Forward 1, backward 2; at its half a bucket, at its end another."""
    buckets = [Bucket(0.5, 0.25, 3.0), Bucket(1.0, 0.5, 0.125)]
    found = [(s.what, s.bucket, float(s.start), float(s.end)) for s in spans(1.0, 2.0, buckets)]
    assert found == [
        ("forward", -1, 0.0, 1.0),
        ("backward", 0, 1.0, 2.0),
        ("compression", 0, 2.0, 2.25),
        ("communication", 0, 2.25, 5.25),
        ("backward", 1, 2.25, 3.25),
        ("compression", 1, 3.25, 3.75),
        ("communication", 1, 5.25, 5.375),  # the link was busy
    ]
    assert duration(spans(1.0, 2.0, buckets)) == 5.375
    assert waited_for(buckets, 3.0, 0.75) == 5.375 - 3.75


def simulated(forward, backward, buckets):
    """Return when a step ends, by a queue of events: the device works, the link is given work."""
    work = [("compute", forward, None)]
    done = 0.0
    for number, (ready, compression, _) in enumerate(buckets):
        work += [("compute", (ready - done) * backward, None), ("compress", compression, number)]
        done = ready
    work.append(("compute", (1 - done) * backward, None))
    events, waiting, busy, now = [(0.0, 0, "device")], [], False, 0.0
    order = 0
    while events:
        now, _, who = heapq.heappop(events)
        order += 1
        if who == "device" and work:
            what, seconds, number = work.pop(0)
            kind = "device" if what == "compute" else f"full {number}"
            heapq.heappush(events, (now + seconds, order, kind))
        elif who.startswith("full"):
            waiting.append(buckets[int(who.split()[1])][2])
            heapq.heappush(events, (now, order, "device"))
        elif who == "link":
            busy = False
        if waiting and not busy:
            busy = True
            heapq.heappush(events, (now + waiting.pop(0), order, "link"))
    return now


def drawn(seed):
    """Return a step at random: forward, backward, and buckets (ready, compression, seconds)."""
    rng = np.random.default_rng(seed)
    ready = np.sort(rng.uniform(0.01, 1, rng.integers(1, 7)))
    ready[-1] = 1.0 if rng.uniform() < 0.7 else ready[-1]
    scale = rng.choice([0.1, 1.0, 5.0])
    buckets = [(r, rng.uniform(0, 0.3), scale * rng.uniform(0, 1)) for r in ready]
    return rng.uniform(0.1, 2), rng.uniform(0.1, 3), buckets


@pytest.mark.parametrize("seed", range(40))
def test_a_timeline_is_what_a_simulation_of_events_gives(seed):
    forward, backward, buckets = drawn(seed)
    end = duration(spans(forward, backward, [Bucket(*b) for b in buckets]))
    assert end == pytest.approx(simulated(forward, backward, buckets), rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_buckets_lie_between_no_overlap_and_the_best_there_is(seed):
    _, backward, buckets = drawn(seed)
    compute = 1.5 * backward  # of which backward is two thirds
    compression, carried = (sum(b[place] for b in buckets) for place in (1, 2))
    waited = waited_for([Bucket(*b) for b in buckets], compute, compression)
    best = Pricing(overlap="perfect").waited(carried, compute, compression)
    assert best - 1e-12 <= waited <= carried + 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_a_faster_link_never_makes_a_step_longer(seed):
    _, backward, buckets = drawn(seed)
    ends = [
        duration(spans(0.5 * backward, backward, [Bucket(r, c, s / rate) for r, c, s in buckets]))
        for rate in (0.1, 0.5, 1, 2, 10, 1000)
    ]
    assert ends == sorted(ends, reverse=True)


# of runs


def made(folder, name="run", late=False, steps=(1.0, 2.0), **config):
    """Return a run of two layers of 100 and 300 numbers, ready at the end and half of backward.

    In each step the larger sends 300 bytes through an all-gather and the smaller 400 through an
    all-reduce, times a factor of the step.
    """
    run = RunFolder.create(folder, name, {"workers": 4, **config})
    for number, factor in enumerate(steps, 1):
        row = dict.fromkeys(STEP_COLUMNS, 1) | {"step": number, "epoch": 0}
        sent = round(700 * factor)
        run.add_step(row | {"payload_bytes": sent, "dense_bytes": 1600, "network_bytes": sent})
        for collective, size in (("all-gather", 300), ("all-reduce", 400)):
            sizes = dict.fromkeys(
                ("payload_bytes", "payload_bytes_max", "slowest_bytes"), round(size * factor)
            )
            usual = {"segments": 2, "messages": 1, "rounds": 1, "degree": 0, "sending": 2}
            run.add_transfers([{"step": number, "collective": collective, **usual, **sizes}])
    run.flush_steps()
    run.add_segments([
        {"step": 1, "segment": name, "elements": n, "compressed": int(n == 300), "ready": ready,
         "sendable": 1.0 if late else ready, "collective": way, "operation": way, "messages": 1,
         "payload_bytes": size}
        for name, n, ready, way, size in
        (("first", 100, 1.0, "all-reduce", 400), ("second", 300, 0.5, "all-gather", 300))
    ])  # fmt: skip
    run.add_epoch(dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": 0, "step": len(steps)})
    return Run(run.folder)


COMPUTE, COMPRESSION = 3.0, 0.25  # forward 1, backward 2


def priced(run, overlap, network=FREE):
    return step_times(run, network, Pricing(1000 * COMPUTE, 1000 * COMPRESSION, overlap=overlap))


def test_a_runs_step_in_buckets_by_hand(tmp_path):
    """The second layer is compressed at 2, sent from 2.25 to 3.15; the first from 3.25 to 3.85."""
    table = priced(made(tmp_path), "buckets:1000")
    first, second = 3 * 0.3, 6 * 0.1  # an all-gather's three hops, a ring's six of a quarter
    assert table["total"].tolist() == pytest.approx([3.25 + second, max(3.25, 2.25 + 1.8) + 1.2])
    assert table["communication"].tolist() == pytest.approx([second, 5.25 - 3.25])
    assert table["total"][0] < priced(made(tmp_path, "b"), "none")["total"][0] - first + 1e-9
    dense = 6 * 0.3 + 6 * 0.1  # from 2 to 3.8, and on to 4.4
    assert table["dense"].tolist() == pytest.approx([2 + dense] * 2)


def test_each_bucket_pays_its_latencies(tmp_path):
    run = made(tmp_path)
    total = priced(run, "buckets:1000", SLOW)["total"][0]
    assert total == pytest.approx(2.25 + 3 * (0.5 + 0.3) + 6 * (0.5 + 0.1))
    one = priced(run, "buckets:5000", SLOW)["total"][0]  # both in one, at the end of backward
    assert one == pytest.approx(3.25 + 3 * (0.5 + 0.3 + 0.4))  # where the first rides along


def test_what_waits_for_the_whole_gradient_is_sent_after_backward(tmp_path):
    run = made(tmp_path, late=True)
    table = priced(run, "buckets:1000")
    assert table["total"][0] == pytest.approx(3.25 + 0.9 + 0.6)
    assert table["dense"][0] == pytest.approx(2 + 6 * 0.3 + 6 * 0.1)  # gradients do not wait


def test_only_the_last_of_several_backward_passes_overlaps(tmp_path):
    run = made(tmp_path, accumulate=4)  # backward is 0.5 of the 3 seconds, and its half at 2.75
    total = priced(run, "buckets:1000")["total"][0]
    assert total == pytest.approx(3.0 + 0.9 + 0.6)
    best = priced(run, "perfect")["communication"][0]
    assert best == pytest.approx(1.5 - 0.5 - 0.25)


@pytest.mark.parametrize("rate", [1e3, 1e4, 1e6])
def test_buckets_of_a_run_lie_between_none_and_perfect(tmp_path, rate):
    run, link = made(tmp_path), Network("link", rate, 0.0)
    none, buckets, best = (
        priced(run, how, link)["total"] for how in ("none", "buckets:500", "perfect")
    )
    assert (best - 1e-12 <= buckets).all()
    assert (buckets <= none + 1e-12).all()


def test_a_segment_is_a_piece_once(tmp_path):
    pieces = pieces_of(made(tmp_path).segments, 4)
    assert [(p.name, p.num_bytes, p.ready, p.elements) for p in pieces] == [
        ("first", 400, 1.0, 0),
        ("second", 1200, 0.5, 300),
    ]
    assert in_buckets(pieces, Overlap("buckets")) == [[1, 0]]


def test_a_run_of_an_earlier_version_lacks_what_buckets_need(tmp_path):
    run = made(tmp_path)
    (run.folder / "segments.csv").unlink()
    with pytest.raises(SettingError, match=r"^run has no segments.csv, .* or take overlap perfect"):
        priced(run, "buckets")
    assert priced(run, "perfect")["total"][0] > 0


def test_what_arrives_later_overlaps_with_the_steps_between(tmp_path):
    """Each step sends 1.5 s of messages (0.9 and 0.6), needed two steps later, over one link."""
    run = made(tmp_path, steps=(1.0,) * 5, algorithm="streaming", used={"delay": 2,
               "algorithm": "streaming"})  # fmt: skip
    assert priced(run, "none")["total"].tolist() == pytest.approx([4.75] * 5)
    assert priced(run, "perfect")["total"].tolist() == pytest.approx([3.25] * 5)
    slower = Network("slower", 8000.0 / 4, 0.0)  # 6 seconds of messages in 3.25 of a step
    total = priced(run, "buckets", slower)["total"]
    link, ends, now, arrivals = 0.0, [], 0.0, []
    for step in range(5):
        now += 3.25
        if step >= 2:
            now = max(now, arrivals[step - 2])
        link = max(link, now) + 6.0
        arrivals.append(link)
        ends.append(now)
    assert total.cumsum().tolist() == pytest.approx(ends)


# one step as it is drawn


def test_the_spans_of_a_step_are_those_that_it_is_priced_by(tmp_path):
    run = made(tmp_path)
    for overlap in ("none", "buckets:1000", "perfect"):
        pricing = Pricing(1000 * COMPUTE, 1000 * COMPRESSION, overlap=overlap)
        found = step_spans(run, FREE, pricing)
        row = step_times(run, FREE, pricing).iloc[-1]
        assert (found.step, found.end) == (2, pytest.approx(row["total"]))
        assert found.dense == pytest.approx(row["dense"])


@pytest.mark.parametrize("overlap", ["buckets:1000", "perfect"])
def test_a_step_does_not_wait_for_what_is_needed_later(tmp_path, overlap):
    run = made(tmp_path, late=True, used={"delay": 2}, steps=[1.0] * 9)
    found = step_spans(run, FREE, Pricing(1000 * COMPUTE, 1000 * COMPRESSION, overlap=overlap))
    assert (found.late, found.waited) == (2, COMPUTE + COMPRESSION)
    assert found.spans[-1].start == found.waited  # its messages, in one go
    assert found.end == pytest.approx(found.waited + 3 * 0.3 + 6 * 0.1)
    axes = run.plot(
        kind="timeline", overlap=overlap, network="bandwidth=8kbit,latency=0s",
        compute_ms=1000 * COMPUTE, compress_ms=1000 * COMPRESSION,
    ).axes[0]  # fmt: skip
    title = axes.get_title(loc="left").replace("\n", " ")
    assert "3,250\u00a0ms, messages needed 2 steps later, dense\u00a0" in title


def test_the_figure_has_a_bar_for_each_part(tmp_path):
    run = made(tmp_path)
    settings = {"network": "bandwidth=8kbit,latency=0s", "compute_ms": 3000, "compress_ms": 250}
    axes = run.plot(kind="timeline", overlap="buckets:1000", **settings).axes[0]
    bars = [(bar.get_x(), bar.get_width(), round(bar.get_y() + 0.4)) for bar in axes.patches]
    assert [row for *_, row in bars] == [0, 0, 0, 1, 0, 1]
    assert [x for x, *_ in bars] == pytest.approx([0, 1000, 2000, 2250, 2250, 4050])
    assert [text.get_text() for text in axes.texts] == ["1", "2"]
    assert (
        axes.get_title(loc="left")
        .replace("\n", " ")
        .endswith("5,250\u00a0ms, dense\u00a04,400\u00a0ms")
    )
    with pytest.raises(SettingError, match=r"^network must be given; such as 10gbe"):
        run.plot(kind="timeline")


@pytest.mark.parametrize("longer", [0.9, 1.2, 1.4])
def test_the_legend_names_the_line_of_a_dense_step_where_it_is_drawn(tmp_path, monkeypatch, longer):
    def shorter_or_longer(*settings):
        found = step_spans(*settings)
        return replace(found, dense=longer * found.end)

    monkeypatch.setattr(timeline, "step_spans", shorter_or_longer)
    figure = made(tmp_path).plot(kind="timeline", network="10gbe", compute_ms=1, compress_ms=1)
    named = "a dense step ends" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == bool(figure.axes[0].lines) == (longer < 1.3)
