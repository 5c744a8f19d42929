import json

import pytest
from click.testing import CliRunner

from simsgd.bench.advise import Offer, advise, table, usual_specs, verdict
from simsgd.cli import main
from simsgd.methods.compressors import composed
from simsgd.registry import names
from simsgd.results.network import Network
from simsgd.results.step_times import Pricing, step_times
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


def test_with_nothing_to_compare_no_one_wins():
    assert verdict([offer("none", 1.0)]).startswith("no compressor")


def test_what_is_assumed_is_printed():
    rows = advised(SLOW, "none", "threshold:3")
    text = table(rows, SLOW, Pricing(), "mlp")
    assert "compute is not counted" in text
    assert "threshold:3 *" in text
    assert "* of one normal draw" in text


def test_an_unknown_compressor_is_refused_in_one_line():
    with pytest.raises(SettingError, match=r"^compressor is not known, got topq"):
        advised(SLOW, "topq:0.1")


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
