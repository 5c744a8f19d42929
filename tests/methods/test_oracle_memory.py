"""Weighed residuals, lr inside the memory, and Signum against independent implementations.

GRACE applies neither gamma nor lr at the first step, and its momentum begins with the first
gradient unweighed. We weigh from the first step on, so we take over its state after that step.
"""

import pytest
import torch
from torch import Tensor

from simsgd.communication.messages import Dense
from simsgd.methods.memories import LocalMomentum, Residual

from ..reference_data import Case, assert_equals_steps, cases, each, flat


def memory_of(case: Case) -> Residual:
    params = case["params"]
    if "lr" in params:
        return Residual(lr=True).at_rate(params["lr"])
    return Residual(params["beta"], params["gamma"])


def follow(case: Case) -> list[tuple[Case, Tensor, Tensor]]:
    """Return the record, what is compensated and what is left of each step but the first, [n]."""
    memory, first = memory_of(case), case["expected"][0]
    state = {"residual": flat(first["residual_after"]).unsqueeze(0)}
    done = []
    for grad, record in zip(case["inputs"][1:], case["expected"][1:], strict=True):
        compensated = memory.compensate(flat(grad).unsqueeze(0), state).clone()
        memory.update(compensated, Dense.of(flat(record["dense_sent"]).unsqueeze(0)), state)
        done.append((record, compensated[0], state["residual"][0].clone()))
    return done


def has_residual(case: Case) -> bool:
    return not str(case["name"]).startswith("signum")


@each("memories", has_residual)
def test_the_compensated_gradient_is_the_same(case: Case) -> None:
    for record, compensated, _ in follow(case):
        assert_equals_steps(compensated, flat(record["compensated"]))


@each("memories", has_residual)
def test_the_same_stays_behind(case: Case) -> None:
    for record, compensated, left in follow(case):
        wanted, size = flat(record["residual_after"]), float(compensated.abs().max())
        torch.testing.assert_close(left, wanted, rtol=0, atol=1e-5 * size)


@pytest.mark.parametrize("case", cases("memories", has_residual), ids=lambda case: case["name"])
def test_the_first_gradient_is_weighted_like_any_other(case: Case) -> None:
    memory, grad = memory_of(case), flat(case["inputs"][0])
    compensated = memory.compensate(grad.unsqueeze(0), memory.init(grad.unsqueeze(0), dense=False))
    torch.testing.assert_close(compensated[0], memory.gamma * grad)
    assert_equals_steps(grad, flat(case["expected"][0]["compensated"]))  # theirs: unweighed


@each("memories", lambda case: case["name"].startswith("signum"))
def test_the_sign_of_the_momentum_is_signum(case: Case) -> None:
    m = case["params"]["momentum"]
    memory, first = LocalMomentum(m), flat(case["expected"][0]["momentum"])
    state = {"momentum": first.unsqueeze(0) / (1 - m)}  # theirs weighs each later gradient by 1 - m
    for grad, record in zip(case["inputs"][1:], case["expected"][1:], strict=True):
        compensated = memory.compensate(flat(grad).unsqueeze(0), state)[0]
        assert_equals_steps(compensated * (1 - m), flat(record["momentum"]))
        assert torch.equal(torch.where(compensated < 0, -1.0, 1.0), flat(record["dense"]))
