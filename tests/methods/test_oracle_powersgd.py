"""PowerSGD and other reducers against independent implementations.

The paper's code sums P where we average it, adds 1e-8 to norms, and keeps Q as it is where we keep
its direction; none of that changes P Q^T beyond rounding. The package stores the sum of a factor
over workers, of which we keep the direction. GRACE's is the paper's form, with its Q given to all
workers and the mean taken, as it should be. DDP makes Q orthonormal first, which changes neither P
nor P Q^T, and feeds the error of the dense entries back as well: we compare the matrix.

With rank-deficient matrices the references amplify rounding noise; the test says what is right.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import Dense, Message
from simsgd.communication.segments import Segment
from simsgd.communication.transport import Channel, InProcess
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.algorithms import AllReduce, ExchangeContext
from simsgd.methods.compressors import StepInfo
from simsgd.methods.compressors.none import NoCompression
from simsgd.methods.compressors.powersgd import PowerSGD
from simsgd.methods.compressors.sign import Sign
from simsgd.methods.compressors.topk import TopK
from simsgd.methods.memories import Memory, NoMemory, Residual

from ..reference_data import Case, assert_equals_step, assert_equals_steps, each, flat, tensor


@dataclasses.dataclass
class Step:
    """What one step brought, and the reference's record of it for each worker."""

    records: list[Case]
    message: Any
    aggregated: Tensor  # [n]
    kept: Tensor  # the error, [L, n]


def exchange(
    compensated: Tensor,
    compressor: Any,
    state: Any,
    step: int = 0,
    wire: Wire | None = None,
    **how: str,
) -> tuple[Message, Tensor]:
    workers, n = compensated.shape
    segment = Segment("s", ("s",), (torch.Size([n]),), dense=False)
    channel = Channel(InProcess(), Ledger(workers), wire or Wire())
    key = RandomKey(0, torch.arange(workers)).fold_in(step, "s")
    return AllReduce(**how).gradients(
        compensated, ExchangeContext(compressor, state, StepInfo(key), segment, channel)
    )


def run(case: Case, compressor: PowerSGD, memory: Memory, inputs: Tensor) -> Iterator[Step]:
    """Run a compressor over the steps of `inputs` [L, steps, rows, cols]."""
    compressor = compressor.for_shape(inputs.shape[2:])
    grads = inputs.flatten(2)  # [L, steps, n]
    workers = len(grads)
    state = compressor.init(grads[:, 0])
    for name in ("p", "q"):
        if f"initial_{name.upper()}" in case and name in state:
            state[name].copy_(tensor(case[f"initial_{name.upper()}"]).expand_as(state[name]))
    remembered = memory.init(grads[:, 0], dense=False)
    expected = case.get("expected") or case["expected_by_worker"]
    for t in range(grads.shape[1]):
        compensated = memory.compensate(grads[:, t], remembered)
        message, aggregated = exchange(compensated, compressor, state, t)
        memory.update(compensated, message, remembered)
        kept = remembered.get("residual", torch.zeros(workers, grads.shape[2]))
        yield Step([worker[t] for worker in expected], message, aggregated, kept)


def steps(case: Case) -> Iterator[Step]:
    params = case["params"]
    if case["name"].startswith("package"):
        iters = params["iters_per_step"]
        compressor = PowerSGD(params["rank"], "package", 0, 0, iters)
    else:
        compressor = PowerSGD(params["rank"])
    return run(case, compressor, Residual(), tensor(case["inputs"]))


def ddp_steps(case: Case) -> Iterator[Step]:
    memory = Residual() if case["params"]["error_feedback"] else NoMemory()
    matrices = tensor(case["inputs"])[:, :, :120].unflatten(2, (12, 10))
    return run(case, PowerSGD(case["params"]["rank"]), memory, matrices)


def is_powersgd(case: Case) -> bool:
    return str(case["name"]).startswith(("paper", "package", "grace"))


@each("powersgd", is_powersgd)
def test_all_get_the_same_approximation(case: Case) -> None:
    for step in steps(case):
        for record in step.records:
            assert_equals_steps(step.aggregated, flat(record["output"]))


@each("powersgd", is_powersgd)
def test_each_worker_keeps_the_same_error(case: Case) -> None:
    largest = float(tensor(case["inputs"]).abs().max())
    for step in steps(case):
        wanted = torch.stack([flat(record["error"]) for record in step.records])
        torch.testing.assert_close(step.kept, wanted, rtol=0, atol=1e-5 * largest)


@each("powersgd", lambda case: case["name"].startswith(("paper", "grace")))
def test_the_second_factor_is_the_same(case: Case) -> None:
    for step in steps(case):
        assert_equals_steps(step.message.q[0], tensor(step.records[0]["Q"]))


@each("powersgd", lambda case: case["name"].startswith(("paper", "grace")))
def test_the_first_factor_is_the_same(case: Case) -> None:
    for step in steps(case):
        assert_equals_steps(step.message.p[0], tensor(step.records[0]["P"]))


@each("powersgd", lambda case: case["name"].startswith("ddp"))
def test_a_matrix_in_a_ddp_bucket_comes_out_the_same(case: Case) -> None:
    for step in ddp_steps(case):
        assert_equals_steps(step.aggregated, flat(step.records[0]["output"])[:120])


@each("powersgd", lambda case: case["name"] == "ddp_powersgd_12x10_r2_W2_ef1")
def test_a_matrix_in_a_ddp_bucket_leaves_the_same_error(case: Case) -> None:
    for step in ddp_steps(case):
        wanted = torch.stack([flat(record["error"])[:120] for record in step.records])
        torch.testing.assert_close(step.kept, wanted, rtol=0, atol=1e-4)


@each("powersgd", lambda case: case["name"].startswith("special"))
def test_a_rank_deficient_matrix_comes_out_as_it_is(case: Case) -> None:
    x = tensor(case["input"]).unsqueeze(0)
    compressor = PowerSGD(case["params"]["rank"]).for_shape(x.shape[1:])
    compensated = x.flatten(1)
    state = compressor.init(compensated)
    state["q"].copy_(tensor(case["initial_Q"]).expand_as(state["q"]))
    _, aggregated = exchange(compensated, compressor, state)
    torch.testing.assert_close(aggregated, compensated[0], rtol=1e-5, atol=1e-6)


@each("powersgd", lambda case: case["name"] == "which_tensors")
def test_the_same_tensors_are_compressed(case: Case) -> None:
    for row in case["expected"]:
        compressor = PowerSGD(row["rank"], "package", case["params"]["min_compression_rate"])
        if len(row["shape"]) > 1:
            assert compressor.for_shape(row["shape"]).sends_whole != row["compressed"]
        else:
            assert not row["compressed"]


@each("reducers", lambda case: case["name"] in ("topk", "sign_and_norm", "exact"))
def test_a_reducer_of_the_paper_gives_the_same_mean_and_memory(case: Case) -> None:
    for place in range(len(case["inputs"][0])):
        compensated = torch.stack([flat(worker[place]) for worker in case["inputs"]])
        k = max(1, int(0.25 * compensated.shape[1]))
        compressor = {
            "topk": TopK((k - 0.5) / compensated.shape[1]),
            "sign_and_norm": Sign(),
            "exact": NoCompression(),
        }[case["name"]]
        message, aggregated = exchange(compensated, compressor, {})
        rest = compensated.clone()
        message.subtract_from_(rest)
        for worker, record in enumerate(case["expected"]):
            assert_equals_steps(aggregated, flat(record["output"][place]))
            wanted = flat(record["memory"][place])
            torch.testing.assert_close(rest[worker], wanted, rtol=1e-6, atol=1e-6)


@each("reducers", lambda case: case["name"] == "majority")
def test_a_vote_is_the_papers_except_that_a_tie_is_plus_one(case: Case) -> None:
    for place in range(len(case["inputs"][0])):
        compensated = torch.stack([flat(worker[place]) for worker in case["inputs"]])
        _, aggregated = exchange(compensated, Sign(scale=None), {}, aggregate="vote")
        wanted = flat(case["expected"][0]["output"][place])
        assert torch.equal(aggregated, torch.where(wanted == 0, 1.0, wanted))


@each("reducers", lambda case: case["name"].startswith("majority_"))
def test_a_vote_is_grace_s(case: Case) -> None:
    _, aggregated = exchange(tensor(case["inputs"]), Sign(scale=None), {}, aggregate="vote")
    assert torch.equal(aggregated, flat(case["expected"]["dense"]))


@each("reducers", lambda case: case["name"].startswith("ddp"))
def test_the_mean_is_that_of_a_ddp_hook_up_to_its_rounding(case: Case) -> None:
    """The hooks of 16 bits also divide and add in 16 bits; we add what arrives in 32."""
    workers, kind = case["params"]["workers"], case["name"].split("_")[1]
    compensated = torch.stack([flat(case["input"]) * (1 + 0.5 * w) for w in range(workers)])
    value = {"fp16": "float16", "bf16": "bfloat16", "allreduce": None}[kind]
    _, aggregated = exchange(compensated, NoCompression(), {}, wire=Wire(value))
    wanted = flat(case["expected"]["dense"])
    if workers == 1 or value is None:
        assert_equals_step(aggregated, wanted)
    else:
        form = torch.finfo(getattr(torch, value))
        step = form.smallest_normal * form.eps  # of the numbers below the smallest normal one
        torch.testing.assert_close(aggregated, wanted, rtol=2 * form.eps, atol=step)


def test_a_dense_vote_is_over_signs() -> None:
    compensated = torch.tensor([[3.0, -1, -1, 5], [-1, -1, 2, 1], [-1, 2, -3, 1]])
    message, aggregated = exchange(compensated, NoCompression(), {}, aggregate="vote")
    assert isinstance(message, Dense)
    assert aggregated.tolist() == [-1, -1, -1, 1]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bits_of_a_step_are_the_papers(workers: int) -> None:
    """The record's bits cover both factors and a bias of 5, all of 32 bits."""
    compressor = PowerSGD(2).for_shape((8, 6))
    compensated = torch.randn(workers, 48, generator=torch.Generator().manual_seed(0))
    message, _ = exchange(compensated, compressor, compressor.init(compensated))
    assert message.payload_bytes().tolist() == [(1056 - 5 * 32) // 8] * workers
