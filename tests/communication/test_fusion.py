import pytest
import torch

from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import Dense, Sparse
from simsgd.communication.segments import Segment
from simsgd.communication.topology import topology
from simsgd.communication.transport import Channel, InProcess, fused
from simsgd.communication.wire import Wire

W = 4
VALUES = torch.arange(12.0).view(W, 3)


class Fusing(InProcess):
    """Fuses as real ranks do, and keeps the calls."""

    fuses = True

    def __init__(self):
        self.calls = []

    def all_reduce_mean(self, message):
        self.calls.append(("all_reduce_mean", message.to_dense().shape[1]))
        return super().all_reduce_mean(message)

    def all_reduce_max(self, numbers):
        self.calls.append(("all_reduce_max", numbers.shape[1]))
        return super().all_reduce_max(numbers)

    def swap(self, message, mixing):
        self.calls.append(("swap", message.to_dense().shape[1]))
        return super().swap(message, mixing)


def segment(name):
    return Segment(name, (name,), (torch.Size([3]),), dense=False)


def exchanged(transport, *exchanges):
    """Return what exchanges return that go side by side, and what they do one after the other."""
    alone = Channel(InProcess(), Ledger(W), Wire())
    channel = Channel(transport, Ledger(W), Wire())
    return fused(channel, exchanges), [exchange(alone) for exchange in exchanges]


def summed(name, times=1.0):
    return lambda channel: channel.all_reduce_mean(Dense.of(VALUES * times), segment(name))[1]


def gathered(channel):
    index = torch.tensor([[0, 2]]).expand(W, 2)
    return channel.all_reduce_mean(Sparse.of(VALUES[:, :2], index, 3), segment("sparse"))[1]


def in_two_rounds(channel):
    largest = channel.all_reduce_max(VALUES, segment("rounds"))
    return channel.all_reduce_mean(Dense.of(VALUES + largest), segment("rounds"))[1]


def test_what_waits_for_the_same_collective_is_one_message():
    transport = Fusing()
    found, wanted = exchanged(transport, summed("a"), gathered, summed("b", 2), gathered)
    assert all(map(torch.equal, found, wanted))
    assert transport.calls == [("all_reduce_mean", 6), ("all_reduce_mean", 6)]


def test_sums_wait_for_those_that_come_later():
    transport = Fusing()
    found, wanted = exchanged(transport, summed("a"), in_two_rounds, in_two_rounds)
    assert all(map(torch.equal, found, wanted))
    assert transport.calls == [("all_reduce_max", 6), ("all_reduce_mean", 9)]


@pytest.mark.parametrize("transport", [Fusing, InProcess])
def test_an_iterator_of_exchanges_may_go_by_what_is_sent(transport):
    channel = Channel(transport(), Ledger(W), Wire())

    def if_any_is_sent(first):
        yield first
        if channel.ledger.transfers:
            yield summed("b")

    assert fused(channel, if_any_is_sent(lambda own: None)) == [None]
    assert [own.tolist() for own in fused(channel, if_any_is_sent(summed("a")))] == [
        VALUES.mean(0).tolist()
    ] * 2
    if transport is Fusing:
        assert channel.transport.calls == [("all_reduce_mean", 6)]


@pytest.mark.parametrize(("most", "calls"), [(12, [6]), (11, [3, 3])])
def test_sums_ride_along_where_that_is_said_of_their_bytes(most, calls):
    transport = Fusing()
    transport.rides = lambda carriers, size: carriers == ("all-gather",) and size <= most
    found, wanted = exchanged(transport, summed("a"), gathered)
    assert all(map(torch.equal, found, wanted))
    assert transport.calls == [("all_reduce_mean", n) for n in calls]


def test_nothing_rides_along_in_a_later_round():
    def then_gathered(channel):
        channel.all_reduce_max(VALUES, segment("rounds"))
        return gathered(channel)

    transport = Fusing()
    transport.rides = lambda carriers, size: True
    exchanged(transport, summed("a"), then_gathered)
    assert transport.calls == [
        ("all_reduce_max", 3),
        ("all_reduce_mean", 3),
        ("all_reduce_mean", 3),
    ]


def test_values_for_each_neighbor_go_side_by_side():
    mixing, transport = topology("star", W).at(0), Fusing()

    def swapped(width):
        values = torch.arange(W * 3 * width, dtype=torch.float32).view(W, 3, width)
        return lambda channel: channel.swap(values, segment("s"), mixing)[2]

    found, wanted = exchanged(transport, swapped(2), swapped(5))
    assert all(map(torch.equal, found, wanted))
    assert transport.calls == [("swap", 3 * 7)]


def test_dtypes_are_not_mixed():
    transport = Fusing()
    doubles = lambda channel: channel.all_reduce_mean(Dense.of(VALUES.double()), segment("d"))[1]  # noqa: E731
    found, _ = exchanged(transport, summed("a"), doubles)
    assert [own.dtype for own in found] == [torch.float32, torch.float64]
    assert len(transport.calls) == 2


def test_every_segment_is_counted():
    channel = Channel(Fusing(), Ledger(W), Wire())
    fused(channel, [summed("a"), summed("b")])
    assert [(t.segment, t.payload.tolist()) for t in channel.ledger.transfers] == [
        ("a", [12] * W),
        ("b", [12] * W),
    ]


def test_when_one_exchange_fails_all_end():
    ended = []

    def waits(channel):
        try:
            return summed("a")(channel)
        finally:
            ended.append("waits")

    def fails(channel):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        exchanged(Fusing(), waits, fails, waits)
    assert ended == ["waits"]
    found, wanted = exchanged(Fusing(), summed("a"), summed("b"))
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("kept", [True, False])
def test_an_exchange_keeps_a_graph_where_one_is_kept(kept):
    def exchange(channel):
        summed("a")(channel)
        return torch.is_grad_enabled()

    with torch.set_grad_enabled(kept):
        assert exchanged(Fusing(), exchange, exchange)[0] == [kept, kept]


def test_an_exchange_has_as_many_threads_as_its_caller_has_now():
    before = torch.get_num_threads()

    def asked(channel):
        summed("a")(channel)
        return torch.get_num_threads()

    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            assert exchanged(Fusing(), *[asked] * 8)[0] == [threads] * 8
    finally:
        torch.set_num_threads(before)
