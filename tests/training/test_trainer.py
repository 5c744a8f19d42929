import json
import math
import os
import signal

import pandas as pd
import pytest
import torch

import simsgd
from simsgd.settings import SettingError
from simsgd.training.errors import Diverged
from simsgd.training.signals import Interrupted

TINY = {
    "model": "mlp", "model_config": "hidden=16", "dataset": "digits", "workers": 4,
    "batch_size": 30, "epochs": 3, "device": "cpu", "quiet": True,
}  # fmt: skip
STEPS = 11  # an epoch: 1437 digits in batches of 120

BATCHNORM = """
from torch import nn
regime = {0: {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}, 2: {"lr": 0.01}}
epochs = 3
class Shift:
    draws = 1
    def __call__(self, images, uniform):
        return images + uniform.view(-1, 1, 1, 1) - 0.5
input_transform = {"train": Shift()}
def model(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(),
                         nn.Dropout(0.2), nn.Linear(16, num_classes))
"""


MINE = """
from dataclasses import dataclass
from simsgd.methods.compressors import Compressor
from simsgd.communication.messages import Dense
@dataclass(frozen=True)
class Half(Compressor):
    biased = True
    def compress(self, x, state, step):
        return Dense.of(x / 2)
"""


def train(tmp_path, **settings):
    return simsgd.train(**{**TINY, "runs_dir": tmp_path, "name": "run", **settings})


def same(run, other):
    """Whether two runs have the same rows, but for the time they took, and the same checkpoint."""
    for table in ("epochs", "steps", "transfers"):
        one, two = (getattr(r, table).filter(regex="^(?!.*seconds)") for r in (run, other))
        pd.testing.assert_frame_equal(one, two, check_exact=True)
    one, two = (torch.load(r.folder / "last.pt", weights_only=True) for r in (run, other))
    for name, value in one["simulator"]["parameters"].items():
        assert torch.equal(value, two["simulator"]["parameters"][name])
    for name, value in one["model"].items():
        assert torch.equal(value, two["model"][name])
    for state in (one, two):
        del state["tally"]["seconds"]
    assert (one["tally"], one["best"]) == (two["tally"], two["best"])


def test_a_run_leaves_its_folder(tmp_path):
    run = train(tmp_path, prune=0.99)
    names = {"config.json", "log.txt", "epochs.csv", "steps.csv", "transfers.csv", "segments.csv"}
    names |= {"last.pt", "previous.pt", "best.pt"}
    assert {path.name for path in run.folder.iterdir()} == names
    assert len(run.epochs) == 3
    assert len(run.steps) == 3 * STEPS


def test_the_config_holds_every_resolved_setting(tmp_path):
    config = train(tmp_path, prune=0.99, epochs=1).config
    assert (config["memory"], config["epochs"], config["device"]) == ("dgc", 1, "cpu")
    assert {"torch", "python", "git", "machine"} <= config["environment"].keys()
    json.dumps(config)


def test_bytes_are_running_totals_that_the_steps_add_up_to(tmp_path):
    run = train(tmp_path, prune=0.99)
    for column in ("payload_bytes", "dense_bytes", "network_bytes"):
        assert run.steps[column].cumsum().iloc[STEPS - 1 :: STEPS].tolist() == (
            run.epochs[column].tolist()
        )
    assert run.epochs["ratio"].iloc[-1] == pytest.approx(
        run.epochs["dense_bytes"].iloc[-1] / run.epochs["payload_bytes"].iloc[-1]
    )


def test_the_training_loss_of_an_epoch_is_the_mean_over_its_steps(tmp_path):
    run = train(tmp_path, epochs=2)
    means = run.steps.groupby("epoch")["loss"].mean().tolist()
    assert run.epochs["train_loss"].tolist() == pytest.approx(means, rel=1e-12)


def test_without_pruning_the_payload_is_the_dense_gradient(tmp_path):
    steps = train(tmp_path, epochs=1).steps
    parameters = 64 * 16 + 16 + 16 * 10 + 10
    assert set(steps["payload_bytes"]) == set(steps["dense_bytes"]) == {4 * parameters}
    assert set(steps["network_bytes"]) == {round(4 * parameters * 2 * 3 / 4)}


@pytest.mark.slow
def test_the_kept_fraction_follows_the_warmup(tmp_path):
    run = train(tmp_path, prune=0.98, epochs=6)
    assert run.epochs["kept"].tolist() == [0.25, 0.25, 0.0625, 0.0625, 0.02, 0.02]


def test_training_learns(tmp_path):
    run = train(tmp_path, model_config="hidden=64", epochs=12, lr=0.2)
    assert run.epochs["val_error1"].iloc[-1] < 15
    assert run.epochs["train_error5"].iloc[-1] < run.epochs["train_error1"].iloc[-1]


@pytest.fixture(params=["mlp", "batchnorm"])
def recipe(request, tmp_path):
    if request.param == "mlp":
        return {"prune": 0.9}
    (tmp_path / "net.py").write_text(BATCHNORM)
    return {"prune": 0.9, "model": str(tmp_path / "net.py"), "model_config": "", "clip": 1.0}


@pytest.mark.quick_cases(1)
def test_a_run_resumed_after_an_epoch_is_the_run_that_never_stopped(tmp_path, recipe):
    whole = train(tmp_path, name="whole", **recipe)
    part = train(tmp_path, name="part", **{**recipe, "epochs": 2})
    again = simsgd.train(resume=part.folder, epochs=3)
    same(again, whole)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 5, STEPS, STEPS + 4])
def test_a_run_stopped_within_an_epoch_is_the_run_that_never_stopped(
    tmp_path, recipe, stop, monkeypatch
):
    whole = train(tmp_path, name="whole", **recipe)
    step = simsgd.Simulator.step

    def interrupted(self, *args):
        record = step(self, *args)
        if record.step == stop:
            os.kill(os.getpid(), signal.SIGINT)
        return record

    monkeypatch.setattr(simsgd.Simulator, "step", interrupted)
    with pytest.raises(
        Interrupted, match=f"stopped after step {stop}; continue with: simsgd train"
    ):
        train(tmp_path, name="part", **recipe)
    monkeypatch.undo()
    same(simsgd.train(resume=tmp_path / "part"), whole)


@pytest.mark.slow
def test_a_run_killed_after_a_checkpoint_repeats_the_steps_since(tmp_path, monkeypatch):
    whole = train(tmp_path, name="whole", prune=0.9)
    step = simsgd.Simulator.step

    def killed(self, *args):
        if self.steps == STEPS + 7:
            raise MemoryError
        return step(self, *args)

    monkeypatch.setattr(simsgd.Simulator, "step", killed)
    with pytest.raises(MemoryError):
        train(tmp_path, name="part", prune=0.9, checkpoint_every=5, log_every=1)
    monkeypatch.undo()
    assert len(simsgd.Run(tmp_path / "part").steps) == STEPS + 7
    same(simsgd.train(resume=tmp_path / "part"), whole)


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path, monkeypatch):
    whole = train(tmp_path, name="whole")

    def full(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr("simsgd.training.trainer.Trainer._save", full)
    with pytest.raises(OSError, match="no space"):
        train(tmp_path, name="part")
    monkeypatch.undo()
    same(simsgd.train(resume=tmp_path / "part"), whole)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"workers": 8}, "workers cannot change on resume, the run has 4, got 8"),
        ({"model": "lenet"}, "model cannot change on resume, the run has mlp, got lenet"),
        ({"prune": 0.5}, "prune cannot change on resume, the run has none, got 0.5"),
    ],
)
def test_what_a_run_is_cannot_change_on_resume(tmp_path, changed, message):
    run = train(tmp_path, epochs=1)
    with pytest.raises(SettingError, match=message):
        simsgd.train(resume=run.folder, **changed)


def test_the_best_checkpoint_is_not_resumed_for_the_last(tmp_path):
    run = train(tmp_path, epochs=1)
    with pytest.raises(SettingError, match="resume is not where the run stopped"):
        simsgd.train(resume=run.folder / "best.pt")


def test_a_finished_run_resumes_to_itself(tmp_path):
    run = train(tmp_path, epochs=1)
    before = run.epochs
    pd.testing.assert_frame_equal(simsgd.train(resume=run.folder).epochs, before)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tmp_path):
    (tmp_path / "exploding.py").write_text(
        "from torch import nn\n"
        "regime = {0: {'lr': 0.01}, 1: {'lr': 1e38}}\nepochs = 3\n"
        "def model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    what = r"loss|norm of the gradient of \S+"
    with pytest.raises(
        Diverged, match=rf"the ({what}) of worker . became (nan|inf) at step 1[2-9]"
    ) as e:
        train(tmp_path, model=str(tmp_path / "exploding.py"), model_config="")
    run = simsgd.Run(tmp_path / "run")
    state = torch.load(run.folder / "last.pt", weights_only=True)
    assert state["simulator"]["steps"] == STEPS
    assert all(value.isfinite().all() for value in state["model"].values())
    assert all(map(math.isfinite, run.steps["loss"]))
    assert str(e.value) in run.log


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0}, {"prune": 1.0}, {"batch_size": 400}, {"model": "lenett"},
        {"dataset": "digit"}, {"regime": "dgc"}, {"memory": "dcg"}, {"engine": "vmapp"},
        {"device": "cuda:99"}, {"name": "../up"}, {"model_config": "size=3"},
        {"optimizer": "Adam", "momentum": 0.9}, {"prune": 0.9, "optimizer": "Adam"},
    ],
)  # fmt: skip
def test_a_wrong_setting_leaves_no_folder_behind(tmp_path, wrong):
    with pytest.raises(SettingError):
        train(tmp_path, **wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_exists_is_refused_and_may_be_overwritten(tmp_path):
    train(tmp_path, epochs=1)
    with pytest.raises(SettingError, match=r"--overwrite replaces it, --resume .* continues it"):
        train(tmp_path, epochs=1)
    assert len(train(tmp_path, epochs=2, overwrite=True).epochs) == 2


@pytest.mark.slow
def test_the_data_order_does_not_depend_on_the_number_of_workers(tmp_path):
    runs = [
        train(tmp_path, name=f"w{w}", workers=w, batch_size=None, global_batch_size=120, epochs=1,
              dtype="float64")
        for w in (1, 4, 12)
    ]  # fmt: skip
    for run in runs[1:]:
        assert run.steps["loss"].tolist() == pytest.approx(runs[0].steps["loss"].tolist())


def test_the_global_generator_is_left_alone(tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    train(tmp_path, epochs=1, prune=0.9)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_two_runs_are_the_same_and_another_seed_is_not(tmp_path):
    one, two, three = (
        train(tmp_path, name=name, seed=seed, epochs=1)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    same(one, two)
    assert one.steps["loss"].tolist() != three.steps["loss"].tolist()


def test_the_layers_of_a_step_add_up_to_its_row(tmp_path):
    run = train(tmp_path, prune=0.9, epochs=1, log_layers=True)
    layers = run.layers.groupby("step")
    assert len(run.layers) == 4 * STEPS
    assert layers["payload_bytes"].sum().tolist() == run.steps["payload_bytes"].tolist()
    assert layers["sent_elements"].sum().tolist() == run.steps["sent_elements"].tolist()


def test_the_compression_error_is_what_stays_behind(tmp_path):
    steps = train(tmp_path, prune=0.9, epochs=2).steps
    assert ((steps["relative_error"] > 0) & (steps["relative_error"] < 1)).all()
    assert (steps["memory_norm"] > 0).all()
    dense = train(tmp_path, name="dense", epochs=1).steps
    assert (dense["relative_error"] == 0).all()
    assert (dense["memory_norm"] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    ["topk:0.1", "sign", "qsgd:15", "topk:0.1+terngrad", "threshold:0.01", "powersgd:2",
     "randomk:0.1,shared=true", "variance", "adacomp", "block:0.1"],
)  # fmt: skip
def test_a_run_of_any_method_resumes_to_the_last_bit(tmp_path, spec):
    settings = {"compressor": spec, "momentum": 0.5, "lr": 0.01}
    whole = train(tmp_path, name="whole", **settings, epochs=2)
    part = train(tmp_path, name="part", **settings, epochs=1)
    same(simsgd.train(resume=part.folder, epochs=2), whole)


@pytest.mark.slow
def test_a_run_of_a_users_file_resumes_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(BATCHNORM)
    monkeypatch.chdir(tmp_path)
    settings = {"model": "./net.py", "model_config": "", "regime": "model+./net.py"}
    part = train(tmp_path / "runs", name="part", epochs=1, **settings)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = simsgd.train(resume=part.folder, epochs=2)
    assert len(again.epochs) == 2
    line = f"the run names files of code, which were run: {tmp_path / 'net.py'}\n"
    assert again.log.count(line) == 1  # not where the user named the file


@pytest.mark.slow
@pytest.mark.parametrize("typed_paths_are_kept", [False, True], ids=["now", "earlier versions"])
def test_a_run_of_own_methods_and_data_resumes_from_another_folder(
    tmp_path, monkeypatch, typed_paths_are_kept
):
    (tmp_path / "mine.py").write_text(MINE)
    lines = (f"{i % 2} 1:{i % 5} 2:{i % 3} 3:{i % 7}" for i in range(60))
    (tmp_path / "file.svm").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    typed = {
        "compressor": "mine.py:Half", "compress_layers": "*.weight=./mine.py:Half",
        "dataset": "libsvm:file.svm",
    }  # fmt: skip
    settings = {**typed, "model": "logistic", "model_config": "", "memory": "none", "batch_size": 4}
    whole = train(tmp_path / "runs", name="whole", epochs=2, **settings)
    part = train(tmp_path / "runs", name="part", epochs=1, **settings)
    if typed_paths_are_kept:
        state = torch.load(part.folder / "last.pt", weights_only=True)
        torch.save({**state, "config": {**state["config"], **typed}}, part.folder / "last.pt")
        path = part.folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **typed}))
    else:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
    again = simsgd.train(resume=part.folder, epochs=2)
    same(again, whole)


@pytest.mark.slow
def test_a_resumed_run_logs_the_files_of_its_methods(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    spec = f"{tmp_path / 'mine.py'}:Half"
    part = train(tmp_path / "runs", name="part", epochs=1, compressor=spec, memory="none")
    again = simsgd.train(resume=part.folder, epochs=2)
    assert f"files of code, which were run: {tmp_path / 'mine.py'}\n" in again.log
    evaluation = simsgd.evaluate(again.folder / "last.pt")
    assert evaluation.files_of_code == (str(tmp_path / "mine.py"),)
    assert f"code that was run   {tmp_path / 'mine.py'}" in evaluation.summary()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "nn.Sequential(nn.Flatten(), nn.Linear(60, 10))",
            "cannot be trained on digits: RuntimeErr",
        ),
        (
            "nn.Sequential(nn.Flatten(), nn.Linear(64, 4))",
            "gives scores for too few classes|gives an output of shape",
        ),
        ("nn.Conv2d(1, 10, 8)", "gives an output of shape|cannot be trained"),
        ("nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))", "more than 1 value"),
        ("[][0]", "model cannot be built: IndexError at line 4: list index out of range"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused_before_a_folder_is_made(
    tmp_path, code, message
):
    (tmp_path / "net.py").write_text(
        f"from torch import nn\nregime = {{0: {{'lr': 0.1}}}}\ndef model():\n    return {code}\n"
    )
    with pytest.raises(SettingError, match=message) as caught:
        train(tmp_path / "runs", model=str(tmp_path / "net.py"), model_config="", batch_size=1)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_run_within_its_warmup_logs_so(tmp_path):
    assert "note: the run ends within its warm-up" in train(tmp_path, prune=0.9, epochs=2).log


def test_samples_left_out_of_every_epoch_are_logged(tmp_path):
    run = train(tmp_path, workers=100, batch_size=8, epochs=1)
    assert "1 step an epoch (638 of 1438 samples left out)" in run.log


@pytest.mark.slow
def test_a_run_is_not_shortened_by_resuming_it(tmp_path):
    settings = {"model": "mlp", "dataset": "digits", "workers": 2, "runs_dir": tmp_path}
    run = simsgd.train(**settings, model_config="hidden=4", epochs=2, name="two", quiet=True)
    error = "^epochs must be at least the 2 epochs that the run has done, got 1$"
    with pytest.raises(simsgd.SettingError, match=error):
        simsgd.train(resume=run.folder, epochs=1, quiet=True)
    assert run.config["epochs"] == 2
    run = simsgd.train(**settings, model_config="hidden=4", steps=3, name="three", quiet=True)
    error = "^steps must be at least the 3 steps that the run has done, got 2$"
    with pytest.raises(simsgd.SettingError, match=error):
        simsgd.train(resume=run.folder, steps=2, quiet=True)
