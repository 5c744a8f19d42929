"""Runs whose length is in steps, and evaluations between the ends of epochs."""

import itertools

import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.results.results_table import result_rows, result_table
from simsgd.results.samples import samples_at
from simsgd.results.sweep import part_done
from simsgd.settings import SettingError
from simsgd.training.checkpoint import load_checkpoint
from simsgd.training.experiment import Experiment
from simsgd.training.length_notes import length_notes
from simsgd.training.run_config import run_config
from simsgd.training.start_message import start_message

BATCHES = 3  # of an epoch of kill_runs.TINY: 1437 samples by 4 workers of 90


@pytest.fixture(scope="module")
def runs(kill_runs, tmp_path_factory):
    """A run of seven steps of three an epoch, and one of three epochs, of the same settings."""
    folder = tmp_path_factory.mktemp("runs")
    settings = kill_runs.TINY | {"runs_dir": folder, "eval_every": 2, "prune": 0.9, "clip": 1.0}
    return {
        "steps": simsgd.train(**{**settings, "epochs": None, "steps": 7, "name": "steps"}),
        "epochs": simsgd.train(**settings | {"epochs": 3, "name": "epochs"}),
    }


@pytest.mark.slow
def test_a_run_of_some_steps_is_the_beginning_of_a_longer_one(runs):
    steps, epochs = (runs[name].steps.drop(columns=TIMES) for name in ("steps", "epochs"))
    assert len(steps) == 7
    assert steps.equals(epochs[:7])


TIMES = ["compute_seconds", "compression_seconds", "seconds"]
MEASURED = ["step", "epochs", "train_loss", "val_loss", "val_error1", "payload_bytes"]


@pytest.mark.slow
def test_rows_of_evaluations_have_their_step(runs):
    steps, epochs = runs["steps"].evaluations, runs["epochs"].evaluations
    assert steps["step"].tolist() == [2, 3, 4, 6, 7]
    assert steps["epochs"].tolist() == [2 / 3, 1, 1 + 1 / 3, 2, 2 + 1 / 3]
    assert epochs["step"].tolist() == [2, 3, 4, 6, 8, 9]
    assert steps[MEASURED][:4].equals(epochs[MEASURED][:4])
    assert runs["steps"].epochs["step"].tolist() == [3, 6]
    assert runs["steps"].last.step == 7


@pytest.mark.slow
def test_an_evaluation_is_what_the_model_of_that_step_gives(runs, kill_runs, tmp_path):
    short = simsgd.train(
        **kill_runs.TINY | {"epochs": None, "steps": 4, "prune": 0.9, "clip": 1.0},
        runs_dir=tmp_path, name="a",
    )  # fmt: skip
    measured = simsgd.evaluate(short.folder)
    row = runs["epochs"].evaluations.set_index("step").loc[4]
    assert (row["val_loss"], row["val_error1"]) == (measured.loss, measured.error1)


def test_best_is_the_best_of_all_evaluations(runs):
    for run in runs.values():
        errors = run.evaluations["val_error1"]
        assert run.best.step == run.evaluations["step"][errors.argmin()]
        best = load_checkpoint(run.folder / "best.pt", "checkpoint")
        assert (best["step"], best["best"]) == (run.best.step, errors.min())


@pytest.mark.slow
def test_evaluations_change_nothing_else(runs, kill_runs, tmp_path):
    rare = kill_runs.TINY | {"epochs": 3, "prune": 0.9, "clip": 1.0}
    run = simsgd.train(**rare, runs_dir=tmp_path, name="a")
    often, last = runs["epochs"], ("simulator", "model", "epoch", "batch")
    assert run.steps.drop(columns=TIMES).equals(often.steps.drop(columns=TIMES))
    one, two = (load_checkpoint(r.folder) for r in (run, often))
    assert kill_runs.numbers({n: one[n] for n in last}) == kill_runs.numbers(
        {n: two[n] for n in last}
    )


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 3, 4, 5, 7])
def test_a_run_of_steps_resumed_in_the_middle_is_the_one_that_never_stopped(
    runs, kill_runs, tmp_path, monkeypatch, stop
):
    settings = kill_runs.TINY | {"epochs": None, "steps": 7, "prune": 0.9, "clip": 1.0}
    counted, step = itertools.count(1), simsgd.Simulator.step

    def stopping(self, *arguments):
        record = step(self, *arguments)
        if next(counted) == stop:
            raise KeyboardInterrupt  # a second Ctrl-C
        return record

    monkeypatch.setattr(simsgd.Simulator, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        simsgd.train(**settings, eval_every=2, checkpoint_every=1, runs_dir=tmp_path, name="a")
    monkeypatch.undo()
    resumed = simsgd.train(resume=tmp_path / "a", checkpoint_every=0)
    assert kill_runs.differences(resumed.folder, runs["steps"].folder) == []
    assert resumed.evaluations[MEASURED].equals(runs["steps"].evaluations[MEASURED])


@pytest.mark.slow
def test_a_run_that_has_ended_goes_on_to_more_steps_or_to_more_epochs(runs, kill_runs, tmp_path):
    settings = kill_runs.TINY | {"epochs": None, "prune": 0.9, "clip": 1.0, "steps": 4}
    run = simsgd.train(**settings, eval_every=2, runs_dir=tmp_path, name="a")
    assert simsgd.train(resume=run.folder).steps["step"].tolist() == [1, 2, 3, 4]  # nothing to do
    simsgd.train(resume=run.folder, steps=7)
    assert kill_runs.differences(run.folder, runs["steps"].folder) == []
    simsgd.train(resume=run.folder, epochs=3)
    assert run.epochs.drop(columns="seconds").equals(runs["epochs"].epochs.drop(columns="seconds"))
    assert (run.config["steps"], run.config["epochs"]) == (None, 3)


def test_two_lengths_are_refused():
    with pytest.raises(SettingError, match=r"^steps and epochs were both given; give one$"):
        simsgd.train(steps=3, epochs=1)


def test_a_schedule_knows_the_steps(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def schedule(epochs, batches, steps):\n"
        "    return {0: {'lr': lambda epoch, step: 1 - step / steps}}\n"
    )
    words = {"workers": 4, "batch_size": 90, "dataset": "digits", "model": "mlp"}
    config = run_config({**words, "regime": str(tmp_path / "mine.py"), "steps": 7})
    regime = Experiment.of(config).schedule.regime
    assert [regime.at(step // BATCHES, step)["lr"] for step in (0, 7)] == [1.0, 0.0]


@pytest.mark.parametrize("name", ["gpt_cosine", "cifar_cosine", "onecycle_resnet9"])
@pytest.mark.parametrize("length", [{"steps": 1000}, {"epochs": 12}])
def test_the_schedules_that_come_with_us_end_with_the_run(name, length):
    words = {"workers": 4, "batch_size": 90, "dataset": "digits", "model": "mlp"}
    experiment = Experiment.of(run_config({**words, "regime": name, **length}))
    steps, regime = experiment.steps, experiment.schedule.regime
    rates = [regime.at(step // BATCHES, step)["lr"] for step in range(steps + 1)]
    assert steps == (1000 if "steps" in length else 36)
    assert rates[-1] == pytest.approx(1e-4 if name == "gpt_cosine" else 0, abs=1e-12)


@pytest.mark.slow
def test_a_note_names_the_phase_that_does_not_come(kill_runs, tmp_path):
    (tmp_path / "mine.py").write_text("regime = {0: {'lr': 0.1}, 2: {'lr': 0.01}}")
    words = kill_runs.TINY | {"epochs": None, "regime": str(tmp_path / "mine.py")}
    run = simsgd.train(**words, steps=4, runs_dir=tmp_path, name="a")
    assert (
        "note: the run ends after 1.333 epochs, before the regime's phase of epoch 2; "
        "--epochs 3 would reach it" in run.log
    )
    assert ", 4 steps (1.333 epochs), cpu" in run.log
    run = simsgd.train(**words, steps=7, runs_dir=tmp_path, name="b")
    assert "before the regime's phase" not in run.log
    assert run.steps["lr"].tolist() == [0.1] * 6 + [0.01]


TOO_LONG = {  # settings of a run of three steps, and what is told of them
    "algorithm='async', staleness=2": "",
    "algorithm='async', staleness=3": "note: workers read models that are up to 3 steps old, and "
    "the run has 3: those who are so late never see another than the first; lower --staleness",
    "algorithm='local', local_steps=3": "",
    "algorithm='local', local_steps=2": "note: the last step is not followed by an exchange, for 2 "
    "does not divide 3 steps; --final-exchange adds one",
    "algorithm='local', local_steps=9": "note: the workers never exchange anything, as the run "
    "ends after 3 of the first round's 9 steps; --final-exchange does it once",
    "algorithm='local', local_steps=9, final_exchange=True": "",
    "algorithm='local', local_steps=3, post_local_from=1": "note: the run ends before epoch 1, "
    "from which on steps would be local",
    "prune=0.9, warmup=False, flush_every=4": "note: the run ends after 3 steps, before "
    "--flush-every 4 is reached: nothing is flushed",
    "eval_every=4": "note: the run ends after 3 steps, before --eval-every 4 is reached: "
    "evaluations come at the ends of epochs alone",
    "checkpoint_every=4": "note: the run ends after 3 steps, before --checkpoint-every 4 is "
    "reached: checkpoints come at the ends of epochs alone",
    "method='onebit_adam'": "note: the run ends after 3 steps, before freeze_step 100 is reached: "
    "nothing is compressed",
}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(("settings", "told"), TOO_LONG.items())
def test_a_setting_that_is_too_long_for_the_run_is_told(settings, told):
    words = {"workers": 4, "batch_size": 90, "dataset": "digits", "model": "logistic", "epochs": 1}
    experiment = Experiment.of(run_config(words | eval(f"dict({settings})")))
    assert "\n".join(length_notes(experiment)) == told


IDLE = {  # settings that change nothing, and what is told of them
    "compressor='none', memory='dgc'": "note: memory dgc keeps nothing, since nothing is "
    "compressed; set --compressor",
    "compressor='powersgd:99999'": "note: rank 99999 is at least the shorter side of every "
    "matrix: its factors have more entries than the matrices themselves",
    "data_dir='elsewhere'": "note: --data-dir is not used: digits comes with simsgd",
    "download=True": "note: --download is not used: digits comes with simsgd",
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("settings", "told"), IDLE.items())
def test_a_setting_that_changes_nothing_is_told(settings, told):
    words = {"workers": 4, "batch_size": 90, "dataset": "digits", "model": "logistic", "epochs": 1}
    experiment = Experiment.of(run_config(words | eval(f"dict({settings})")))
    assert told in start_message(experiment).splitlines()


# what reads such runs


def test_tables_show_the_length_in_steps(runs):
    folders = [run.folder for run in runs.values()]
    rows = {row["name"]: row for row in result_rows(folders)}
    assert [rows["steps"][name] for name in ("done", "step", "steps")] == [2, 7, 7]
    assert [rows["epochs"][name] for name in ("done", "step", "steps")] == [3, 9, None]
    text = str(result_table(list(rows.values())))
    assert "7/7 steps" in text
    assert "3/3" in text
    assert [part_done(folder) for folder in folders] == [1.0, 1.0]
    assert "after 7 steps (best" in runs["steps"].summary()
    assert runs["steps"].seconds == pytest.approx(
        runs["steps"].epochs["seconds"].sum() + runs["steps"].last.seconds
    )


@pytest.mark.slow
def test_every_reader_takes_them(runs, tmp_path):
    folders = [str(run.folder) for run in runs.values()]
    for words in (
        ["results", *folders],
        ["report", *folders, "-o", str(tmp_path / "page.html")],
        ["network", *folders],
        ["plot-results", *folders, "-o", str(tmp_path / "a.png"), "-x", "samples"],
        ["plot-results", *folders, "-o", str(tmp_path / "a.png"), "--kind", "pareto"],
    ):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    assert "7 of 7 steps" in (tmp_path / "page.html").read_text()


def line(figure):
    drawn = figure.axes[0].lines[0]
    return drawn.get_xdata().tolist(), drawn.get_ydata().tolist()


@pytest.mark.parametrize(
    ("x", "at"),
    [
        ("epoch", [2 / 3, 1, 1 + 1 / 3, 2, 2 + 1 / 3]),
        ("step", [2, 3, 4, 6, 7]),
        ("samples", [720, 1080, 1440, 2160, 2520]),
    ],
)
def test_figures_have_a_point_for_each_evaluation(runs, x, at):
    across, up = line(runs["steps"].plot(x=x))
    assert across == at
    assert up == runs["steps"].evaluations["val_error1"].tolist()


def test_columns_of_steps_are_drawn_against_samples(runs):
    across, up = line(runs["steps"].plot(x="samples", y="loss"))
    assert across == [360 * step for step in range(1, 8)]
    assert up == runs["steps"].steps["loss"].tolist()


def test_an_older_run_has_as_many_samples_as_its_batch_says(runs, tmp_path):
    import shutil

    run = simsgd.Run(shutil.copytree(runs["epochs"].folder, tmp_path / "a"))
    known = samples_at(run, run.epochs["step"], "samples").tolist()
    run.steps.drop(columns="samples").to_csv(run.folder / "steps.csv", index=False)
    assert samples_at(run, run.epochs["step"], "samples").tolist() == known == [1080, 2160, 3240]


def test_tokens_are_of_text_and_samples_of_the_rest(runs):
    with pytest.raises(SettingError, match=r"^run counts samples, not tokens, .*; use x samples$"):
        runs["steps"].plot(x="tokens")


@pytest.mark.slow
def test_tokens_are_counted_also_where_their_number_varies(tmp_path):
    run = simsgd.train(
        dataset="pydoc", model="lstm_lm", model_config="hidden=4", workers=2, batch_size=4,
        bptt=8, vary_bptt=True, steps=3, quiet=True, lr=0.1, runs_dir=tmp_path, name="a",
    )  # fmt: skip
    sent = run.steps["samples"].tolist()
    assert len(set(sent)) > 1
    across, _ = line(run.plot(x="tokens", y="val_perplexity"))
    assert across == [sum(sent)]


def test_only_samples_of_clients_that_train_are_counted(kill_runs, tmp_path):
    settings = kill_runs.TINY | {"algorithm": "fedavg", "participation": 0.25, "epochs": 1}
    run = simsgd.train(**settings, runs_dir=tmp_path, name="a")
    assert run.steps["samples"].tolist() == [90, 90, 90]
