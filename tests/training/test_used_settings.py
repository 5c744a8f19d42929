import json
import re

import pytest

import simsgd
from simsgd.training.phases import Timeline

TINY = {
    "model": "mlp", "model_config": "hidden=8", "dataset": "digits", "workers": 2, "batch_size": 60,
    "epochs": 3, "quiet": True,
}  # fmt: skip


@pytest.fixture
def used(tmp_path):
    def train(**settings):
        run = simsgd.train(**{**TINY, **settings}, runs_dir=tmp_path, name="run", overwrite=True)
        assert json.loads((run.folder / "config.json").read_text())["used"] == run.config["used"]
        return run.config["used"]

    return train


def test_what_the_model_decided_is_recorded(used):
    settings = used()
    assert (settings["optimizer"], settings["lr"], settings["momentum"]) == ("SGD", 0.05, 0.9)
    assert settings["weight_decay"] == 5e-4
    assert settings["nesterov"] is False
    assert (settings["regime"], settings["scale_lr"], settings["epochs"]) == ("model", "none", 3)
    assert (settings["batch_size"], settings["global_batch_size"]) == (60, 120)
    assert (settings["compressor"], settings["memory"]) == ("none", "none")
    assert (settings["value_dtype"], settings["state_dtype"]) == ("float32", "float32")


@pytest.mark.slow
def test_a_setting_that_the_regime_changes_has_phases(used, tmp_path):
    file = tmp_path / "steps.py"
    file.write_text(
        "lr = lambda epoch, step: 0.5 if step > 28 else 0.25\n"
        "regime = {0: {'lr': 0.1}, 1: {'lr': 0.01}, 2: {'lr': lr}}\n"
    )
    settings = used(regime=str(file))
    assert settings["lr"] == [
        {"from": "start", "value": 0.1},
        {"from": "epoch 1", "value": 0.01},
        {"from": "epoch 2", "value": 0.25},
        {"from": "step 29", "value": 0.5},
    ]
    assert settings["optimizer"] == "SGD"


@pytest.mark.slow
def test_the_warm_up_of_prune_is_recorded_in_phases(used):
    settings = used(prune=0.99, warmup_epochs=2)
    assert settings["memory"] == "dgc"
    assert [phase["value"] for phase in settings["prune"]] == [0.75, 0.9375, 0.99]
    assert [phase["value"] for phase in settings["compressor"]] == [
        "topk:0.25", "topk:0.0625", "topk:0.01",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_defaults_of_an_algorithm_and_of_an_optimizer_are_recorded(used):
    settings = used(algorithm="diloco", optimizer="AdamW", lr=0.001, weight_decay=None)
    assert (settings["local_steps"], settings["outer_lr"], settings["outer_momentum"]) == (
        8, 0.7, 0.9,
    )  # fmt: skip
    assert (settings["weight_decay"], settings["momentum"]) == (5e-4, None)
    assert used(algorithm="dpsgd")["topology"] == "ring"


@pytest.mark.slow
def test_the_momentum_of_a_memory_is_the_one_that_is_used(used):
    assert used(compressor="topk:0.1", memory="dgc:momentum=0.7")["momentum"] == 0.7


@pytest.mark.slow
def test_a_resumed_run_has_the_settings_that_it_used(used, tmp_path):
    before = used()
    simsgd.train(resume=tmp_path / "run", epochs=4, quiet=True)
    after = json.loads((tmp_path / "run" / "config.json").read_text())["used"]
    assert after == {**before, "epochs": 4}


def test_the_log_begins_with_the_optimizer_and_its_schedule(used, tmp_path):
    used(weight_decay=1e-4)
    assert (
        "optimizer SGD; lr 0.05; momentum 0.9; weight decay 0.0001\n"
        in simsgd.Run(tmp_path / "run").log
    )


@pytest.mark.parametrize(
    ("lr", "described"),
    [
        (lambda epoch, step, results: 0.5, 0.5),
        (
            lambda epoch, step, results: 1 / (step + 1),
            "1 at first, 0.0005 at the end, in between from 0.0005 to 1",
        ),
        (
            lambda epoch, step, results: 0.5 if min([1, *(r["val_loss"] for r in results)]) else 1,
            0.5,
        ),
        (
            lambda epoch, step, results: 0.5 if not results else results[-1]["val_loss"],
            "0.5 at first, then by the results of epochs",
        ),
        (
            lambda epoch, step, results: [0.5, 0.25][epoch],
            "0.5 at first, then as a function gives it",
        ),
    ],
)
def test_a_function_is_described_by_phases_or_in_words(lr, described):
    timeline = Timeline(lambda *now: {"lr": lr(*now)}, steps=2000, batches=100)
    assert timeline.phases() == {"lr": described}


@pytest.mark.slow
def test_a_schedule_of_many_epochs_is_read_at_some_of_them():
    asked = []
    timeline = Timeline(
        lambda epoch, step, results: asked.append(epoch) or {"lr": 1 if step < 4321 else 2},
        steps=1_000_000, batches=10,
    )  # fmt: skip
    assert timeline.phases() == {
        "lr": [{"from": "start", "value": 1}, {"from": "step 4321", "value": 2}]
    }
    assert len(asked) < 2000


@pytest.mark.slow
def test_the_lr_of_a_group_is_recorded_as_a_scheduler_sets_it(used):
    settings = used(
        lr=0.1, momentum=0.0, weight_decay=0.0, scheduler="StepLR:step_size=1, gamma=0.5",
        param_groups='[{"params": "dim<2", "lr_mult": 0.1}]',
    )  # fmt: skip
    phases = {phase["from"]: phase["value"] for phase in settings["param_groups"]}
    lr = {place: float(re.search(r"lr=([^,]+)", text)[1]) for place, text in phases.items()}
    assert lr == pytest.approx({"start": 0.01, "epoch 1": 0.005, "epoch 2": 0.0025})


@pytest.mark.slow
def test_a_run_of_a_billion_epochs_shows_its_schedule_few_results():
    seen = []

    def values_at(epoch, step, results):
        seen.append(len(results))
        return {"lr": 0.1}

    assert Timeline(values_at, steps=10**9, batches=1).phases() == {"lr": 0.1}
    assert (max(seen), len(seen) < 1000) == (2000, True)
