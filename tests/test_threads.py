import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd.draw import Draw
from simsgd.registry import find
from simsgd.settings import SettingError
from simsgd.simulator import Simulator

W, B = 5, 6


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(144, 5),
    )  # fmt: skip


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(W, B, 1, 8, 8, generator=generator)
    return x, torch.randint(5, (W, B), generator=generator)


def called(engine, model, x, y, step=0):
    params = dict(model.named_parameters())
    buffers = {name: torch.stack([b] * len(x)) for name, b in model.named_buffers()}
    return engine(params, buffers, x, y, Draw(0, torch.arange(W)).at(step).keys())


def engines(model):
    return (find("engine", name)(model, F.cross_entropy) for name in ("threads", "loop"))


@pytest.mark.usefixtures("_two_threads")
def test_threads_give_bit_for_bit_what_a_loop_with_one_thread_gives():
    model = net().train()
    threads, loop = engines(model)
    for step in range(3):  # a second call finds all of the first in place
        x, y = batch(step)
        got = called(threads, model, x, y, step)
        torch.set_num_threads(1)
        wanted = called(loop, model, x, y, step)
        torch.set_num_threads(2)
        for one, other in ((got.values, wanted.values), (got.buffers, wanted.buffers)):
            assert all(torch.equal(one[name], other[name]) for name in other)
        assert torch.equal(got.loss, wanted.loss)
        assert torch.equal(got.output, wanted.output)


@pytest.mark.usefixtures("_two_threads")
def test_the_callers_threads_stay_as_they_are():
    model = net().train()
    called(next(engines(model)), model, *batch())
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("_two_threads")
def test_a_layer_that_was_frozen_after_the_first_call_is_frozen_in_every_thread():
    model = net().train()
    threads, loop = engines(model)
    called(threads, model, *batch())
    model[1].eval()
    got, wanted = (called(engine, model, *batch()) for engine in (threads, loop))
    assert torch.equal(got.buffers["1.running_mean"], wanted.buffers["1.running_mean"])
    assert torch.allclose(got.values["0.weight"], wanted.values["0.weight"])


@pytest.mark.usefixtures("_two_threads")
def test_an_error_of_the_model_itself_stays_what_it_is():
    model = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="shape"):
        called(next(engines(model)), model, torch.randn(W, B, 4), torch.zeros(W, B).long())


def test_workers_at_a_time_are_refused():
    with pytest.raises(SettingError, match="has no effect with engine threads"):
        Simulator(net(), workers=W, lr=0.1, engine="threads", worker_chunk=2)


HEAVY = 16  # samples of a worker, whose convolutions take 75 M multiplications


def wide():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(32768, 5)
    )


def chosen(model=None, workers=4, samples=HEAVY, per_worker=False, **settings):
    """Return which engine auto takes, and the note."""
    model = wide() if model is None else model
    engine = find("engine", "auto")(model, F.cross_entropy, per_worker=per_worker, **settings)
    x, y = torch.randn(workers, samples, 16, 32, 32), torch.zeros(workers, samples).long()
    params = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    if per_worker:
        params = {n: torch.stack([p] * workers) for n, p in params.items()}
    buffers = {n: torch.stack([b] * workers) for n, b in model.named_buffers()}
    keys = Draw(0, torch.arange(workers)).keys()
    return engine.choose(params, buffers, x, y, keys), engine.note


@pytest.mark.usefixtures("_two_threads")
def test_auto_takes_threads_where_convolutions_compute_much():
    assert chosen() == ("threads", "")
    assert chosen(per_worker=True) == ("threads", "")
    assert chosen(workers=3)[0] == "onepass"  # the fourth place of two rounds would be empty
    assert chosen(workers=5)[0] == "threads"
    assert chosen(samples=HEAVY // 2)[0] == "onepass"
    assert chosen(samples=HEAVY // 2, per_worker=True)[0] == "loop"
    assert chosen(chunk=2)[0] == "onepass"


@pytest.mark.parametrize("threads", [1, 5])
def test_auto_takes_no_threads_where_there_is_one_or_more_than_were_measured(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert chosen(workers=10)[0] == "onepass"
    finally:
        torch.set_num_threads(before)


class Uncopied(nn.Sequential):
    """A model that cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("it holds a file")


class Counting(nn.Sequential):
    """A model that does something else at every call."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Uncopied, r"a copy of the model for each thread, and it has none \(it holds a file\)"),
        (Counting, "is not what a loop over workers gives"),
    ],
)
def test_threads_decline_a_model_that_has_no_copies_or_whose_copies_differ(kind, why):
    name, note = chosen(kind(*wide()))
    assert name != "threads"
    assert re.search(f"threads declines: .*{why}", note)
