"""Models whose weights would be trained otherwise than torch does are refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

from simsgd import SettingError, Simulator

X, Y = torch.ones(8, 3), torch.arange(8) % 2


def linear():
    return nn.Linear(3, 2)


def hooked(model):
    model.weight.register_hook(lambda gradient: gradient * 0)
    return model


def hooked_late(model):
    model.weight.register_post_accumulate_grad_hook(lambda p: None)
    return model


def expanded():
    model = linear()
    model.weight = nn.Parameter(torch.randn(1, 3).expand(2, 3))
    return model


def overlapping():
    model = nn.Sequential(linear(), nn.Linear(3, 2, bias=False), nn.Linear(2, 2))
    model[1].weight.data = model[0].weight.data[:, :]
    return model


def interleaved():
    """Two weights that are every other row of one tensor, with no number in common."""
    model = nn.Sequential(linear(), nn.Linear(2, 2))
    both = torch.randn(4, 3)
    model[0].weight.data, model[1].weight.data = both[::2], both[1::2, :2]
    return model


def renormalized():
    return nn.Sequential(nn.Embedding(4, 3, max_norm=0.5), nn.Flatten(), nn.Linear(9, 2))


REFUSED = [
    (lambda: hooked(linear()), {}, "has a hook on weight, which would not be called; let the "
     "regime regularize or clip, or leave the hook out; engine loop calls it"),
    (lambda: hooked(linear()), {"algorithm": "local", "engine": "loop"}, "has a hook on weight, "
     "which would not be called; let the regime regularize or clip, or leave the hook out"),
    (lambda: hooked_late(linear()), {"engine": "loop"}, "has a hook on weight, which would not be"),
    (expanded, {}, "repeats the numbers of weight in memory; give each tensors of its own"),
    (overlapping, {}, "has numbers that 0.weight and 1.weight share in memory"),
    (renormalized, {}, "has 0, Embedding(max_norm=0.5), which changes the weights of all workers"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "settings", "told"), REFUSED)
def test_it_is_refused_in_words(make, settings, told):
    with pytest.raises(SettingError) as refused:
        Simulator(make(), workers=4, lr=0.1, **settings)
    assert str(refused.value).startswith(f"model {told}")


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: hooked(linear()), {"engine": "loop"}),
        (interleaved, {}),
        (renormalized, {"algorithm": "local"}),
        (renormalized, {"workers": 1}),
    ],
)
def test_what_is_right_is_taken(make, settings):
    Simulator(make(), **{"workers": 4, "lr": 0.1, **settings})


def test_a_hook_is_called_by_the_loop():
    model = hooked(linear())
    before = model.weight.detach().clone()
    Simulator(model, workers=4, lr=0.1, engine="loop").step(X, Y)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("plan", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "method",
    [
        {"prune": 0.5, "warmup": False},
        {"algorithm": "local", "local_steps": 2},
        {"algorithm": "dpsgd"},
        {"algorithm": "choco", "compressor": "topk:0.5"},
        {"algorithm": "diloco", "local_steps": 2, "outer_optimizer": "torch:name=Adam,lr=0.01"},
        {"algorithm": "scaffold", "local_steps": 2},
        {"algorithm": "async", "staleness": "uniform:3"},
    ],
    ids=lambda m: m.get("algorithm", "allreduce"),
)
def test_a_copy_goes_on_as_the_simulator_does(method, plan):
    simulator = Simulator(linear(), workers=4, lr=0.1, momentum=0.9, plan=plan, **method)
    batches = [(torch.randn(8, 3), torch.arange(8) % 2) for _ in range(6)]
    for x, y in batches[:3]:
        simulator.step(x, y)
    other = copy.deepcopy(simulator)
    for one in (simulator, other):
        for x, y in batches[3:]:
            one.step(x, y)
    for name, wanted in simulator.parameters().items():
        assert torch.equal(other.parameters()[name], wanted)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_model_that_is_loaded_too_late_for_models_of_their_own_is_refused(steps):
    simulator = Simulator(linear(), workers=4, lr=0.1, algorithm="local")
    for _ in range(steps):
        simulator.step(X, Y)
        simulator.evaluation_model()  # which changes the model, too
        simulator.step(X, Y)
    simulator.model.load_state_dict(linear().state_dict())
    with pytest.raises(SettingError) as refused:
        simulator.step(X, Y)
    assert str(refused.value) == (
        "model has other parameters by now, which workers with models of their own do not see; "
        "load them before the Simulator is made"
    )


@pytest.mark.parametrize("settings", [{}, {"scheduler": "StepLR:step_size=2"}, {"engine": "vmap"}])
def test_a_simulator_is_not_pickled(settings):
    with pytest.raises(SettingError) as refused:
        pickle.dumps(Simulator(linear(), workers=4, lr=0.1, **settings))
    assert str(refused.value) == (
        "simulator cannot be pickled; save its state_dict(), and load that into one made of the "
        "same settings"
    )
