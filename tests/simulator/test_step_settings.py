import pytest
from torch import nn

from simsgd.methods.memories import DGC, NoMemory, Residual
from simsgd.recipe import Recipe
from simsgd.settings import SettingError
from simsgd.simulator.step_settings import StepSettings, regime_of

MODEL = {0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}, 5: {"lr": 0.01}}


def method(epoch=9, regime=MODEL, **settings):
    recipe = Recipe(**settings)
    return StepSettings.at(recipe, regime_of(recipe, regime, nn.Linear(1, 1), {}), epoch, 0)


def test_without_compression_the_optimizer_has_the_momentum():
    plain = method()
    assert plain.memory == NoMemory()
    assert plain.optimizer["momentum"] == 0.9


def test_under_dgc_the_memory_has_the_momentum_and_the_optimizer_none():
    dgc = method(prune=0.99)
    assert dgc.memory == DGC(momentum=0.9, nesterov=False)
    assert (dgc.optimizer["momentum"], dgc.optimizer["nesterov"]) == (0, False)


def test_under_a_residual_the_optimizer_keeps_the_momentum():
    residual = method(prune=0.99, memory="residual")
    assert residual.memory == Residual()
    assert residual.optimizer["momentum"] == 0.9


def test_a_momentum_in_the_memorys_own_spec_wins():
    assert method(prune=0.99, memory="dgc:momentum=0.5").memory.momentum == 0.5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (1e-3, 0.0, 0.0)),
        ({"weight_decay_at": "local"}, (0.0, 1e-3, 0.0)),
        ({"prune": 0.9}, (0.0, 0.0, 1e-3)),
        ({"prune": 0.9, "weight_decay_at": "local"}, (0.0, 1e-3, 0.0)),
    ],
)
def test_weight_decay_acts_in_one_place_only(settings, expected):
    got = method(**settings)
    assert (got.optimizer["weight_decay"], got.local_decay, got.own_decay) == expected


def test_the_warmup_lies_over_the_models_regime():
    kept = [method(epoch, prune=0.999).kept for epoch in range(6)]
    assert kept == [0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001]


@pytest.mark.parametrize("settings", [{"warmup": False}, {"warmup_epochs": 0}])
def test_without_warmup_pruning_is_complete_at_once(settings):
    assert method(0, prune=0.999, **settings).kept == 0.001


def test_a_regimes_own_prune_gets_dgc_and_is_overridden_by_the_recipe():
    regime = {0: {"lr": 0.1, "momentum": 0.9, "prune": 0.5}}
    assert isinstance(method(regime=regime).memory, DGC)
    assert method(regime=regime).kept == 0.5
    assert method(regime=regime, prune=0.9).kept == 0.1


def test_prune_zero_sends_everything_and_needs_no_memory():
    whole = method(prune=0.0)
    assert (whole.kept, whole.memory) == (1.0, NoMemory())


def test_the_recipes_settings_hold_for_all_epochs():
    settings = {"lr": 0.5, "momentum": 0.0, "weight_decay": 0.0}
    assert [method(epoch, **settings).optimizer["lr"] for epoch in (0, 5)] == [0.5, 0.5]


def test_dgc_refuses_an_optimizer_whose_momentum_it_cannot_correct():
    with pytest.raises(SettingError, match="must not be dgc with Adam"):
        method(prune=0.9, regime={0: {"optimizer": "Adam", "lr": 0.1}})


def test_dgc_refuses_dampening():
    with pytest.raises(SettingError, match="dampening has no place in memory dgc"):
        method(prune=0.9, regime={0: {"lr": 0.1, "dampening": 0.5}})


def test_lr_within_the_memory_leaves_the_optimizer_none():
    inside = method(compressor="sign", memory="residual:lr=true", lr=0.25, weight_decay=0.5)
    assert inside.memory == Residual(gamma=0.25)
    assert (inside.lr, inside.optimizer["lr"]) == (0.25, 1)
    assert inside.optimizer["weight_decay"] == 0.125


def test_lr_within_the_memory_refuses_an_optimizer_other_than_sgd():
    regime = {0: {"optimizer": "Adam", "lr": 0.1}}
    with pytest.raises(SettingError, match="takes lr out of SGD and cannot do so for Adam"):
        method(compressor="sign", memory="residual:lr=true", regime=regime)
