import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import simsgd
from simsgd.cli import main
from simsgd.communication.ledger import Ledger, Transfer
from simsgd.results.network import Network
from simsgd.results.network_prices import price_in_words, prices
from simsgd.results.pricing import Pricing, carriers_of
from simsgd.results.run import Run
from simsgd.results.step_times import step_times
from simsgd.results.tables import EPOCH_COLUMNS, STEP_COLUMNS
from simsgd.settings import SettingError
from simsgd.simulator.step_timer import StepTimer
from simsgd.training.run_folder import RunFolder
from simsgd.training.totals import transfer_rows

SLOW = Network("slow", bandwidth=8000.0, latency=0.5)  # a thousand bytes a second
GIVEN = Pricing(compute_ms=3000, compress_ms=100)


def made(folder, transfers, name="run", workers=4, dense=4000, payload=1000, **columns):
    """Return a run of two steps that were alike, each with rows of transfers.csv."""
    run = RunFolder.create(folder, name, {"workers": workers})
    usual = {"segments": 3, "messages": 3, "rounds": 1, "degree": 0, "sending": 3}
    sizes = dict.fromkeys(("payload_bytes", "payload_bytes_max", "slowest_bytes"), payload)
    for step in (1, 2):
        row = dict.fromkeys(STEP_COLUMNS, 1) | {"step": step, "epoch": 0}
        run.add_step(row | {"payload_bytes": payload, "dense_bytes": dense} | columns)
        run.add_transfers([{"step": step, **usual, **sizes, **t} for t in transfers])
    run.flush_steps()
    run.add_epoch(dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": 0, "step": 2})
    return Run(run.folder)


def first(run, pricing=GIVEN, network=SLOW):
    return step_times(run, network, pricing).iloc[0]


# what is kept of a step


def stepped(workers=3, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5))
    simulator = simsgd.Simulator(model, workers=workers, lr=0.1, **settings)
    return simulator.step(torch.randn(2 * workers, 8), torch.randint(5, (2 * workers,)), 0)


@pytest.mark.parametrize("spec", ["none", "topk:0.1", "powersgd:1", "terngrad:shared_scale=true"])
def test_the_rows_of_a_step_add_up_to_what_was_sent(spec):
    record = stepped(compressor=spec)
    rows = transfer_rows(record)
    assert sum(row["payload_bytes"] for row in rows) == sum(record.payload_bytes) / 3
    assert {row["segments"] for row in rows} == {4}


@pytest.mark.parametrize(
    ("spec", "messages", "rounds"),
    [
        ("powersgd:1", 2 + 2 + 1 + 1, 2),
        ("terngrad:shared_scale=true", 1 + 1 + 1 + 1, 2),  # maxima, and sums
        ("fp16", 1 + 1 + 1 + 1, 2),  # of two dtypes
        ("none", 4, 1),
    ],
)
def test_a_collective_counts_its_messages_and_those_that_go_together(spec, messages, rounds):
    rows = {row["collective"]: row for row in transfer_rows(stepped(compressor=spec))}
    assert (rows["all-reduce"]["messages"], rows["all-reduce"]["rounds"]) == (messages, rounds)


def test_a_vote_is_gathered_and_answered():
    rows = transfer_rows(stepped(compressor="sign", aggregate="vote"))
    assert {row["collective"]: row["messages"] for row in rows} == {
        "gather": 2,
        "broadcast": 2,
        "all-reduce": 2,
    }


def test_workers_of_different_sizes_are_counted_by_mean_most_and_slowest():
    ledger = Ledger(workers=2)
    ledger.add(Transfer("a", "up", "all-gather", torch.tensor([10, 40])))
    ledger.add(Transfer("b", "up", "all-gather", torch.tensor([30, 10])))
    record = stepped()
    object.__setattr__(record, "bytes", ledger.close(dense=400))
    (row,) = transfer_rows(record)
    sizes = row["payload_bytes"], row["payload_bytes_max"], row["slowest_bytes"]
    assert sizes == (45, 50, 40 + 30)


def test_an_exchange_between_neighbors_keeps_the_degree_of_the_busiest():
    ledger = Ledger(workers=3)
    degree = torch.tensor([1, 2, 1])
    ledger.add(Transfer("a", "up", "neighbours", torch.tensor([10, 10, 10]), degree))
    record = stepped()
    object.__setattr__(record, "bytes", ledger.close(dense=400))
    (row,) = transfer_rows(record)
    assert (row["degree"], int(record.network_bytes)) == (2, 40)


def test_the_time_of_a_step_is_that_of_one_worker():
    spent = StepTimer(torch.arange(4))
    spent._ends = [("", 10.0), ("compute", 12.0), ("compression", 12.5)]
    assert (spent.seconds("compute"), spent.seconds("compression")) == (0.5, 0.125)


@pytest.mark.slow
def test_a_run_has_what_its_network_needs(tmp_path):
    words = [
        "--model",
        "mlp",
        "--model-config",
        "hidden=8",
        "--dataset",
        "digits",
        "--workers",
        "4",
    ]
    words += ["--workers", "4", "--compressor", "topk:0.1", "--batch-size", "40"]
    words += ["--epochs", "1", "--name", "r", "--runs-dir", str(tmp_path)]
    words += ["--network", "wan", "--network", "10gbe"]
    done = CliRunner().invoke(main, ["train", *words])
    assert done.exit_code == 0, done.output
    lines = [line for line in done.output.splitlines() if line.startswith("on ")]
    assert [line.split()[:2] for line in lines] == [
        ["on", "the"],
        ["on", "wan"],
        ["on", "10gbe"],
    ]
    run = Run(tmp_path / "r")
    assert (run.steps[["compute_seconds", "compression_seconds"]] > 0).all(axis=None)
    assert set(run.transfers["step"]) == set(run.steps["step"])


def test_a_wrong_network_is_refused_before_the_first_step(tmp_path):
    words = ["train", "--network", "10gb", "--runs-dir", str(tmp_path / "runs")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "network is not known, got 10gb" in done.stderr
    assert not (tmp_path / "runs").exists()


# by hand


def test_a_gathered_step_is_compute_compression_and_communication(tmp_path):
    times = first(made(tmp_path, [{"collective": "all-gather"}]))
    parts = times["compute"], times["compression"], times["communication"]
    assert parts == (3.0, 0.1, 3 * (0.5 + 1.0))
    assert times["total"] == pytest.approx(3 + 0.1 + 4.5)
    assert times["dense"] == 3 + 6 * (0.5 + 1.0)


def test_an_answer_to_those_who_take_part_takes_as_long_as_their_bytes(tmp_path):
    sizes = {"payload_bytes": 250, "payload_bytes_max": 1000, "slowest_bytes": 1000}
    for collective in ("gather", "broadcast"):
        run = made(tmp_path, [{"collective": collective, **sizes}], collective)
        assert first(run)["communication"] == pytest.approx(0.5 + 3 * 0.25)


def test_without_fusion_each_segment_pays_its_latency(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    times = first(run, Pricing(3000, 100, fusion=False))
    assert times["communication"] == 3 * (3 * 0.5 + 1.0)
    assert times["dense"] == 3 + 6 * (3 * 0.5 + 1.0)


def test_fusion_leaves_the_rounds_that_wait_for_each_other(tmp_path):
    run = made(tmp_path, [{"collective": "all-reduce", "messages": 6, "rounds": 2}])
    assert first(run)["communication"] == pytest.approx(6 * (2 * 0.5 + 0.25))


def test_collectives_go_one_after_the_other(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}, {"collective": "all-reduce"}])
    assert first(run)["communication"] == pytest.approx(3 * 1.5 + 6 * 0.75)


def test_where_workers_serve_a_part_each_no_link_carries_all(tmp_path):
    """Runs of 1-bit Adam from before there was an all-to-all have a gather, and keep its price."""
    rows = [[{"collective": c}, {"collective": "all-gather"}] for c in ("all-to-all", "gather")]
    parts, server = (first(made(tmp_path, own, str(k))) for k, own in enumerate(rows))
    assert parts["communication"] == pytest.approx(3 * (0.5 + 0.25) + 3 * 1.5)
    assert (parts["messages"], parts["latency"]) == (6, 3.0)
    assert server["communication"] == pytest.approx(0.5 + 3 * 1.0 + 3 * 1.5)


RIDES = {
    "all-gather": [{"collective": "all-gather", "messages": 2}],
    "gather": [{"collective": c, "messages": 2} for c in ("gather", "broadcast")],
}


@pytest.mark.parametrize(
    ("carrier", "size", "expected", "messages"),
    [
        ("all-gather", 100, 3 * (0.5 + 1.0 + 0.1), 3),
        ("all-gather", 4000, 3 * (0.5 + 1.0) + 6 * (0.5 + 1.0), 9),  # 12 s to ride, 9 s alone
        ("gather", 100, 2 * (0.5 + 3.0) + 2 * 0.3, 2),
        ("gather", 4000, 2 * (0.5 + 3.0) + 6 * (0.5 + 1.0), 8),
    ],
)
def test_whole_segments_ride_along_if_that_is_faster(tmp_path, carrier, size, expected, messages):
    sizes = dict.fromkeys(("payload_bytes", "payload_bytes_max", "slowest_bytes"), size)
    whole = {"collective": "all-reduce", "messages": 1, **sizes}
    times = first(made(tmp_path, [*RIDES[carrier], whole]))
    assert times["communication"] == pytest.approx(expected)
    assert (times["messages"], times["latency"]) == (messages, 0.5 * messages)
    assert first(made(tmp_path, [*RIDES[carrier], whole], "apart"), APART)["communication"] > 7


APART = Pricing(3000, 100, fusion=False)


@pytest.mark.parametrize(
    "rows",
    [
        [{"collective": "all-gather"}, {"collective": "all-reduce", "messages": 1}],  # a scale
        [*RIDES["all-gather"], {"collective": "all-reduce", "messages": 2, "rounds": 2}],
        [*RIDES["all-gather"], *RIDES["gather"], {"collective": "all-reduce", "messages": 1}],
        [{"collective": "all-reduce"}],
    ],
)
def test_what_others_wait_for_does_not_ride_along(tmp_path, rows):
    rounds = max(row.get("rounds", 1) for row in rows)
    hops = {"all-gather": 3, "gather": 1, "broadcast": 1, "all-reduce": 6 * rounds}
    times = first(made(tmp_path, rows))
    assert times["messages"] == sum(hops[row["collective"]] for row in rows)


def test_carriers_are_those_of_other_segments():
    vote = [("a", "gather"), ("a", "broadcast"), ("b", "all-reduce")]
    assert carriers_of(vote) == ("gather", "broadcast")
    assert carriers_of([*vote, ("c", "all-gather")]) == ()
    assert carriers_of([("a", "all-gather"), ("b", "all-reduce"), ("b", "all-reduce")]) == ()
    assert carriers_of([("b", "all-reduce")]) == ()


def test_what_is_hidden_is_no_latency(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    times = first(run, Pricing(3000, 100, overlap="perfect"))
    assert times["latency"] == pytest.approx((4.5 - 2.0 - 0.1) * 1.5 / 4.5)


def test_a_price_says_what_a_step_is_mostly(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])

    def mostly(latency, **pricing):
        (row,) = prices([run], [Network("n", 8000.0, latency)], Pricing(**pricing))
        return row["mostly"]

    assert mostly(2.0, compute_ms=1, compress_ms=1) == ("latency: 3 messages of 2000 ms")
    assert mostly(0.5, compute_ms=1, compress_ms=1) == "bytes"
    assert mostly(0.5, compute_ms=4000, compress_ms=1) == "compute"
    assert mostly(0.5, compute_ms=1, compress_ms=4000) == "compression"


def test_a_tree_may_carry_the_all_reduce(tmp_path):
    run = made(tmp_path, [{"collective": "all-reduce"}])
    assert first(run, Pricing(3000, 100, all_reduce="tree"))["communication"] == 4 * 1.5


def test_a_ring_waits_for_the_largest_and_a_server_receives_the_sum(tmp_path):
    sizes = {"payload_bytes": 500, "payload_bytes_max": 800, "slowest_bytes": 900}
    runs = [made(tmp_path, [{"collective": c, **sizes}], c) for c in ("all-gather", "gather")]
    hows = GIVEN, Pricing(3000, 100, fusion=False)
    times = [first(run, how)["communication"] for run in runs for how in hows]
    expected = [3 * (0.5 + 0.8), 3 * (1.5 + 0.9), 0.5 + 3 * 0.5, 3 * 0.5 + 3 * 0.5]
    assert times == pytest.approx(expected)


def test_neighbors_cost_the_degree_of_the_busiest(tmp_path):
    run = made(tmp_path, [{"collective": "neighbours", "degree": 2}], workers=16)
    assert first(run)["communication"] == 2 * 1.5


def test_a_step_that_sends_nothing_costs_its_compute_alone(tmp_path):
    """Local methods send once in H steps, and write no row of transfers.csv for the others."""
    run = simsgd.train(
        model="mlp", model_config="hidden=8", dataset="digits", workers=4, batch_size=40, epochs=1,
        algorithm="local", local_steps=4, quiet=True, runs_dir=tmp_path,
    )  # fmt: skip
    times = step_times(run, SLOW, GIVEN)
    sends = run.steps["network_bytes"] > 0
    assert sends.any()
    assert not sends.all()
    assert (times["communication"] > 0).tolist() == sends.tolist()


def test_overlap_hides_what_fits_into_backward(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    times = first(run, Pricing(3000, 100, overlap="perfect"))
    assert times["communication"] == pytest.approx(4.5 - 2.0 - 0.1)  # backward, compression
    assert times["dense"] == pytest.approx(3 + 6 * 1.5 - 2.0)
    longer = first(run, Pricing(30_000, 100, overlap=True))
    assert (longer["communication"], longer["dense"]) == (0, 30)


def test_measured_times_are_medians_of_an_epoch(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}], compute_seconds=0.25)
    assert first(run, Pricing(compress_ms=0))["compute"] == 0.25


def test_what_is_not_compressed_takes_no_time_to_compress(tmp_path):
    run = made(tmp_path, [{"collective": "all-reduce"}], payload=4000, relative_error=0)
    times = first(run)
    assert (times["compression"], times["total"]) == (0, times["dense"])
    ring = made(tmp_path, [{"collective": "neighbours"}], "ring", payload=8000, relative_error=0)
    assert first(ring)["compression"] == 0


def test_a_message_as_large_as_the_gradient_takes_time_to_compress(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}], payload=4000, relative_error=0.5)
    assert first(run)["compression"] == 0.1


def test_prices_are_means_over_steps_and_sums_over_the_run(tmp_path):
    (row,) = prices([made(tmp_path, [{"collective": "all-gather"}])], [SLOW], GIVEN)
    assert (row["run"], row["network"]) == ("run", "slow")
    assert row["total_ms"] == pytest.approx(7600)
    assert row["speed_up"] == pytest.approx(12 / 7.6)
    assert row["seconds"] == pytest.approx(2 * 7.6)


def test_a_run_is_described_in_words(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    text = price_in_words(run, SLOW)
    assert text.endswith("times as fast as dense all-reduce; mostly bytes")


# mistakes


def test_a_run_of_an_earlier_version_is_refused_in_one_line(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    (run.folder / "transfers.csv").unlink()
    with pytest.raises(SettingError, match=r"^run has no transfers.csv, or not of every step"):
        first(run)


def test_a_run_without_measured_times_asks_for_them(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    steps = run.steps.drop(columns=["compute_seconds", "compression_seconds"])
    steps.to_csv(run.folder / "steps.csv", index=False)
    with pytest.raises(SettingError, match=r"^run has no measured compute_seconds.*compute_ms$"):
        first(run, Pricing())
    assert first(run)["compute"] == 3


def test_a_run_without_a_step_is_refused_in_one_line(tmp_path):
    run = RunFolder.create(tmp_path, "empty", {"workers": 4})
    with pytest.raises(SettingError, match=r"^run has no step to price yet"):
        first(Run(run.folder))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"compute_ms": -1}, "compute_ms must be a finite number of at least 0"),
        ({"compress_ms": -1}, "compress_ms must be a finite number of at least 0"),
        ({"all_reduce": "star"}, "all_reduce must be one of ring, tree, gloo, got star"),
    ],
)
def test_a_wrong_price_is_refused_in_one_line(settings, error):
    with pytest.raises(SettingError, match=f"^{error}"):
        Pricing(**settings)


def test_an_older_folder_goes_on_with_the_columns_it_lacks(tmp_path):
    run = made(tmp_path, [{"collective": "all-gather"}])
    steps = run.steps.drop(columns=["compute_seconds", "compression_seconds"])
    steps.to_csv(run.folder / "steps.csv", index=False)
    folder = RunFolder.resume(run.folder)
    folder.truncate(step=1, epoch=1)
    folder.add_step(dict.fromkeys(STEP_COLUMNS, 2))
    folder.flush_steps()
    assert run.steps["compute_seconds"].isna().tolist() == [True, False]
    assert run.transfers["step"].tolist() == [1]


# the command


def test_the_command_prices_each_run_on_each_network(tmp_path):
    runs = [made(tmp_path, [{"collective": "all-gather"}], name=name) for name in "ab"]
    words = ["network", *(str(run.folder) for run in runs), "--network", "10gbe"]
    words += ["--network", "wan", "--compute-ms", "5", "--compress-ms", "1"]
    done = CliRunner().invoke(main, [*words, "--json"])
    rows = json.loads(done.output)
    assert [(row["run"], row["network"]) for row in rows] == [
        ("a", "10gbe"),
        ("a", "wan"),
        ("b", "10gbe"),
        ("b", "wan"),
    ]
    assert "speed-up" in CliRunner().invoke(main, words).output


class Event:
    """What torch.cuda.Event does, by a clock that ticks at each record."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.now += 1.5
        self.at = Event.now

    def synchronize(self):
        Event.waited = True

    def elapsed_time(self, later):
        return 1000 * (later.at - self.at)


def test_on_a_gpu_events_are_read_only_when_somebody_asks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.waited = False
    spent = StepTimer.__new__(StepTimer)
    spent.workers, spent.on_gpu = 3, True
    spent._ends = [("", spent._now())]
    spent.mark("compute")
    assert not Event.waited
    assert spent.seconds("compute") == 0.5
    assert Event.waited
