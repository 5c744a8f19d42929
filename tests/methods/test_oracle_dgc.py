"""Memories, and whole steps of DGC, against independent implementations.

Taken are the cases in which the references do what we do. Left out of `memory_residual`: beta or
gamma other than 1, with which the reference weighs residual and gradient (and forgets gamma at the
first step). Left out of DGC: clipping by the mean norm over workers, clipping by value, input with
NaN, and tensors so large that the reference samples the threshold at every step. Where it samples
at one step only (the step has a `sample_start`), we take over its state after that step and go on.

Letters: L workers, n elements of one segment.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simsgd.communication.messages import Dense, Message, Sparse
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo
from simsgd.methods.compressors.none import NoCompression
from simsgd.methods.compressors.topk import TopK
from simsgd.methods.memories import DGC, Residual
from simsgd.settings import kept
from simsgd.simulator.gradient_transforms import clip_
from simsgd.simulator.optimizer import RegimeOptimizer
from simsgd.simulator.simulator import Simulator

from ..reference_data import Case, assert_equals_step, assert_equals_steps, each, flat, tensor


@dataclass
class Step:
    """What one step did, and the reference's record of it for each worker."""

    records: list[Case]
    message: Message
    momentum: Tensor  # u after the step, [L, n]
    residual: Tensor  # v after the step, [L, n]


@dataclass
class Remembered:
    """What one step of a memory compensated and left, and the reference's record of it."""

    record: Case
    compensated: Tensor  # [n]
    residual: Tensor  # after the step, [n]


class Slope(nn.Module):
    """A model whose gradient is its input, if the loss is the sum of its output."""

    def __init__(self, initial: Tensor) -> None:
        super().__init__()
        self.p = nn.Parameter(initial)

    def forward(self, x: Tensor) -> Tensor:
        return self.p * x


def total(output: Tensor, target: Tensor) -> Tensor:
    return output.sum()


def remember(case: Case) -> Iterator[Remembered]:
    """Run a residual memory over the steps of a case, with what the reference sent."""
    memory = Residual()
    state = memory.init(flat(case["inputs"][0]).unsqueeze(0), dense=False)
    for grad, record in zip(case["inputs"], case["expected"], strict=True):
        compensated = memory.compensate(flat(grad).unsqueeze(0), state).clone()
        sent = Dense.of(flat(record["dense_sent"]).unsqueeze(0))
        memory.update(compensated, sent, state)
        yield Remembered(record, compensated[0], state["residual"][0])


def compress(compensated: Tensor, ratio: float) -> Message:
    if ratio == 1:
        return NoCompression().compress(
            compensated, {}, StepInfo(RandomKey(0, torch.arange(len(compensated))))
        )
    return TopK(ratio).compress(
        compensated, {}, StepInfo(RandomKey(0, torch.arange(len(compensated))))
    )


def grace_steps(case: Case) -> Iterator[tuple[Step, Tensor]]:
    """Run DGC over the steps of a case; yield also what was compensated, [L, n]."""
    memory, k = DGC(momentum=case["params"]["momentum"]), case["params"]["k"]
    grads = tensor(case["inputs"])  # [L, steps, n]
    state = memory.init(grads[:, 0], dense=False)
    for t in range(grads.shape[1]):
        compensated = memory.compensate(grads[:, t], state).clone()
        message = compress(compensated, k / grads.shape[2])
        memory.update(compensated, message, state)
        records = [worker[t] for worker in case["expected"]]
        yield Step(records, message, state["momentum"], state["residual"]), compensated


def pipeline_steps(case: Case) -> Iterator[Step]:
    """Run DGC by its parts over the steps of a case, those left out that the reference samples."""
    params = case["params"]
    memory = DGC(params["momentum"], params["nesterov"], params["momentum_masking"])
    grads = tensor(case["inputs"]).flatten(2)  # [L, steps, n]
    state = memory.init(grads[:, 0], dense=False)
    for t in range(grads.shape[1]):
        records = [worker["steps"][t] for worker in case["expected"]]
        grad = grads[:, t].clone()
        if params["clipping"]:
            clip_([grad], threshold(case), len(grad))
        compensated = memory.compensate(grad, state)
        message = compress(compensated, records[0]["ratio_in_force"])
        memory.update(compensated, message, state)
        if "sample_start" in records[0]:
            state = reference_state(records)
        else:
            yield Step(records, message, state["momentum"], state["residual"])


def threshold(case: Case) -> float:
    """Return our clipping threshold: the reference's norm is not divided by sqrt(W)."""
    rule, norm = case["params"]["clipping"]
    assert rule == "norm"
    return float(norm) * math.sqrt(case["params"]["workers"])


def reference_momentum(records: list[Case]) -> Tensor:
    """Return u after a step, [L, n]; at a step that sends all, where the reference keeps it."""
    key = "momentum_after" if "indices_sorted" in records[0] else "dense_path_momentum_after"
    return torch.stack([flat(record[key]) for record in records])


def reference_residual(records: list[Case]) -> Tensor:
    return torch.stack([flat(record["velocity_after"]) for record in records])


def reference_state(records: list[Case]) -> dict[str, Tensor]:
    return {"momentum": reference_momentum(records), "residual": reference_residual(records)}


def simulator_of(case: Case) -> Simulator:
    params = case["params"]
    ratios = [step["ratio_in_force"] for step in case["expected"][0]["steps"]]
    return Simulator(
        Slope(tensor(case["initial_param"])),
        total,
        regime=[{"step": t, "prune": kept(ratio)} for t, ratio in enumerate(ratios)],
        workers=params["workers"],
        memory=f"dgc:masking={params['momentum_masking']}",
        prune_1d=True,
        clip=threshold(case) if params["clipping"] else None,
        lr=params["lr"],
        momentum=params["momentum"],
        nesterov=params["nesterov"],
        weight_decay=params["weight_decay"],
    )


def simulated_steps(case: Case) -> Iterator[tuple[Simulator, list[Case]]]:
    """Run the simulator over the steps of a case, those left out that the reference samples."""
    simulator, grads = simulator_of(case), tensor(case["inputs"])  # [L, steps, *shape]
    for t in range(grads.shape[1]):
        simulator.step(grads[:, t], torch.zeros(len(grads)))
        records = [worker["steps"][t] for worker in case["expected"]]
        if "sample_start" in records[0]:
            simulator.components.segment_states[0].memory_state.update(reference_state(records))
            with torch.no_grad():
                simulator.components.params["p"].copy_(tensor(records[0]["param_after"]))
        else:
            yield simulator, records


def sends_some(case: Case) -> bool:
    return all("indices_sorted" in step for step in case["expected"][0]["steps"])


@each("memory_residual")
def test_residual_adds_to_the_gradient_what_was_not_sent(case: Case) -> None:
    for step in remember(case):
        assert_equals_steps(step.compensated, flat(step.record["compensated"]))


@each("memory_residual")
def test_residual_keeps_what_was_not_sent(case: Case) -> None:
    for step in remember(case):
        assert_equals_steps(step.residual, flat(step.record["residual_after"]))


@each("memory_residual", lambda case: "top-k ratio 0.2" in case["params"]["compressor"])
def test_residual_sends_the_largest_compensated_entries(case: Case) -> None:
    for step in remember(case):
        sent = compress(step.compensated.unsqueeze(0), 0.2).to_dense()[0]
        assert_equals_steps(sent, flat(step.record["dense_sent"]))


@each("memory_dgc_grace")
def test_dgc_compensates_by_the_accumulated_momentum(case: Case) -> None:
    for step, compensated in grace_steps(case):
        wanted = torch.stack([flat(record["compensated"]) for record in step.records])
        assert_equals_steps(compensated, wanted)


@each("memory_dgc_grace")
def test_dgc_sends_the_largest_compensated_entries(case: Case) -> None:
    for step, _ in grace_steps(case):
        assert places(step) == [record["selected_sorted"] for record in step.records]


@each("memory_dgc_grace")
def test_dgc_zeroes_the_momentum_that_was_sent(case: Case) -> None:
    for step, _ in grace_steps(case):
        wanted = torch.stack([flat(record["momentum_after"]) for record in step.records])
        assert_equals_steps(step.momentum, wanted)


@each("memory_dgc_grace")
def test_dgc_keeps_what_was_not_sent(case: Case) -> None:
    for step, _ in grace_steps(case):
        wanted = torch.stack([flat(record["accumulated_after"]) for record in step.records])
        assert_equals_steps(step.residual, wanted)


@each("dgc_special", lambda case: case["name"].startswith("dense_momentum"))
def test_what_goes_dense_gets_momentum_alone(case: Case) -> None:
    memory = DGC(case["params"]["momentum"], case["params"]["nesterov"])
    state = memory.init(flat(case["inputs"][0]).unsqueeze(0), dense=True)
    for grad, record in zip(case["inputs"], case["expected"], strict=True):
        compensated = memory.compensate(flat(grad).unsqueeze(0), state)
        assert_equals_steps(compensated[0], flat(record["out"]))


@each("dgc_special", lambda case: case["name"].startswith("dgc_first_step"))
def test_the_first_step_selects_the_same_places(case: Case) -> None:
    message = compress(flat(case["input"]).unsqueeze(0), case["params"]["compress_ratio"])
    assert isinstance(message, Sparse)
    assert message.index[0].tolist() == case["expected"]["indices_sorted"]


@each("dgc_special", lambda case: case["name"].startswith("dgc_first_step"))
def test_the_first_step_sends_the_same_values(case: Case) -> None:
    message = compress(flat(case["input"]).unsqueeze(0), case["params"]["compress_ratio"])
    assert_equals_step(message.to_dense()[0], flat(case["expected"]["dense"]))


@each("dgc_pipeline")
def test_a_step_selects_the_same_places(case: Case) -> None:
    for step in pipeline_steps(case):
        if isinstance(step.message, Sparse):
            assert places(step) == [record["indices_sorted"] for record in step.records]


@each("dgc_pipeline")
def test_a_step_sends_the_same_values(case: Case) -> None:
    for step in pipeline_steps(case):
        if isinstance(step.message, Sparse):
            wanted = torch.stack([flat(record["values"]) for record in step.records])
            assert_equals_steps(step.message.values, wanted)


@each("dgc_pipeline")
def test_a_step_leaves_the_same_momentum(case: Case) -> None:
    for step in pipeline_steps(case):
        assert_equals_steps(step.momentum, reference_momentum(step.records))


@each("dgc_pipeline")
def test_a_step_leaves_the_same_residual(case: Case) -> None:
    for step in pipeline_steps(case):
        assert_equals_steps(step.residual, reference_residual(step.records))


@each("dgc_pipeline")
def test_the_simulator_moves_the_parameters_as_far(case: Case) -> None:
    for simulator, records in simulated_steps(case):
        moved = simulator.components.params["p"].detach()
        assert_equals_steps(moved, tensor(records[0]["param_after"]))


@each("dgc_pipeline")
def test_the_simulator_leaves_the_same_momentum(case: Case) -> None:
    for simulator, records in simulated_steps(case):
        left = simulator.components.segment_states[0].memory_state["momentum"]
        assert_equals_steps(left, reference_momentum(records))


@each("dgc_pipeline")
def test_the_simulator_leaves_the_same_residual(case: Case) -> None:
    for simulator, records in simulated_steps(case):
        left = simulator.components.segment_states[0].memory_state["residual"]
        assert_equals_steps(left, reference_residual(records))


@each("dgc_pipeline", sends_some)
def test_weight_decay_has_a_momentum_of_its_own(case: Case) -> None:
    params = case["params"]
    optimizer = RegimeOptimizer({"p": nn.Parameter(tensor(case["initial_param"]))})
    optimizer.follow({"lr": params["lr"]})
    for record in case["expected"][0]["steps"]:
        aggregated = {"p": tensor(record["aggregated"])}
        decay = {n: p.detach() * params["weight_decay"] for n, p in optimizer.params.items()}
        optimizer.add_penalties(aggregated, decay, params["momentum"], params["nesterov"])
        optimizer.step(aggregated)
        assert_equals_steps(optimizer.params["p"].detach(), tensor(record["param_after"]))


def places(step: Step) -> list[list[int]]:
    assert isinstance(step.message, Sparse)
    found: list[list[int]] = step.message.index.tolist()
    return found
