import subprocess
import sys
import types

import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.training.sweep.process_pool import child_environment

TINY = {"model": "mlp", "model_config": "hidden=8", "dataset": "digits", "workers": 2}
HERE = {**TINY, "batch_size": 60, "quiet": True}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def events(folder):
    """Return {tag: {step: value}} of what TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


@pytest.fixture
def asked_twice():
    """A run with event files that stopped after an epoch and went on."""
    pytest.importorskip("tensorboard")
    simsgd.train(**HERE, epochs=1, tensorboard=True, name="a")
    return simsgd.train(resume="runs/a", epochs=2, quiet=True)


@pytest.mark.slow
def test_event_files_hold_the_tables_and_a_resumed_run_goes_on(asked_twice):
    shown, steps, epochs = events("runs/a/tensorboard"), asked_twice.steps, asked_twice.epochs
    assert [step for step, _ in shown["step/loss"]] == steps["step"].tolist()
    assert [value for _, value in shown["step/loss"]] == pytest.approx(steps["loss"].tolist())
    assert [step for step, _ in shown["epoch/val_error1"]] == epochs["step"].tolist()
    logged = [value for _, value in shown["epoch/payload_bytes"]]
    assert logged == pytest.approx(epochs["payload_bytes"].tolist())


@pytest.mark.slow
def test_what_a_killed_run_logged_too_much_is_hidden_when_it_goes_on():
    pytest.importorskip("tensorboard")
    from simsgd.training.loggers import TensorBoard

    for done in (0, 2):  # killed after step 4, its last checkpoint of step 2
        board = TensorBoard(simsgd.train(**HERE, epochs=1, name=f"{done}").folder.parent, done)
        for step in range(done, 4):
            board.log({"a": 10.0 * done + step + 1}, step + 1)
        board.close()
    assert events("runs/tensorboard")["a"] == [(1, 1), (2, 2), (3, 23), (4, 24)]


@pytest.mark.slow
def test_no_dashboard_is_imported_unless_asked_for():
    code = (
        "import sys, simsgd\n"
        f"simsgd.train(**{HERE!r}, epochs=1, name='a')\n"
        "print([name for name in ('tensorboard', 'wandb') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=child_environment(),
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_dashboard_that_is_not_installed_names_its_extra(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    done = CliRunner().invoke(main, ["train", "--dataset", "digits", f"--{name}"])
    assert done.exit_code == 2
    assert done.stderr == (
        f"simsgd: --{name} needs {name}, which is not installed; "
        f"it comes with: pip install 'simsgd[{name}]'\n"
    )
    assert list(tmp_path.iterdir()) == []


class Session:
    """What wandb.init returns, as far as it is used."""

    def __init__(self, settings):
        self.settings, self.id = settings, settings["id"] or "abc"
        self.logged, self.finished = [], False

    def define_metric(self, name, step_metric):
        pass

    def log(self, numbers):
        self.logged.append(numbers)

    def finish(self):
        self.finished = True


@pytest.mark.slow
def test_wandb_gets_the_tables_offline_and_goes_on_under_its_id(monkeypatch):
    sessions = []

    def init(**settings):
        sessions.append(Session(settings))
        return sessions[-1]

    fake = types.ModuleType("wandb")
    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    simsgd.train(**HERE, epochs=1, wandb=True, name="a")
    run = simsgd.train(resume="runs/a", epochs=2, quiet=True)
    first, second = sessions
    assert first.settings["mode"] == "offline"
    assert (first.settings["id"], second.settings["id"]) == (None, "abc")
    assert first.settings["config"]["workers"] == 2
    assert first.finished
    assert second.finished
    losses = [row["step/loss"] for s in sessions for row in s.logged if "step/loss" in row]
    assert losses == run.steps["loss"].tolist()
    ends = [row["steps"] for s in sessions for row in s.logged if "epoch/val_error1" in row]
    assert ends == run.epochs["step"].tolist()
