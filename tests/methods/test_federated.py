"""FedAvg and its relatives, held to plain loops over the clients in float64."""

import copy
import functools
import math

import pytest
import torch
import torch.nn.functional as F

from simsgd import SettingError, Simulator
from simsgd.registry import build

from .. import toy
from ..toy import mlp

W, B, H = 8, 32, 3
LR = 0.1

batches = functools.partial(toy.batches, size=B)


def trained(steps=9, model=None, **settings):
    settings = {"workers": W, "lr": LR, "local_steps": H, "participation": 0.4, **settings}
    return toy.simulated(model or mlp(), batches(steps), 0, **settings)


def assert_model(simulator, wanted):
    """The common model, which every worker has after a round, is `wanted` {name: [*shape]}."""
    for name, value in simulator.parameters().items():
        torch.testing.assert_close(value, wanted[name].expand_as(value), rtol=0, atol=1e-10)


def test_who_was_not_drawn_keeps_what_the_memory_holds_and_counts_no_samples():
    simulator = Simulator(
        mlp(), workers=W, lr=LR, algorithm="fedavg", local_steps=1, participation=0.4,
        compressor="topk:0.1", memory="residual",
    )  # fmt: skip
    states = [v.memory_state for v in simulator.components.segment_states if v.memory_state]
    for x, y in batches(6):
        before = [state["residual"].clone() for state in states]
        record = simulator.step(x, y, 0)
        waits = ~record.participants
        assert 0 < int(waits.sum()) < W
        assert record.num_of_participants(B) == B * int(record.participants.sum()) // W
        for state, kept in zip(states, before, strict=True):
            assert torch.equal(state["residual"][waits], kept[waits])
            assert not torch.equal(state["residual"], kept)


class Clients:
    """A plain loop of rounds over clients, with hooks for what a method changes.

    In a round workers act for clients, `drawn` {client: worker}, for so many `steps`.
    """

    def __init__(self, samples=None, number=W):
        self.common = {name: p.detach().clone() for name, p in mlp().named_parameters()}
        self.number = number
        self.samples = torch.ones(number) if samples is None else samples
        self.steps = [H] * number

    def corrected(self, client, name, gradient, value):
        return gradient

    def ended(self, client, own, steps):
        """A client that was drawn came to `own` {name: [*shape]}."""

    def move(self, change):
        for name, value in change.items():
            self.common[name] = self.common[name] + value

    def round(self, data, drawn):
        models = {}
        for client in drawn:
            model = mlp()
            own = dict(model.named_parameters())
            for name, p in own.items():
                p.data.copy_(self.common[name])
            for x, y in data[: self.steps[client]]:
                x, y = x.chunk(W)[drawn[client]], y.chunk(W)[drawn[client]]
                loss = F.cross_entropy(model(x), y)
                gradients = torch.autograd.grad(loss, list(own.values()))
                for (name, p), g in zip(own.items(), gradients, strict=True):
                    p.data.sub_(self.corrected(client, name, g, p.detach()), alpha=LR)
            models[client] = {name: p.detach() for name, p in own.items()}
        total = sum(float(self.samples[client]) for client in drawn)
        change = {
            name: sum(
                float(self.samples[client]) / total * (models[client][name] - value)
                for client in drawn
            )
            for name, value in self.common.items()
        }
        for client in drawn:
            self.ended(client, models[client], min(len(data), self.steps[client]))
        self.move(change)

    def train(self, records, steps=9):
        """Do rounds, of the workers that `records` were drawn for."""
        data = list(batches(steps))
        for start in range(0, steps, H):
            drawn = records[start].participants.nonzero().flatten().tolist()
            self.round(data[start : start + H], {worker: worker for worker in drawn})
        return self


def test_fedprox_is_its_formula():
    mu = 0.7

    class Prox(Clients):
        def corrected(self, client, name, gradient, value):
            return gradient + mu * (value - self.common[name])

    simulator, records = trained(algorithm=f"fedprox:mu={mu}")
    assert_model(simulator, Prox().train(records).common)


def test_fedprox_with_mu_0_is_fedavg_to_the_last_bit():
    one, _ = trained(algorithm="fedprox:mu=0", compressor="topk:0.3", momentum=0.9)
    other, _ = trained(algorithm="fedavg", compressor="topk:0.3", momentum=0.9)
    assert all(torch.equal(one.parameters()[n], p) for n, p in other.parameters().items())


class Variates(Clients):
    """SCAFFOLD with option II, as the paper writes it."""

    def __init__(self, lr_g=1.0, **more):
        super().__init__(**more)
        self.lr_g = lr_g
        self.c = {name: torch.zeros_like(p) for name, p in self.common.items()}
        self.of = [copy.deepcopy(self.c) for _ in range(self.number)]
        self.changes = []

    def corrected(self, client, name, gradient, value):
        return gradient - self.of[client][name] + self.c[name]

    def ended(self, client, own, steps):
        change = {}
        for name, x in self.common.items():
            new = self.of[client][name] - self.c[name] + (x - own[name]) / (steps * LR)
            change[name] = new - self.of[client][name]
        self.changes.append((client, change))

    def move(self, change):
        super().move({name: self.lr_g * value for name, value in change.items()})
        for client, own in self.changes:
            for name, value in own.items():
                self.of[client][name] = self.of[client][name] + value
                self.c[name] = self.c[name] + value / self.number
        self.changes = []


@pytest.mark.parametrize("lr_g", [1.0, 0.5])
def test_scaffold_is_its_formulas(lr_g):
    samples = torch.arange(1.0, W + 1)
    outer = {} if lr_g == 1 else {"outer_optimizer": "sgd", "outer_lr": lr_g}
    simulator, records = trained(algorithm="scaffold", samples=samples, **outer)
    wanted = Variates(lr_g, samples=samples).train(records)
    assert_model(simulator, wanted.common)
    for own in simulator.components.segment_states:
        name, state = own.segment.name, own.algorithm_state
        for client in range(W):
            held = state["control"][client].view_as(wanted.c[name])
            torch.testing.assert_close(held, wanted.of[client][name], rtol=0, atol=1e-10)
        held = state["common_control"][0].view_as(wanted.c[name])
        torch.testing.assert_close(held, wanted.c[name], rtol=0, atol=1e-10)
        assert wanted.c[name].abs().max() > 1e-3


def test_the_variates_of_clients_that_are_not_drawn_do_not_move():
    simulator = Simulator(
        mlp(), workers=W, lr=LR, algorithm="scaffold", local_steps=3, participation=0.25
    )
    [state] = [
        own.algorithm_state
        for own in simulator.components.segment_states
        if own.segment.name == "0.weight"
    ]
    drawn_ever = torch.zeros(W, dtype=torch.bool)
    for number, (x, y) in enumerate(batches(9)):
        before = state["control"].clone()
        drawn = simulator.step(x, y, 0).participants
        moved = (state["control"] != before).any(1)
        assert torch.equal(moved, drawn if number % 3 == 2 else torch.zeros_like(drawn))
        drawn_ever |= drawn
    assert not drawn_ever.all()
    assert torch.equal(state["control"].any(1), drawn_ever)


def test_the_first_round_of_scaffold_is_one_of_fedavg():
    one, _ = trained(3, algorithm="scaffold", momentum=0.9)
    other, _ = trained(3, algorithm="fedavg", momentum=0.9)
    assert all(torch.equal(one.parameters()[n], p) for n, p in other.parameters().items())


def test_scaffold_sends_twice_the_bytes_of_fedavg_both_ways():
    _, records = trained(3, algorithm="scaffold")
    _, others = trained(3, algorithm="fedavg")
    size = 8 * sum(p.numel() for p in mlp().parameters())
    drawn = records[0].participants
    assert [r.payload_bytes for r in records[:2]] == [[0] * W] * 2
    assert records[2].payload_bytes == (2 * size * drawn).tolist()
    assert records[2].bytes.downlink.tolist() == (2 * size * drawn).tolist()
    assert records[2].network_bytes == 2 * others[2].network_bytes


def moments(name, change, m, v, beta1, beta2):
    """Return both moments of the paper's Algorithm 2."""
    square = change * change
    m = beta1 * m + (1 - beta1) * change
    if name == "fedadagrad":
        return m, v + square
    if name == "fedyogi":
        return m, v - (1 - beta2) * square * torch.sign(v - square)
    return m, beta2 * v + (1 - beta2) * square


@pytest.mark.parametrize("beta1", [0.0, 0.9])
@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_an_adaptive_server_is_its_formulas(name, beta1):
    lr, tau, beta2 = 0.05, 0.01, 0.9

    class Adaptive(Clients):
        def __init__(self):
            super().__init__()
            self.m = {n: torch.zeros_like(p) for n, p in self.common.items()}
            self.v = {n: torch.full_like(p, tau**2) for n, p in self.common.items()}

        def move(self, change):
            for n, own in change.items():
                self.m[n], self.v[n] = moments(name, own, self.m[n], self.v[n], beta1, beta2)
                self.common[n] = self.common[n] + lr * self.m[n] / (self.v[n].sqrt() + tau)

    more = "" if name == "fedadagrad" else f",beta2={beta2}"
    simulator, records = trained(
        algorithm="fedavg", outer_optimizer=f"{name}:tau={tau}{more}", outer_lr=lr,
        outer_momentum=beta1,
    )  # fmt: skip
    assert_model(simulator, Adaptive().train(records).common)


def test_fedavgm_is_its_formula():
    beta = 0.8

    class Momentum(Clients):
        def move(self, change):
            if not hasattr(self, "v"):
                self.v = {n: torch.zeros_like(p) for n, p in self.common.items()}
            for n, own in change.items():
                self.v[n] = beta * self.v[n] - own
                self.common[n] = self.common[n] - self.v[n]

    simulator, records = trained(method="fedavgm", outer_momentum=beta)
    assert_model(simulator, Momentum().train(records).common)


def test_any_local_method_takes_the_optimizers_of_a_server():
    settings = {"outer_optimizer": "fedyogi", "outer_lr": 0.01, "outer_momentum": 0.9}
    one, _ = trained(algorithm="diloco", participation=None, **settings)
    other, _ = trained(algorithm="fedavg", participation=1.0, **settings)
    for name, value in other.parameters().items():
        torch.testing.assert_close(one.parameters()[name], value, rtol=1e-12, atol=1e-12)


def test_yogi_falls_by_the_squares_and_adam_by_itself():
    """After large changes come small ones: the variance of Yogi stays, that of Adam decays."""
    large, small = torch.ones(1, 3).double(), torch.full((1, 3), 1e-3).double()
    held = {}
    for name in ("fedadam", "fedyogi"):
        outer = build("outer_optimizer", name)[0].filled(0.1, 0.0)
        state = outer.init(large)
        for gradient in (large, *[small] * 50):
            outer.step(torch.zeros(1, 3).double(), gradient, state)
        held[name] = float(state["variance"][0, 0])
    assert held["fedyogi"] == pytest.approx(0.01 + 1e-6 - 51 * 1e-8, rel=1e-3)
    assert held["fedadam"] == pytest.approx(0.01 * math.pow(0.99, 50), rel=1e-2)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"algorithm": "fedprox:mu=-1"}, "mu -1, which must be at least 0"),
        ({"algorithm": "fedavg", "outer_lr": 0.5}, "outer_lr has no effect without outer_opt"),
        ({"algorithm": "fedavg", "outer_momentum": 0.5}, "momentum has no effect without outer_o"),
        ({"algorithm": "fedavg", "outer_optimizer": "fedadam:tau=0"}, "tau 0, which must be gre"),
        ({"algorithm": "fedavg", "outer_optimizer": "fedyogi:beta2=1"}, r"must lie in \[0, 1\)"),
        ({"algorithm": "fedavg", "outer_optimizer": "sgd+sgd"}, "must be one outer optimizer"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_go_together_is_refused(settings, error):
    with pytest.raises(SettingError, match=error):
        Simulator(mlp(), workers=W, lr=LR, **settings)
