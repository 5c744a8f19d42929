import re

import pytest
import torch

from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import LowRank
from simsgd.communication.segments import Segment
from simsgd.communication.transport import Channel, InProcess
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.algorithms import AllReduce, ExchangeContext
from simsgd.methods.compressors import StepInfo
from simsgd.methods.compressors.contract import run_rounds
from simsgd.methods.compressors.powersgd import PowerSGD
from simsgd.methods.compressors.powersgd_factors import orthonormal
from simsgd.methods.memories import Residual
from simsgd.registry import build
from simsgd.settings import SettingError

from .. import toy

ROWS, COLS, N = 8, 12, 96
PAPER = PowerSGD(2)
PACKAGE = PowerSGD(2, "package", start_compressing_after_num_steps=0)
TWICE = PowerSGD(2, "package", 0, 0, num_iters_per_step=2)
ALL = pytest.mark.parametrize("compressor", [PAPER, PACKAGE, TWICE], ids=["paper", "one", "two"])
INPUTS = {
    "normal": lambda: normal(3, seed=9),
    "zeros": lambda: torch.zeros(3, N),
    "constant": lambda: torch.full((3, N), 0.5),
    "outlier": lambda: torch.eye(3, N) * 1e30,
    "denormal": lambda: torch.full((3, N), 1e-42),
    "negative": lambda: -1 - normal(3).abs(),
}


def normal(workers, n=N, seed=0):
    return toy.normal(workers, n, seed)


def step_of(workers, step=0, seed=0):
    return StepInfo(RandomKey(seed, torch.as_tensor(workers)).fold_in(step, "s"), step)


class Job:
    """Steps of an all-reduce over one segment, with its state and its ledger."""

    def __init__(self, compressor, workers, shape=(ROWS, COLS), wire=None):
        self.compressor = compressor.for_shape(shape)
        n = shape[0] * shape[1]
        self.workers, self.steps = workers, 0
        self.segment = Segment("s", ("s",), (torch.Size(shape),), dense=False)
        self.channel = Channel(InProcess(), Ledger(workers), wire or Wire())
        self.state = self.compressor.init(torch.empty(workers, n))

    def step(self, compensated, exchange=None):
        key = step_of(range(self.workers), self.steps).key
        self.steps += 1
        return (exchange or AllReduce()).gradients(
            compensated,
            ExchangeContext(self.compressor, self.state, StepInfo(key), self.segment, self.channel),
        )

    def payload(self):
        return self.channel.ledger.close(0).payload.tolist()


def fitted(compressor):
    return compressor.for_shape((ROWS, COLS))


def alone(compressor, compensated, workers=(0, 1, 2), steps=1):
    """Return the message of workers whose means are their own, at the last of some steps."""
    compressor = fitted(compressor)
    state = compressor.init(compensated)
    for step in range(steps):
        message = compressor.compress(compensated, state, step_of(workers, step))
    return message


@ALL
def test_what_is_kept_is_on_average_the_mean_less_the_aggregate(compressor):
    job, memory = Job(compressor, 4), Residual()
    state = memory.init(torch.empty(4, N), dense=False)
    for step in range(5):
        compensated = memory.compensate(normal(4, seed=step), state).clone()
        message, aggregated = job.step(compensated)
        memory.update(compensated, message, state)
        wanted = compensated.mean(0) - aggregated
        assert torch.allclose(state["residual"].mean(0), wanted, atol=1e-5)


@ALL
def test_nothing_is_lost_only_delayed(compressor):
    job, memory = Job(compressor, 4), Residual()
    state = memory.init(torch.empty(4, N), dense=False)
    fed, got = torch.zeros(N), torch.zeros(N)
    for step in range(12):
        grad = normal(4, seed=step)
        message, aggregated = job.step(compensated := memory.compensate(grad.clone(), state))
        memory.update(compensated, message, state)
        fed, got = fed + grad.mean(0), got + aggregated
    assert torch.allclose(got + state["residual"].mean(0), fed, atol=1e-4)


def test_in_the_paper_all_subtract_the_aggregate():
    message, aggregated = Job(PAPER, 4).step(normal(4))
    assert torch.equal(message.to_dense(), aggregated.expand(4, -1))


def test_in_the_package_each_subtracts_its_own_before_the_mean():
    message, aggregated = Job(PACKAGE, 4).step(normal(4))
    assert not torch.allclose(message.to_dense()[0], message.to_dense()[1], atol=0.1)
    assert torch.allclose(message.to_dense().mean(0), aggregated, atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 12), (12, 8), (1, 20), (20, 1), (5, 5), (1, 1)])
def test_full_rank_is_exact(shape):
    compensated = normal(3, shape[0] * shape[1])
    _, aggregated = Job(PowerSGD(100), 3, shape).step(compensated)
    assert torch.allclose(aggregated, compensated.mean(0), atol=1e-5)


def test_a_matrix_of_low_rank_comes_out_exactly():
    left, right = normal(1, 2 * ROWS).view(ROWS, 2), normal(1, 2 * COLS, seed=1).view(2, COLS)
    compensated = (left @ right).view(1, N).expand(3, -1)
    _, aggregated = Job(PAPER, 3).step(compensated)
    assert torch.allclose(aggregated, compensated[0], atol=1e-5)


def test_repeated_steps_come_near_the_best_approximation():
    compensated = normal(1).expand(2, -1)
    matrix = compensated[0].view(ROWS, COLS).double()
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    best = ((left[:, :2] * sizes[:2]) @ right[:2]).flatten()
    job = Job(PAPER, 2)
    for _ in range(60):
        _, aggregated = job.step(compensated)
    assert (aggregated.double() - best).norm() < 1e-3 * best.norm()


def test_the_first_factor_may_be_summed_or_averaged():
    """The sum over W workers is W times the mean; here W = 7."""
    compensated, compressor = normal(7), fitted(PAPER)

    def aggregated(scale):
        factors = iter([scale, 1])

        def carry(message):
            return message, message.sum().unsqueeze(0) / 7 * next(factors)

        rounds = compressor.rounds(compensated, compressor.init(compensated), step_of(range(7)))
        return run_rounds(rounds, carry)[1]

    assert torch.allclose(aggregated(7), aggregated(1), atol=1e-6)


@pytest.mark.parametrize("rank", [1, 3])
def test_matrices_of_one_shape_are_orthonormalized_apart(rank):
    matrix = normal(4, 60 * rank).view(4, 60, rank) * torch.tensor([1, 1e-3, 1e3, 1]).view(4, 1, 1)
    found = orthonormal(matrix)
    assert torch.allclose(found.mT @ found, torch.eye(rank).expand(4, -1, -1), atol=1e-5)
    assert all(torch.equal(found[i : i + 1], orthonormal(matrix[i : i + 1])) for i in range(4))


def test_nearly_equal_columns_still_become_orthogonal():
    one = normal(1, 50)
    matrix = torch.stack([one, one + 1e-5 * normal(1, 50, seed=1)], 2)
    found = orthonormal(matrix)
    assert torch.allclose(found.mT @ found, torch.eye(2), atol=1e-5)


def test_a_column_that_depends_on_another_becomes_zero():
    one = normal(1, 50)
    assert orthonormal(torch.stack([one, 2 * one], 2))[0, :, 1].tolist() == [0.0] * 50


@ALL
@pytest.mark.parametrize("kind", INPUTS)
def test_finite_in_finite_out(compressor, kind):
    job = Job(compressor, 3)
    for _ in range(4):
        message, aggregated = job.step(INPUTS[kind]())
        assert aggregated.isfinite().all()
        assert message.to_dense().isfinite().all()


@ALL
def test_a_zero_matrix_stays_zero_and_does_not_silence_what_follows(compressor):
    job = Job(compressor, 2)
    for _ in range(3):
        _, aggregated = job.step(torch.zeros(2, N))
        assert not aggregated.any()
    for _ in range(2):
        _, aggregated = job.step(normal(2))
    assert aggregated.norm() > 0.1


@ALL
def test_huge_and_tiny_gradients_are_approximated_as_well_as_others(compressor):
    _, aggregated = Job(compressor, 2).step(normal(2))
    for scale in (1e30, 1e-30):
        _, scaled = Job(compressor, 2).step(normal(2) * scale)
        assert torch.allclose(scaled / scale, aggregated, atol=1e-5)


@ALL
@pytest.mark.parametrize("rank", [1, 2])
def test_a_row_does_not_look_at_another(compressor, rank):
    compressor = type(compressor)(rank, compressor.variant, 0, 0, compressor.num_iters_per_step)
    compensated = normal(3)
    together = alone(compressor, compensated, steps=2).to_dense()
    apart = [alone(compressor, compensated[w : w + 1], [w], 2).to_dense() for w in range(3)]
    assert torch.equal(together, torch.cat(apart))


@ALL
def test_the_aggregate_of_a_single_worker_is_its_own_message(compressor):
    compensated = normal(1)
    _, aggregated = Job(compressor, 1).step(compensated)
    assert torch.allclose(aggregated, alone(compressor, compensated, [0]).to_dense()[0], atol=1e-6)


@ALL
def test_the_input_stays_unchanged(compressor):
    compensated = normal(3)
    Job(compressor, 3).step(compensated)
    assert torch.equal(compensated, normal(3))


def test_the_first_factors_are_the_same_for_all_workers_and_follow_the_seed():
    compensated = normal(1).expand(3, -1)
    rows = alone(PAPER, compensated).to_dense()
    assert torch.equal(rows[0], rows[1])
    compressor = fitted(PAPER)
    other = compressor.compress(
        compensated, compressor.init(compensated), step_of([0, 1, 2], seed=1)
    )
    assert not torch.allclose(other.to_dense()[0], rows[0], atol=1e-3)


@ALL
def test_a_resumed_state_goes_on_as_if_never_stopped(compressor):
    straight = Job(compressor, 2)
    answers = [straight.step(normal(2, seed=step))[1] for step in range(4)]
    first, second = Job(compressor, 2), Job(compressor, 2)
    for step in range(2):
        first.step(normal(2, seed=step))
    second.state = {name: value.clone() for name, value in first.state.items()}
    second.steps = 2
    assert torch.equal(second.step(normal(2, seed=2))[1], answers[2])


def test_two_all_reduces_carry_the_factors():
    job = Job(PAPER, 4)
    job.step(normal(4))
    sent = [(t.collective, t.payload.tolist()) for t in job.channel.ledger.transfers]
    assert sent == [("all-reduce", [ROWS * 2 * 4] * 4), ("all-reduce", [COLS * 2 * 4] * 4)]


def test_the_package_sends_one_factor_a_step_in_turn():
    job = Job(PACKAGE, 2)
    sent = []
    for step in range(4):
        job.step(normal(2, seed=step))
        sent.append(job.payload()[0])
    assert sent == [COLS * 8, ROWS * 8, COLS * 8, ROWS * 8]


def test_two_iterations_send_both_factors():
    job = Job(TWICE, 2)
    job.step(normal(2))
    assert job.payload() == [(ROWS + COLS) * 8] * 2


def test_factors_travel_in_the_dtype_of_the_wire():
    job = Job(PAPER, 2, wire=Wire("float16"))
    job.step(normal(2))
    assert job.payload() == [(ROWS + COLS) * 2 * 2] * 2


@pytest.mark.parametrize("variant", ["paper", "package"])
def test_the_first_steps_can_go_whole(variant):
    job = Job(PowerSGD(2, variant, 0, start_compressing_after_num_steps=3), 2)
    sent = []
    for step in range(5):
        message, aggregated = job.step(compensated := normal(2, seed=step))
        sent.append(job.payload()[0])
        if step < 3:
            assert torch.equal(message.to_dense(), compensated)
            assert torch.allclose(aggregated, compensated.mean(0))
    factors = [ROWS + COLS] * 2 if variant == "paper" else [COLS, ROWS]
    assert sent == [N * 4] * 3 + [f * 2 * 4 for f in factors]


def test_the_package_waits_a_hundred_steps_and_the_paper_none():
    assert Job(PowerSGD(2, "package"), 1).step(normal(1))[0].to_dense().equal(normal(1))
    assert not Job(PowerSGD(2), 1).step(normal(1))[0].to_dense().equal(normal(1))


@pytest.mark.parametrize(("rate", "whole"), [(2, False), (3, True)])
def test_what_shrinks_too_little_goes_whole(rate, whole):
    compressor = PowerSGD(4, min_compression_rate=rate).for_shape((10, 512))  # 5120 / 2088 = 2.45
    assert compressor.sends_whole == whole


def test_a_convolution_is_seen_as_its_first_dimension_by_the_rest():
    state = PowerSGD(4).for_shape((16, 3, 3, 3)).init(torch.empty(2, 432))
    assert state["q"].shape == (2, 27, 4)


@pytest.mark.parametrize("shape", [(), (96,)])
def test_what_is_no_matrix_is_refused(shape):
    with pytest.raises(SettingError, match="powersgd needs granularity layer"):
        PowerSGD(2).for_shape(shape)


def test_without_a_shape_nothing_is_compressed():
    with pytest.raises(SettingError, match="powersgd needs granularity layer"):
        PowerSGD(2).init(normal(2))


def test_a_vote_on_factors_is_refused():
    with pytest.raises(SettingError, match="aggregate has no meaning"):
        AllReduce("vote").check_compressor(PAPER)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("powersgd:0", "rank"),
        ("powersgd:1.5", "rank must be a whole number"),
        ("powersgd:2,variant=fast", "variant must be one of paper, package"),
        ("powersgd:2,num_iters_per_step=2", "num_iters_per_step must be 1 with variant=paper"),
        ("powersgd:2,variant=package,num_iters_per_step=0", "must be at least 1"),
        ("powersgd:2,min_compression_rate=-1", "must be at least 0"),
        ("powersgd:2,shape=3", "has no setting shape"),
    ],
)
def test_a_wrong_setting_is_refused(spec, message):
    name, _, rule = message.partition(" ")
    rule = re.escape(rule.partition(", got")[0])
    with pytest.raises(SettingError, match=rf"{message}|has {name} \S+, which {rule}"):
        build("compressor", spec)


@pytest.mark.parametrize("wire", [Wire(), Wire("float16"), Wire("bfloat16")])
@pytest.mark.parametrize("shared", [False, True])
def test_a_message_is_a_buffer_of_its_length(wire, shared):
    lone = alone(PAPER, normal(3))
    message = LowRank.of(lone.p[:1], lone.q[:1], 3) if shared else lone
    message = message.on_wire(wire)
    buffers = [message.pack(row) for row in range(3)]
    assert [len(buffer) for buffer in buffers] == message.payload_bytes().tolist()
    back = LowRank.unpack(buffers, message.header())
    assert torch.allclose(back.to_dense(), message.to_dense(), rtol=0, atol=1e-6)
    assert torch.equal(back.payload_bytes(), message.payload_bytes())
    assert torch.allclose(message.sum(), message.to_dense().sum(0), atol=1e-6)


def test_a_message_selects_nothing():
    x = torch.ones(3, N)
    alone(PAPER, normal(3)).clear_(x)
    assert torch.equal(x, torch.ones(3, N))


def test_the_dtype_is_kept():
    assert alone(PAPER, normal(3).double()).to_dense().dtype == torch.float64


@pytest.mark.cuda
def test_cuda_finds_what_the_cpu_finds():
    compressor, compensated = fitted(PAPER), normal(3)
    here = compressor.compress(compensated, compressor.init(compensated), step_of([0, 1, 2]))
    cuda = StepInfo(RandomKey(0, torch.arange(3, device="cuda")).fold_in(0, "s"))
    there = compressor.compress(compensated.cuda(), compressor.init(compensated.cuda()), cuda)
    assert torch.allclose(there.to_dense().cpu(), here.to_dense(), atol=1e-4)
