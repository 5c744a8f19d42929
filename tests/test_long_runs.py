"""A long run holds no more memory at its end than at its beginning."""

from pathlib import Path

import pytest

import simsgd

STEPS, EVERY = 7_000, 500


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux reports memory so")
def test_thousands_of_steps_take_no_more_memory_than_hundreds(kill_runs, tmp_path):
    an_epoch = 1438  # digits to train on, one a step
    settings = kill_runs.TINY | {
        "model": "logistic", "model_config": "", "workers": 1, "batch_size": 1, "lr": 0.001,
        "engine": "loop", "compressor": "topk:0.1", "memory": "residual", "log_every": 1000,
        "checkpoint_every": 2000, "epochs": -(-STEPS // an_epoch), "runs_dir": tmp_path,
    }  # fmt: skip
    held = kill_runs.LongChild({**settings, "name": "long"}, EVERY).received()
    assert max(held) <= 1.05 * held[0], held
    steps = simsgd.Run(tmp_path / "long").steps
    assert steps["step"].tolist() == [*range(1, an_epoch * settings["epochs"] + 1)]
