from dataclasses import dataclass

import pytest
import torch

from simsgd.communication.messages import Dense, SharedSparse, Sparse
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import Quantizer, StepInfo, composed
from simsgd.methods.compressors.compose import Composed
from simsgd.methods.compressors.topk import TopK
from simsgd.settings import SettingError

from .. import toy

SPARSIFIERS = ["topk:0.1", "randomk:0.1", "randomk:0.1,shared=true", "threshold:1.5"]
QUANTIZERS = [
    "sign",
    "sign:zero=keep",
    "onebit",
    "terngrad",
    "qsgd:4,bucket=8",
    "natural",
    "fp16",
    "int8",
]
STEP = StepInfo(RandomKey(0, torch.arange(3)).fold_in(4, "segment"), 4)


def normal(n):
    return toy.normal(3, n, seed=n)


def compress(spec, x, state=None):
    compressor = composed(spec)
    return compressor.compress(x, compressor.init(x) if state is None else state, STEP)


@dataclass(frozen=True)
class Counter(Quantizer):
    """Sends all, and counts its calls in a new tensor each time."""

    biased = False

    def init(self, like):
        return {"calls": torch.zeros(len(like))}

    def quantize(self, values, counts, state, step):
        state["calls"] = state["calls"] + 1
        return Dense(values, values.dtype, counts)


@pytest.fixture(params=[f"{s}+{q}" for s in SPARSIFIERS for q in QUANTIZERS])
def spec(request):
    return request.param


@pytest.mark.quick_cases(60)
@pytest.mark.parametrize("n", [1, 2, 7, 33, 1000])
def test_the_payload_is_the_length_of_a_buffer_that_unpacks(spec, n):
    for wire in (Wire(), Wire("float16", "packed")):
        message = compress(spec, normal(n)).on_wire(wire)
        packed = [message.pack(row) for row in range(3)]
        assert [len(b) for b in packed] == message.payload_bytes().tolist()
        back = type(message).unpack(packed, message.header())
        assert torch.equal(back.to_dense(), message.to_dense())
        assert torch.equal(back.payload_bytes(), message.payload_bytes())


def test_what_was_not_selected_is_not_sent(spec):
    x = normal(200)
    message = compress(spec, x)
    rest = torch.ones_like(x)
    message.clear_(rest)
    assert 0 < (rest == 0).sum() < x.numel()
    assert not message.to_dense()[rest != 0].any()


def test_the_selected_values_are_quantized_by_themselves():
    message = compress("topk:0.1+sign", normal(200))
    chosen = normal(200).abs().topk(20, dim=1).values
    assert torch.allclose(message.values.abs(), chosen.mean(1, keepdim=True).expand(3, 20))
    assert torch.equal(message.values.sign(), normal(200).gather(1, message.index).sign())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("topk:0.01+qsgd:127", 10 * 4 + 10 + 4),  # an index and a byte each, one scale
        ("topk:0.01+terngrad", 10 * 4 + 3 + 4),
        ("randomk:0.01,shared=true+sign", 2 + 4),
    ],
)
def test_bytes_of_ten_of_a_thousand(spec, expected):
    assert compress(spec, normal(1000)).payload_bytes().tolist() == [expected] * 3


def test_a_row_that_selects_nothing_sends_its_count_alone():
    x = normal(100)
    x[1] = 0.0
    message = compress("threshold:1.5+sign", x)
    assert message.payload_bytes()[1] == 4
    assert not message.to_dense()[1].any()


def test_shared_places_sum_if_the_values_do():
    summable = {
        q: compress(f"randomk:0.1,shared=true+{q}", normal(50)).summable for q in QUANTIZERS
    }
    assert [q for q in summable if summable[q]] == ["fp16"]
    assert isinstance(compress("randomk:0.1,shared=true+sign", normal(50)), SharedSparse)
    assert isinstance(compress("topk:0.1+fp16", normal(50)), Sparse)


@pytest.mark.parametrize("quantizer", ["terngrad", "qsgd:4", "natural", "int8"])
def test_long_gaps_are_filled_with_zeros(quantizer):
    x = torch.zeros(3, 200_000)
    x[:, [5, 199_999]] = torch.tensor([1.0, -2.0])
    message = compress(f"topk:0.00001+{quantizer}", x).on_wire(Wire(None, "gap16"))
    packed = [message.pack(row) for row in range(3)]
    assert [len(b) for b in packed] == message.payload_bytes().tolist()
    back = type(message).unpack(packed, message.header())
    assert torch.equal(back.to_dense(), message.to_dense())


@pytest.mark.parametrize("quantizer", ["sign", "qsgd:4,bucket=8"])
def test_a_form_without_room_for_fillers_is_refused(quantizer):
    x = torch.zeros(3, 200_000)
    x[:, 199_999] = 1.0
    message = compress(f"topk:0.00001+{quantizer}", x).on_wire(Wire(None, "gap16"))
    with pytest.raises(SettingError, match="index_dtype cannot be gap16"):
        message.payload_bytes()


def test_it_is_biased_if_a_part_is():
    assert composed("topk:0.1+natural").biased
    assert composed("randomk:0.1,scale=true+sign").biased
    assert not composed("randomk:0.1,scale=true+natural").biased


def test_one_part_is_itself():
    assert composed("topk:0.1") == TopK(0.1)


def test_the_parts_draw_apart():
    compressor, x = composed("randomk:0.5+natural"), normal(100)
    message = compressor.compress(x, {}, STEP)
    alone = composed("randomk:0.5").compress(x, {}, STEP.with_key(0))
    assert torch.equal(message.index, alone.index)
    sent = compressor.quantizer.quantize(alone.values, None, {}, STEP.with_key(1))
    assert torch.equal(message.values, sent.to_dense())


def test_the_parts_keep_states_apart():
    compressor = Composed(TopK(0.1), Counter())
    state = compressor.init(normal(20))
    for _ in range(2):
        compressor.compress(normal(20), state, STEP)
    assert list(state) == ["1.calls"]
    assert state["1.calls"].tolist() == [2, 2, 2]


def test_the_parts_are_fitted():
    @dataclass(frozen=True)
    class Fitted(Counter):
        shape: tuple = ()

        def for_shape(self, shape):
            return Fitted(tuple(shape))

    assert Composed(TopK(0.1), Fitted()).for_shape([3, 4]).quantizer.shape == (3, 4)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("sign+topk:0.1", "must end with its quantizer"),
        ("topk:0.1+sign+terngrad", "must end with its quantizer"),
        ("topk:0.1+randomk:0.1", "must end with a quantizer"),
        ("topk:0.1+none", "must end with a quantizer"),
        ("none+sign", "has a first part that selects no entries to quantize"),
        ("powersgd:2+sign", "has a first part that selects no entries to quantize"),
        ("topk:0.1+terngrad:shared_scale=true", "cannot share a scale"),
    ],
)
def test_what_may_not_follow_is_refused(spec, error):
    with pytest.raises(SettingError, match=f"compressor {error}") as refused:
        composed(spec)
    assert spec in str(refused.value)


def test_a_method_of_ones_own_that_selects_nothing_is_refused():
    with pytest.raises(SettingError, match="cannot quantize what Counter sends"):
        Composed(Counter(), Counter()).compress(normal(9), {"0.calls": 0, "1.calls": 0}, STEP)
