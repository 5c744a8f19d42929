import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd.gradients.contract import EngineConfig
from simsgd.gradients.loop import Loop
from simsgd.keyed_random import RandomKey
from simsgd.registry import find
from simsgd.settings import SettingError
from simsgd.simulator.simulator import Simulator

from .. import toy
from ..toy import relative_distance

W, B = 3, 4


def net(norm=False):
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(nn.Conv2d(1, 4, 3), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


batch = functools.partial(toy.batch, W, B)


def gradients(name, model, amp=None):
    engine = find("engine", name)(model.train(), F.cross_entropy, EngineConfig(amp=amp))
    x, y = batch()
    buffers = {n: torch.stack([b] * W) for n, b in model.named_buffers()}
    keys = RandomKey(0, torch.arange(W)).keys()
    return engine(dict(model.named_parameters()), buffers, x, y, keys)


@pytest.mark.parametrize("engine", ["loop", "threads", "vmap", "auto", "tune"])
@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_mixed_precision_rounds_and_no_more(engine, amp):
    got, wanted = gradients(engine, net(), amp), gradients("loop", net())
    assert 0 < relative_distance(got.values, wanted.values) < 0.02
    assert {t.dtype for t in (*got.values.values(), got.loss, got.output)} == {torch.float32}


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_all_engines_that_take_it_agree(amp):
    wanted = gradients("loop", net(), amp)
    for name in ("threads", "vmap"):
        got = gradients(name, net(), amp)
        assert relative_distance(got.values, wanted.values) < 0.01


def test_autograd_agrees_with_the_loop():
    model, (x, y) = net(), batch()
    got = gradients("loop", model, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x[1]), y[1])
    loss.backward()
    assert torch.equal(got.values["0.weight"][1], model[0].weight.grad)


def test_small_gradients_survive_float16():
    """Without the scale the slope of each output would be below the least number of float16."""
    model, y = nn.Linear(1, 2), torch.zeros(1, 2000, dtype=torch.long)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([8.0, 0.0]))
    keys, x = RandomKey(0, torch.arange(1)).keys(), torch.ones(1, 2000, 1)
    half, whole = (
        Loop(model, F.cross_entropy, EngineConfig(amp=amp))(
            dict(model.named_parameters()), {}, x, y, keys
        ).values["weight"]
        for amp in (torch.float16, None)
    )
    assert torch.allclose(half, whole, rtol=0.05)


def test_onepass_gives_the_reason_to_decline():
    with pytest.raises(SettingError, match="declines this model: its products"):
        gradients("onepass", net(), torch.bfloat16)


def test_auto_takes_another():
    assert gradients("auto", net(norm=True), torch.bfloat16).loss.isfinite().all()


def test_vmap_names_the_layer_that_cannot():
    with pytest.raises(SettingError, match=r"cannot batch the module 1 \(BatchNorm2d\)"):
        gradients("vmap", net(norm=True), torch.bfloat16)


def test_a_simulator_trains_with_it():
    x, y = batch()
    losses = []
    for amp in (None, "bf16"):
        simulator = Simulator(net(), workers=W, lr=0.1, amp=amp, prune=0.9, warmup=False)
        losses.append([simulator.step(x.flatten(0, 1), y.flatten(), 0).loss for _ in range(5)])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_float64_mixes_with_nothing():
    with pytest.raises(SettingError, match="mixes nothing with parameters"):
        Simulator(net().double(), workers=W, lr=0.1, amp="bf16")


def test_a_state_of_another_engine_is_taken_with_amp():
    x, y = (part.flatten(0, 1) for part in batch())
    plain = Simulator(net(), workers=W, lr=0.1, engine="auto")
    plain.step(x, y)
    assert plain.components.engine_name == "onepass"
    mixed = Simulator(net(), workers=W, lr=0.1, amp="bf16")
    mixed.load_state_dict(plain.state_dict())
    mixed.step(x, y)
    assert mixed.components.engine_name != "onepass"


def test_autocast_around_a_step_is_refused():
    simulator = Simulator(nn.Linear(4, 3), workers=2, lr=0.1)
    batch = torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(SettingError, match=r'around the step.*set amp="bf16"'),
    ):
        simulator.step(*batch)
