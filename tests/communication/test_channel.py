"""Everything that a channel sends is counted once, and seen by its observers."""

import pytest
import torch
from torch import nn

from simsgd import Simulator
from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import Dense, Signs
from simsgd.communication.segments import Segment
from simsgd.communication.topology import topology
from simsgd.communication.transport import Channel, InProcess
from simsgd.communication.wire import Wire

from ..process_group import EXCHANGES, counted_twice, messages

SEGMENT = Segment("s", ("s",), (torch.Size([20]),), dense=False)
MEDIAN = '''
from dataclasses import dataclass

from simsgd.communication.messages import Dense
from simsgd.methods.algorithms import GradientAlgorithm


@dataclass(frozen=True)
class Median(GradientAlgorithm):
    """Each worker passes its message on; a server takes the median and sends it back."""

    parameters_per_worker = False

    def gradients(self, compensated, context, own=None):
        channel, segment = context.channel, context.segment
        passed_on = channel.relay(context.compress(compensated), segment)
        sent, rows = channel.gather(passed_on, segment)
        median = rows.median(0, keepdim=True).values
        return sent, channel.broadcast(Dense.of(median), segment)[1]
'''


def observed(send, workers=4, wire=None):
    """Return the ledger's transfers, and what an observer saw, of what `send(channel)` sends."""
    seen = []
    observers = [lambda transfer, message: seen.append((transfer, message))]
    channel = Channel(InProcess(), Ledger(workers), wire or Wire(), observers)
    send(channel)
    return channel.ledger.transfers, seen


def sending(name, workers=4):
    """Return a call of the channel's method `name` with messages of all workers."""
    kinds = messages(workers)
    arguments = {
        "vote": (kinds["signs"], SEGMENT),
        "all_reduce_max": (torch.ones(workers, 1), SEGMENT),
        "broadcast": (Dense.of(torch.ones(1, 20)), SEGMENT),
        "count_broadcast": (torch.ones(20), SEGMENT),
        "neighbor_mean": (kinds["sparse"], SEGMENT, topology("ring", workers).at(0)),
        "swap": (torch.ones(workers, 2, 10), SEGMENT, topology("ring", workers).at(0)),
        "pass_on": (kinds["sparse"], SEGMENT, [1, 2, 3, 0]),
        "weighted_mean": (kinds["sparse"], SEGMENT, torch.tensor([0.5, 0, 0.5, 0])),
    }
    return lambda channel: getattr(channel, name)(*arguments.get(name, (kinds["sparse"], SEGMENT)))


METHODS = [n for n, f in vars(Channel).items() if callable(f) and not n.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_all_that_is_counted_is_seen_by_observers_in_that_order(name):
    transfers, seen = observed(sending(name))
    assert len(transfers) > 0
    assert all(one is other for one, (other, _) in zip(transfers, seen, strict=True))


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"count_broadcast"}))
def test_observers_see_the_message_whose_bytes_are_counted(name):
    (transfer, message), *_ = observed(sending(name))[1]
    counted = transfer.payload[transfer.payload > 0]  # of weight 0 nothing is sent
    assert counted.tolist() == message.payload_bytes().expand(4)[: len(counted)].tolist()


def test_observers_see_messages_as_they_arrive():
    value = torch.full((4, 20), 1 / 3)
    _, seen = observed(lambda c: c.all_reduce_mean(Dense.of(value), SEGMENT), wire=Wire("float16"))
    assert torch.equal(seen[0][1].values, value.half().float())


def test_only_the_size_of_a_votes_outcome_is_seen():
    _, seen = observed(sending("vote"))
    assert isinstance(seen[0][1], Signs)
    assert (seen[1][0].payload.tolist(), seen[1][1]) == ([3] * 4, None)


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("kind", sorted(messages(4)))
@pytest.mark.parametrize("wire", [Wire(), Wire("bfloat16", "packed"), Wire("float16", "gap16")])
def test_a_message_that_has_arrived_can_be_sent_on_as_it_is(kind, wire):
    once = messages(4)[kind].on_wire(wire)
    again = once.on_wire(wire)
    assert [again.pack(row).tolist() for row in range(4)] == [
        once.pack(row).tolist() for row in range(4)
    ]


def test_a_new_kind_of_exchange_is_counted_and_seen(tmp_path):
    (tmp_path / "mine.py").write_text(MEDIAN)
    seen = []
    simulator = Simulator(
        nn.Linear(4, 2, bias=False),
        workers=3,
        lr=0.1,
        algorithm=f"{tmp_path / 'mine.py'}:Median",
        compressor="topk:0.5",
        observers=[lambda transfer, message: seen.append((transfer, message))],
    )
    record = simulator.step(torch.randn(6, 4), torch.zeros(6, dtype=torch.long))
    assert [(t.collective, t.direction) for t, _ in seen] == [
        ("neighbours", "up"),
        ("gather", "up"),
        ("broadcast", "down"),
    ]
    assert [message.payload_bytes().tolist() for _, message in seen] == [[32] * 3, [32] * 3, [32]]
    assert record.payload_bytes == [64] * 3  # 4 values and 4 places of 8, twice
    assert record.bytes.downlink.tolist() == [32] * 3


@pytest.mark.distributed
@pytest.mark.parametrize("name", EXCHANGES)
def test_ranks_hand_over_the_bytes_that_the_ledger_counts(four_ranks, name):
    ledger, sent = four_ranks(counted_twice, name)
    assert ledger == sent
    assert sum(sent) > 0
