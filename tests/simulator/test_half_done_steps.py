"""A step that an error leaves in the middle: told, and gone on with from a state alone."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.communication.messages import Dense
from simsgd.methods import Compressor
from tests.toy import batches, mlp

FAILS: list[bool] = []


@dataclass(frozen=True)
class Failing(Compressor):
    """Halves, or fails."""

    biased = True

    def compress(self, x, state, step):
        if FAILS:
            raise RuntimeError("not now")
        return Dense.of(x / 2)


@pytest.fixture(autouse=True)
def _well():
    FAILS.clear()


@pytest.mark.parametrize("method", [{}, {"algorithm": "choco", "topology": "ring"}], ids=str)
def test_a_step_that_failed_in_the_exchange_is_done_again_from_a_state_alone(method):
    simulator, whole = (
        Simulator(mlp(), workers=4, lr=0.1, compressor=Failing(), **method) for _ in range(2)
    )
    given = [*batches(4, 16)]
    for x, y in given:
        whole.step(x, y)
    for x, y in given[:2]:
        simulator.step(x, y)
    state = copy.deepcopy(simulator.state_dict())
    FAILS.append(True)
    with pytest.raises(Exception, match="not now"):
        simulator.step(*given[2])
    FAILS.clear()
    told = r"^simulator was left in the middle of a step by an error; load a state_dict, or make "
    with pytest.raises(SettingError, match=told):
        simulator.step(*given[2])
    simulator.load_state_dict(state)
    for x, y in given[2:]:
        simulator.step(x, y)
    pairs = zip(
        whole.evaluation_model().parameters(),
        simulator.evaluation_model().parameters(),
        strict=True,
    )
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_step_that_failed_in_the_forward_may_be_done_again():
    model = nn.Linear(6, 3)
    simulator = Simulator(model, workers=4, lr=0.1)
    with pytest.raises(Exception, match="shapes cannot be multiplied"):
        simulator.step(torch.rand(16, 5), torch.arange(16) % 3)
    simulator.step(torch.rand(16, 6), torch.arange(16) % 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda counts: lambda epoch, step: {"lr": 0.1 / (len(counts.append(1) or counts))},
        lambda _: lambda epoch, step: {"lr": float(torch.rand(()))},
    ],
)
def test_a_regime_that_is_another_when_asked_again_is_told(function):
    told = r"^regime gives lr 0\.\d+ for step 0, and 0\.\d+ when asked again; let what it gives "
    with pytest.raises(SettingError, match=told):
        Simulator(nn.Linear(3, 2), workers=2, regime=function([]))
