"""Runs that end once each worker has sent so many bytes."""

import itertools

import pytest

import simsgd
from simsgd.results.results_table import result_rows, result_table
from simsgd.results.sweep import part_done
from simsgd.settings import SettingError

EPOCHS = 3  # of three steps each: 1437 samples by 4 workers of 90
TIMES = ["compute_seconds", "compression_seconds", "seconds"]


@pytest.fixture(scope="module")
def settings(kill_runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {**kill_runs.TINY, "epochs": EPOCHS, "compressor": "topk:0.1", "runs_dir": folder}


@pytest.fixture(scope="module")
def whole(settings):
    return simsgd.train(**settings, name="whole")


def ended(settings, steps, **more):
    """Return a run whose budget is spent in step number `steps`, by its last byte."""
    size = int(simsgd.Run(settings["runs_dir"] / "whole").steps["payload_bytes"][:steps].sum())
    return simsgd.train(**settings, until_bytes=size, **more)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 6])
def test_a_run_is_the_beginning_of_the_whole_one_and_evaluated_at_its_end(settings, whole, steps):
    run = ended(settings, steps, name=f"to-{steps}")
    assert run.steps.drop(columns=TIMES).equals(whole.steps[:steps].drop(columns=TIMES))
    assert run.last.step == steps
    assert len(run.evaluations) == steps // 3 + (steps % 3 > 0)
    assert run.last.payload_bytes == run.config["until_bytes"]
    assert f"ended after step {steps}: each worker has sent" in run.log
    assert part_done(run.folder) == 1


def test_the_first_byte_beyond_asks_for_one_more_step(settings, whole):
    size = int(whole.steps["payload_bytes"][:2].sum()) + 1
    run = simsgd.train(**settings, until_bytes=size, name="one-more", eval_every=1)
    assert run.evaluations["step"].tolist() == [1, 2, 3]
    text = (run.folder / "evaluations.csv").read_text()
    assert len(text.splitlines()) == 1 + 2


def test_evaluations_between_epochs_do_not_double_the_last(settings, whole):
    run = ended(settings, 2, name="often", eval_every=1)
    assert len((run.folder / "evaluations.csv").read_text().splitlines()) == 1 + 2


@pytest.mark.slow
def test_epochs_that_end_first_end_the_run(settings, whole):
    run = simsgd.train(**settings, until_bytes="1GB", name="short")
    assert run.steps.drop(columns=TIMES).equals(whole.steps.drop(columns=TIMES))
    assert run.config["until_bytes"] == 10**9
    assert "fewer than the 1,000,000,000 of until_bytes" in run.log
    assert part_done(run.folder) == 1
    assert not run.has_sent_enough


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 4, 5])
def test_a_run_resumed_in_the_middle_is_the_one_that_never_stopped(
    settings, whole, kill_runs, tmp_path, monkeypatch, stop
):
    straight = ended(settings, 5, name=f"straight-{stop}")
    counted, step = itertools.count(1), simsgd.Simulator.step

    def stopping(self, *arguments):
        record = step(self, *arguments)
        if next(counted) == stop:
            raise KeyboardInterrupt  # a second Ctrl-C
        return record

    monkeypatch.setattr(simsgd.Simulator, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        ended(settings, 5, checkpoint_every=1, name=f"stopped-{stop}")
    monkeypatch.undo()
    resumed = simsgd.train(resume=settings["runs_dir"] / f"stopped-{stop}", checkpoint_every=0)
    assert kill_runs.differences(resumed.folder, straight.folder) == []


@pytest.mark.slow
def test_one_that_has_ended_stays_as_it_is_or_goes_on_to_more_bytes(settings, whole, kill_runs):
    run = ended(settings, 4, name="going-on")
    assert simsgd.train(resume=run.folder).step == 4
    more = int(whole.steps["payload_bytes"][:7].sum())
    simsgd.train(resume=run.folder, until_bytes=more)
    assert run.step == 7
    assert (
        kill_runs.text_of(run.folder / "steps.csv")
        == (kill_runs.text_of(whole.folder / "steps.csv")[:8])
    )
    with pytest.raises(SettingError, match=r"^until_bytes must be at least the .* bytes that each"):
        simsgd.train(resume=run.folder, until_bytes="1KB")


@pytest.mark.slow
def test_workers_that_send_unequal_amounts_count_by_their_mean(settings):
    one = {**settings, "algorithm": "fedavg:participation=0.5,local_steps=1"}
    plain = simsgd.train(**one, name="clients")
    size = int(plain.epochs["payload_bytes"][0])
    run = simsgd.train(**one, until_bytes=size, name="clients-until")
    assert run.step == 3


@pytest.mark.slow
def test_the_table_shows_the_steps_at_which_it_ended(settings, whole):
    run = ended(settings, 4, name="shown")
    rows = result_rows([run.folder, whole.folder])
    text = str(result_table(rows))
    assert "4/4 steps" in text
    assert "3/3" in text


@pytest.mark.parametrize("value", ["", "0", "-1", "10 MiBs", "many", 0, -3])
def test_a_wrong_size_is_refused_in_one_line(value):
    rule = r"^until_bytes must (not be empty|be a number of bytes greater than)"
    with pytest.raises(SettingError, match=rule):
        simsgd.Config(until_bytes=value)


@pytest.mark.parametrize("algorithm", [{"algorithm": "local:4,final_exchange=true"},
                                       {"algorithm": "local", "final_exchange": True}])  # fmt: skip
def test_an_exchange_after_an_unknown_last_step_is_refused(settings, algorithm):
    with pytest.raises(SettingError, match=r"^until_bytes does not go together with final_exch"):
        simsgd.train(**{**settings, "compressor": None}, **algorithm, until_bytes="1MB", name="x")
