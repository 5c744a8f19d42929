"""How far backward is when the gradient of a parameter is there."""

import pytest
import torch
from torch import nn

import simsgd
from simsgd.gradients.layer_work import backward_order
from simsgd.settings import SettingError
from simsgd.simulator.model_shapes import order_of
from simsgd.simulator.ready_segments import ready_segments

TWO = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))
FIRST, SECOND = 4 * (10 * 20 + 20 + 20), 4 * (20 * 5 + 5)  # products, and numbers that come out


def test_layers_take_as_long_as_they_multiply_and_write():
    x = torch.ones(4, 10)
    order = backward_order(TWO, lambda: TWO(x))
    assert order == {"0.weight": 1.0, "2.weight": SECOND / (FIRST + SECOND)}


def test_of_a_layer_that_is_called_twice_the_earlier_call_is_the_last_in_backward():
    shared = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(shared, nn.Linear(4, 4, bias=False), shared)
    x = torch.ones(1, 4)
    order = backward_order(model, lambda: model(x))
    assert order == {"0.weight": 1.0, "1.weight": 2 / 3}


class Raw(nn.Module):
    """A parameter of its own, and a layer whose parameters are used without calling it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return torch.nn.functional.linear(x * self.scale, self.inner.weight)


def test_a_layer_that_is_not_called_goes_by_the_one_around_it():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Raw(), nn.Linear(4, 4, bias=False))
    x = torch.ones(1, 4)
    order = backward_order(model, lambda: model(x))
    assert order["1.scale"] == order["1.inner.weight"] == order["1.inner.bias"]
    assert order["0.weight"] == 1 > order["1.scale"] > order["2.weight"]


def test_a_model_needs_no_weights_for_it():
    order = order_of("mlp", "hidden=(20,)", input_shape="1x1x10")
    total = 2 * (10 * 20 + 20 + 20) + 2 * (20 * 10 + 10)
    assert order["3.weight"] == 2 * (20 * 10 + 10) / total
    assert order["1.weight"] == 1


def test_segments_are_ready_with_the_last_of_their_parameters():
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))
    x, y = torch.ones(8, 10), torch.zeros(8, dtype=torch.long)
    late = SECOND / (FIRST + SECOND)
    cases = {
        "layer": ({}, {"0.weight": (1.0, 1.0), "2.weight": None}),
        "model": ({"granularity": "model"}, {"model": (1.0, 1.0)}),
        "clipped": ({"clip": 1.0}, {"0.weight": (1.0, 1.0), "2.weight": None}),
        "by value": (
            {"clip": 1.0, "clip_by": "value"},
            {"0.weight": (1.0, 1.0), "2.weight": None},
        ),
        "models": ({"algorithm": "local"}, {"0.weight": (1.0, 1.0), "2.weight": None}),
    }
    for name, (settings, expected) in cases.items():
        simulator = simsgd.Simulator(model, workers=2, lr=0.1, **settings)
        found = ready_segments(simulator, x, y)
        for segment, pair in expected.items():
            ready, sendable = found[segment]
            if pair is not None:
                assert (ready, sendable) == pair
                continue
            assert late < ready < late + 0.02  # the loss belongs to the last layer
            assert sendable == (1.0 if name in ("clipped", "models") else ready)


def test_nothing_changes_by_asking():
    model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))
    x, y = torch.randn(8, 10), torch.zeros(8, dtype=torch.long)
    one = simsgd.Simulator(model, workers=2, lr=0.1)
    before = {name: buffer.clone() for name, buffer in one.buffers.items()}
    generator = torch.get_rng_state()
    ready_segments(one, x, y)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(one.buffers[name], buffer) for name, buffer in before.items())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("def model(): return nn.Linear(4, 2)", "has no shape of a sample of its own"),
        ("def model(input_shape=(3,)): return nn.Linear(4, 2)", r"does not take samples of \(3,\)"),
    ],
)
def test_a_model_that_takes_no_samples_is_refused_in_one_line(tmp_path, text, rule):
    (tmp_path / "mine.py").write_text(f"from torch import nn\n{text}\n")
    with pytest.raises(SettingError, match=f"^model {rule}.*; give input_shape, such as 3x32x32$"):
        order_of(str(tmp_path / "mine.py"))
