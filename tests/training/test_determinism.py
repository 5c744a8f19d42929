"""One seed, one run: to the last bit, whatever engine, chunk or number of workers takes the data.

Letters: W workers, B global batch.
"""

import os
import random

import numpy as np
import pytest
import torch

import simsgd
from simsgd.config import Config
from simsgd.training.experiment import Experiment

IMAGES = {"model": "mlp", "model_config": "hidden=4", "dataset": "digits", "global_batch_size": 48}
TEXT = {"dataset": "pydoc", "model_config": "emb=4,hidden=4,layers=1", "min_count": 50}
CHOSEN = {"workers": 4, "compressor": "qsgd:15", "epochs": 1, "seed": 3, "quiet": True}


def train(folder, **changed):
    return simsgd.train(runs_dir=folder, **{**IMAGES, **CHOSEN, **changed})


def states():
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), (kind, keys.tolist(), *rest)


def order(**changed):
    """Return the images of an epoch, batch by batch, as numbers."""
    config = Config.of({**IMAGES, **{"workers": 4, "seed": 3}, **changed})
    return [x for x, _ in Experiment.of(config).epoch_batches(1)]


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


@pytest.mark.slow
def test_two_runs_are_the_same_to_the_last_bit(tmp_path):
    one, two = train(tmp_path, name="one"), train(tmp_path, name="two")
    timed = [c for c in one.steps if "seconds" in c]
    assert one.steps.drop(columns=timed).equals(two.steps.drop(columns=timed))
    left, right = (
        torch.load(run.folder / "last.pt", weights_only=True)["simulator"]["parameters"]
        for run in (one, two)
    )
    assert same(list(left.values()), list(right.values()))


def test_another_seed_is_another_run(tmp_path):
    assert not same(order(), order(seed=4))


@pytest.mark.parametrize(
    "changed",
    [
        {"engine": "loop"},
        {"engine": "vmap", "worker_chunk": 2},
        {"engine": "vmap", "worker_chunk": 1},
        {"workers": 1},
        {"workers": 16},
        {"workers": 8, "accumulate": 2},
        {"compressor": "topk:0.1", "algorithm": "choco"},
    ],
)
def test_the_order_of_data_follows_seed_and_global_batch_alone(changed):
    assert same(order(), order(**changed))


@pytest.mark.slow
@pytest.mark.parametrize("data", [IMAGES, {**TEXT, "batch_size": 64}])
def test_no_global_generator_is_touched(tmp_path, data):
    before = states()
    config = {**CHOSEN, **data, "workers": 2, "runs_dir": tmp_path}
    simsgd.train(**config)
    assert states() == before


@pytest.mark.slow
def test_global_generators_do_not_touch_a_run(tmp_path):
    one = train(tmp_path, name="one")
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    two = train(tmp_path, name="two")
    assert one.steps["loss"].tolist() == two.steps["loss"].tolist()


def switches():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("wanted", [True, False])
def test_fixed_orders_hold_within_the_run_only(tmp_path, monkeypatch, wanted):
    seen, before = [], switches()
    step = simsgd.Simulator.step

    def seeing(self, *given, **named):
        seen.append(switches())
        return step(self, *given, **named)

    monkeypatch.setattr(simsgd.Simulator, "step", seeing)
    train(tmp_path, deterministic=wanted)
    assert {*seen} == {(True, False, False, ":4096:8") if wanted else before}
    assert switches() == before


def test_fixed_orders_end_with_a_run_that_fails(tmp_path):
    before = switches()
    with pytest.raises(simsgd.SettingError):
        train(tmp_path, deterministic=True, model="none")
    assert switches() == before
