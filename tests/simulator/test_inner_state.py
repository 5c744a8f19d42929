"""What becomes of the workers' own optimizers at an exchange, held to torch's in a plain loop."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F

from simsgd import SettingError, Simulator
from simsgd.simulator.step_bytes import sizes

from .. import toy
from ..toy import mlp

W, B, STEPS, H = 4, 16, 8, 2
SIZE = sum(p.numel() for p in mlp().parameters())

batches = functools.partial(toy.batches, size=B)
OPTIMIZERS = {
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "NAdam": {"weight_decay": 0.1},
}


def simulated(**settings):
    settings = {"workers": W, "lr": 0.02, "local_steps": H, **settings}
    return toy.simulated(mlp(), batches(STEPS), 0, **settings)


def averaged(states, weights):
    """Return the weighted mean of what several optimizers hold of a parameter."""
    if not states[0]:
        return {}
    return {
        key: sum(w * state[key] for w, state in zip(weights, states, strict=True))
        for key, value in states[0].items()
        if isinstance(value, torch.Tensor)
    }


def in_a_loop(how, optimizer, records, weights_of, **options):
    """Return the workers' common model of a plain loop of models and optimizers."""
    common = mlp()
    models = [copy.deepcopy(common) for _ in range(W)]
    made = functools.partial(getattr(torch.optim, optimizer), lr=0.02, **options)
    inside = [made(own.parameters()) for own in models]
    for number, (x, y) in enumerate(batches(STEPS)):
        trains = records[number].participants
        for w, (a, b) in enumerate(zip(x.chunk(W), y.chunk(W), strict=True)):
            if trains is None or trains[w]:
                inside[w].zero_grad()
                F.cross_entropy(models[w](a), b).backward()
                inside[w].step()
        if (number + 1) % H:
            continue
        weights = weights_of(trains)
        for place, p in enumerate(common.parameters()):
            every = [list(own.parameters())[place] for own in models]
            p.data.copy_(sum(w * q.detach() for w, q in zip(weights, every, strict=True)))
            drawn = [w for w in range(W) if weights[w]]
            held = [inside[w].state.get(every[w], {}) for w in drawn]
            mean = averaged(held, [weights[w] for w in drawn])
            for w, q in enumerate(every):
                q.data.copy_(p)
                if how == "average":
                    inside[w].state[q] = {key: value.clone() for key, value in mean.items()}
        if how == "reset":
            inside = [made(own.parameters()) for own in models]
    return common


def assert_same(simulator, model):
    for name, p in model.named_parameters():
        own = simulator.parameters()[name]
        torch.testing.assert_close(own, p.detach().expand_as(own), rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", ["keep", "average", "reset"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_is_what_a_plain_loop_does(optimizer, how):
    options = OPTIMIZERS[optimizer]
    simulator, records = simulated(
        algorithm="local", optimizer=optimizer, inner_state=how, **options
    )
    equal = [1 / W] * W
    assert_same(simulator, in_a_loop(how, optimizer, records, lambda _: equal, **options))


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_clients_go_on_from_the_weighted_mean_of_those_drawn(optimizer):
    samples, options = torch.tensor([1.0, 2.0, 3.0, 4.0]), OPTIMIZERS[optimizer]
    simulator, records = simulated(
        algorithm="fedavg", participation=0.5, samples=samples, optimizer=optimizer,
        inner_state="average", **options,
    )  # fmt: skip

    def weights(drawn):
        own = samples.double() * drawn
        return (own / own.sum()).tolist()

    assert_same(simulator, in_a_loop("average", optimizer, records, weights, **options))


def test_what_each_default_is():
    for algorithm, how in (("local", "keep"), ("diloco", "keep"), ("fedavg", "reset")):
        usual, _ = simulated(algorithm=algorithm, momentum=0.9)
        told, _ = simulated(algorithm=algorithm, momentum=0.9, inner_state=how)
        other, _ = simulated(algorithm=algorithm, momentum=0.9, inner_state="average")
        same = [torch.equal(told.parameters()[n], p) for n, p in usual.parameters().items()]
        assert all(same)
        assert not torch.equal(other.parameters()["0.weight"], usual.parameters()["0.weight"])


@pytest.mark.parametrize(("optimizer", "numbers"), [("SGD", SIZE), ("Adam", 2 * SIZE + 4)])
def test_the_bytes_of_an_average_are_counted(optimizer, numbers):
    _, records = simulated(
        algorithm="local", optimizer=optimizer, inner_state="average", **OPTIMIZERS[optimizer]
    )
    assert records[0].payload_bytes == [0] * W
    assert records[1].payload_bytes == [8 * (SIZE + numbers)] * W
    _, plain = simulated(algorithm="local", optimizer="SGD", inner_state="average")
    assert plain[1].payload_bytes == [8 * SIZE] * W  # SGD without momentum keeps nothing
    _, drawn = simulated(
        algorithm="fedavg", participation=0.5, optimizer=optimizer, inner_state="average",
        **OPTIMIZERS[optimizer],
    )  # fmt: skip
    took_part = drawn[1].participants
    assert drawn[1].payload_bytes == (8 * (SIZE + numbers) * took_part).tolist()
    assert drawn[1].bytes.downlink.tolist() == (8 * (SIZE + numbers) * took_part).tolist()


@pytest.mark.parametrize("algorithm", ["diloco", "fedavg:participation=0.5"])
def test_a_loaded_simulation_goes_on_to_the_last_bit(algorithm):
    settings = {"algorithm": algorithm, "optimizer": "Adam", "inner_state": "average"}
    whole, _ = simulated(**settings)
    first = Simulator(mlp(), workers=W, lr=0.02, local_steps=H, **settings)
    again = Simulator(mlp(seed=3), workers=W, lr=0.02, local_steps=H, **settings)
    for number, (x, y) in enumerate(batches(STEPS)):
        if number == 3:
            again.load_state_dict(copy.deepcopy(first.state_dict()))
        (first if number < 3 else again).step(x, y, 0)
    assert all(torch.equal(again.parameters()[n], p) for n, p in whole.parameters().items())


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"algorithm": "local", "inner_state": "drop"}, "must be one of keep, average, reset"),
        ({"algorithm": "choco", "inner_state": "reset"}, "has no effect with algorithm choco"),
        (
            {"algorithm": "streaming:fragments=1", "inner_state": "average"},
            "must be keep with algorithm streaming.* a part of the model at a time",
        ),
        ({"algorithm": "sparta_diloco", "inner_state": "reset"}, "must be keep with algorithm"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(settings, error):
    with pytest.raises(SettingError, match=error):
        Simulator(mlp(), workers=W, lr=0.1, **settings)


def test_shapes_alone_do_not_show_what_an_optimizer_keeps():
    with pytest.raises(SettingError, match="do not show what the optimizer keeps"):
        sizes({"weight": (2, 3)}, algorithm="local", inner_state="average")
