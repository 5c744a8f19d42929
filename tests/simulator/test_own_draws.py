"""What methods of a user's own draw from global generators follows from seed, step and segment."""

import random
import re

import numpy as np
import pytest
import torch

from simsgd.communication.transport import InProcess
from simsgd.methods import Dense
from simsgd.settings import SettingError

from .own_kinds import X, Y, keeper, refused, sender, stepped

DRAWS = {
    "torch": lambda: torch.rand(()),
    "Python": random.random,
    "numpy": np.random.rand,
}


def _model(simulator):
    return torch.cat([p.detach().flatten() for p in simulator.model.parameters()])


def _random(draw):
    return sender(lambda self, x, state, step: Dense.of(x * float(draw())))


@pytest.mark.parametrize("of", DRAWS)
def test_a_run_with_draws_is_the_same_again(of):
    draw = DRAWS[of]
    first = stepped(3, compressor=_random(draw))
    draw()
    assert torch.equal(_model(stepped(3, compressor=_random(draw))), _model(first))
    assert not torch.equal(_model(stepped(3, compressor=_random(draw), seed=1)), _model(first))


@pytest.mark.parametrize("of", DRAWS)
def test_a_resumed_run_draws_what_follows(of):
    whole = stepped(5, compressor=_random(DRAWS[of]))
    half = stepped(2, compressor=_random(DRAWS[of]))
    resumed = stepped(0, compressor=_random(DRAWS[of]))
    resumed.load_state_dict(half.state_dict())
    for _ in range(3):
        DRAWS[of]()
        resumed.step(X, Y)
    assert torch.equal(_model(resumed), _model(whole))


def test_steps_and_segments_draw_apart_and_generators_stay():
    drawn = []

    def compensate(self, grad, state):
        drawn.append(torch.rand(()).item())
        return grad

    before = torch.get_rng_state()
    simulator = stepped(0, memory=keeper(compensate=compensate), compressor="sign")
    torch.set_rng_state(before)
    for _ in range(3):
        simulator.step(X, Y)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(set(drawn)) == len(drawn) == 6


class _OfSeveral(InProcess):
    """Stands for a transport between processes, which shares nothing with this one."""


def test_draws_are_refused_between_processes(monkeypatch):
    monkeypatch.setattr("simsgd.simulator.own_methods.InProcess", _OfSeveral)
    refused("draws from a global generator.*draw from step.key", compressor=_random(random.random))
    keyed = sender(lambda self, x, state, step: Dense.of(x * step.key.uniform(1)))
    stepped(2, compressor=keyed)


WRONG = {
    "has a sent that gives NoneType in place of [4, 6]": "None",
    "has a sent that gives [6] in place of [4, 6]": "own[0]",
    "has a sent that gives torch.float64 in place of torch.float32": "own.double()",
}
FILE = """from dataclasses import dataclass
from simsgd.methods import Attack
@dataclass(frozen=True)
class Mine(Attack):
  attackers: int = 1
  def sent(self, own, others, key):
    return {}
"""


def _attacked(path, sent):
    path.write_text(FILE.format(sent))
    return stepped(2, attack=f"{path}:Mine")


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_attack_is_refused(tmp_path, message):
    with pytest.raises(SettingError, match=re.escape(message)) as wrong:
        _attacked(tmp_path / "wrong_attack.py", WRONG[message])
    assert "Mine" in str(wrong.value)


def test_an_attack_that_changes_its_input_changes_attackers_alone(tmp_path):
    one = _attacked(tmp_path / "in_place_attack.py", "own.neg_()")
    other = _attacked(tmp_path / "other_attack.py", "-own")
    assert torch.equal(_model(one), _model(other))
