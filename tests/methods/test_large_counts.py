"""Bytes and indices beyond 32 bits.

Letters: W workers, n elements of one segment.
"""

import pytest
import torch

from simsgd.communication.ledger import Ledger, Transfer
from simsgd.communication.messages import Sparse
from simsgd.communication.wire import Wire, check_index_width, index_bits
from simsgd.results.tables import STEP_COLUMNS, append_rows, read_table
from simsgd.settings import SettingError

HUGE = 2**41 + 1


@pytest.mark.parametrize(
    ("collective", "each"),
    [
        ("all-reduce", 6 * HUGE),
        ("all-gather", 12 * HUGE),
        ("all-to-all", 3 * HUGE),
        ("gather", 3 * HUGE),
    ],
)
def test_the_ledger_counts_past_2_to_the_40_exactly(collective, each):
    ledger = Ledger(workers=4)
    for segment in ("a", "b"):
        payload = torch.full((4,), HUGE, dtype=torch.int64)
        ledger.add(Transfer(segment, "up", collective, payload))
    counted = ledger.close(dense=2 * HUGE)
    assert counted.payload.tolist() == [2 * HUGE] * 4
    assert int(counted.network) == 2 * each
    assert counted.network.dtype == torch.int64


def test_a_copy_for_each_neighbor_is_counted_past_2_to_the_40():
    ledger = Ledger(workers=2)
    payload, degree = torch.full((2,), HUGE, dtype=torch.int64), torch.tensor([3, 5])
    ledger.add(Transfer("a", "up", "neighbours", payload, degree))
    assert int(ledger.close(dense=HUGE).network) == 8 * HUGE


def test_tables_keep_large_counts_as_they_are(tmp_path):
    row = {name: HUGE if kind == "int64" else 0.5 for name, kind in STEP_COLUMNS.items()}
    append_rows(tmp_path / "steps.csv", [row], STEP_COLUMNS)
    table = read_table(tmp_path / "steps.csv", STEP_COLUMNS)
    assert table["payload_bytes"].tolist() == [HUGE]


def message(n):
    return Sparse.of(torch.ones(1, 2), torch.tensor([[0, n - 1]]), n)


def test_int32_indices_are_refused_above_2_to_the_31_and_packed_ones_take_over():
    assert message(2**31).on_wire(Wire(None, "int32")).payload_bytes().tolist() == [16]
    with pytest.raises(
        SettingError, match="cannot index 2147483649 elements, got int32; use packed"
    ):
        message(2**31 + 1).on_wire(Wire(None, "int32"))
    packed = message(2**31 + 1).on_wire(Wire(None, "packed"))
    assert packed.payload_bytes().tolist() == [len(packed.pack(0))] == [2 * 4 + 8]
    back = Sparse.unpack([packed.pack(0)], packed.header())
    assert back.index.tolist() == packed.index.tolist()


@pytest.mark.parametrize("coding", ["int64", "packed", "gap16"])
def test_other_indices_have_no_such_width(coding):
    check_index_width(2**40, coding)
    assert index_bits("packed", 2**40) == 40
