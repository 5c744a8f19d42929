"""Indices as 16-bit run lengths, with entries of value zero in gaps that are longer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simsgd.communication.messages import Dense, Sparse
from simsgd.communication.messages.signs import Signs
from simsgd.communication.messages.ternary import Ternary
from simsgd.communication.wire import LONGEST_GAP, Wire
from simsgd.settings import SettingError

N = 700_000
GAP16 = Wire(None, "gap16")


def message(rows, n=N):
    """Return the message of values place + 1 at the places of each row."""
    mask = torch.zeros(len(rows), n, dtype=torch.bool)
    for row, places in zip(mask, rows, strict=True):
        row[torch.tensor(places, dtype=torch.int64)] = True
    return Sparse.where(mask, torch.arange(1.0, n + 1).expand(len(rows), n)).on_wire(GAP16)


def uniform_message(places, inner=None, n=N):
    """Return the message of one row whose number of entries all workers know."""
    index = torch.tensor([places])
    whole = Sparse(inner or Dense.of(index + 1.0), index, n)
    return whole.on_wire(GAP16)


def entries(places):
    """Return how many entries the buffer has, by the obvious loop."""
    number, at = 0, -1
    for place in places:
        while place - at > 65536:
            number, at = number + 1, at + 65536
        number, at = number + 1, place
    return number


def check(sent, rows):
    buffers = [sent.pack(row) for row in range(len(rows))]
    wanted = [4 + (2 + 4) * entries(places) for places in rows]
    assert sent.payload_bytes().tolist() == wanted
    assert [len(buffer) for buffer in buffers] == wanted
    back = Sparse.unpack(buffers, sent.header())
    assert torch.equal(back.to_dense(), sent.to_dense())
    assert torch.equal(back.payload_bytes(), sent.payload_bytes())


@pytest.mark.parametrize(
    ("places", "fillers"),
    [
        ([0], 0),
        ([65535], 0),
        ([65536], 1),
        ([0, 65536], 0),
        ([0, 65537], 1),
        ([3, 3 + 5 * 65536], 4),
        ([N - 1], 10),
        ([], 0),
    ],
)
def test_a_gap_longer_than_65535_takes_fillers(places, fillers):
    assert entries(places) == len(places) + fillers
    check(message([places]), [places])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sets(st.integers(0, N - 1), max_size=6).map(sorted), min_size=1, max_size=3))
def test_rows_of_any_places_come_back(rows):
    check(message(rows), rows)


def test_fillers_are_part_of_the_bytes_and_of_nothing_else():
    sent, x = message([[N - 1], [5]]), torch.ones(2, N)
    sent.clear_(x)
    assert (x == 0).nonzero().tolist() == [[0, N - 1], [1, 5]]
    assert sent.counts.tolist() == [1, 1]
    rest = torch.zeros(2, N)
    sent.subtract_from_(rest)
    assert torch.equal(rest, -sent.to_dense())


def test_where_all_rows_have_k_entries_a_count_is_sent_only_if_fillers_may_be():
    places = [1, 100]
    assert uniform_message(places, n=LONGEST_GAP).payload_bytes().tolist() == [2 * 6]
    assert uniform_message(places, n=LONGEST_GAP + 1).payload_bytes().tolist() == [4 + 2 * 6]


def test_fillers_carry_values_in_the_form_of_the_wire():
    index = torch.tensor([[N - 1]])
    sent = Sparse.of(torch.ones(1, 1), index, N).on_wire(Wire("float16", "gap16"))
    assert sent.payload_bytes().tolist() == [4 + 11 * (2 + 2)]
    back = Sparse.unpack([sent.pack(0)], sent.header())
    assert torch.equal(back.to_dense(), sent.to_dense())


def test_values_of_three_kinds_have_room_for_fillers():
    codes, scale = torch.tensor([[1, -1, 1]], dtype=torch.int8), torch.tensor([[0.5]])
    inner = Ternary(codes, scale, torch.float32, None, coding="2bit")
    sent = uniform_message([7, 300_000, 300_001], inner)
    assert sent.payload_bytes().tolist() == [4 + 2 * 7 + 4 + 2]
    back = Sparse.unpack([sent.pack(0)], sent.header())
    assert torch.equal(back.to_dense(), sent.to_dense())


def signs():
    codes, scale = torch.tensor([[True, False]]), torch.tensor([[0.5]])
    return Signs(codes, scale, torch.float32, None, num_scales=1)


def test_one_bit_has_room_for_none():
    sent = uniform_message([7, 300_000], signs())
    with pytest.raises(SettingError, match=r"cannot be gap16 .* which Signs has no room for"):
        sent.payload_bytes()


def test_one_bit_goes_where_no_gap_can_be_too_long():
    sent = uniform_message([7, 65535], signs(), n=65536)
    assert sent.payload_bytes().tolist() == [2 * 2 + 4 + 1]
    back = Sparse.unpack([sent.pack(0)], sent.header())
    assert torch.equal(back.to_dense(), sent.to_dense())
