"""How many threads a run uses, and what it says of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from simsgd import Config, SettingError, train
from simsgd.gradients.thread_count import thread_count
from simsgd.simulator.simulator import Simulator
from simsgd.training.experiment import Experiment
from simsgd.training.thread_choice import ThreadChoice, machine_line
from simsgd.verify import launch


@pytest.fixture
def two_threads():
    with thread_count(2):
        yield


def choice(**settings):
    return Experiment.of(Config.of(settings)).threads


@pytest.mark.usefixtures("two_threads")
def test_a_small_model_takes_one_thread():
    assert choice(workers=16) == ThreadChoice(2, 1, 1)


@pytest.mark.usefixtures("two_threads")
def test_large_operations_take_all_threads():
    wide = {"model": "mlp", "model_config": "hidden=1024", "workers": 16, "batch_size": 32}
    assert choice(**wide) == ThreadChoice(2, 2, 2)


@pytest.mark.usefixtures("two_threads")
def test_many_samples_of_few_weights_take_all_threads_for_gradients_alone():
    assert choice(workers=4, batch_size=200) == ThreadChoice(2, 2, 1)


@pytest.mark.slow
def test_a_number_of_threads_is_kept_to(tmp_path, monkeypatch):
    seen = set()
    step = Simulator.step

    def counted(self, *batch):
        seen.add(torch.get_num_threads())
        return step(self, *batch)

    monkeypatch.setattr(Simulator, "step", counted)
    run = train(workers=2, batch_size=1000, threads="3", epochs=1, runs_dir=tmp_path, quiet=True)
    assert seen == {3}
    assert torch.get_num_threads() == 1
    assert "threads: 3; inner loops: " in (run.folder / "log.txt").read_text()
    assert run.config["used"]["threads"] == 3


@pytest.mark.parametrize("threads", ["few", "0", 0, -1])
def test_threads_are_a_number_or_auto(threads):
    with pytest.raises(SettingError, match="threads must be a number from 1 to 1024, or auto"):
        Config.of({"threads": threads})


def test_a_run_logs_when_its_threads_do_not_sleep(monkeypatch):
    both, one = ThreadChoice(2, 2, 1), ThreadChoice(2, 1, 1)
    assert "OMP_WAIT_POLICY" not in machine_line(both)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert machine_line(both).endswith("set OMP_WAIT_POLICY=passive if other processes are busy")
    assert "OMP_WAIT_POLICY" not in machine_line(one)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "policy"), [("simsgd", "passive"), ("torch", "None")])
def test_threads_sleep_as_they_wait_if_simsgd_is_imported_before_torch(first, policy):
    code = f"import {first}, simsgd, os; print(os.environ.get('OMP_WAIT_POLICY'))"
    root = Path(launch.__file__).parents[2]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == policy
