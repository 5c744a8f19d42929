"""A run goes on where nobody reads its output, and ends as by SIGTERM when its terminal closes."""

import os
import signal
import subprocess
import sys
import time

import pytest

import simsgd
from simsgd.training.signals import stop_requests

TRAIN = (
    f"{sys.executable} -m simsgd train --model mlp --model-config hidden=8 --dataset digits "
    "--workers 4 --batch-size 90 --epochs 2 --name a"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("run")
    settings = {"model": "mlp", "model_config": "hidden=4", "dataset": "digits", "workers": 2}
    return simsgd.train(**settings, batch_size=300, epochs=1, quiet=True, runs_dir=folder).folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirected", "surroundings"),
    [
        ("| head -1", {}),
        ("| true", {}),
        (">&-", {}),
        ("2>&-", {}),
        (">&- 2>&-", {}),
        ("", {"LC_ALL": "C", "TERM": "dumb", "COLUMNS": "20", "HOME": "/nowhere"}),
    ],
)
def test_a_run_goes_on_whatever_happens_to_its_output(tmp_path, redirected, surroundings):
    line = f"set -o pipefail; {TRAIN} {redirected}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(simsgd.Run(tmp_path / "runs" / "a").epochs) == 2
    assert (tmp_path / "runs" / "a" / "log.txt").read_text().count("  epoch ") == 2


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a file that is full")
def test_a_run_goes_on_where_nothing_can_be_printed(tmp_path):
    line = f"{TRAIN} >/dev/full"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    told = "simsgd: standard output cannot be written (No space left on device)\n"
    assert (done.returncode, done.stderr) == (2, told)
    assert len(simsgd.Run(tmp_path / "runs" / "a").epochs) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "redirected"),
    [
        ("list models", "| true"),
        ("list models", ">&-"),
        ("results RUNS", "| true"),
        ("results RUNS", ">&- 2>&-"),
        ("results RUNS --json", ">&-"),
        ("results RUNS --json", "<&-"),
    ],
)
def test_a_command_ends_well_where_nobody_reads_on(run, command, redirected):
    line = command.replace("RUNS", str(run.parent))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m simsgd {line} {redirected}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["verify --steps 2", pytest.param("sweep --lr 0.1,0.2 --epochs 1 --runs-dir runs", id="sweep")],
)
def test_what_makes_runs_makes_them_where_nobody_reads_on(tmp_path, command):
    words = "--model mlp --model-config hidden=8 --dataset digits --workers 2 --batch-size 300"
    line = f"set -o pipefail; {sys.executable} -m simsgd {command} {words} | true"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(len(simsgd.Run(path.parent).steps) for path in tmp_path.glob("runs/*/config.json"))
    assert len([*tmp_path.glob("runs/*/config.json")]) == (2 if "sweep" in command else 1)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="only POSIX stops processes")
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(kill_runs, tmp_path):
    settings = kill_runs.TINY | {"epochs": 60, "runs_dir": tmp_path}
    child = kill_runs.Child({**settings, "name": "stopped"})
    table = tmp_path / "stopped" / "epochs.csv"
    while not (table.exists() and table.read_text().count("\n") > 3):
        time.sleep(0.01)
    os.kill(child.process.pid, signal.SIGSTOP)
    time.sleep(0.5)
    lines = table.read_text().count("\n")
    time.sleep(0.2)
    assert table.read_text().count("\n") == lines < 61
    os.kill(child.process.pid, signal.SIGCONT)
    child.received()
    whole = simsgd.train(**settings, name="whole")
    assert kill_runs.differences(tmp_path / "stopped", whole.folder) == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_asks_to_stop_as_sigterm_does(number):
    with stop_requests() as request:
        signal.raise_signal(number)
    assert request.made


def test_a_run_under_nohup_is_not_asked_to_stop():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as request:
            signal.raise_signal(signal.SIGHUP)
        assert not request.made
    finally:
        signal.signal(signal.SIGHUP, before)
