import pytest
import torch
from torch import nn

from simsgd.settings import SettingError
from simsgd.simulator.simulator import Simulator

W, B = 4, 3


def made(seed=0, **settings):
    torch.manual_seed(seed)
    own = {"workers": W, "lr": 0.1, "momentum": 0.9, "prune": 0.9, "warmup": False, **settings}
    return Simulator(nn.Linear(20, 5), **own)


def steps(simulator, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(W * B, 20, generator=generator)
        simulator.step(x, torch.randint(5, (W * B,), generator=generator), 0)
    return simulator


def held(simulator):
    return {
        f"{v.segment.name}/{n}": t
        for v in simulator.components.segment_states
        for n, t in v.memory_state.items()
    }


def test_memories_are_kept_in_half_the_bytes_and_sent_in_as_many():
    whole, half = steps(made(), 2), steps(made(state_dtype="bfloat16"), 2)
    sizes = [sum(t.nbytes for t in held(s).values()) for s in (whole, half)]
    assert sizes[0] == 2 * sizes[1] > 0
    x, y = torch.ones(W * B, 20), torch.zeros(W * B, dtype=torch.long)
    assert whole.step(x, y).payload_bytes == half.step(x, y).payload_bytes


def test_what_is_kept_is_what_the_memory_had_rounded_once():
    whole, half = steps(made(), 1), steps(made(state_dtype="bfloat16"), 1)
    for name, tensor in held(whole).items():
        assert torch.equal(tensor.to(torch.bfloat16), held(half)[name])


def test_what_is_lost_is_small_beside_what_is_kept():
    """Rounding also decides which of two near entries is among the largest: hence the bound."""
    whole, half = steps(made(), 20), steps(made(state_dtype="bfloat16"), 20)
    for one, other in zip(
        whole.components.params.values(), half.components.params.values(), strict=True
    ):
        assert 0 < (one - other).norm() < 0.2 * one.norm()


def test_a_run_in_two_parts_is_the_run_in_one():
    whole = steps(steps(made(state_dtype="bfloat16"), 3), 3, seed=1)
    state = steps(made(state_dtype="bfloat16"), 3).state_dict()
    resumed = made(seed=1, state_dtype="bfloat16")
    resumed.load_state_dict(state)
    steps(resumed, 3, seed=1)
    for one, other in zip(
        whole.components.params.values(), resumed.components.params.values(), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("memory", ["residual", "momentum", "dgc"])
def test_every_memory_that_keeps_something_takes_it(memory):
    simulator = steps(made(memory=memory, state_dtype="float16"), 2)
    assert {t.dtype for t in held(simulator).values()} == {torch.float16}


@pytest.mark.parametrize(("memory", "error"), [("none", "no effect"), ("ef21", "must agree")])
def test_memories_that_cannot_are_refused(memory, error):
    with pytest.raises(SettingError, match=error):
        made(memory=memory, state_dtype="bfloat16")


def test_a_state_of_another_dtype_is_refused():
    state = steps(made(state_dtype="float16"), 1).state_dict()
    with pytest.raises(SettingError, match=r"keeps memories in torch.float16, and this simulator"):
        made().load_state_dict(state)
