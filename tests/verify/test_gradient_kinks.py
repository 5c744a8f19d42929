import pytest
import torch
from torch import nn

from simsgd.gradients.loop import Loop
from simsgd.verify.gradient_kinks import RecordingEngine, is_kink, parting, sizes

LIMIT = 1e-5


class Unit(nn.Module):
    """One unit whose input is the sum of a weight for each sample."""

    def __init__(self, bend, weight):
        super().__init__()
        self.bend = bend
        self.weight = nn.Parameter(torch.tensor([weight, 1.0]))

    def forward(self, x):
        return self.bend(x @ self.weight)


def asked(bend, weight, workers=2):
    """Return a recording engine that was called once, and its gradients as another run's."""
    model = Unit(bend, weight)
    engine = RecordingEngine(Loop(model, lambda output, target: output.sum()))
    x = torch.tensor([[1.0, -1.0]]).repeat(workers, 1, 1)
    y, keys = torch.zeros(workers, 1), torch.arange(workers)
    params = dict(model.named_parameters())
    values = engine(params, {}, x, y, keys).values
    return engine, {name: value.clone() for name, value in values.items()}, params


def kinked(engine, other, there=None):
    """Return the parting, and whether it is a kink."""
    left = parting(engine, [other])
    return left, is_kink(engine, left, there or engine.calls[0].began, LIMIT, 7)


def test_a_unit_that_is_on_in_one_run_only_is_a_kink():
    engine, other, _ = asked(nn.ReLU(), 1.0)  # the unit's input is zero
    other["weight"][1] = torch.tensor([1.0, -1.0])  # as if it were a little more
    left, kink = kinked(engine, other)
    assert (left.worker, left.name, left.apart, left.relative) == (1, "weight", 1.0, 1.0)
    assert kink


@pytest.mark.parametrize(("bend", "weight"), [(nn.Tanh(), 1.0), (nn.ReLU(), 1.1)])
def test_where_the_gradient_is_smooth_it_is_none(bend, weight):
    engine, other, _ = asked(bend, weight)
    other["weight"][1] *= 1.01
    left, kink = kinked(engine, other)
    assert left.relative == pytest.approx(0.01)
    assert not kink


def test_gradients_that_are_so_at_the_other_parameters_are_explained():
    engine, other, _ = asked(nn.Tanh(), 1.3)
    there = {"weight": engine.calls[0].began["weight"] + torch.tensor([1e-3, -1e-3])}
    moved, other, _ = asked(nn.Tanh(), 1.3)
    with torch.no_grad():
        moved.calls[0].params["weight"].copy_(there["weight"])
    call = moved.calls[0]
    other = moved.inner(call.params, {}, call.x, call.y, call.keys).values
    assert not kinked(engine, other)[1]
    assert kinked(engine, other, there)[1]


def test_looking_leaves_parameters_as_they_are_now():
    engine, other, params = asked(nn.ReLU(), 1.0)
    other["weight"][1] = torch.tensor([1.0, -1.0])
    with torch.no_grad():
        params["weight"].add_(3.0)  # the step was taken
    assert kinked(engine, other)[1]
    assert params["weight"].tolist() == [4.0, 4.0]


def test_gradients_that_are_given_are_returned_pass_by_pass():
    engine, own, params = asked(nn.ReLU(), 1.1)
    call = engine.calls[0]
    engine.forget()
    engine.given = iter([{"weight": own["weight"] + 1}, {"weight": own["weight"] + 2}])
    for more in (1, 2):
        values = engine(params, {}, call.x, call.y, call.keys).values
        assert torch.equal(values["weight"], own["weight"] + more)
    engine.forget()
    assert torch.equal(
        engine(params, {}, call.x, call.y, call.keys).values["weight"], own["weight"]
    )


def test_a_small_tensor_is_held_against_a_thousandth_of_the_largest():
    assert sizes({"a": torch.tensor([-4.0, 1.0]), "b": torch.tensor([1e-9])}) == {
        "a": 4.0,
        "b": 0.004,
    }
