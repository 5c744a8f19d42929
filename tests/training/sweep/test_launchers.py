import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import simsgd
from simsgd.results.sweep import part_done
from simsgd.settings import SettingError
from simsgd.training.sweep import sweep as sweeping
from simsgd.training.sweep.launchers import launcher_of

TINY = {
    "model": "mlp",
    "model_config": "hidden=8",
    "dataset": "digits",
    "workers": 2,
    "batch_size": 60,
    "epochs": 2,
}


def test_a_launcher_that_is_not_installed_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SettingError, match=r"pip install 'simsgd\[cluster\]'"):
        launcher_of("slurm", None, tmp_path)


def test_an_unknown_launcher_and_no_jobs_are_refused(tmp_path):
    with pytest.raises(SettingError, match="launcher is not known, got pbs"):
        launcher_of("pbs", None, tmp_path)
    with pytest.raises(SettingError, match="jobs must be at least 1, got 0"):
        launcher_of(None, 0, tmp_path)


@pytest.mark.slow
def test_processes_make_the_runs_and_a_dead_one_takes_only_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import os\nfrom torch import nn\n"
        "class Dies(nn.Linear):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        Dies.calls += 1\n"
        "        if Dies.calls > 6: os.kill(os.getpid(), 9)\n"
        "        return super().forward(x.flatten(1))\n"
        "def mine(num_classes, mortal):\n"
        "    if mortal is None: os.kill(os.getpid(), 9)\n"
        "    kind = Dies if mortal else nn.Linear\n"
        "    return nn.Sequential(nn.Flatten(), kind(64, num_classes))\n"
    )
    own = {**TINY, "model": "./mine.py", "engine": "loop", "optimizer": "SGD", "lr": 0.1}
    kinds = [
        "mortal=True",
        "mortal=None",
        "mortal=False",
    ]  # in its run; in its check
    left = simsgd.sweep(**{**own, "model_config": kinds}, jobs=2, quiet=True)
    assert set(left.failures) == {"mortal-True-seed0", "mortal-None-seed0"}
    assert all("killed by SIGKILL" in why for why in left.failures.values())
    made = left.table.set_index("model_config")["seeds"].to_dict()
    assert made == dict(zip(kinds, (0, 0, 1), strict=True))


@pytest.mark.slow
def test_a_sweep_that_is_asked_to_stop_saves_its_runs_and_can_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {**TINY, "epochs": 4000, "runs_dir": "made", "quiet": True, "log_every": 1}
    seen = []

    class Soon(sweeping.StopRequest):
        @property
        def made(self):
            return seen != [] or (part_done(tmp_path / "made/seed0") > 0 and not seen.append(1))

    monkeypatch.setattr("simsgd.training.signals.StopRequest", Soon)
    with pytest.raises(sweeping.Interrupted, match="repeat the command to continue"):
        simsgd.sweep(**asked)
    run = simsgd.Run("made/seed0")
    assert run.log.count("Interrupted") == 0
    assert (tmp_path / "made/seed0/last.pt").exists()
    assert len(run.steps) > 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="only POSIX kills so")
def test_runs_end_with_the_sweep_that_is_killed_and_the_next_one_makes_them(tmp_path):
    settings = {**TINY, "epochs": 40}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    killed = subprocess.Popen(
        [sys.executable, "-m", "simsgd", "sweep", *words, "--seeds=2", "--jobs=2",
         "--runs-dir=made", "--quiet"],
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    tables = [tmp_path / f"made/seed{seed}/epochs.csv" for seed in (0, 1)]
    until = time.monotonic() + 300  # both runs begin within seconds, unless all cores are busy
    try:
        while not all(table.exists() and table.read_text().count("\n") > 2 for table in tables):
            assert killed.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        killed.kill()
        killed.wait()
    made = tmp_path / "made"
    answers = simsgd.sweep(**settings, seeds=2, jobs=2, runs_dir=made, quiet=True)  # at once
    assert answers.failures == {}
    assert [len(run.epochs) for run in answers.runs] == [40, 40]
    assert not [*tmp_path.glob("simsgd-*")]  # the folder of answers


@pytest.mark.slow
def test_submitit_makes_the_runs_where_it_is_installed(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    places = {Path(module.__file__).parents[1] for module in (simsgd, submitit)}
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))
    monkeypatch.chdir(tmp_path)
    left = simsgd.sweep(**TINY, lr=[0.1, 1e38], launcher="local", quiet=True, runs_dir="made")
    assert list(left.failures) == ["lr1e+38-seed0"]
    assert left.failures["lr1e+38-seed0"].startswith("the loss of worker 0 became")
    assert left.table["seeds"].tolist() == [1, 0]
