"""Processes of one group that do one task after the other, so that a test need not start its own.

Each task is a function here; all ranks run it, and the test gets what rank 0 returns.
"""

import dataclasses
import functools
import itertools
import multiprocessing
import os
import threading
import traceback

import pytest
import torch
import torch.distributed as dist
from torch import nn

import simsgd.ddp
from simsgd import Simulator
from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import Cast, Dense, Levels, SharedSparse, Signs, Sparse
from simsgd.communication.segments import Segment
from simsgd.communication.topology import topology
from simsgd.communication.transport import (
    Channel,
    Distributed,
    InProcess,
    NodeRanks,
    all_gather_object,
    broadcast_object,
    is_rank_zero,
    of_all_ranks,
)
from simsgd.communication.wire import Wire
from simsgd.config import Config
from simsgd.gradients.accumulation import accumulated
from simsgd.settings import SettingError
from simsgd.simulator import node_device
from simsgd.training import run_data
from simsgd.training.totals import transfer_rows
from simsgd.training.trainer import train
from simsgd.verify.launch import launch
from simsgd.verify.real_worker import OwnWorker, TorchWorker
from simsgd.verify.verify import checked, compare

from . import toy
from .toy import batch_norm_mlp


class ProcessGroup:
    """Runs tasks in `ranks` processes."""

    def __init__(self, ranks):
        context = multiprocessing.get_context("forkserver")
        self.tasks = [context.Queue() for _ in range(ranks)]
        self.results = launch(serve, ranks, self.tasks)

    def __call__(self, task, *arguments):
        """Return what `task` returns on rank 0, or raise what it raises."""
        self._send((task.__name__, arguments))
        result, refused, failed = next(self.results)
        if refused is not None:
            raise SettingError(*refused)
        assert failed is None, failed
        return result

    def close(self):
        self._send(None)
        assert list(self.results) == []

    def _send(self, task):
        """Send to each rank alone: between tasks no rank waits for another, for hours perhaps."""
        for tasks in self.tasks:
            tasks.put(task)


def serve(put, tasks):
    """Do tasks until there is none, in every process; read each data set once."""
    run_data.load_data = functools.cache(run_data.load_data)
    own = tasks[dist.get_rank()]
    while (task := own.get()) is not None:
        result = refused = failed = None
        try:
            result = globals()[task[0]](*task[1])
        except SettingError as error:
            refused = (error.name, error.value, error.rule, error.fix)
        except Exception:
            failed = traceback.format_exc()
        if is_rank_zero():
            put((result, refused, failed))


def verified(steps, settings):
    """Return the rows of verify.csv, and whether plain PyTorch was the real side."""
    config = Config.of({"device": "cpu", **settings})
    config, real = broadcast_object(checked(config, steps) if is_rank_zero() else None)
    rows = []
    compare(rows.append, config, steps, real)
    return [row for row, _ in rows], real is TorchWorker


def verified_with_riders(steps, settings):
    """Return the rows where what goes whole rides along, and the collectives of a step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Distributed, "rides", staticmethod(lambda carriers, size: True))
        return verified(steps, settings)[0], messages_of_a_step(settings)[0]


class Other(OwnWorker):
    """A real side that does something else than the recipe."""

    def __init__(self, wrong, config):
        changed = {"lr": {"lr": 0.1 * 1.001}, "momentum": {"momentum": 0.899}}
        super().__init__(dataclasses.replace(config, **changed.get(wrong, {})))
        if wrong == "gradient":
            inner = self.engine.inner
            self.engine.inner = lambda *asked: off_by_a_thousandth(inner(*asked))


def held_to_another_device(steps, settings):
    """Return the rows of verify.csv where the last device of each node computes something else."""
    config = Config.of({"device": "cpu", **settings})
    config, real = broadcast_object(checked(config, steps) if is_rank_zero() else None)
    wrong = dist.get_rank() % config.devices
    rows = []
    with pytest.MonkeyPatch.context() as patch:
        if wrong:
            patch.setattr(node_device, "accumulated", lambda *asked: off(accumulated(*asked)))
        compare(rows.append, config, steps, real)
    return [row for row, _ in rows]


def messages_of_a_step(settings):
    """Return the collectives of the second step of real ranks, and its rows of transfers.csv."""
    return messages_of_steps(settings, 2)[-1]


def messages_of_steps(settings, steps):
    """Return the collectives of each of the first steps of real ranks, and its transfers.csv."""
    config = Config.of({"device": "cpu", **settings})
    config, _ = broadcast_object(checked(config, steps, timed=True) if is_rank_zero() else None)
    worker = OwnWorker(config)
    worker.transport.start_stopwatch()
    found = []
    for x, y in itertools.islice(worker.experiment.epoch_batches(0), steps):
        step = worker.step(x, y, 0)
        found.append(([one.collective for one in step.measured], transfer_rows(step.record)))
    return found


def off(gradients):
    gradients.flat[0].mul_(1.01)
    return gradients


def told_within(devices, numel):
    """Return a node's sum at its first device, what all were told, and the bytes of each device."""
    node = NodeRanks(devices)
    own = torch.arange(numel, dtype=torch.float64) + 1000 * node.device
    total = node.sum_at_first(own)
    told = node.from_first(own)
    return total, node.ask(told), node.ask((node.sent, node.received))


def off_by_a_thousandth(gradients):
    """Return gradients in which one entry is a thousandth larger than it should be."""
    value = max(gradients.values.values(), key=lambda value: value.abs().max()).flatten()
    value[value.abs().argmax()] *= 1.001
    return gradients


def held_to_another(steps, settings, wrong):
    """Return the rows of verify.csv where the real side goes wrong in one way."""
    config = Config.of({"device": "cpu", **settings})
    config, _ = broadcast_object(checked(config, steps) if is_rank_zero() else None)
    rows = []
    compare(rows.append, config, steps, functools.partial(Other, wrong))
    return [row for row, _ in rows]


def messages(workers):
    """Return messages of every kind, [W, ...] each."""
    values = torch.randn(workers, 20, generator=torch.Generator().manual_seed(1)).double()
    half = values.half().double()
    one = torch.arange(workers).unsqueeze(1)
    codes = (values * 3).round().clamp(-4, 4).to(torch.int8)
    scales = values.abs().amax(1, keepdim=True).float()
    nobody = torch.zeros(workers, 20, dtype=torch.bool)
    return {
        "dense": Dense.of(values),
        "half": Dense(half, torch.float16),
        "cast": Cast(half, torch.float16),
        "float16": Dense(half.half(), torch.float16),
        "shared": SharedSparse.of(values[:, :5], torch.tensor([1, 3, 9, 4, 2]), 20),
        "shared half": SharedSparse(Dense(half[:, :5], torch.float16), torch.arange(5), 20),
        "sparse": Sparse.of(values[:, :3], torch.tensor([[0, 7, 19]]).expand(workers, -1), 20),
        "unequal": Sparse.where(values > 0.8 * one - 0.5, values),
        "one alone": Sparse.where(nobody | (one == 1), values),
        "nobody": Sparse.where(nobody, values),
        "levels": Levels(codes, scales, torch.float64, None, 4, coding="elias"),
        "signs": Signs(values < 0, scales, torch.float64, None, 1),
    }


def own_rows(message, row):
    """Return one worker's message as its process would have it."""
    header = message.header()
    return type(message).unpack([message.pack(row)], header)


def carried(kind):
    """Return mean and bytes over the group, those of one process, and bytes in collectives."""
    transport = Distributed(len(all_gather_object(None)))
    transport.start_stopwatch()
    message = messages(transport.workers)[kind]
    own = own_rows(message, transport.rank)
    mean = transport.all_reduce_mean(own)
    wanted = InProcess().all_reduce_mean(message)
    sent = all_gather_object(transport.sent)
    put = all_gather_object(sum(one.num_bytes for one in transport.stopwatch.take()))
    return mean, wanted, torch.cat(sent), message.payload_bytes(), put


EXCHANGES = {
    "all_reduce_mean": ("dense",),
    "all_reduce_max": (),
    "vote": ("signs",),
    "gather": ("unequal",),
    "gather_mean": ("levels",),
    "all_to_all_mean": ("levels",),
    "weighted_mean": ("sparse", torch.tensor([0.25, 0.0, 0.75, 0.0])),
    "neighbor_mean": ("unequal", topology("star", 4).at(0)),
    "pass_on": ("unequal", [2, 2, 2, 0]),
}


def counted_twice(name):
    """Return the bytes of each rank's one worker: those in the ledger, and those handed over."""
    transport = Distributed(len(all_gather_object(None)))
    channel = Channel(transport, Ledger(transport.workers), Wire())
    segment = Segment("s", ("s",), (torch.Size([20]),), dense=False)
    if name == "all_reduce_max":
        channel.all_reduce_max(torch.ones(1, 1), segment)
    else:
        kind, *more = EXCHANGES[name]
        message = own_rows(messages(transport.workers)[kind], transport.rank)
        getattr(channel, name)(message, segment, *more)
    counted = channel.ledger.close(0, transport.all_gather_rows).payload
    return counted.tolist(), transport.all_gather_rows(transport.sent).tolist()


def voted():
    """Return the vote of the group, that of one process, and the bytes sent."""
    transport = Distributed(len(all_gather_object(None)))
    message = messages(transport.workers)["signs"]
    vote = transport.vote(own_rows(message, transport.rank))
    return all_gather_object(vote), InProcess().vote(message), int(transport.sent)


def asked():
    """Return the largest number of any rank."""
    transport = Distributed(len(all_gather_object(None)))
    return transport.all_reduce_max(torch.tensor([[float(transport.rank)]]))


def thirty_thousand(dtype):
    """Return the mean over ranks of 30,000, sent in float16, computed in `dtype`."""
    transport = Distributed(len(all_gather_object(None)))
    values = torch.full((1, 3), 30_000.0, dtype=dtype)
    return transport.all_reduce_mean(Dense(values, torch.float16))


def network():
    return batch_norm_mlp(0, nn.Dropout(0.2))


def batches(steps, size=24):
    return toy.batches(steps, size)


def shared_out(workers, settings, partial_sums, state=None):
    """Return a simulator's last record and state after 6 steps, each rank hosting a part."""
    transport = Distributed(workers, partial_sums)
    simulator = Simulator(network(), workers=workers, transport=transport, **settings)
    if state is not None:
        simulator.load_state_dict(state)
    for x, y in batches(6):
        record = simulator.step(x, y, epoch=9)
    return measured(record), simulator.state_dict()


def nonfinite_batches(steps):
    """Return batches of which one worker of eight, the seventh, has one of numbers not finite."""
    drawn = list(batches(steps))
    drawn[3][0][19] = float("inf")
    return drawn


def shared_out_nonfinite(workers, settings):
    """Return what is measured of each of 6 steps, and the state, each rank hosting a part."""
    simulator = Simulator(
        network(), workers=workers, transport=Distributed(workers, True), **settings
    )
    records = [simulator.step(x, y, epoch=9) for x, y in nonfinite_batches(6)]
    return [
        (r.applied, r.nonfinite.tolist(), r.payload_bytes) for r in records
    ], simulator.state_dict()


def measured(record):
    measures = [
        (m.segment.name, m.payload.tolist(), m.entries.tolist(), m.relative_error)
        for m in record.segments
    ]
    return {
        "losses": record.losses,
        "output": record.output,
        "payload": record.payload_bytes,
        "network": record.network_bytes,
        "measures": measures,
    }


def trained(settings):
    """Train with this group as torchrun's; return the folder."""
    return str(train(**settings).folder)


def trained_unalike(settings):
    """Train with another seed on rank 1."""
    rank = Distributed(len(all_gather_object(None))).rank
    return str(train(**settings, seed=rank).folder)


class Hooked:
    """A real training of this group's processes with a communication hook."""

    def __init__(self, model, settings, lr, momentum, bucket_mb):
        self.parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
        self.hook = simsgd.ddp.register(self.parallel, **settings)
        self.optimizer = torch.optim.SGD(model.parameters(), lr, momentum)

    def step(self, x, y):
        rank, ranks = self.hook.transport.rank, self.hook.transport.ranks
        x, y = x.unflatten(0, (ranks, -1))[rank], y.unflatten(0, (ranks, -1))[rank]
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.parallel(x), y).backward()
        self.optimizer.step()


def plain_network():
    """Return a network without what a real training would have of its own."""
    model = network()
    return nn.Sequential(model[0], nn.Tanh(), model[4])


def hooked(settings, momentum, steps=8, stop=None, bucket_mb=25):
    """Return parameters and sent bytes of a real training, stopped and gone on with at `stop`."""
    model = plain_network()
    real = Hooked(model, settings, 0.1, momentum, bucket_mb)
    for number, (x, y) in enumerate(batches(steps)):
        if number == stop:
            states = real.hook.state_dict(), model.state_dict(), real.optimizer.state_dict()
            sent, model = real.hook.sent_bytes, plain_network()
            real = Hooked(model, settings, 0.1, momentum, bucket_mb)
            real.hook.load_state_dict(states[0])
            real.hook.transport.sent += sent
            model.load_state_dict(states[1])
            real.optimizer.load_state_dict(states[2])
        real.step(x, y)
    return [p.detach().clone() for p in model.parameters()], real.hook.sent_bytes


def hooked_unalike(settings):
    """Register a hook with some settings on rank 1 alone."""
    rank = Distributed(len(all_gather_object(None))).rank
    return hooked(settings if rank else {}, 0.0, steps=1)


def messages_of_a_hooked_step(settings):
    """Return the collectives of one backward pass with a communication hook."""
    real = Hooked(plain_network(), settings, 0.1, 0.0, 25)
    real.hook.transport.start_stopwatch()
    real.step(*next(iter(batches(1))))
    return [one.collective for one in real.hook.transport.stopwatch.take()]


def put_variable(put, name):
    """Put what a variable of the environment is, on every rank."""
    put(os.environ.get(name))


def put_pid_and_stay(put):
    """Put the number of this process, and stay."""
    put(os.getpid())
    threading.Event().wait()


def moved(put, size):
    """Put the seconds of every collective with `size` bytes a worker, three times each."""
    transport = Distributed(dist.get_world_size())
    transport.start_stopwatch()
    message = Dense.of(torch.zeros(1, size // 4))
    for _ in range(4):
        transport.all_reduce_mean(message)
        transport.all_gather(message)
        transport.weighted_mean(message, torch.full((4,), 0.25))
        transport.neighbor_mean(message, topology("ring", 4).at(0))
    found = of_all_ranks(all_gather_object(transport.stopwatch.take()))
    if is_rank_zero():
        put(found[len(found) // 4 :])  # the first of each meets buffers that TCP has yet to grow
