import copy
import functools
import os
import re
import signal
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd.config import Config
from simsgd.gradients import auto, onepass
from simsgd.gradients.contract import EngineConfig
from simsgd.gradients.loop import Loop
from simsgd.gradients.worker_threads import ThreadReplicas, _single_threads
from simsgd.keyed_random import RandomKey
from simsgd.registry import find
from simsgd.settings import SettingError
from simsgd.simulator.simulator import Simulator
from simsgd.training.experiment import Experiment
from simsgd.training.memory_use.estimate import footprint_of

from .. import toy

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
    return toy.batch(W, B, seed=seed)


def called(engine, model, x, y, step=0):
    params = dict(model.named_parameters())
    buffers = {name: torch.stack([b] * len(x)) for name, b in model.named_buffers()}
    return engine(params, buffers, x, y, RandomKey(0, torch.arange(W)).fold_in(step).keys())


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
def test_all_threads_run_before_any_computes_and_go_on_with_one_each():
    _single_threads.cache_clear()
    before = set(threading.enumerate())
    replicas = ThreadReplicas(net(), lambda model: Loop(model, F.cross_entropy))
    replicas.map(lambda engine, place: place, range(2))
    begun = set(threading.enumerate()) - before
    assert len(begun) == 2
    torch.set_num_threads(2)  # which a thread that never looked takes for its own
    together = threading.Barrier(2)

    def asked(engine, place):
        together.wait()
        return threading.current_thread(), torch.get_num_threads()

    assert set(replicas.map(asked, range(2))) == {(thread, 1) for thread in begun}


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


HEAVY = 16  # samples of a worker, whose convolutions take 302 M multiplications


def wide():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, 128, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(2**17, 5)
    )


def chosen(model=None, workers=4, samples=HEAVY, per_worker=False, **settings):
    """Return which engine auto takes, and the note."""
    model = wide() if model is None else model
    config = EngineConfig(per_worker=per_worker, **settings)
    engine = find("engine", "auto")(model, F.cross_entropy, config)
    x, y = torch.randn(workers, samples, 16, 32, 32), torch.zeros(workers, samples).long()
    params = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    if per_worker:
        params = {n: torch.stack([p] * workers) for n, p in params.items()}
    buffers = {n: torch.stack([b] * workers) for n, b in model.named_buffers()}
    keys = RandomKey(0, torch.arange(workers)).keys()
    return engine.choose(params, buffers, x, y, keys), engine.note


@pytest.mark.slow
@pytest.mark.usefixtures("_two_threads")
def test_auto_takes_threads_where_convolutions_compute_much():
    assert chosen() == ("threads", "")
    assert chosen(per_worker=True) == ("threads", "")
    assert chosen(workers=3)[0] == "onepass"  # the fourth place of two rounds would be empty
    assert chosen(workers=5)[0] == "threads"
    assert chosen(samples=HEAVY // 2)[0] == "onepass"
    assert chosen(samples=HEAVY // 2, per_worker=True)[0] == "onepass"
    assert chosen(chunk=2)[0] == "onepass"


class Recurrent(nn.Module):
    """A small recurrent layer over the rows of an image."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.GRU(32, 4, batch_first=True), nn.Linear(4, 5)

    def forward(self, x):
        return self.out(self.inner(x[:, 0])[0][:, -1])


@pytest.mark.usefixtures("_two_threads")
def test_auto_takes_threads_for_recurrent_layers_however_small():
    assert chosen(Recurrent(), samples=2) == ("threads", "")
    assert chosen(Recurrent(), samples=2, per_worker=True) == ("threads", "")
    assert chosen(Recurrent(), samples=2, workers=3)[0] == "loop"
    torch.set_num_threads(1)
    assert chosen(Recurrent(), samples=2)[0] == "loop"


@pytest.mark.usefixtures("_two_threads")
def test_auto_takes_threads_where_matrices_make_much(monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16384, 5))
    assert chosen(model, samples=2)[0] == "onepass"
    monkeypatch.setattr(auto, "_MANY", 10)
    assert chosen(model, samples=2)[0] == "threads"
    assert chosen(model, samples=2, workers=3)[0] == "onepass"
    torch.set_num_threads(1)
    assert chosen(model, samples=2)[0] == "onepass"


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


class Knowing(nn.Sequential):
    """A model whose copies do something else."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.number = id(self)

    def forward(self, x):
        return super().forward(x) * (1 if self.number == id(self) else 2)


@pytest.mark.slow
@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Uncopied, r"a copy of the model for each thread, and it has none \(it holds a file\)"),
        (Knowing, "is not what a loop over workers gives"),
    ],
)
def test_threads_decline_a_model_that_has_no_copies_or_whose_copies_differ(kind, why):
    name, note = chosen(kind(*wide()))
    assert name != "threads"
    assert re.search(f"threads declines: .*{why}", note)


def many(samples=8, workers=6):
    """Return a batch of which threads share the computing."""
    torch.manual_seed(1)
    return torch.randn(workers, samples, 16, 32, 32), torch.randint(5, (workers, samples))


def normed():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.3),
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(2048, 5),
    ).double()  # fmt: skip


def computed(name, model, x, y):
    params = dict(model.named_parameters())
    buffers = {n: torch.stack([b] * len(x)) for n, b in model.named_buffers()}
    engine = find("engine", name)(model, F.cross_entropy)
    return engine(params, buffers, x.double(), y, RandomKey(0, torch.arange(len(x))).keys()), engine


@pytest.mark.slow
@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("workers", [2, 5, 6])
def test_threads_that_share_one_pass_give_what_a_loop_gives(workers):
    model, (x, y) = normed(), many(workers=workers, samples=64 // workers)
    (got, engine), (wanted, _) = (computed(name, model, x, y) for name in ("onepass", "loop"))
    assert engine.num_threads(workers) == 2
    for one, other in ((got.values, wanted.values), (got.buffers, wanted.buffers)):
        for name in other:
            assert torch.allclose(one[name].double(), other[name].double(), rtol=1e-12, atol=1e-14)
    assert torch.allclose(got.loss, wanted.loss, rtol=1e-12)
    assert torch.allclose(got.output, wanted.output, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.usefixtures("_two_threads")
def test_threads_share_one_pass_where_there_is_much_to_compute_and_copies_compute_it():
    model = normed()
    assert computed("onepass", model, *many(samples=1))[1].num_threads(6) == 1
    assert computed("onepass", Uncopied(*model).double(), *many())[1].num_threads(6) == 1
    engine = computed("onepass", model, *many())[1]
    assert engine.num_threads(6) == 2
    assert engine.chunk_size(6) == 6
    assert engine.num_threads(3) == 1  # the fourth place would be empty
    assert engine.halve_chunk(6) == 3
    assert engine.num_threads(6) == 1


@pytest.mark.usefixtures("_two_threads")
def test_auto_gives_many_weights_for_little_computing_to_one_pass(monkeypatch):
    monkeypatch.setattr(auto, "_HEAVY", 2**26)
    few, more = (nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.Flatten()) for _ in "ab")
    few.append(nn.Linear(32768, 5))
    more.append(nn.Linear(32768, 20))
    assert [chosen(model)[0] for model in (few, more)] == ["threads", "onepass"]


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("engine", ["threads", "onepass"])
def test_the_dry_run_counts_what_threads_take(engine, monkeypatch):
    monkeypatch.setattr(onepass, "_HEAVY", 1)
    settings = {"model": "lenet", "dataset": "digits", "workers": 4, "batch_size": 150}
    experiment = functools.partial(Experiment.of, Config.of({**settings, "engine": engine}))
    two = footprint_of(experiment()).passing
    torch.set_num_threads(1)
    one = footprint_of(experiment()).passing
    [(name, size)] = [(n, s) for n, s in two.items() if n.startswith("activations")]
    [(alone, least)] = [(n, s) for n, s in one.items() if n.startswith("activations")]
    shares = {"threads": (2, 1), "onepass": (4, 4)}[engine]
    assert (name, alone) == tuple(f"activations of {n} workers at a time" for n in shares)
    assert size == pytest.approx(least * shares[0] / shares[1], rel=0.2)


@pytest.mark.slow
def test_no_copies_are_made_for_threads_that_are_not_there():
    class Counted(nn.Sequential):
        copies = 0

        def __deepcopy__(self, memo):
            Counted.copies += 1
            return Counted(*copy.deepcopy([*self], memo))

    before = torch.get_num_threads()
    try:
        for threads, copies in ((1, 0), (5, 0), (2, 2)):
            torch.set_num_threads(threads)
            Counted.copies = 0
            computed("onepass", Counted(*normed()), *many())
            assert Counted.copies == copies
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX forks")
@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(("engine", "compressor"), [("threads", "none"), ("loop", "topk:0.5")])
def test_a_forked_process_has_threads_of_its_own(engine, compressor):
    torch.set_num_threads(2 if engine == "threads" else 1)  # OpenMP's own do not survive a fork
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    trained = Simulator(model, workers=2, lr=0.1, engine=engine, compressor=compressor)
    x, y = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    trained.step(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forked threads
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(trained.step(x, y).step)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
