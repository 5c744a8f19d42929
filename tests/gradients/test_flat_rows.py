"""All engines write into one [L, P], whose parts the gradients by name are."""

import pytest
import torch
from torch import nn

from simsgd import Simulator
from simsgd.gradients.flat_rows import FlatRows
from simsgd.registry import names
from simsgd.simulator.worker_gradients import compute_gradients

from ..toy import batch, gradients

ENGINES = sorted(set(names("engine")) - {"compiled"})


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 5))


@pytest.mark.parametrize("engine", ENGINES)
def test_all_gradients_lie_end_to_end(engine):
    model = two_layers()
    got = gradients(engine, model, *batch(3, 2))
    (flat,) = got.flat
    end_to_end = torch.cat([value.flatten(1) for value in got.values.values()], dim=1)
    assert torch.equal(flat, end_to_end)
    for name, p in model.named_parameters():
        assert got.values[name].shape == (3, *p.shape)
        assert got.values[name].untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


def test_each_dtype_has_rows_of_its_own():
    like = {"a": torch.zeros(2), "b": torch.zeros((), dtype=torch.float64), "c": torch.zeros(1, 3)}
    rows = FlatRows.empty(like, workers=2)
    assert [(f.dtype, f.shape) for f in rows.flat] == [
        (torch.float32, (2, 5)),
        (torch.float64, (2, 1)),
    ]
    rows.values["c"].fill_(1)
    rows.flat[0][:, :2] = 0
    assert rows.flat[0].tolist() == [[0, 0, 1, 1, 1]] * 2
    assert rows.values["b"].shape == (2,)
    assert rows.fits(like, 2)
    assert not rows.fits(like, 3)


@pytest.mark.parametrize(
    "settings", [{"accumulate": 2}, {"algorithm": "fedavg", "participation": 0.5}], ids=str
)
def test_sums_and_chosen_workers_lie_so_too(settings):
    own = Simulator(two_layers(), workers=2, lr=0.1, **settings)
    found = compute_gradients(own.components, own._state, *batch(8), own.components.key)
    (flat,) = found.flat
    assert torch.equal(flat, torch.cat([v.flatten(1) for v in found.values.values()], dim=1))
