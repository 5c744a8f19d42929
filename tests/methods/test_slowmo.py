"""SlowMo: momentum outside, in units of the learning rate inside."""

import pytest
import torch
import torch.nn.functional as F

from simsgd import Simulator

from .. import toy

W, H, STEPS = 4, 2, 8
RATES = (0.1, 0.03, 0.2, 0.1)  # of each round


def rounds():
    """Return the batch and the round of each step."""
    return [(x, y, step // H) for step, (x, y) in enumerate(toy.batches(STEPS, 4 * W))]


def trained(rates=RATES, **settings):
    regime = {epoch: {"optimizer": "SGD", "lr": lr} for epoch, lr in enumerate(rates)}
    settings = {"workers": W, "algorithm": "diloco", "local_steps": H, **settings}
    simulator = Simulator(toy.mlp(), regime=regime, **settings)
    for x, y, epoch in rounds():
        simulator.step(x, y, epoch)
    return simulator


def slowmo_by_hand(beta, alpha, rate_of):
    """Return the common model that the paper's Algorithm 1 comes to, {name: [*shape]}."""
    models = [toy.mlp() for _ in range(W)]
    common = {name: p.detach().clone() for name, p in models[0].named_parameters()}
    u = {name: torch.zeros_like(p) for name, p in common.items()}
    for step, (x, y, number) in enumerate(rounds(), 1):
        for own, a, b in zip(models, x.chunk(W), y.chunk(W), strict=True):
            named = dict(own.named_parameters())
            gradients = torch.autograd.grad(F.cross_entropy(own(a), b), list(named.values()))
            for (name, p), g in zip(named.items(), gradients, strict=True):
                p.data.sub_(g, alpha=rate_of(name, number))
        for name in common if step % H == 0 else ():
            lr, parts = (
                rate_of(name, number),
                [dict(own.named_parameters())[name] for own in models],
            )
            mean = sum(p.detach() for p in parts) / W
            u[name] = beta * u[name] + (common[name] - mean) / lr
            common[name] = common[name] - alpha * lr * u[name]
            for p in parts:
                p.data.copy_(common[name])
    return common


def assert_model(simulator, common):
    for name, value in simulator.parameters().items():
        wanted = common[name].expand_as(value)
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("granularity", ["layer", "model"])
def test_slowmo_is_its_formulas_while_the_lr_changes(granularity, halved):
    groups = {"param_groups": [{"params": "*bias", "lr": 0.05}]} if halved else {}
    simulator = trained(
        outer_optimizer="slowmo", outer_lr=0.8, outer_momentum=0.6, granularity=granularity,
        **groups,
    )  # fmt: skip
    own = lambda name, number: 0.05 if halved and "bias" in name else RATES[number]  # noqa: E731
    assert_model(simulator, slowmo_by_hand(0.6, 0.8, own))


def test_slowmo_without_momentum_averages_as_local_sgd_does():
    one = trained(outer_optimizer="slowmo", outer_lr=1.0, outer_momentum=0.0)
    other = trained(algorithm="local")
    assert_model(one, {name: p[0] for name, p in other.parameters().items()})


def test_slowmo_at_one_lr_is_sgd_with_momentum_outside_to_the_last_bit():
    settings = {"outer_lr": 0.9, "outer_momentum": 0.5, "rates": (0.1,)}
    one = trained(outer_optimizer="slowmo", **settings)
    other = trained(outer_optimizer="sgd", **settings)
    for name, value in other.parameters().items():
        assert torch.equal(one.parameters()[name], value)


def test_an_lr_of_zero_does_no_harm():
    """A warm-up that begins with no lr, and one in the middle: momentum begins anew behind it."""
    simulator = trained(
        rates=(0.0, 0.1, 0.0, 0.1), outer_optimizer="slowmo", outer_lr=1.0, outer_momentum=0.9
    )
    assert all(value.isfinite().all() for value in simulator.parameters().values())
    begun = dict(toy.mlp().named_parameters())
    assert all((value != begun[n]).any() for n, value in simulator.parameters().items())


@pytest.mark.parametrize("algorithm", ["fedavg", "streaming:fragments=1,local_steps=2"])
def test_any_local_method_takes_slow_momentum(algorithm):
    own = {"participation": 1.0} if algorithm == "fedavg" else {"local_steps": None}
    settings = {"outer_optimizer": "slowmo", "outer_lr": 0.8, "outer_momentum": 0.6}
    one = trained(algorithm=algorithm, **own, **settings)
    assert_model(one, slowmo_by_hand(0.6, 0.8, lambda name, number: RATES[number]))


def test_slow_momentum_is_resumed_to_the_last_bit():
    settings = {"outer_optimizer": "slowmo", "outer_lr": 0.8, "outer_momentum": 0.6}
    settings |= {"workers": W, "algorithm": "diloco", "local_steps": H}
    settings |= {"param_groups": [{"params": "*bias", "lr": 0.05}], "granularity": "model"}
    regime = {epoch: {"optimizer": "SGD", "lr": lr} for epoch, lr in enumerate(RATES)}
    first, whole = (Simulator(toy.mlp(), regime=regime, **settings) for _ in range(2))
    for x, y, epoch in rounds()[:5]:
        first.step(x, y, epoch)
    again = Simulator(toy.mlp(1), regime=regime, **settings)
    again.load_state_dict(first.state_dict())
    for x, y, epoch in rounds()[5:]:
        again.step(x, y, epoch)
    for x, y, epoch in rounds():
        whole.step(x, y, epoch)
    for name, value in whole.parameters().items():
        assert torch.equal(again.parameters()[name], value)
