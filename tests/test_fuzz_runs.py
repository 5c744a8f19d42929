"""Whole runs drawn at random: data, partitions and evaluation, ended at a step and resumed."""

import os
import signal

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import simsgd
from simsgd.settings import SettingError
from simsgd.simulator.simulator import Simulator
from simsgd.training.signals import Interrupted

TEXT = "one two three four five six seven eight nine ten\n" * 60
IMAGES = {
    "dataset": ("digits",),
    "model": ("mlp", "logistic", "resnet", "mnist_f1"),
    "partition": ("iid-reshuffled", "iid-fixed", "sorted", "dirichlet:0.5", "shards:2"),
    "batch_size": (100, 120),
}
WORDS = {
    "dataset": ("text",),
    "model": ("lstm_lm", "transformer_lm", "gpt"),
    "tokens": ("word", "char", "byte"),
    "batch_size": (2, 3),
    "bptt": (5, 8),
    "vary_bptt": (True,),
    "min_count": (1, 2),
}
ALL = {
    "workers": (2, 3, 4),
    "algorithm": ("allreduce", "allreduce", "dpsgd", "choco", "local", "async"),
    "compressor": ("topk:0.1", "qsgd:15"),
    "checkpoint_every": (1, 2),
    "log_every": (2, 3),
    "log_layers": (True,),
    "scale_lr": ("sqrt", "linear", "none"),
    "optimizer": ("Adam",),
    "dtype": ("float64",),
    "seed": (0, 1, 2),
}
NEEDED = ("dataset", "model", "batch_size", "workers", "algorithm")
SMALL = {"mlp": "hidden=8", "resnet": "depth=8", "mnist_f1": "hidden=8,depth=2",
         "lstm_lm": "hidden=8", "transformer_lm": "emb=8,heads=2,layers=1",
         "gpt": "emb=8,heads=2,layers=1"}  # fmt: skip


@st.composite
def runs(draw):
    """Draw settings of a run of two epochs, and the step at whose end somebody stops it."""
    group = draw(st.sampled_from([IMAGES, WORDS]))
    chosen = {}
    for name, values in (group | ALL).items():
        if name in NEEDED or draw(st.integers(0, 3)) == 0:
            chosen[name] = draw(st.sampled_from(values))
    if chosen["algorithm"] in ("dpsgd", "choco", "local") and draw(st.booleans()):
        chosen["evaluate"] = draw(st.sampled_from(["workers", "both"]))
    if chosen["model"] in ("resnet", "mnist_f1") and draw(st.booleans()):
        chosen |= {
            "recalibrate_bn": 1,
            "evaluate_buffers": draw(st.sampled_from(["mean", "rank0"])),
        }
    chosen["model_config"] = SMALL.get(chosen["model"], "")
    return chosen, draw(st.integers(1, 7))


def stopped_at(step):
    """Return a patch under which a run is stopped at the end of a step."""
    real = Simulator.step

    def call(self, *arguments):
        record = real(self, *arguments)
        if self.steps == step:
            os.kill(os.getpid(), signal.SIGINT)
        return record

    patch = pytest.MonkeyPatch()
    patch.setattr(Simulator, "step", call)
    return patch


def check(kill_runs, folder, chosen, step):
    """Hold a run that was stopped and resumed to the one that never stopped."""
    if chosen["dataset"] == "text":
        (folder / "words.txt").write_text(TEXT)
        chosen = chosen | {"dataset": f"text:{folder / 'words.txt'}"}
    chosen = {"epochs": 2, "device": "cpu", "quiet": True, "runs_dir": folder, "lr": 0.01} | chosen
    for name in ("whole", "part"):
        before = set(folder.iterdir())
        patch = stopped_at(step if name == "part" else -1)
        try:
            simsgd.train(**chosen, name=name, overwrite=True)
        except SettingError:
            assert set(folder.iterdir()) == before
            reject()
        except Interrupted:
            pass
        finally:
            patch.undo()
    run = simsgd.train(resume=folder / "part")
    assert kill_runs.differences(run.folder, folder / "whole") == []
    assert run.epochs["train_loss"].notna().all()


QUIET = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=4, **QUIET)
@given(runs())
@pytest.mark.slow
def test_runs_drawn_at_random_resume(kill_runs, tmp_path_factory, drawn):
    check(kill_runs, tmp_path_factory.mktemp("runs"), *drawn)


@pytest.mark.slow
@settings(max_examples=20, **QUIET)
@given(runs())
def test_many_runs_drawn_at_random_resume(kill_runs, tmp_path_factory, drawn):
    check(kill_runs, tmp_path_factory.mktemp("runs"), *drawn)
