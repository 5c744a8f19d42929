"""Runs of many clients, and of clients of unequal size."""

import re

import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.config import Config
from simsgd.settings import SettingError
from simsgd.training.experiment import Experiment
from simsgd.training.memory_use.estimate import footprint

W, N, B = 4, 100, 5
RUN = {
    "model": "mlp", "model_config": "hidden=8", "dataset": "digits", "workers": W,
    "batch_size": B, "lr": 0.05, "device": "cpu", "quiet": True,
}  # fmt: skip
P = 64 * 8 + 8 + 8 * 10 + 10


def samples_by_round(experiment):
    """Yield for each whole round those drawn, (worker, client), and the samples [H, W, b]."""
    algorithm = experiment.simulator.components.algorithm
    order = torch.cat([experiment._order(epoch) for epoch in range(6)])  # [batches, B]
    current = algorithm.round_of(0, W, 0, 0)
    while current.end <= len(order):
        clients = algorithm.clients_of(0, W, current.begin, 0)
        drawn = algorithm.drawn(0, W, current.begin, 0).nonzero().flatten().tolist()
        yield (
            [(w, w if clients is None else int(clients[w])) for w in drawn],
            order[current.begin : current.end].unflatten(1, (W, B)),
        )
        current = algorithm.round_of(0, W, current.end, 0)


@pytest.mark.parametrize("clients", [None, N])
def test_a_client_goes_through_its_own_samples_as_often_as_asked(clients):
    config = Config.of(
        {**RUN, "algorithm": "fedavg", "clients": clients, "local_epochs": 2,
         "partition": "quantity:1"}
    )  # fmt: skip
    experiment = Experiment.of(config)
    seen = 0
    for drawn, taken in samples_by_round(experiment):
        for seat, client in drawn:
            part = experiment.parts[client]
            steps = -(-2 * len(part) // B)
            own = taken[:steps, seat].flatten()[: 2 * len(part)]
            assert torch.equal(own.sort().values, part.repeat(2).sort().values)
            assert torch.equal(own[: len(part)].sort().values, part.sort().values)
            seen += 1
    assert seen >= (W if clients is None else 2 * W)


def test_rounds_that_begin_within_an_epoch_go_on_in_the_next():
    """The steps of two epochs are those of their rounds, wherever the first epoch ends."""
    config = Config.of(
        {**RUN, "algorithm": "fedavg", "clients": N, "local_steps": 9, "partition": "iid-fixed"}
    )
    experiment = Experiment.of(config)
    assert experiment.batches % 9
    both = torch.cat([experiment._order(epoch) for epoch in (0, 1)]).unflatten(1, (W, B))
    for start in range(0, len(both) - 8, 9):
        drawn = experiment.simulator.components.algorithm.clients_of(0, W, start, 0).tolist()
        for seat, client in enumerate(drawn):
            own, part = both[start : start + 9, seat].flatten(), experiment.parts[client]
            assert set(own.tolist()) == set(part.tolist())


@pytest.mark.slow
def test_a_run_of_many_clients_is_told_in_few_lines_and_resumes(tmp_path):
    settings = {
        **RUN, "method": "scaffold", "clients": 1000, "local_epochs": 1,
        "partition": "label-dirichlet:1", "compressor": "topk:0.5", "runs_dir": tmp_path,
        "batch_size": 1,
    }  # fmt: skip
    whole = simsgd.train(**settings, steps=60, name="whole")
    log = whole.log
    assert len(log.splitlines()) < 20
    assert re.search(r"samples of 1,000 workers: 1 to \d+, median 1; classes of each: 1 to", log)
    assert len(pd.read_csv(whole.folder / "partition.csv")) == 1000 * 10
    used = whole.config["used"]
    assert (used["clients"], used["participation"], used["local_epochs"]) == (1000, 1.0, 1)
    assert whole.config["local_steps"] is None
    assert used["local_steps"] > 1  # of the largest
    simsgd.train(**settings, steps=31, name="parts")
    again = simsgd.train(resume=tmp_path / "parts", steps=60, quiet=True)
    one, other = (torch.load(run.folder / "last.pt", weights_only=True) for run in (whole, again))
    assert all(torch.equal(other["model"][n], p) for n, p in one["model"].items())
    states = one["simulator"]["clients"]
    assert states
    assert all(torch.equal(other["simulator"]["clients"][n], p) for n, p in states.items())


@pytest.mark.slow
def test_the_dry_run_tells_what_is_kept_for_clients():
    settings = {**RUN, "algorithm": "scaffold", "partition": "iid-fixed", "compressor": "topk:0.5"}
    few, many = (footprint(**settings, clients=clients).lasting for clients in (10, 1000))
    weights = P - 18
    assert few.pop("kept for 10 clients") == 10 * 4 * (P + weights)  # variates and residuals
    assert many.pop("kept for 1,000 clients") == 1000 * 4 * (P + weights)
    for name, size in few.items():
        if not ("libraries" in name or "gaps" in name):
            assert many[name] == size


def test_the_bytes_of_a_round_do_not_follow_from_the_clients():
    def told(*words):
        done = CliRunner().invoke(main, ["bytes", "--model", "lenet", "--workers", "4", *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert told("--method", "scaffold", "--clients", "1000") == told(
        "--method", "scaffold", "--participation", "1"
    )


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"clients": N}, "clients needs samples that are fixed to clients"),
        ({"local_epochs": 1}, "local_epochs needs samples that are fixed to clients"),
        (
            {"dataset": "pydoc", "model": None, "model_config": "", "clients": N},
            "use a data set of samples: workers read streams of a text",
        ),
        ({"clients": 5000, "partition": "iid-fixed"}, "no sample for some of 5000 workers"),
    ],
    ids=str,
)
def test_samples_that_are_not_a_clients_own_are_refused(settings, error, tmp_path):
    with pytest.raises(SettingError, match=error):
        simsgd.train(**{**RUN, "algorithm": "fedavg", **settings}, runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
