"""Dion and Dion2 against plain loops, and what their updates are."""

import pytest
import torch
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.communication.messages import Dense
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, composed
from simsgd.methods.compressors.contract import run_rounds
from simsgd.methods.compressors.dion import newton_schulz
from simsgd.simulator.step_bytes import sizes

from .. import toy
from ..toy import normal

F64 = {"dtype": torch.float64}


def updated(compressor, x, state, step=0):
    """Return message and update of rows `x` [W, n], and the bytes of each round."""
    sizes = []

    def carry(message):
        assert isinstance(message, Dense)
        sizes.append(int(message.payload_bytes()[0]))
        return message, message.to_dense().mean(0, keepdim=True)

    info = StepInfo(RandomKey(0, torch.arange(len(x))).fold_in(step, "s"), step, segment="s")
    message, update = run_rounds(compressor.rounds(x, state, info), carry)
    return message, update, sizes


def test_the_factors_are_orthonormal_and_what_is_sent_is_theirs():
    x = normal(3, 12 * 20, **F64)
    dion = composed("dion:4,momentum=0.9").for_shape((12, 20))
    state = dion.init(x)
    message, update, sent = updated(dion, x, state)
    p, r = message.p[0] / 0.1, message.q[0]
    torch.testing.assert_close(p.T @ p, torch.eye(4, **F64), rtol=0, atol=1e-12)
    mean = x.view(3, 12, 20).mean(0)
    torch.testing.assert_close(r, mean.T @ p, rtol=0, atol=1e-12)
    unit = r / r.norm(dim=0)
    wanted = (12 / 20) ** 0.5 * p @ unit.T
    torch.testing.assert_close(update.view(12, 20), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(state["q"], unit.expand(3, -1, -1), rtol=0, atol=0)
    assert sent == [8 * 12 * 4, 8 * 20 * 4]


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_full_rank_and_one_worker_come_to_the_polar_factor(shape):
    side = min(shape)
    u = torch.linalg.qr(normal(shape[0], side, **F64))[0]
    v = torch.linalg.qr(normal(shape[1], side, seed=1, **F64))[0]
    x = (u * 4.0 ** -torch.arange(side, **F64)) @ v.T
    dion = composed("dion:99").for_shape(shape)
    flat = x.reshape(1, -1)
    state = dion.init(flat)
    for step in range(40):  # of the same momentum
        _, update, _ = updated(dion, flat, state, step)
    scale = (shape[0] / shape[1]) ** 0.5
    torch.testing.assert_close(update.view(shape), scale * u @ v.T, rtol=0, atol=1e-9)


def test_dion_in_a_simulator_is_a_plain_loop():
    """Two workers and one matrix: momentum, factors, error feedback and the step."""
    workers, lr, mu, decay, rank = 2, 0.1, 0.9, 0.2, 2
    torch.manual_seed(0)
    layer = nn.Linear(6, 3, bias=False).double()
    simulator = Simulator(
        layer, workers=workers, method="dion", lr=lr / 10, weight_decay=decay,
        compressor=f"dion:{rank},momentum={mu}",
    )  # fmt: skip
    weight, q = layer.weight.detach().clone(), None
    momentum = [torch.zeros_like(weight) for _ in range(workers)]
    for x, y in toy.batches(5, 8):
        for w, (a, b) in enumerate(zip(x.chunk(workers), y.chunk(workers), strict=True)):
            own = weight.clone().requires_grad_()
            nn.functional.cross_entropy(a @ own.T, b).backward()
            momentum[w] = momentum[w] + own.grad
        simulator.step(x, y, 0)
        [state] = simulator.components.segment_states
        if q is not None:  # the first Q is drawn at random
            p = torch.linalg.qr(sum(m @ q for m in momentum) / workers)[0]
            r = sum(m.T @ p for m in momentum) / workers
            momentum = [m - (1 - mu) * p @ r.T for m in momentum]
            q = r / r.norm(dim=0)
            weight = (1 - lr * decay) * weight - lr * (3 / 6) ** 0.5 * p @ q.T
            torch.testing.assert_close(layer.weight.detach(), weight, rtol=0, atol=1e-10)
            kept = state.memory_state["residual"].view(workers, 3, 6)
            torch.testing.assert_close(kept, torch.stack(momentum), rtol=0, atol=1e-10)
            continue
        q, weight = state.compressor_state["q"][0].clone(), layer.weight.detach().clone()
        momentum = list(state.memory_state["residual"].view(workers, 3, 6).clone())


@pytest.mark.parametrize("shape", [(8, 12), (12, 8)])
def test_dion2_sends_the_largest_of_the_fewer_rows_or_columns(shape):
    x = normal(2, 96, **F64)
    dion2 = composed("dion2:0.3,decay=0.9").for_shape(shape)
    message, update, sent = updated(dion2, x, dion2.init(x))
    own, mean = x.view(2, *shape), x.view(2, *shape).mean(0)
    own, mean = (own, mean) if shape[0] == 8 else (own.mT, mean.T)
    size = own.abs().sum(2).mean(0)
    chosen = size.argsort(descending=True)[:3].sort().values  # ceil(0.3 * 8)
    wanted = torch.zeros(8, 12, **F64)
    wanted[chosen] = newton_schulz(mean[chosen].unsqueeze(0))[0] * (shape[0] / shape[1]) ** 0.5
    wanted = wanted if shape[0] == 8 else wanted.T
    torch.testing.assert_close(update.view(shape), wanted, rtol=0, atol=1e-12)
    rest = x.clone()
    message.subtract_from_(rest)
    kept = rest.view(2, *shape) if shape[0] == 8 else rest.view(2, *shape).mT
    decayed = own.clone()
    decayed[:, chosen] *= 0.9
    torch.testing.assert_close(kept, decayed, rtol=0, atol=1e-14)
    assert sent == [8 * 8, 8 * 3 * 12]


def test_newton_schulz_is_that_of_muon():
    parameter = nn.Parameter(torch.zeros(5, 9))
    gradient = normal(5, 9)
    parameter.grad = gradient.clone()
    torch.optim.Muon([parameter], lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0).step()
    got = newton_schulz(gradient.unsqueeze(0))[0]
    torch.testing.assert_close(got, -parameter.detach(), rtol=0, atol=0.02)  # bfloat16 there
    values = torch.linalg.svdvals(got)
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.3


@pytest.mark.parametrize(
    ("spec", "size"),
    [("dion:32", 4 * 32 * (128 + 256)), ("dion2:0.25", 4 * (128 + 32 * 256))],
)
def test_bytes_are_those_of_the_factors_and_rows(spec, size):
    assert sizes({"weight": (128, 256)}, compressor=spec).payload_bytes == size


@pytest.mark.parametrize(
    ("spec", "rule"),
    [("dion:0", "at least 1"), ("dion:2,momentum=1", r"in \[0, 1\)"), ("dion2:0", r"in \(0, 1\]")],
)
def test_wrong_settings_are_refused(spec, rule):
    with pytest.raises(SettingError, match=rule):
        composed(spec)


def test_what_is_no_matrix_is_refused():
    for spec in ("dion:2", "dion2:0.5"):
        name = spec.split(":")[0]
        with pytest.raises(SettingError, match=f"{name} needs granularity layer"):
            Simulator(toy.mlp(), workers=2, lr=0.1, compressor=spec, granularity="model")
