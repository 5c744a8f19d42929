"""What a run writes about its segments: when each can be sent, and what carries it."""

import itertools

import pytest
import torch
from torch import nn

import simsgd

FIRST, SECOND = 64 * 8 + 8 + 8, 8 * 10 + 10  # of one sample: products, and numbers that come out


def rows(run, *columns):
    return [tuple(row) for row in run.segments[[*columns]].itertuples(index=False)]


def test_each_segment_has_a_row_for_what_carries_it(kill_runs, tmp_path):
    run = simsgd.train(**kill_runs.TINY, compressor="topk:0.1", name="a", runs_dir=tmp_path)
    names = ("step", "segment", "elements", "compressed", "collective", "messages", "payload_bytes")
    assert rows(run, *names) == [
        (1, "1.weight", 512, 1, "all-gather", 1, 52 * 8),
        (1, "1.bias", 8, 0, "all-reduce", 1, 32),
        (1, "3.weight", 80, 1, "all-gather", 1, 64),
        (1, "3.bias", 10, 0, "all-reduce", 1, 40),
    ]
    first, _, second, _ = run.segments["ready"]
    assert first == 1
    assert second == pytest.approx(SECOND / (FIRST + SECOND), abs=0.05)  # and the loss
    assert run.segments["sendable"].equals(run.segments["ready"])


def test_a_way_that_comes_later_has_rows_of_its_own(kill_runs, tmp_path):
    (tmp_path / "mine.py").write_text(
        "regime = {0: {'lr': 0.1, 'compressor': 'none'}, 1: {'compressor': 'topk:0.1'}}\n"
    )
    settings = {**kill_runs.TINY, "regime": str(tmp_path / "mine.py"), "runs_dir": tmp_path}
    run = simsgd.train(**settings, name="a", memory="none")
    weights = [row for row in rows(run, "step", "segment", "collective") if "weight" in row[1]]
    assert weights == [
        (1, "1.weight", "all-reduce"),
        (1, "3.weight", "all-reduce"),
        (4, "1.weight", "all-gather"),
        (4, "3.weight", "all-gather"),
    ]
    table = simsgd.network(run.folder, compute_ms=3, compress_ms=1, overlap="buckets:100")
    assert table["total_ms"][0] >= 3.5


@pytest.mark.slow
def test_a_run_tells_what_optimizers_and_buffers_send(kill_runs, tmp_path):
    how = {"algorithm": "fedavg:1", "inner_state": "average", "client_buffers": "average"}
    run = simsgd.train(**kill_runs.TINY, **how, name="a", runs_dir=tmp_path)
    assert ("1.weight (optimizer)", 0, "gather") in rows(run, "segment", "elements", "collective")
    table = simsgd.network(run.folder, compute_ms=3, compress_ms=1, overlap="buckets")
    assert table["messages"].tolist() == [2]  # to the server and back


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_run_repeats_no_row(kill_runs, tmp_path, monkeypatch, stop):
    settings = {**kill_runs.TINY, "algorithm": "local:4", "epochs": 2, "runs_dir": tmp_path}
    straight = simsgd.train(**settings, name="straight")
    assert set(straight.segments["step"]) == {4}
    counted, step = itertools.count(1), simsgd.Simulator.step

    def stopping(self, *arguments):
        record = step(self, *arguments)
        if next(counted) == stop + 1:
            raise KeyboardInterrupt
        return record

    monkeypatch.setattr(simsgd.Simulator, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        simsgd.train(**settings, checkpoint_every=1, name="stopped")
    monkeypatch.undo()
    resumed = simsgd.train(resume=tmp_path / "stopped", checkpoint_every=0)
    assert kill_runs.differences(resumed.folder, straight.folder) == []
    assert (resumed.segments["sendable"] == 1).all()


def test_a_loop_of_ones_own_has_them_too(tmp_path):
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))
    simulator = simsgd.Simulator(model, workers=2, lr=0.1)
    with simsgd.recording(tmp_path / "mine", simulator) as run:
        for _ in run.batches(range(3)):
            simulator.step(torch.randn(8, 10), torch.zeros(8, dtype=torch.long))
    found = simsgd.Run(tmp_path / "mine")
    assert rows(found, "segment", "payload_bytes") == [("0.weight", 800), ("2.weight", 400)]
    assert found.segments["ready"][0] == 1 > found.segments["ready"][1] > 0
    table = simsgd.network(found.folder, compute_ms=3, compress_ms=0, overlap="buckets:500")
    assert table["total_ms"][0] > 3
