import pytest
import torch
from torch import nn

from simsgd.settings import SettingError
from simsgd.simulator.optimizer import RegimeOptimizer
from simsgd.simulator.optimizer_class import optimizer_arguments
from simsgd.simulator.simulator import Simulator


def one(value=1.0):
    return {"w": nn.Parameter(torch.full((3,), value, dtype=torch.float64))}


def grads(steps):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(steps)]


def decay(optimizer, weight_decay):
    """Return the gradient of the weight decay, {name: [*shape]}."""
    return {name: p.detach() * weight_decay for name, p in optimizer.params.items()}


def test_a_new_lr_keeps_the_momentum():
    params, plain = one(), one()
    optimizer, wanted = RegimeOptimizer(params), torch.optim.SGD(plain.values(), 0.1, 0.9)
    for step, grad in enumerate(grads(6)):
        lr = 0.1 if step < 3 else 0.01
        optimizer.follow({"optimizer": "SGD", "lr": lr, "momentum": 0.9})
        optimizer.step({"w": grad.clone()})
        wanted.param_groups[0]["lr"] = lr
        plain["w"].grad = grad
        wanted.step()
    assert torch.equal(params["w"], plain["w"])


def test_switching_the_class_keeps_what_carries_over():
    optimizer = RegimeOptimizer(one())
    optimizer.follow({"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
    optimizer.follow({"optimizer": "Adam", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
    group = optimizer.inner.param_groups[0]
    assert (type(optimizer.inner), group["weight_decay"]) == (torch.optim.Adam, 0.01)


@pytest.mark.parametrize("nesterov", [False, True])
def test_decay_with_its_own_momentum_is_momentum_sgds(nesterov):
    params, plain = one(), one()
    wanted = torch.optim.SGD(plain.values(), 0.1, 0.9, weight_decay=0.05, nesterov=nesterov)
    optimizer = RegimeOptimizer(params)
    buffer = torch.zeros(3, dtype=torch.float64)
    for grad in grads(8):
        buffer = 0.9 * buffer + grad  # the memory's part
        aggregated = {"w": grad + 0.9 * buffer if nesterov else buffer.clone()}
        optimizer.follow({"lr": 0.1, "momentum": 0.0})
        optimizer.add_penalties(aggregated, decay(optimizer, 0.05), 0.9, nesterov)
        optimizer.step(aggregated)
        plain["w"].grad = grad
        wanted.step()
    assert torch.allclose(params["w"], plain["w"], rtol=1e-12)


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "NAdam", "ASGD"])
def test_a_loaded_optimizer_goes_on_as_if_it_had_never_stopped(name):
    settings = {"optimizer": name, "lr": 0.1, "momentum": 0.9}
    settings = {k: v for k, v in settings.items() if k in optimizer_arguments(name) | {"optimizer"}}
    params, again = one(), one()
    optimizer, other = RegimeOptimizer(params), RegimeOptimizer(again)
    for step, grad in enumerate(grads(6)):
        if step == 3:
            other.load_state_dict(optimizer.state_dict())
            again["w"].data.copy_(params["w"].data)
        for each in (optimizer, other)[: 1 + (step >= 3)]:
            each.follow(settings)
            aggregated = {"w": grad.clone()}
            each.add_penalties(aggregated, decay(each, 0.1), 0.9, False)
            each.step(aggregated)
    assert torch.equal(params["w"], again["w"])


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("SGD", {"momentum": 0.9}),
        ("RMSprop", {"momentum": 0.9}),
        ("RMSprop", {"centered": True}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"amsgrad": True}),
    ],
)
def test_what_a_later_phase_asks_for_begins_with_zeros(name, later):
    params = one()
    optimizer = RegimeOptimizer(params)
    for step, grad in enumerate(grads(4)):
        optimizer.follow({"optimizer": name, "lr": 0.1} | (later if step >= 2 else {}))
        optimizer.step({"w": grad})
    assert params["w"].isfinite().all()


def test_a_missing_lr_is_refused():
    with pytest.raises(SettingError, match="lr is not set; give it, or set it in a regime"):
        RegimeOptimizer(one()).follow({"momentum": 0.9})


def test_values_that_the_optimizer_refuses_are_an_error_of_the_regime():
    with pytest.raises(SettingError, match="optimizer refuses its settings: Nesterov momentum"):
        RegimeOptimizer(one()).follow({"lr": 0.1, "nesterov": True})


@pytest.mark.parametrize("algorithm", ["allreduce", "local"])
def test_a_state_goes_where_its_last_step_had_the_same_optimizers(algorithm):
    groups = [{"params": "*bias", "optimizer": "AdamW"}]
    regimes = [
        {0: {"lr": 0.1}, 1: {"optimizer": "Adam"}},
        {0: {"lr": 0.1, "optimizer": "Adam"}},
        {0: {"lr": 0.1, "optimizer": "Adam", "param_groups": groups}},
    ]
    switching, whole, grouped = (
        Simulator(nn.Linear(3, 2), workers=2, regime=regime, algorithm=algorithm)
        for regime in regimes
    )
    x, y = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    switching.step(x, y, 0)
    with pytest.raises(SettingError, match="is of optimizer SGD, and this simulator steps weight"):
        whole.load_state_dict(switching.state_dict())
    switching.step(x, y, 1)
    whole.load_state_dict(switching.state_dict())
    with pytest.raises(SettingError, match="and this simulator steps bias by AdamW"):
        grouped.load_state_dict(switching.state_dict())
