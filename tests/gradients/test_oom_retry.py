"""What a run does when the device's memory does not do."""

import re

import pytest
import torch
from torch import nn

import simsgd
from simsgd import Simulator
from simsgd.config import Config
from simsgd.gradients import contract
from simsgd.gradients.onepass import OnePass
from simsgd.gradients.vmap import Vmap
from simsgd.training.checkpoint import load_checkpoint
from simsgd.training.errors import OutOfMemory
from simsgd.training.memory_use import advice
from simsgd.training.memory_use.estimate import Footprint

from .. import toy

GIB = 2**30


@pytest.fixture
def holds(monkeypatch):
    """Let a device hold so many workers at a time."""

    def limit(workers, from_step=0):
        calls = []
        for engine in (Vmap, OnePass):
            real = engine.attempt

            def attempt(self, params, buffers, x, y, keys, real=real):
                calls.append(self.chunk_size(len(keys)))
                if len(calls) > from_step and calls[-1] > workers:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
                return real(self, params, buffers, x, y, keys)

            monkeypatch.setattr(engine, "attempt", attempt)
        return calls

    return limit


def batch():
    return toy.batch(16, shape=(6,), classes=3, seed=0, dtype=torch.float64)


def simulator(engine, **settings):
    torch.manual_seed(0)
    return Simulator(nn.Linear(6, 3).double(), workers=8, engine=engine, lr=0.1, **settings)


@pytest.mark.parametrize("engine", ["vmap", "onepass"])
def test_half_as_many_workers_at_a_time_give_the_same_gradients(engine, holds):
    wanted = simulator(engine)
    wanted.step(*batch())
    calls = holds(4)
    fewer = simulator(engine)
    for _ in range(2):
        fewer.step(*batch())
    assert calls == [8, 4, 4]  # it stays so
    fewer = simulator(engine)
    fewer.step(*batch())
    for name, value in wanted.parameters().items():
        assert torch.allclose(fewer.parameters()[name], value, rtol=1e-12)


def test_the_second_try_is_the_last(holds):
    calls = holds(2)
    with pytest.raises(torch.OutOfMemoryError):
        simulator("vmap").step(*batch())
    assert calls == [8, 4]


def test_a_loop_is_not_tried_again(monkeypatch):
    calls = []

    def full(*_):
        calls.append(1)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(contract.GradientEngine, "loss", full)
    with pytest.raises(torch.OutOfMemoryError):
        simulator("loop").step(*batch())
    assert len(calls) == 2  # of one worker to see what the model keeps, and of the step


def test_a_run_logs_once_that_it_takes_fewer_workers_at_a_time(kill_runs, tmp_path, holds):
    holds(2)
    run = simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="run")
    assert run.log.count("note: out of memory; from here on 2 workers at a time") == 1
    assert len(run.epochs) == 2


def test_the_error_of_a_run_out_of_memory_names_what_to_lower_and_how_to_resume(
    kill_runs, tmp_path, monkeypatch
):
    step = Simulator.step

    def full(self, *arguments):
        if self.steps == 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return step(self, *arguments)

    monkeypatch.setattr(Simulator, "step", full)
    monkeypatch.setattr(advice, "capacity", lambda device: 250_000)
    many = kill_runs.TINY | {"workers": 16, "batch_size": 20}
    with pytest.raises(OutOfMemory) as e:
        simsgd.train(**many, runs_dir=tmp_path, name="run", checkpoint_every=1)
    line = str(e.value)
    assert "\n" not in line
    assert re.match(
        r"out of memory on cpu: it needs about \S+ \S+ of 244.1 KiB; lower --work", line
    )
    assert line.endswith(f"last.pt; to continue: simsgd train --resume {tmp_path / 'run'}")
    assert load_checkpoint(tmp_path / "run")["simulator"]["steps"] == 5


def need(lasting, activations, chunk_size=8, compression=0):
    parts = {"parameters": lasting // 2, "gradients of 16 workers": lasting // 2}
    passing = {"activations of 8 workers at a time": activations, "compression": compression}
    return Footprint(parts, passing, chunk_size)


@pytest.mark.parametrize(
    ("what", "line"),
    [
        (need(4 * GIB, 8 * GIB), "lower --worker-chunk from 8 to 4"),
        (need(4 * GIB, 8 * GIB, chunk_size=1), "lower --batch-size from 64 to 32"),
        (need(10 * GIB, GIB), "lower --workers from 16 to 6"),
        (need(4 * GIB, GIB, compression=5 * GIB), "lower --workers from 16 to 8"),
        (
            need(2 * GIB, GIB),
            "it should fit: end what else is on the device, or lower --batch",
        ),
        (need(40 * GIB, GIB), "use a smaller model, or a larger device"),
    ],
)
def test_the_setting_to_lower_is_named_with_the_number_that_fits(what, line):
    config = Config(workers=16, batch_size=64)
    assert advice.lower(what, 8 * GIB, config).startswith(line)
