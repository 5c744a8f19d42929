"""A run goes on where nobody reads its output, and ends as by SIGTERM when its terminal closes."""

import os
import signal
import subprocess
import sys

import pytest

import simsgd
from simsgd.training.signals import stop_requests

TRAIN = (
    f"{sys.executable} -m simsgd train --model mlp --model-config hidden=8 --dataset digits "
    "--workers 4 --batch-size 90 --epochs 2 --name a"
)


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
