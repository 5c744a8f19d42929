"""Penalties of a regime: whom they spare, and that they are SGD's weight decay elsewhere."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simsgd.settings import SettingError
from simsgd.simulator.notes import notes_of
from simsgd.simulator.regime import Regime
from simsgd.simulator.regularizers import L1, GradClip, Regularized, WeightDecay, regularizers
from simsgd.simulator.simulator import Simulator


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()


def trained(regime: dict[str, Any], steps: int = 3, **settings: Any) -> dict[str, Tensor]:
    simulator = Simulator(net(), workers=2, regime={0: {"lr": 0.1, **regime}}, **settings)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
        simulator.step(x, torch.randint(3, (8,), generator=generator))
    return dict(simulator.components.params)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=1e-12, atol=1e-14) for name in other)


ALL = {"name": "WeightDecay", "value": 0.1, "filter": {}}
SOME = {"name": "WeightDecay", "value": 0.1}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prune": 0.5, "warmup": False, "memory": "dgc"},
        {"weight_decay_at": "local"},
        {"memory": "residual", "compressor": "topk:0.5", "weight_decay_at": "local"},
    ],
    ids=["plain", "dgc", "local", "local residual"],
)
@pytest.mark.parametrize("nesterov", [False, True])
def test_on_all_parameters_it_is_weight_decay(settings: dict[str, Any], nesterov: bool) -> None:
    momentum = {"momentum": 0.9, "nesterov": nesterov}
    wanted = trained({"weight_decay": 0.1, **momentum}, **settings)
    assert same(trained({"regularizer": ALL, **momentum}, **settings), wanted)


def test_by_default_biases_and_normalization_are_spared() -> None:
    model = net()
    pulls = Regularized(model, dict(model.named_parameters())).penalty_gradients(regularizers(SOME))
    assert set(pulls) == {"0.weight", "2.weight"}
    assert torch.equal(pulls["0.weight"], 0.1 * model.get_parameter("0.weight"))


def test_a_filter_chooses_by_name_and_by_module() -> None:
    model = net()
    own = Regularized(model, dict(model.named_parameters()))
    by_name = {"parameter_name": lambda name: name.startswith("2")}
    by_module = {"module": lambda module: isinstance(module, nn.BatchNorm1d)}
    assert set(own.penalty_gradients((WeightDecay(0.1, by_name),))) == {"2.weight", "2.bias"}
    assert set(own.penalty_gradients((WeightDecay(0.1, by_module),))) == {"1.weight", "1.bias"}


def test_l1_penalizes_by_the_sign() -> None:
    model = net()
    pulls = Regularized(model, dict(model.named_parameters())).penalty_gradients((L1(0.2),))
    assert torch.equal(pulls["2.weight"], 0.2 * model.get_parameter("2.weight").sign())


def test_several_penalties_add_up() -> None:
    form = [{"name": "L1Regularization", "value": 0.2}, SOME]
    model = net()
    own = Regularized(model, dict(model.named_parameters()))
    weight = model.get_parameter("0.weight")
    wanted = 0.2 * weight.sign() + 0.1 * weight
    torch.testing.assert_close(own.penalty_gradients(regularizers(form))["0.weight"], wanted)


def test_the_averaged_gradient_is_clipped_as_torch_does() -> None:
    model = net()
    x, y = torch.randn(8, 5, dtype=torch.float64), torch.randint(3, (8,))
    clip = {"name": "GradClip", "value": 0.05}
    simulator = Simulator(net(), workers=1, regime={0: {"lr": 1.0, "regularizer": clip}})
    simulator.step(x, y)
    F.cross_entropy(model.train()(x), y).backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    assert norm > 0.05
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(simulator.components.params[name], parameter - parameter.grad)


def test_a_small_gradient_is_left_alone() -> None:
    gradients = [torch.tensor([3.0, 4.0])]
    GradClip(6.0).clip_(gradients)
    assert gradients[0].tolist() == [3.0, 4.0]


def test_a_later_phase_takes_its_place() -> None:
    regime = Regime({0: {"lr": 1.0, "regularizer": SOME}, 2: {"regularizer": None}})
    assert regime.at(1, 0)["regularizer"] == SOME
    assert regularizers(regime.at(2, 0)["regularizer"]) == ()


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({"name": "WeightDecai", "value": 1}, "did you mean WeightDecay"),
        ({"name": "WeightDecay"}, "lacks a value"),
        ({"name": "L1", "value": -1}, "value of at least 0"),
        ({"name": "L1", "value": "eval()"}, "value of at least 0"),
        ({"name": "L1", "value": math.inf}, "a finite value of at least 0"),
        ({"name": "GradClip", "value": 0}, "must have a norm greater than 0"),
        ({"value": 1}, 'must be as {"name"'),
        ("WeightDecay", 'must be as {"name"'),
        ({"name": "L1", "value": 1, "log": True}, "known: filter, value"),
        ({"name": "L1", "value": 1, "filter": {"names": 1}}, "known: module, parameter_name"),
    ],
)
def test_a_wrong_form_is_refused_when_the_regime_is_made(form: Any, error: str) -> None:
    with pytest.raises(SettingError, match=error):
        Regime({0: {"lr": 0.1, "regularizer": form}})


def test_a_memory_that_collects_lr_times_the_gradient_refuses_it() -> None:
    with pytest.raises(SettingError, match="regularizer has no place"):
        trained({"regularizer": SOME}, compressor="topk:0.5", memory="residual:lr=true")


def test_a_number_without_dimensions_is_clipped_in_each_workers_model() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(5, 3)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.scale

    regime = {0: {"lr": 0.1, "regularizer": {"name": "GradClip", "value": 0.1}}}
    simulator = Simulator(Scaled(), workers=2, algorithm="dpsgd", regime=regime)
    before = {name: value.clone() for name, value in simulator.parameters().items()}
    simulator.step(torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    moved = [value - before[name] for name, value in simulator.parameters().items()]  # [W, ...]
    assert all(change.isfinite().all() for change in moved)
    assert 0 < torch.cat([change.reshape(2, -1) for change in moved], 1).norm(dim=1).max() < 0.0101


@pytest.mark.parametrize(
    ("filters", "noted"),
    [
        ({}, False),
        ({"filter": {"parameter_name": lambda name: name == "0.bias"}}, False),
        ({"filter": {"parameter_name": lambda name: name.startswith("head")}}, True),
    ],
)
@pytest.mark.parametrize("start", [0, 3])
def test_a_filter_that_takes_no_parameter_is_noted(filters, noted, start):
    penalty = {"name": "L1", "value": 0.1, **filters}
    regime = [{"epoch": 0, "lr": 0.1}, {"epoch": start, "regularizer": penalty}]
    note = "note: the filter of L1 takes no parameter of the model, so that it does nothing"
    simulator = Simulator(net(), workers=2, regime=regime)
    assert notes_of(simulator.components) == [note] * noted
