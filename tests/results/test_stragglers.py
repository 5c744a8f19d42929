"""Workers whose compute differs from step to step, and who waits for whom."""

import json
import math
import shutil

import numpy as np
import pytest

import simsgd
from simsgd.results.clocks import Waiting, fronts
from simsgd.results.compute_times import ComputeTimes
from simsgd.results.network import Network
from simsgd.results.network_prices import prices
from simsgd.results.pricing import Pricing
from simsgd.results.step_times import step_times
from simsgd.settings import SettingError

STEPS, WORKERS = 400, 8
FREE = Network("free", 1e15, 0.0)
LAW = "lognormal:100,0.3"


@pytest.fixture(scope="module")
def compute():
    return np.random.default_rng(1).lognormal(math.log(0.1), 0.3, (STEPS, WORKERS))


def of(compute, waiting=None, sends=None, communication=0.02, compression=0.01):
    steps = len(compute)
    every = np.ones(steps, bool) if sends is None else sends
    parts = np.full(steps, compression), np.full(steps, communication)
    return fronts(compute, *parts, every, waiting or Waiting())


# the law


def test_times_are_log_normal():
    drawn = ComputeTimes.of(LAW).drawn(20_000, 8)
    assert drawn.shape == (20_000, 8)
    logs = np.log(drawn)
    error = 0.3 / math.sqrt(160_000)
    assert np.median(drawn) == pytest.approx(0.1, rel=5 * error)
    assert logs.mean() == pytest.approx(math.log(0.1), abs=5 * error)
    assert logs.std() == pytest.approx(0.3, rel=0.01)
    assert drawn.mean() == pytest.approx(0.1 * math.exp(0.045), rel=0.005)


def test_a_seed_draws_the_same_again_and_another_one_others():
    one, two, other = (
        ComputeTimes.of(spec).drawn(5, 3)
        for spec in (LAW, "lognormal:100, 0.3,seed=0", "lognormal:100,0.3,seed=1")
    )
    assert (one == two).all()
    assert (one != other).all()


@pytest.mark.parametrize(
    "value",
    ["x", -1, "nan", float("inf"), "lognormal:", "lognormal:100", "lognormal:-1,0.3",
     "lognormal:100,x", "lognormal:1e999,1", "normal:100,1", "lognormal:1,1,seed=x", ""],
)  # fmt: skip
def test_a_wrong_time_is_refused_in_one_line(value):
    with pytest.raises(SettingError, match=r"^compute_ms (must be a|has MEDIAN) "):
        Pricing(compute_ms=value)


# who waits for whom, against loops as slow as they are plain


def test_all_wait_for_the_slowest(compute):
    found = np.diff(of(compute), prepend=0)
    assert found == pytest.approx([max(row) + 0.03 for row in compute.tolist()])


def test_alone_nobody_waits(compute):
    assert of(compute[:, :1])[-1] == pytest.approx(compute[:, 0].sum() + STEPS * 0.03)


def test_between_exchanges_nobody_waits(compute):
    every = 5
    sends = np.arange(1, STEPS + 1) % every == 0
    rounds = compute.reshape(-1, every, WORKERS).sum(1).max(1)
    expected = rounds.sum() + STEPS * 0.01 + STEPS / every * 0.02
    assert of(compute, sends=sends)[-1] == pytest.approx(expected)


def ring(_):
    links = np.zeros((WORKERS, WORKERS), bool)
    for worker in range(WORKERS):
        links[worker, [(worker - 1) % WORKERS, (worker + 1) % WORKERS]] = True
    return links


def test_in_gossip_a_worker_waits_for_its_neighbors(compute):
    now = [0.0] * WORKERS
    expected = []
    for row in compute.tolist():
        busy = [t + own + 0.01 for t, own in zip(now, row, strict=True)]
        now = [max(busy[w - 1], busy[w], busy[(w + 1) % WORKERS]) + 0.02 for w in range(WORKERS)]
        expected.append(max(now))
    assert of(compute, Waiting(links=ring)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("delay", [0, 1, 3, 1000])
def test_a_worker_of_a_server_is_never_further_ahead_than_its_delay(compute, delay):
    ends = np.zeros((STEPS, WORKERS))
    for step in range(STEPS):
        for w in range(WORKERS):
            start = ends[step - 1, w] if step else 0.0
            if step - 1 - delay >= 0:
                start = max(start, ends[step - 1 - delay].max())
            ends[step, w] = start + compute[step, w] + 0.03
    found = of(compute, Waiting(delays=np.full(WORKERS, delay)))
    assert found.tolist() == pytest.approx(ends.max(1).tolist())


def test_who_does_not_participate_computes_nothing(compute):
    def drawn(step):
        return np.arange(WORKERS) % 2 == step % 2

    found = np.diff(of(compute, Waiting(participants=drawn)), prepend=0)
    expected = [compute[step][drawn(step)].max() + 0.03 for step in range(STEPS)]
    assert found == pytest.approx(expected)


def test_the_less_workers_wait_the_faster_they_are(compute):
    sends = np.arange(1, STEPS + 1) % 10 == 0
    all_ = of(compute, communication=0.0)[-1]
    gossip = of(compute, Waiting(links=ring), communication=0.0)[-1]
    one, late = (
        of(compute, Waiting(delays=np.full(WORKERS, n)), communication=0.0)[-1] for n in (1, 8)
    )
    local = of(compute, sends=sends, communication=0.0)[-1]
    least = (compute.sum(0) + STEPS * 0.01).max()  # of the slowest in all
    assert all_ > gossip > late >= least
    assert all_ > one > late
    assert all_ > local > least


# of runs


TINY = {
    "model": "mlp", "model_config": "hidden=8", "dataset": "digits", "workers": 4,
    "batch_size": 30, "epochs": 4, "quiet": True, "lr": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    each = {
        "all": {},
        "ring": {"algorithm": "dpsgd", "topology": "ring"},
        "one-peer": {"algorithm": "dpsgd", "topology": "one-peer"},
        "local": {"algorithm": "local", "local_steps": 4},
        "fedavg": {"algorithm": "fedavg", "participation": 0.5, "local_steps": 1},
        "islands": {"algorithm": "islands:2,local_steps=1"},
        "noloco": {"algorithm": "noloco:1"},
        "async": {"algorithm": "async", "staleness": 2},
        "async-own": {"algorithm": "async", "staleness": "uniform:3"},
    }
    return {
        name: simsgd.train(**TINY, **own, name=name, runs_dir=folder) for name, own in each.items()
    }


@pytest.mark.slow
def test_a_synchronous_step_takes_as_long_as_its_slowest_worker(runs):
    table = step_times(runs["all"], FREE, Pricing(LAW, 0))
    drawn = ComputeTimes.of(LAW).drawn(len(table), 4)
    assert table["compute"].tolist() == pytest.approx(drawn.mean(1).tolist())
    assert table["total"].tolist() == pytest.approx(drawn.max(1).tolist(), rel=1e-9)
    assert table["stragglers"].tolist() == pytest.approx(
        (drawn.max(1) - drawn.mean(1)).tolist(), rel=1e-6
    )
    assert table["dense"].tolist() == pytest.approx(drawn.max(1).tolist(), rel=1e-9)


@pytest.mark.slow
def test_the_expected_time_of_the_slowest_is_that_of_numpy(runs):
    (row,) = prices([runs["all"]], [FREE], Pricing(LAW, 0))
    slowest = np.random.default_rng(7).lognormal(math.log(100), 0.3, (200_000, 4)).max(1)
    steps = len(runs["all"].steps)
    assert row["total_ms"] == pytest.approx(slowest.mean(), abs=4 * slowest.std() / steps**0.5)
    assert row["total_ms"] == pytest.approx(row["compute_ms"] + row["stragglers_ms"], rel=1e-6)


def total(run, network=FREE, **settings):
    return float(step_times(run, network, Pricing(LAW, 0, **settings))["total"].sum())


@pytest.mark.slow
def test_neighbors_clients_and_servers_are_those_of_the_run(runs):
    """Each against a loop over workers with the neighbors, clients and delays of its algorithm."""
    drawn = ComputeTimes.of(LAW).drawn(len(runs["all"].steps), 4)

    def met(of_step):
        now = np.zeros(4)
        for step, own in enumerate(drawn):
            busy = now + own
            now = np.array([max(busy[w] for w in of_step(step, worker)) for worker in range(4)])
        return now.max()

    def around(step, w):
        return (w - 1) % 4, w, (w + 1) % 4

    def peer(step, w):
        return w, (w + 2 ** (step % 2)) % 4

    back = met(peer), met(lambda step, w: (w, (w - 2 ** (step % 2)) % 4))
    assert total(runs["ring"]) == pytest.approx(met(around), rel=1e-9)
    assert min(abs(total(runs["one-peer"]) - one) for one in back) < 1e-9
    local = drawn[: len(drawn) // 4 * 4].reshape(-1, 4, 4).sum(1).max(1).sum()
    left = drawn[len(drawn) // 4 * 4 :].sum(0).max() if len(drawn) % 4 else 0.0
    assert total(runs["local"]) == pytest.approx(local + left, rel=1e-9)


def test_fewer_clients_wait_less(runs):
    every, half = total(runs["all"]), total(runs["fedavg"])
    drawn = ComputeTimes.of(LAW).drawn(20_000, 4)
    of_two = drawn[:, :2].max(1).mean() / drawn.max(1).mean()
    assert half / every == pytest.approx(of_two, rel=0.1)


@pytest.mark.slow
def test_a_client_that_is_done_with_its_local_epochs_waits_for_the_largest(runs, tmp_path):
    own = {"algorithm": "fedavg", "participation": 1.0, "local_epochs": 1, "epochs": 1}
    more = {"partition": "quantity:2", "batch_size": 20}
    run = simsgd.train(**{**TINY, **own, **more}, name="clients", runs_dir=tmp_path)
    held = run.partition.groupby("worker")["samples"].sum()
    steps = [-(-n // 20) for n in held]
    drawn = ComputeTimes.of(LAW).drawn(len(run.steps), 4)
    most, expected = max(steps), 0.0
    for start in range(0, len(drawn), most):
        one = [drawn[start : start + min(most, n), w].sum() for w, n in enumerate(steps)]
        expected += max(one)
    assert len(set(steps)) > 1
    assert total(run) == pytest.approx(expected, rel=1e-9)


def test_pairs_and_servers_lie_between_waiting_for_all_and_for_nobody(runs):
    drawn = ComputeTimes.of(LAW).drawn(len(runs["all"].steps), 4)
    least, most = drawn.sum(0).max(), drawn.max(1).sum()
    for name in ("islands", "noloco", "async", "async-own", "ring", "local"):
        assert least - 1e-9 <= total(runs[name]) < most


@pytest.mark.slow
def test_equal_workers_take_what_they_took_before(runs):
    for run in runs.values():
        link, equal = Network.of("10gbe"), "lognormal:5,0"
        plain, drawn = (step_times(run, link, Pricing(ms, 1)) for ms in (5, equal))
        assert drawn.equals(plain)
        assert (plain["stragglers"] == 0).all()
        near = step_times(run, link, Pricing("lognormal:5,1e-12", 1))
        assert near["total"].sum() == pytest.approx(plain["total"].sum(), rel=1e-6)


def test_an_algorithm_of_ones_own_is_not_run_for_a_price(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from simsgd.methods.algorithms import AllReduce\n"
        "@dataclass(frozen=True)\n"
        "class Mine(AllReduce):\n"
        "    pass\n"
    )
    own = f"{tmp_path / 'mine.py'}:Mine"
    run = simsgd.train(**{**TINY, "epochs": 1}, algorithm=own, name="mine", runs_dir=tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('was run')\n")
    drawn = ComputeTimes.of(LAW).drawn(len(run.steps), 4)
    assert total(run) == pytest.approx(drawn.max(1).sum(), rel=1e-9)


@pytest.mark.parametrize(
    "changed",
    [
        {"algorithm": "allreduce:x+./evil.py:Evil"},
        {"algorithm": "diloco", "used": {"outer_optimizer": "./evil.py:Evil"}},
    ],
)
def test_what_a_config_names_is_not_run_for_a_price(runs, tmp_path, monkeypatch, changed):
    shutil.copytree(runs["all"].folder, tmp_path / "a")
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')\n")
    monkeypatch.chdir(tmp_path)
    config = json.loads((tmp_path / "a/config.json").read_text())
    config["used"] |= changed.pop("used", {})
    (tmp_path / "a/config.json").write_text(json.dumps({**config, **changed}))
    assert total(simsgd.Run("a")) == pytest.approx(total(runs["all"]), rel=1e-9)


def test_the_table_has_stragglers_where_there_are_any(runs):
    table = simsgd.network(runs["all"].folder, compute_ms=LAW, compress_ms=0)
    assert table["stragglers_ms"][0] > 0
    folder = str(runs["all"].folder)
    from click.testing import CliRunner

    from simsgd.cli import main

    words = ["network", folder, "--compress-ms", "0"]
    done = CliRunner().invoke(main, [*words, "--compute-ms", LAW])
    assert "stragglers" in done.output
    assert "stragglers" not in CliRunner().invoke(main, [*words, "--compute-ms", "5"]).output
    axes = runs["all"].plot(kind="time", network="10gbe", compute_ms=LAW, compress_ms=0).axes[0]
    assert len(axes.patches) == 4
