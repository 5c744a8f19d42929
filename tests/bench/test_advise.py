import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from simsgd.bench.advise import Offer, advise, parts_of, usual_specs, verdict
from simsgd.bench.measured_compression import MeasuredCompression
from simsgd.cli import main
from simsgd.methods.compressors import composed
from simsgd.registry import names
from simsgd.results.network import Network
from simsgd.results.pricing import Pricing
from simsgd.results.step_times import step_times
from simsgd.settings import SettingError
from simsgd.training.trainer import train

FAST = Network("fast", bandwidth=1e15, latency=0.0)
SLOW = Network("slow", bandwidth=8000.0, latency=0.0)  # a thousand bytes a second
SMALL = {"model": "mlp", "model_config": "hidden=8", "workers": 4}


def advised(network, *specs, **settings):
    settings = {**SMALL, **settings}
    found = advise(network, specs, measure=False, input_shape="1x8x8", **settings)
    return found.offers[network.name]


def test_every_registered_compressor_is_tried_but_one_that_is_a_users_own():
    parts = {spec.partition(":")[0] for spec in usual_specs()}
    assert parts == set(names("compressor")) - {"grace"}


@pytest.mark.parametrize("spec", usual_specs())
def test_every_usual_spec_can_be_built(spec):
    assert composed(spec) is not None


def test_the_fastest_comes_first():
    rows = advised(SLOW, "none", "topk:0.01", "topk:0.1")
    assert [row.compressor for row in rows] == ["topk:0.01", "topk:0.1", "none"]
    assert [row.total for row in rows] == sorted(row.total for row in rows)


def test_a_dense_step_is_as_fast_as_itself():
    (row,) = advised(SLOW, "none", compute_ms=7, compress_ms=5)
    assert (row.compression, row.speed_up) == (0, 1)


def test_bytes_alone_give_the_ratio_of_all_reduce_to_all_gather():
    """Without latency: 2 (W - 1)/W dense bytes over (W - 1) payload bytes."""
    (row,) = advised(SLOW, "topk:0.01", compress_if="all")
    assert row.speed_up == pytest.approx(row.ratio * 2 / 4)


def test_compute_time_dilutes_the_speed_up():
    (free,) = advised(SLOW, "topk:0.01")
    (paid,) = advised(SLOW, "topk:0.01", compute_ms=1000)
    assert 1 < paid.speed_up < free.speed_up


def test_the_time_to_compress_is_that_given():
    (row,) = advised(FAST, "topk:0.01", compress_ms=5)
    assert (row.compression, row.total) == (0.005, pytest.approx(0.005))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("spec", ["topk:0.1", "powersgd:1", "qsgd:15", "sign"])
def test_advice_prices_communication_as_a_run_does(tmp_path, spec):
    settings = {**SMALL, "dataset": "digits", "batch_size": 40, "epochs": 1, "quiet": True}
    run = train(**settings, compressor=spec, runs_dir=tmp_path)
    network, pricing = Network.of("10gbe"), Pricing(compute_ms=1, compress_ms=1)
    (row,) = advised(network, spec, compute_ms=1, compress_ms=1)
    times = step_times(run, network, pricing).iloc[-1]
    assert row.communication == pytest.approx(times["communication"])
    assert row.dense == pytest.approx(times["dense"])


def test_compression_is_timed_if_asked():
    rows = advise(FAST, "topk:0.01", input_shape="1x8x8", **SMALL).offers["fast"]
    assert rows[0].compression > 0


def offer(compressor, total, dense=1.0):
    return Offer(compressor, 1, 1.0, 0.0, total, total, dense, "")


@pytest.mark.parametrize(
    ("total", "opening"),
    [
        (2.0, "dense all-reduce wins: the best compressor, sign, takes 2.00 times as long"),
        (1.0, "dense all-reduce wins"),
        (0.95, "dense all-reduce will do: sign saves 5 % of a step"),
        (0.5, "sign wins: 2.00 times as fast as dense all-reduce (1 of 1 compressors"),
    ],
)
def test_the_verdict_names_the_winner_plainly(total, opening):
    assert verdict([offer("none", 1.0), offer("sign", total)]).startswith(opening)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("spec", "messages"),
    [("topk:0.1", 3), ("sign", 3), ("powersgd:1", 12), ("terngrad:shared_scale=true", 15)],
)
def test_on_a_slow_link_it_says_how_many_messages_wait(spec, messages):
    """Of 4 workers: 3 of an all-gather, in which whole segments ride along; 6 of an all-reduce.

    A shared scale is a maximum, which goes first and with no sum.
    """
    far = Network("far", bandwidth=1e9, latency=0.05)
    (row,) = advised(far, spec)
    assert row.messages == messages
    assert row.latency == pytest.approx(0.05 * messages)
    found = advise(far, spec, measure=False, input_shape="1x8x8", **SMALL).summary()
    assert found.endswith(f"; its step is mostly latency: {messages} messages of 50 ms")


def test_with_nothing_to_compare_no_one_wins():
    assert verdict([offer("none", 1.0)]).startswith("no compressor")


@pytest.mark.slow
def test_what_is_assumed_is_printed():
    rows = advised(SLOW, "none", "threshold:3")
    text = "\n\n".join(map(str, parts_of(rows, SLOW, Pricing(), "mlp")))
    assert "compute is not counted" in text
    assert "threshold:3 *" in text
    assert "* of one normal draw" in text


def test_an_unknown_compressor_is_refused_in_one_line():
    with pytest.raises(SettingError, match=r"^compressor is not known, got topq"):
        advised(SLOW, "topq:0.1")


@pytest.mark.slow
def test_the_command_prints_a_table_for_each_network():
    words = ["advise", "--model", "mlp", "--model-config", "hidden=8", "--input-shape", "1x8x8"]
    words += ["--workers", "4", "--network", "10gbe", "--network", "wan", "--no-measure"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert done.output.count("compressor  ") == 2
    done = CliRunner().invoke(main, [*words, "--compressor", "sign", "--json"])
    found = json.loads(done.output)
    assert {name: [row["compressor"] for row in rows] for name, rows in found.items()} == {
        "10gbe": ["sign"],
        "wan": ["sign"],
    }


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("overlap", ["perfect", "buckets:1KB", "buckets"])
def test_advice_overlaps_as_a_run_does(tmp_path, overlap):
    settings = {**SMALL, "dataset": "digits", "batch_size": 40, "epochs": 1, "quiet": True}
    run = train(**settings, compressor="topk:0.1", runs_dir=tmp_path)
    network, how = Network.of("bandwidth=10Mbit,latency=1us"), {"overlap": overlap}
    (row,) = advised(network, "topk:0.1", compute_ms=3, compress_ms=1, **how)
    times = step_times(run, network, Pricing(compute_ms=3, compress_ms=1, **how)).iloc[-1]
    assert row.total == pytest.approx(times["total"], rel=1e-3)  # a batch has 40 samples, not 2
    assert row.dense == pytest.approx(times["dense"], rel=1e-3)


def test_workers_that_differ_wait_for_the_slowest():
    (row,) = advised(FAST, "topk:0.1", compute_ms="lognormal:100,0.3", compress_ms=0)
    drawn = np.random.default_rng(3).lognormal(math.log(0.1), 0.3, (100_000, 4))
    assert row.total == pytest.approx(drawn.max(1).mean(), rel=0.02)
    assert row.stragglers == pytest.approx((drawn.max(1) - drawn.mean(1)).mean(), rel=0.06)
    assert row.speed_up == pytest.approx(1, rel=1e-6)
    text = "\n\n".join(map(str, parts_of([row], FAST, Pricing("lognormal:100,0.3"), "mlp")))
    assert "compute log-normal, median 100 ms, sigma 0.3, for each worker and step" in text
    assert "stragglers" in text


# compression as another machine measured it


def measured(folder, rows, machine="NVIDIA H200"):
    path = folder / "times.json"
    known = {"machine": machine, "threads": 8, "torch": "2.6.0"}
    path.write_text(json.dumps({"machine": known, "rows": rows}))
    return path


ROWS = [
    {"compressor": name, "workers": 2, "n": n, "ms": ms}
    for name, times in (("topk:0.1", (1.2, 3.0)), ("one read and one write", (0.1, 0.2)))
    for n, ms in zip((500, 2000), times, strict=True)
]  # 1000 and 4000 numbers: 0.6 ms, and 0.0006 ms for each


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ([1000], 1.2e-3),
        ([4000], 3.0e-3),
        ([2500], 2.1e-3),
        ([500], 0.9e-3),
        ([0], 0.6e-3),
        ([10_000], 6.6e-3),
        ([1000, 500, 500], 3.0e-3),
    ],
)
def test_a_segment_takes_what_lies_on_the_lines_between_what_was_measured(tmp_path, sizes, seconds):
    found = MeasuredCompression.read(measured(tmp_path, ROWS))
    assert found.seconds("topk:0.1", sizes) == pytest.approx(seconds)
    assert found.seconds("topk:ratio=0.1", sizes) == pytest.approx(seconds)
    assert found.specs == ["topk:0.1"]


def test_a_line_that_would_fall_below_zero_is_in_proportion(tmp_path):
    rows = [{**row, "ms": row["n"] ** 2 / 1e6} for row in ROWS]
    found = MeasuredCompression.read(measured(tmp_path, rows))
    assert found.seconds("topk:0.1", [100]) == pytest.approx(0.25e-3 * 100 / 1000)
    one = MeasuredCompression.read(measured(tmp_path, rows[:1]))
    assert one.seconds("topk:0.1", [100, 4000]) == pytest.approx(0.25e-3 * 4.1)


def test_advice_takes_them_and_names_the_machine(tmp_path):
    path = measured(tmp_path, ROWS)
    advice = advise(FAST, compress_ms=path, input_shape="1x8x8", **SMALL)
    (row,) = advice.offers["fast"]
    assert row.compressor == "topk:0.1"
    assert row.compression == pytest.approx((0.6 + 0.0006 * 512 + 0.6 + 0.0006 * 80) / 1000)
    assert "compression as measured on NVIDIA H200, 8 threads, torch 2.6.0" in advice.summary()
    assert "this machine" not in advice.summary()
    dense = advise(FAST, "none", compress_ms=str(path), input_shape="1x8x8", **SMALL)
    assert dense.offers["fast"][0].compression == 0


def test_without_them_the_verdict_names_the_share_that_is_this_machines():
    advice = advise(FAST, ["none", "topk:0.1"], compute_ms=1, input_shape="1x8x8", **SMALL)
    row = next(row for row in advice.offers["fast"] if row.compressor != "none")
    share = f"{100 * row.compression / row.total:.0f} % of the step of topk:0.1"
    assert f"; {share} is compression as timed on this machine" in advice.summary()
    given = advise(FAST, "topk:0.1", compress_ms=1, input_shape="1x8x8", **SMALL)
    assert "this machine" not in given.summary()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        ("x{", "is not JSON"),
        ("[1]", "does not hold the times of compressors"),
        ('{"rows": [], "machine": 1}', "does not hold the times of compressors"),
        (json.dumps({"machine": {}, "rows": [{"model": "mlp", "ms": 1}]}), "does not hold the"),
        *[
            (json.dumps({"machine": {}, "rows": [{**ROWS[0], **wrong}]}), "does not hold the times")
            for wrong in ({"ms": -1}, {"ms": True}, {"compressor": 5})
        ],
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path, text, error):
    path = tmp_path / "f.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingError, match=f"^compress_ms {error}"):
        advise(FAST, compress_ms=path)


def test_a_compressor_that_was_not_timed_is_refused_with_the_way_to_time_it(tmp_path):
    path = measured(tmp_path, ROWS)
    with pytest.raises(SettingError, match=r"^compress_ms has no times of sign, .*or sign$"):
        advise(FAST, "sign", compress_ms=path, input_shape="1x8x8", **SMALL)
    with pytest.raises(SettingError, match=r"^compress_ms gives times that without"):
        advise(FAST, compress_ms=path, measure=False, **SMALL)


def test_a_bench_of_chosen_compressors_is_such_a_file(tmp_path):
    words = ["bench", "compressors", "--quick", "--compressor", "topk:0.1", "--json"]
    done = CliRunner().invoke(main, [*words, str(tmp_path / "f.json")])
    assert done.exit_code == 0, done.output
    found = MeasuredCompression.read(tmp_path / "f.json")
    assert found.specs == ["topk:0.1"]
    assert 0 < found.seconds("topk:0.1", [1000]) < 1


@pytest.mark.parametrize(
    ("collective", "messages", "received"),
    [("gtopk", 2, 2 * 8), ("cltk", 2, 4 + 4), ("oktopk", 3 + 3, None), ("dense", 6, None)],
)
def test_a_collective_of_sparse_messages_has_the_price_of_its_rounds(
    collective, messages, received
):
    """Four workers; an all-reduce for cltk's values and for what is sent whole besides."""
    link = Network("far", bandwidth=8e6, latency=1.0)
    (row,) = advised(link, "topk:0.1", collective=collective, compress_if="all")
    others = {"gtopk": 0, "cltk": 6, "oktopk": 0, "dense": 0}[collective]
    assert row.messages == messages + others
    if received is not None:
        kept = sum(math.ceil(0.1 * n) for n in (64 * 8, 8, 8 * 10, 10))
        whole = 2 * 3 / 4 * 4 * kept if collective == "cltk" else 0
        tree = 2 * 4 * kept if collective == "cltk" else received * kept
        assert row.communication == pytest.approx(row.messages + (whole + tree) / 1e6)
