import pytest
import torch
from torch import nn

from simsgd.communication.messages import Dense
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo
from simsgd.methods.compressors.none import NoCompression
from simsgd.methods.compressors.sign import Sign
from simsgd.methods.compressors.topk import TopK
from simsgd.methods.memories import DGC, EF21, LocalMomentum, NoMemory, Residual
from simsgd.registry import build, names
from simsgd.settings import SettingError
from simsgd.simulator.regime import Regime
from simsgd.simulator.simulator import Simulator

W, N = 3, 40
STEP = StepInfo(RandomKey(0, torch.arange(W)))


def grads(steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(W, N, generator=generator, dtype=torch.float64) for _ in range(steps)]


def run(memory, fed, compressor=None, dense=False, wire=None):
    """Return what was sent at each step, [L, n], and the state afterwards."""
    compressor = compressor or NoCompression()
    state = memory.init(fed[0], dense)
    sent = []
    for grad in fed:
        compensated = memory.compensate(grad.clone(), state)
        message = compressor.compress(compensated, {}, STEP).on_wire(wire or Wire())
        sent.append(message.to_dense().clone())
        memory.update(compensated, message, state)
    return sent, state


def momentum_sgd(fed, m, nesterov=False):
    buffer, directions = torch.zeros_like(fed[0]), []
    for grad in fed:
        buffer = m * buffer + grad
        directions.append(grad + m * buffer if nesterov else buffer)
    return directions


@pytest.mark.parametrize("wire", [Wire(), Wire("float16")])
def test_nothing_is_lost_only_delayed(wire):
    fed = grads(20)
    sent, state = run(Residual(), fed, TopK(0.1), wire=wire)
    assert torch.allclose(sum(sent) + state["residual"], sum(fed), atol=1e-12)


def test_without_a_memory_what_is_not_sent_is_lost():
    fed = grads(3)
    sent, state = run(NoMemory(), fed, TopK(0.1))
    assert state == {}
    assert all(torch.equal(s[s != 0], g[s != 0]) for s, g in zip(sent, fed, strict=True))


def test_the_residual_of_a_quantized_message_is_its_error():
    fed = [torch.tensor([[1.0, -3.0]] * W)] * 2
    inputs_then = []

    class Mean(NoCompression):
        def compress(self, compensated, state, step):
            inputs_then.append(compensated.clone())
            return Dense.of(compensated.sign() * compensated.abs().mean(1, keepdim=True))

    _, state = run(Residual(), fed[:1], Mean())
    assert state["residual"][0].tolist() == [-1, -1]
    run(Residual(), fed, Mean())
    assert inputs_then[-1][0].tolist() == [0, -4]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_dgc_that_prunes_nothing_is_momentum_sgd(nesterov, dense):
    fed = grads(8)
    sent, _ = run(DGC(0.9, nesterov), fed, dense=dense)
    for got, wanted in zip(sent, momentum_sgd(fed, 0.9, nesterov), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_dgc_without_masking_only_delays_the_momentum(nesterov):
    fed = grads(12)
    sent, state = run(DGC(0.9, nesterov, masking=False), fed, TopK(0.1))
    wanted = sum(momentum_sgd(fed, 0.9, nesterov))
    assert torch.allclose(sum(sent) + state["residual"], wanted, atol=1e-10)


def test_masking_stops_the_momentum_where_something_was_sent():
    sent, state = run(DGC(0.9), grads(5), TopK(0.1))
    assert (state["momentum"][sent[-1] != 0] == 0).all()
    assert (state["residual"][sent[-1] != 0] == 0).all()
    assert (state["momentum"][sent[-1] == 0] != 0).all()


def test_what_goes_dense_keeps_no_residual():
    for memory in (Residual(), DGC(0.9)):
        assert "residual" not in memory.init(grads(1)[0], dense=True)


def test_constant_gradients_gain_momentum_as_they_should():
    sent, _ = run(DGC(0.9), [torch.ones(W, N)] * 3)
    assert [round(s[0, 0].item(), 6) for s in sent] == [1, 1.9, 2.71]


def test_pruning_may_begin_late_without_a_jump():
    fed, memory = grads(6), DGC(0.9)
    state = memory.init(fed[0], dense=False)
    for grad in fed[:3]:  # dense steps
        compensated = memory.compensate(grad, state)
        memory.update(compensated, Dense.of(compensated.clone()), state)
    compensated = memory.compensate(fed[3], state)
    assert torch.allclose(compensated, momentum_sgd(fed[:4], 0.9)[-1])


@pytest.mark.parametrize("momentum", [-0.1, 1, 2])
@pytest.mark.parametrize("memory", [DGC, LocalMomentum])
def test_a_momentum_out_of_range_is_refused(memory, momentum):
    with pytest.raises(SettingError, match="momentum must lie in"):
        memory(momentum)


@pytest.mark.parametrize(("beta", "gamma"), [(0.9, 1), (1, 0.5), (0.7, 2), (0, 1)])
def test_the_residual_and_the_gradient_have_weights(beta, gamma):
    fed, memory, kept = grads(5), Residual(beta, gamma), torch.zeros(W, N)
    state = memory.init(fed[0], dense=False)
    for grad in fed:
        wanted = beta * kept + gamma * grad
        compensated = memory.compensate(grad.clone(), state)
        assert torch.allclose(compensated, wanted)
        message = TopK(0.1).compress(compensated, {}, STEP)
        memory.update(compensated, message, state)
        kept = wanted - message.to_dense()
        assert torch.allclose(state["residual"], kept)


def test_what_goes_dense_has_the_gradients_weight_as_well():
    grad = grads(1)[0]
    assert torch.equal(Residual(gamma=0.5).compensate(grad, {}), grad * 0.5)
    assert torch.equal(grad, grads(1)[0])


@pytest.mark.parametrize("wrong", [{"beta": -1}, {"gamma": float("inf")}, {"beta": float("nan")}])
def test_a_weight_out_of_range_is_refused(wrong):
    with pytest.raises(SettingError, match="must be a number of at least 0"):
        Residual(**wrong)


def moves(memory, rates):
    """Return how far parameters move at each step, [2], and what then stays behind, [2]."""
    grad, steps = torch.tensor([[1.0, -3.0]]), []
    state = memory.init(grad, dense=False)
    for lr in rates:
        now = memory.at_rate(lr)
        compensated = now.compensate(grad.clone(), state)
        message = Sign().compress(compensated, {}, StepInfo(RandomKey(0, torch.arange(1))))
        now.update(compensated, message, state)
        move = message.to_dense()[0] * (1 if memory.lr else lr)
        steps.append((move.tolist(), state["residual"][0].tolist()))
    return steps


def close(steps):
    return [tuple(pytest.approx(part, abs=1e-6) for part in step) for step in steps]


def test_lr_inside_the_memory_leaves_what_was_kept_at_the_old_lr():
    wanted = [([0.2, -0.2], [-0.1, -0.1]), ([-0.11, -0.11], [0.02, -0.02])]
    assert moves(Residual(lr=True), [0.1, 0.01]) == close(wanted)


def test_lr_outside_the_memory_gives_what_was_kept_the_new_lr():
    wanted = [([0.2, -0.2], [-1, -1]), ([0.02, -0.02], [-2, -2])]
    assert moves(Residual(), [0.1, 0.01]) == close(wanted)


def test_while_lr_is_constant_it_is_the_same_inside_and_outside():
    inside, outside = moves(Residual(lr=True), [0.1] * 5), moves(Residual(), [0.1] * 5)
    for (move, _), (other, _) in zip(inside, outside, strict=True):
        assert move == pytest.approx(other, abs=1e-6)


def test_the_first_step_has_its_lr_like_any_other():
    """A constant gradient of one entry is sent exactly: each step moves by lr times it."""
    grad, memory = torch.tensor([[2.0]]), Residual(lr=True).at_rate(0.1)
    state = memory.init(grad, dense=False)
    for _ in range(3):
        compensated = memory.compensate(grad, state)
        message = Sign().compress(compensated, {}, StepInfo(RandomKey(0, torch.arange(1))))
        memory.update(compensated, message, state)
        assert message.to_dense().item() == pytest.approx(0.2)


def aggregates(memory, fed, compressor, dense=False):
    """Return what the optimizer gets at each step, [n], and the state afterwards."""
    state, got = memory.init(fed[0], dense), []
    for grad in fed:
        compensated = memory.compensate(grad.clone(), state)
        message = compressor.compress(compensated, {}, STEP)
        memory.update(compensated, message, state)
        got.append(memory.on_aggregate(message.sum() / W, state))
    return got, state


def test_under_ef21_all_move_along_the_mean_of_the_estimates():
    got, state = aggregates(EF21(), grads(8), TopK(0.1))
    assert torch.allclose(got[-1], state["estimate"].mean(0), atol=1e-12)


def test_under_ef21_the_first_message_is_the_compressed_gradient():
    fed = grads(1)
    got, _ = aggregates(EF21(), fed, TopK(0.1))
    assert torch.allclose(got[0], TopK(0.1).compress(fed[0], {}, STEP).to_dense().mean(0))


def test_under_ef21_a_constant_gradient_arrives_exactly_in_the_end():
    fed = grads(1) * 10
    got, state = aggregates(EF21(), fed, TopK(0.1))
    assert torch.allclose(got[-1], fed[0].mean(0), atol=1e-12)
    assert torch.allclose(state["estimate"], fed[0])


@pytest.mark.parametrize("dense", [False, True])
def test_ef21_without_compression_changes_nothing(dense):
    fed = grads(5)
    got, _ = aggregates(EF21(), fed, NoCompression(), dense)
    for aggregated, grad in zip(got, fed, strict=True):
        assert torch.allclose(aggregated, grad.mean(0), atol=1e-12)


def test_ef21_converges_where_compression_without_a_memory_does_not():
    """Worker w has f_w = |x - c_w|^2 / 2; their mean has its minimum at the mean of c."""
    centers = grads(1)[0] * 5

    def distance(memory):
        x, state = torch.zeros(N, dtype=torch.float64), memory.init(centers, dense=False)
        for _ in range(400):
            compensated = memory.compensate(x - centers, state)
            message = TopK(0.1).compress(compensated, {}, STEP)
            memory.update(compensated, message, state)
            x = x - 0.05 * memory.on_aggregate(message.sum() / W, state)
        return (x - centers.mean(0)).norm()

    assert distance(EF21()) < 1e-4
    assert distance(NoMemory()) > 1e-1


def test_what_ef21_returns_is_not_its_state():
    got, state = aggregates(EF21(), grads(1), TopK(0.1))
    got[0].zero_()
    assert state["heard"].any()


@pytest.mark.parametrize("nesterov", [False, True])
def test_local_momentum_sends_what_momentum_sgd_would_move_by(nesterov):
    fed = grads(6)
    sent, state = run(LocalMomentum(0.9, nesterov), fed)
    for got, wanted in zip(sent, momentum_sgd(fed, 0.9, nesterov), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-12)
    assert set(state) == {"momentum"}


def test_local_momentum_does_not_add_up_what_was_not_sent():
    fed = grads(6)
    memory, state = LocalMomentum(0.9), LocalMomentum(0.9).init(fed[0], dense=False)
    for grad, wanted in zip(fed, momentum_sgd(fed, 0.9), strict=True):
        compensated = memory.compensate(grad.clone(), state)
        memory.update(compensated, TopK(0.1).compress(compensated, {}, STEP), state)
        assert torch.allclose(compensated, wanted)


@pytest.mark.parametrize("memory", [NoMemory(), Residual(), DGC(0.9), LocalMomentum(0.9)])
def test_the_aggregate_passes_most_memories_unchanged(memory):
    aggregated = torch.ones(N)
    assert memory.on_aggregate(aggregated, memory.init(grads(1)[0], dense=False)) is aggregated


class Slope(nn.Module):
    """A model whose gradient is its input, if the loss is the sum of its output."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.zeros(2, 6))

    def forward(self, x):
        return (self.p * x).flatten(1)


def moved(memory, rates, compressor="topk:0.25", **settings):
    """Return where the parameters are after one step at each lr, and the records."""
    model, x = Slope(), torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0))
    regime = Regime([{"step": step, "lr": lr} for step, lr in enumerate(rates)])
    simulator = Simulator(
        model, lambda output, y: output.sum(), workers=4, regime=regime, memory=memory,
        compressor=compressor, **settings,
    )  # fmt: skip
    records = [simulator.step(x, torch.zeros(4)) for _ in rates]
    return model.p.detach(), x.mean(0), records


def test_in_the_simulator_ef21_moves_along_the_mean_of_the_estimates():
    at_last, mean, _ = moved("ef21", [0.0] * 4 + [0.1])  # by then each estimate is the gradient
    assert torch.allclose(at_last, -0.1 * mean, atol=1e-6)


def test_in_the_simulator_lr_inside_the_memory_is_not_applied_twice():
    inside, _, records = moved("residual:lr=true", [0.1] * 5, momentum=0.5, weight_decay=0.1)
    outside, _, _ = moved("residual", [0.1] * 5, momentum=0.5, weight_decay=0.1)
    assert torch.allclose(inside, outside, atol=1e-6)
    assert [record.lr for record in records] == [0.1] * 5


def test_in_the_simulator_what_was_kept_at_a_higher_lr_still_moves_as_far():
    inside, mean, _ = moved("residual:lr=true", [0.1, 0.0, 0.0, 0.0])
    outside, _, _ = moved("residual", [0.1, 0.0, 0.0, 0.0])
    assert torch.allclose(inside, -0.1 * mean, atol=1e-6)
    assert not torch.allclose(outside, -0.1 * mean, atol=1e-3)


@pytest.mark.parametrize("memory", [DGC, LocalMomentum])
def test_a_memory_with_momentum_takes_the_regimes_where_it_names_none(memory):
    assert memory().owns_momentum
    assert memory().with_momentum(0.9, True).inertia == (0.9, True)
    assert memory(momentum=0.5, nesterov=False).with_momentum(0.9, True).inertia == (0.5, False)


@pytest.mark.parametrize("memory", [NoMemory(), Residual(), EF21()])
def test_a_memory_without_momentum_leaves_it_to_the_optimizer(memory):
    assert not memory.owns_momentum
    assert memory.inertia == (0.0, False)
    assert memory.with_momentum(0.9, True) == memory


def test_only_a_residual_collects_lr_times_the_gradient():
    memory = Residual(gamma=0.5).with_lr()
    assert memory.keeps_lr
    assert memory.at_rate(0.1) == Residual(gamma=0.05)
    assert Residual().at_rate(0.1) == Residual()
    with pytest.raises(SettingError, match="lr_in_memory needs memory residual"):
        DGC().with_lr()


def test_memories_declare_what_they_need():
    memories = [build("memory", name)[0] for name in names("memory")]
    assert [m for m in memories if m.needs_mean_of_all] == [EF21()]
    assert [m for m in memories if m.needs_exact_state] == [EF21()]
    assert [m for m in memories if m.keeps_nothing] == [NoMemory()]
