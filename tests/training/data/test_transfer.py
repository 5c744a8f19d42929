"""Batches on their way to a GPU: the same ones in the same order, copied while others are used."""

import pytest
import torch
from torch.utils.data import TensorDataset

from simsgd.training.data import transfer
from simsgd.training.data.own import own_dataset
from simsgd.training.data.transfer import Lane, on_device


@pytest.fixture
def log(monkeypatch):
    """What a lane does, in order, in the place of a GPU."""
    done = []

    class Logged:
        def __init__(self, device):
            done.append(f"lane to {device}")

        def send(self, batch):
            done.append(f"send {batch}")
            return batch

        def receive(self, sent):
            done.append(f"receive {sent}")
            return sent

    monkeypatch.setattr(transfer, "Lane", Logged)
    return done


def read(n, done):
    for batch in range(n):
        done.append(f"read {batch}")
        yield batch


def used(batches, done):
    for batch in batches:
        done.append(f"use {batch}")


def test_what_is_read_here_is_read_once_the_step_before_is_queued(log):
    used(on_device(read(2, log), "cuda:1"), log)
    each = [[f"{what} {n}" for what in ("read", "send", "receive", "use")] for n in range(2)]
    assert log == ["lane to cuda:1", *each[0], *each[1]]


def test_what_others_read_ahead_is_sent_before_the_batch_before_it_is_used(log):
    used(on_device(read(3, log), "cuda", ahead=True), log)
    sent = [f"{what} {n}" for n in range(3) for what in ("read", "send")]
    last = [f"{what} {n}" for n in range(3) for what in ("receive", "use")]
    assert log == ["lane to cuda", *sent[:4], *last[:2], *sent[4:], *last[2:]]
    assert list(on_device([], "cuda", ahead=True)) == []


@pytest.mark.parametrize("ahead", [False, True])
def test_on_a_cpu_batches_come_as_they_are_when_they_are_asked_for(log, ahead):
    leaf, made = torch.ones(2), []
    batches = on_device(((leaf, {"y": leaf}) for _ in read(2, made)), "cpu", ahead)
    x, y = next(batches)
    assert x is leaf
    assert y["y"] is leaf
    assert (made, log) == (["read 0"], [])


def pairs():
    data = TensorDataset(torch.arange(24.0).view(12, 2), torch.arange(12) % 3)
    return [(x + torch.rand(2), int(y)) for x, y in data]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("start", [0, 1, 3])
def test_a_gpus_batches_are_those_of_a_cpu_from_anywhere_on(start):
    train = own_dataset("mine", (pairs(), pairs())).train
    indices = torch.randperm(12, generator=torch.Generator().manual_seed(0)).view(4, 3)
    wanted = [*train.batches(indices)][start:]
    got = [*train.to("cuda").batches(indices[start:])]
    assert train.streamed
    assert len(got) == len(wanted) == 4 - start
    for (x, y), (other_x, other_y) in zip(got, wanted, strict=True):
        assert torch.equal(x, other_x)
        assert torch.equal(y, other_y)


def test_a_lane_copies_from_pinned_memory_and_the_step_waits_for_its_arrival(monkeypatch):
    done = []

    class Stream:
        def record_event(self):
            done.append("record")
            return "arrived"

        def wait_event(self, event):
            done.append(f"wait until {event}")

    class OnGpu(torch.Tensor):
        def record_stream(self, stream):
            done.append(f"kept for {type(stream).__name__}")

    class OnHost(torch.Tensor):
        def pin_memory(self):
            done.append("pin")
            return self

        def to(self, device, non_blocking):
            done.append(f"copy to {device}, {non_blocking}")
            return self.as_subclass(OnGpu)

    class Entered:
        def __init__(self, stream):
            pass

        def __enter__(self):
            done.append("beside")

        def __exit__(self, *raised):
            pass

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "stream", Entered)
    lane = Lane("cuda:0")
    sent = lane.send((torch.ones(1).as_subclass(OnHost), {"y": torch.ones(2).as_subclass(OnHost)}))
    copies = ["pin", "copy to cuda:0, True"]
    assert done == ["beside", *copies, *copies, "record"]
    done.clear()
    x, y = lane.receive(sent)
    assert done == ["wait until arrived", "kept for Stream", "kept for Stream"]
    assert (len(x), len(y["y"])) == (1, 2)


@pytest.mark.cuda
@pytest.mark.parametrize("ahead", [False, True])
def test_batches_arrive_whole_on_a_gpu_that_is_at_work(ahead):
    host = [(torch.full((1 << 20,), float(n)), {"y": torch.tensor([n])}) for n in range(8)]
    work = torch.ones(2048, 2048, device="cuda")
    for n, (x, y) in enumerate(on_device(iter(host), "cuda", ahead)):
        work = work @ work / 2048
        assert x.sum().item() == n * len(x)
        assert y["y"].tolist() == [n]
