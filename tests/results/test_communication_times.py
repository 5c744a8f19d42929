"""What messages of a run's steps take, held to the ledger of the steps."""

import pytest
import torch
from torch import nn

import simsgd
from simsgd.results.communication_times import Transfers, segments_of
from simsgd.results.network import Network, way_of
from simsgd.results.pricing import Pricing, fused_messages
from simsgd.results.run_tables import RunTables
from simsgd.results.tables import STEP_COLUMNS
from simsgd.training.run_folder import RunFolder
from simsgd.training.totals import segment_rows, transfer_rows

W = 4
FREE = Network("free", 8000.0, 0.0)  # where nothing gains by riding along
FAR = Network("far", 1e9, 1.0)  # where all does that may


def stepped(steps=1, **settings):
    """Return the record of the last step of a small model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.Linear(5, 5))
    simulator = simsgd.Simulator(model, workers=W, lr=0.1, **settings)
    for _ in range(steps):
        record = simulator.step(torch.randn(2 * W, 8), torch.randint(5, (2 * W,)), 0)
    return record


def kept(folder, record):
    """Return the tables that a run keeps of a step."""
    run = RunFolder.create(folder, "run", {"workers": W})
    run.add_step(dict.fromkeys(STEP_COLUMNS, 1) | {"step": record.step, "epoch": 0})
    run.add_transfers(transfer_rows(record))
    run.add_segments(segment_rows(record, {}))
    run.flush_steps()
    return RunTables(run.folder)


def transfers_of(run, **pricing):
    return Transfers(run, run.step_columns("network_bytes"), Pricing(**pricing))


def hops_of(record, names):
    """Return the messages of some segments that wait for each other, by what the ledger has."""
    own = [t for t in record.bytes.transfers if t.segment in names]
    return sum(
        way_of(collective, W, 1).hops
        * fused_messages((t.segment, t.operation) for t in own if t.collective == collective)
        for collective in {t.collective for t in own}
    )


AVERAGED = {"algorithm": "fedavg", "local_steps": 1, "inner_state": "average", "momentum": 0.9}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"compressor": "topk:0.1", "collective": "auto"},
        {"compressor": "topk:0.65", "collective": "auto"},  # a dense all-reduce for some
        {"compressor": "topk:0.1", "collective": "gtopk"},
        {"compressor": "topk:0.1", "collective": "oktopk"},
        {"compressor": "powersgd:1"},
        {"compressor": "sign", "aggregate": "vote"},
        {"compressor": "powersgd:1", "compress_layers": {"0.*": "terngrad:shared_scale=true"}},
        {"compressor": "topk:0.1", "compress_layers": {"0.*": "powersgd:1", "2.*": "fp16"}},
        {**AVERAGED, "client_buffers": "average", "compressor": "qsgd:15"},
    ],
    ids=str,
)
def test_a_bucket_has_the_messages_that_its_segments_need(tmp_path, settings):
    record = stepped(**settings)
    run = kept(tmp_path, record)
    transfers, segments = transfers_of(run, overlap="buckets"), segments_of(run)
    every = tuple(segments["segment"].unique())
    for some in (("0.weight", "2.weight"), ("0.weight", "0.bias"), every[:-1], every):
        found = transfers.of_bucket(FREE, segments, some)
        assert found.messages.tolist() == [hops_of(record, some)], some


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize(
    ("settings", "hops"),
    [
        ({"compressor": "topk:0.1"}, 3),
        ({"compressor": "sign", "aggregate": "vote"}, 1 + 1),
        ({"algorithm": "streaming:fragments=2,local_steps=2", "compressor": "topk:0.1"}, 3),
        ({"algorithm": "local:1", "inner_state": "average", "compressor": "topk:0.1"}, 3),
    ],
    ids=str,
)
def test_what_goes_whole_rides_along_though_some_segments_send_nothing(tmp_path, settings, hops):
    """The step in which a fragment goes has no message of the others."""
    found = transfers_of(kept(tmp_path, stepped(momentum=0.9, **settings))).carried(FAR)
    assert found.messages.tolist() == [hops]


def test_averages_of_optimizer_state_and_buffers_are_segments_of_no_gradient():
    record = stepped(**AVERAGED, client_buffers="average")
    rows = {row["segment"]: row for row in segment_rows(record, {})}
    momentum, floats, whole = (
        rows[name] for name in ("0.weight (optimizer)", "buffers (float32)", "buffers (int64)")
    )
    assert [row["payload_bytes"] for row in (momentum, floats, whole)] == [
        n // 2 for n in (4 * 48, 4 * 12, 8)
    ]  # half of the workers take part
    assert [row["elements"] for row in (momentum, floats, whole)] == [0, 0, 0]
    rounds = {row["collective"]: row["rounds"] for row in transfer_rows(record)}
    assert rounds == {"gather": 2, "broadcast": 2}  # counts of batches go in another dtype
