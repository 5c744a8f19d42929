import torch

from simsgd.communication.ledger import Ledger, Transfer


def network(collective, payload, workers):
    transfer = Transfer("s", "up", collective, torch.tensor(payload))
    return transfer.on_network(workers).item()


def test_a_ring_all_reduce_sends_twice_the_buffer_less_one_share():
    assert network("all-reduce", [1000] * 4, 4) == 4 * 1500


def test_an_all_gather_brings_each_buffer_to_every_other_worker():
    assert network("all-gather", [1000] * 4, 4) == 4 * 3000
    assert network("all-gather", [10, 0, 2], 3) == 2 * 12


def test_a_single_worker_sends_nothing():
    assert network("all-reduce", [1000], 1) == network("all-gather", [1000], 1) == 0


def test_the_parts_of_a_step_add_up_by_worker():
    ledger = Ledger(workers=2)
    ledger.add(Transfer("a", "up", "all-gather", torch.tensor([8, 16])))
    ledger.add(Transfer("b", "up", "all-reduce", torch.tensor([100, 100])))
    closed = ledger.close(dense=400)
    assert (closed.payload.tolist(), closed.network.item(), closed.dense) == ([108, 116], 224, 400)
    assert ledger.transfers == []


def test_bytes_are_counted_past_two_to_the_fortieth():
    assert network("all-gather", [2**41] * 64, 64) == 63 * 64 * 2**41
