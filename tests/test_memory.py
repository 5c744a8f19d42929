import pytest
import torch

from simsgd.compressors.dense import NoCompression
from simsgd.compressors.sparsify import TopK
from simsgd.draw import Draw
from simsgd.memory import DGC, NoMemory, Residual
from simsgd.messages import Dense
from simsgd.settings import SettingError
from simsgd.wire import Wire

W, N = 3, 40
DRAW = Draw(0, torch.arange(W))


def grads(steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(W, N, generator=generator, dtype=torch.float64) for _ in range(steps)]


def run(memory, fed, compressor=None, dense=False, wire=None):
    """Return what was sent at each step, [L, n], and the state afterwards."""
    compressor = compressor or NoCompression()
    state = memory.init(fed[0], dense)
    sent = []
    for grad in fed:
        said = memory.compensate(grad.clone(), state)
        message = compressor.compress(said, {}, DRAW).on_wire(wire or Wire())
        sent.append(message.to_dense().clone())
        memory.keep(said, message, state)
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


def test_the_residual_of_a_quantised_message_is_its_error():
    fed = [torch.tensor([[1.0, -3.0]] * W)] * 2
    said_then = []

    class Mean(NoCompression):
        def compress(self, said, state, draw):
            said_then.append(said.clone())
            return Dense.of(said.sign() * said.abs().mean(1, keepdim=True))

    _, state = run(Residual(), fed[:1], Mean())
    assert state["residual"][0].tolist() == [-1, -1]
    run(Residual(), fed, Mean())
    assert said_then[-1][0].tolist() == [0, -4]


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
        said = memory.compensate(grad, state)
        memory.keep(said, Dense.of(said.clone()), state)
    said = memory.compensate(fed[3], state)
    assert torch.allclose(said, momentum_sgd(fed[:4], 0.9)[-1])


@pytest.mark.parametrize("momentum", [-0.1, 1, 2])
def test_a_momentum_out_of_range_is_refused(momentum):
    with pytest.raises(SettingError, match="momentum must lie in"):
        DGC(momentum)
