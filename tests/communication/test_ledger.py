import torch

from simsgd.communication.ledger import Ledger, StepBytes, Transfer
from simsgd.communication.topology import topology


def network(collective, payload, workers):
    transfer = Transfer("s", "up", collective, torch.tensor(payload))
    return transfer.on_network(workers).item()


def test_a_ring_all_reduce_sends_twice_the_buffer_less_one_share():
    assert network("all-reduce", [1000] * 4, 4) == 4 * 1500


def test_an_all_gather_brings_each_buffer_to_every_other_worker():
    assert network("all-gather", [1000] * 4, 4) == 4 * 3000
    assert network("all-gather", [10, 0, 2], 3) == 2 * 12


def test_of_an_all_to_all_a_worker_keeps_its_own_part():
    assert network("all-to-all", [1000] * 4, 4) == 4 * 750


def test_a_single_worker_sends_nothing():
    for collective in ("all-reduce", "all-gather", "all-to-all"):
        assert network(collective, [1000], 1) == 0
        assert on_links(collective, [1000]) == ([0], [0])


def test_the_parts_of_a_step_add_up_by_worker():
    ledger = Ledger(workers=2)
    ledger.add(Transfer("a", "up", "all-gather", torch.tensor([8, 16])))
    ledger.add(Transfer("b", "up", "all-reduce", torch.tensor([100, 100])))
    closed = ledger.close(dense=400)
    assert (closed.payload.tolist(), closed.network.item(), closed.dense) == ([108, 116], 224, 400)
    assert ledger.transfers == []


def test_bytes_are_counted_past_two_to_the_fortieth():
    assert network("all-gather", [2**41] * 64, 64) == 63 * 64 * 2**41


def on_links(collective, payload, **more):
    payload = torch.tensor(payload)
    return StepBytes(payload, payload, payload.sum(), 0, [
        Transfer("s", "up", collective, payload, **more)
    ]).on_links()  # fmt: skip


def test_every_worker_of_a_ring_receives_what_it_sends():
    assert on_links("all-reduce", [1000] * 4) == ([1500] * 4, [1500] * 4)


def test_a_worker_receives_all_buffers_but_its_own_and_passes_on_all_but_its_neighbors():
    assert on_links("all-gather", [10, 0, 2]) == ([12, 10, 2], [2, 12, 10])
    assert on_links("all-gather", [8000] * 16)[1] == [120_000] * 16


def test_each_worker_of_an_all_to_all_receives_a_part_of_the_others_buffers():
    assert on_links("all-to-all", [1000] * 4) == ([750] * 4, [750] * 4)
    assert on_links("all-to-all", [9, 0, 3]) == ([6, 0, 2], [1, 4, 3])


def test_what_goes_to_or_from_a_server_passes_its_link():
    assert on_links("gather", [100, 10, 5]) == ([0, 10, 5], [15, 0, 0])
    assert on_links("broadcast", [7, 7, 7]) == ([14, 0, 0], [0, 7, 7])


def test_a_worker_receives_what_its_neighbors_send():
    star = topology("star", 4).at(0)  # worker 0 in the middle
    found = on_links("neighbours", [100, 1, 2, 3], degree=star.degree, links=star.links)
    assert found == ([300, 1, 2, 3], [6, 100, 100, 100])


def test_a_step_without_transfers_moves_nothing():
    assert Ledger(2).close(8).on_links() == ([0, 0], [0, 0])
