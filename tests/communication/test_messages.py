import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simsgd.communication.cuts import Cuts
from simsgd.communication.messages import Dense, Joined, Places, SharedSparse, Sparse
from simsgd.communication.messages.joined import dense_group
from simsgd.communication.wire import Wire, index_bits, pack_bits, unpack_bits
from simsgd.settings import SettingError

from ..toy import normal

SIZES = [1, 2, 7, 31, 32, 33, 127, 1000]
WIRES = [
    Wire(value, index)
    for value in (None, "float64", "float32", "float16", "bfloat16")
    for index in ("int32", "int64", "packed")
]


def sparse(workers, n, k, seed=0, dtype=torch.float32):
    whole = normal(workers, n, seed, dtype)
    generator = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randperm(n, generator=generator)[:k] for _ in range(workers)])
    index = index.sort(1).values
    return Sparse.of(whole.gather(1, index), index, n)


def messages(workers, n):
    return [Dense.of(normal(workers, n)), sparse(workers, n, 1), sparse(workers, n, (n + 1) // 2)]


def every_message():
    for n in SIZES:
        for workers in (1, 3):
            for message in messages(workers, n):
                for wire in WIRES:
                    yield message.on_wire(wire)


def test_the_payload_is_the_length_of_the_buffer():
    for message in every_message():
        buffers = [message.pack(row) for row in range(len(message.to_dense()))]
        assert [len(buffer) for buffer in buffers] == message.payload_bytes().tolist()
        assert all(buffer.dtype == torch.uint8 for buffer in buffers)


def test_unpacking_gives_the_message_back():
    for message in every_message():
        buffers = [message.pack(row) for row in range(len(message.to_dense()))]
        back = type(message).unpack(buffers, message.header())
        assert torch.equal(back.to_dense(), message.to_dense())
        assert torch.equal(back.payload_bytes(), message.payload_bytes())


def test_a_template_has_the_form_of_what_a_message_stands_for():
    cuts = Cuts((40, 5))
    for message in (
        Joined.of(cuts, [sparse(3, 40, 8), Dense.of(normal(3, 5))]),
        dense_group(cuts, Dense.of(normal(3, 45))),
        Places(torch.tensor([[1, 4]] * 3), 45, torch.float32),
        SharedSparse.of(normal(3, 2), torch.tensor([1, 4]), 45),
    ):
        assert message.template.shape == message.to_dense().shape == (3, 45)
        assert message.template.dtype == message.to_dense().dtype == torch.float32


def test_a_message_arrives_rounded_to_its_wire_dtype():
    message = Dense.of(normal(2, 50)).on_wire(Wire("float16"))
    assert torch.equal(message.to_dense(), normal(2, 50).half().float())


def test_subtracting_what_was_sent_leaves_the_rest_and_the_rounding_error():
    for message in (Dense.of(normal(3, 40)), sparse(3, 40, 8)):
        sent = message.on_wire(Wire("bfloat16"))
        rest = normal(3, 40)
        sent.subtract_from_(rest)
        assert torch.equal(rest + sent.to_dense(), normal(3, 40))
        assert rest.abs().sum() > 0


def test_a_sparse_message_clears_what_it_sends_and_nothing_else():
    message, x = sparse(2, 30, 5), torch.ones(2, 30)
    message.clear_(x)
    assert torch.equal(x == 0, message.to_dense() != 0)


def test_a_dense_message_selects_nothing():
    x = torch.ones(2, 30)
    Dense.of(normal(2, 30)).clear_(x)
    assert torch.equal(x, torch.ones(2, 30))


def test_the_sum_is_over_workers():
    for message in (Dense.of(normal(4, 25)), sparse(4, 25, 9)):
        assert torch.allclose(message.sum(), message.to_dense().sum(0), atol=1e-6)


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (Wire(), 10 * (4 + 4)),
        (Wire("float16"), 10 * (2 + 4)),
        (Wire("float32", "int64"), 10 * (4 + 8)),
        (Wire("float16", "packed"), 10 * 2 + 13),  # 10 indices below 1000, 10 bits each
    ],
)
def test_bytes_of_ten_entries_among_a_thousand(wire, expected):
    assert sparse(2, 1000, 10).on_wire(wire).payload_bytes().tolist() == [expected] * 2


def test_an_index_of_one_element_takes_no_bits():
    assert index_bits("packed", 1) == 0
    assert sparse(1, 1, 1).on_wire(Wire(None, "packed")).payload_bytes().item() == 4


def test_large_indices_survive():
    n = 70_000
    message = Sparse.of(torch.ones(1, 2), torch.tensor([[5, n - 1]]), n)
    for wire in WIRES:
        sent = message.on_wire(wire)
        assert torch.equal(Sparse.unpack([sent.pack(0)], sent.header()).index, message.index)


def test_int32_refuses_more_elements_than_it_can_index():
    message = Sparse.of(torch.ones(1, 1), torch.tensor([[2**31]]), 2**31 + 1)
    with pytest.raises(SettingError, match="index_dtype cannot index 2147483649 elements"):
        message.on_wire(Wire())
    assert message.on_wire(Wire(None, "packed")).payload_bytes().item() == 4 + 4


@settings(max_examples=50, deadline=None)
@given(st.data(), st.integers(0, 40))
def test_bits_come_back(data, width):
    top = (1 << width) - 1
    numbers = torch.tensor(data.draw(st.lists(st.integers(0, top))), dtype=torch.int64)
    packed = pack_bits(numbers, width)
    assert len(packed) == -(-len(numbers) * width // 8)
    assert torch.equal(unpack_bits(packed, width, len(numbers)), numbers)


@pytest.mark.parametrize("wrong", [{"value_dtype": "int8"}, {"index_dtype": "int16"}])
def test_an_unknown_form_is_refused(wrong):
    with pytest.raises(SettingError, match="must be one of"):
        Wire(**wrong)
