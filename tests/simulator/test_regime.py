import pytest
import torch

from simsgd.settings import SettingError
from simsgd.simulator.regime import Regime, prune_warmup


def test_settings_persist_until_changed():
    regime = Regime({0: {"lr": 0.1, "momentum": 0.9}, 30: {"lr": 0.01}})
    assert regime.at(29, 0) == {"lr": 0.1, "momentum": 0.9}
    assert regime.at(30, 0) == {"lr": 0.01, "momentum": 0.9}


def test_a_list_may_begin_phases_by_epoch_or_by_step():
    regime = Regime([{"epoch": 0, "lr": 0.1}, {"step": 10, "lr": 0.2}, {"epoch": 2, "lr": 0.3}])
    assert [regime.at(e, s)["lr"] for e, s in ((0, 9), (0, 10), (1, 25), (2, 26))] == [
        0.1, 0.2, 0.2, 0.3,
    ]  # fmt: skip


def test_a_function_of_the_epoch_or_of_epoch_and_step_is_a_regime():
    assert Regime(lambda epoch: {"lr": 1 / (epoch + 1)}).at(3, 0) == {"lr": 0.25}
    assert Regime(lambda epoch, step: {"lr": float(step)}).at(3, 7) == {"lr": 7.0}


def test_a_phase_or_a_value_may_be_a_function():
    regime = Regime({0: {"lr": lambda epoch, step: 0.1 * step}, 2: lambda epoch: {"lr": epoch}})
    assert [regime.at(e, 5)["lr"] for e in (0, 2, 3)] == [0.5, 2, 3]


def test_lr_decays_by_its_rate_at_every_multiple():
    regime = Regime([{"lr": 1.0, "lr_decay_rate": 0.5, "lr_decay_steps": 4}])
    assert [regime.at(0, step)["lr"] for step in (0, 3, 4, 7, 8)] == [1, 1, 0.5, 0.5, 0.25]


def test_layers_lie_over_each_other():
    lower = Regime({0: {"lr": 0.1, "momentum": 0.9}, 3: {"lr": 0.01}})
    both = lower.then(Regime({0: {"lr": 0.5}}))
    assert both.at(4, 0) == {"lr": 0.5, "momentum": 0.9}
    assert lower.at(4, 0) == {"lr": 0.01, "momentum": 0.9}


def test_asking_changes_nothing():
    form = {0: {"optimizer": "Adam", "lr": 0.1, "betas": [0.9, 0.99]}}
    regime = Regime(form)
    regime.at(0, 0)["lr"] = 7
    form[0]["lr"] = 8
    assert regime.at(0, 0)["lr"] == 0.1


def test_the_warmup_leaves_out_rungs_below_its_target():
    assert [prune_warmup(0.9, 4).at(e, 0)["prune"] for e in range(5)] == [0.75] * 4 + [0.9]
    assert prune_warmup(0.5, 4).at(0, 0)["prune"] == 0.5
    assert [prune_warmup(0.999, 2).at(e, 0)["prune"] for e in range(3)] == [0.75, 0.984375, 0.999]
    assert [prune_warmup(0.999, 8).at(e, 0)["prune"] for e in (0, 1, 2, 7, 8)] == [
        0.75, 0.75, 0.9375, 0.996, 0.999,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({0: {"lrr": 0.1}}, "regime sets something that is not known, got lrr; did you mean lr"),
        ({"lr": 0.1}, "must be keyed by epoch"),
        ({0: {"optimizer": "SDG", "lr": 0.1}}, "did you mean SGD"),
        ({0: {"optimizer": "Adam", "momentum": 0.9}}, "momentum is not taken by Adam, got 0.9"),
        ({0: {"prune": 1.5}}, r"prune must lie in \[0, 1\), got 1.5"),
        ({0: {"lr": -1}}, "lr must be a number of at least 0"),
        ({0: {"lr": "0.1"}}, "lr must be a number"),
        ({0: 0.1}, "must have a dict at epoch 0"),
        ([0.1], "must consist of dicts or functions"),
        ([{"epoch": 0}, {"epoch": 4}, {"epoch": 2}], "must list phases by rising epoch"),
    ],
)
def test_a_malformed_regime_is_refused_at_once(form, message):
    with pytest.raises(SettingError, match=message):
        Regime(form)


def test_what_a_function_returns_is_checked_too():
    with pytest.raises(SettingError, match="lrr"):
        Regime(lambda epoch: {"lrr": 1}).at(0, 0)
    with pytest.raises(SettingError, match="gives a regime, not the settings of its epoch, got 0"):
        Regime(lambda epoch: {0: {"lr": 0.1}}).at(0, 0)


def test_a_regime_knows_whether_it_follows_epochs():
    assert Regime({0: {"lr": 0.1}, 3: {"lr": 0.2}}).follows_epochs
    assert Regime(lambda epoch: {"lr": 0.1}).follows_epochs
    assert not Regime([{"lr": 0.1}, {"step": 5, "lr": 0.2}]).follows_epochs


def test_every_optimizer_that_is_offered_can_be_stepped():
    from simsgd.simulator.optimizer_class import torch_optimizers

    for chosen in torch_optimizers().values():
        weight = torch.nn.Parameter(torch.ones(2, 2))
        weight.grad = torch.ones(2, 2)
        chosen([weight], lr=0.1).step()
        assert not torch.equal(weight, torch.ones(2, 2))


@pytest.mark.parametrize("epochs", [0, 1, 2, 3, 4, 5, 7, 8, 20])
@pytest.mark.parametrize("prune", [0.5, 0.95, 0.999])
def test_a_warm_up_climbs_as_its_formula_says(prune, epochs):
    rungs = [rung for rung in (0.75, 0.9375, 0.984375, 0.996) if rung < prune] or [prune]
    right = [rungs[epoch * len(rungs) // epochs] for epoch in range(epochs)] + [prune, prune]
    regime = prune_warmup(prune, epochs)
    assert [regime.at(epoch, 0)["prune"] for epoch in range(epochs + 2)] == right


def test_a_warm_up_of_any_length_has_few_phases():
    assert prune_warmup(0.999, 10**11).at(10**11 - 1, 0)["prune"] == 0.996


def test_a_value_of_what_a_function_gives_may_be_a_function():
    regime = Regime(lambda epoch: {"lr": lambda epoch, step: 0.1 / (1 + step), "momentum": 0.9})
    assert [regime.at(0, step)["lr"] for step in (0, 1)] == [0.1, 0.05]
