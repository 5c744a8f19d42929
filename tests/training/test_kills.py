"""A run that is killed at any moment and resumed is the run that never stopped."""

import random
import signal
import time

import pytest

import simsgd

KILLS = 4  # of each kind of run, so that there are 32


@pytest.mark.slow
@pytest.mark.parametrize("augmented", [False, True], ids=["plain", "augmented"])
@pytest.mark.parametrize("method", ["dgc", "qsgd", "choco", "local"])
def test_a_run_killed_at_any_moment_and_resumed_is_the_run_that_never_stopped(
    kill_runs, tmp_path, method, augmented
):
    settings = {**kill_runs.TINY, **kill_runs.METHODS[method], "runs_dir": tmp_path}
    if augmented:
        (tmp_path / "net.py").write_text(kill_runs.AUGMENTED)
        settings |= {"model": str(tmp_path / "net.py"), "model_config": ""}
    settings |= {"checkpoint_every": 3, "log_every": 2}
    began = time.perf_counter()
    moments = kill_runs.Child({**settings, "name": "whole"}).received()
    seconds = time.perf_counter() - began
    chance = random.Random(f"{method} {augmented}")
    begun = moments.index("before step")
    writing = [n for n in range(begun, len(moments)) if moments[n] == "write"]
    anywhere = [chance.randrange(begun, len(moments)) for _ in range(KILLS - 2)]
    chosen = [chance.choice(writing), *anywhere]
    killed = []
    for number in chosen:
        name = f"killed {number} {moments[number]}"
        child = kill_runs.Child({**settings, "name": name}, number)
        assert child.exit_code() == -signal.SIGKILL
        killed.append(name)
    child = kill_runs.Child({**settings, "name": "killed by the clock"})
    time.sleep(chance.uniform(0.5, 1) * seconds)
    child.process.kill()
    child.exit_code()
    killed += (
        ["killed by the clock"] if (tmp_path / "killed by the clock/config.json").exists() else []
    )
    for name in killed:
        run = simsgd.train(resume=tmp_path / name)
        assert (name, kill_runs.differences(run.folder, tmp_path / "whole")) == (name, [])
        assert run.steps["step"].tolist() == [*range(1, 2 * (1437 // 360) + 1)]
