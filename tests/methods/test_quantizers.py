import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simsgd.communication import elias_gamma as elias
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, composed
from simsgd.methods.compressors.row_reductions import row_mean, row_norm, row_std, row_sum
from simsgd.methods.memories import Residual
from simsgd.settings import SettingError

from .. import toy

SPECS = [
    "sign",
    "sign:none",
    "sign:zero=keep",
    "sign:none,zero=keep",
    "onebit",
    "terngrad",
    "terngrad:none,pack=base3",
    "qsgd:1",
    "qsgd:15,bucket=32",
    "qsgd:255,norm=max,biased=true",
    "qsgd:4,bucket=7,code=elias",
    "natural",
    "fp16",
    "bf16",
    "int8",
]
UNBIASED = ["terngrad:none", "qsgd:1", "qsgd:4", "qsgd:7,16", "qsgd:3,norm=max", "natural"]
DRAWS, WITHIN = 4000, 5  # WITHIN standard errors of DRAWS


def normal(workers, n, dtype=torch.float32):
    return toy.normal(workers, n, seed=n, dtype=dtype)


def compress(spec, inputs, **known):
    key = RandomKey(0, torch.arange(len(inputs))).fold_in(4, "segment")
    return composed(spec).compress(inputs, {}, StepInfo(key, 4, **known))


def many(spec, x, draws=DRAWS):
    """Return what `draws` workers with the same x [n] send, [draws, n] float64."""
    return compress(spec, x.expand(draws, -1)).to_dense().double()


def quantize(spec, values, counts):
    return composed(spec).quantize(
        values, counts, {}, StepInfo(RandomKey(0, torch.arange(len(values))))
    )


def buffers(message):
    return [message.pack(row) for row in range(len(message.to_dense()))]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_payload_is_the_length_of_a_buffer_that_unpacks(spec, workers):
    for n in (1, 2, 7, 31, 32, 33, 127, 1000):
        for inputs in (normal(workers, n), torch.zeros(workers, n), torch.eye(workers, n) * 1e30):
            message = compress(spec, inputs)
            packed = buffers(message)
            assert [len(b) for b in packed] == message.payload_bytes().tolist()
            back = type(message).unpack(packed, message.header())
            assert torch.equal(back.to_dense(), message.to_dense())
            assert torch.equal(back.payload_bytes(), message.payload_bytes())


@pytest.mark.parametrize("spec", SPECS)
def test_only_the_counted_entries_are_quantized_and_sent(spec):
    counts = torch.tensor([0, 5, 40])
    values = normal(3, 40) * (torch.arange(40) < counts.unsqueeze(1))
    message = quantize(spec, values, counts)
    packed = buffers(message)
    assert [len(b) for b in packed] == message.payload_bytes().tolist()
    assert len(packed[0]) == 0
    back = type(message).unpack(packed, {**message.header(), "counts": counts})
    assert torch.equal(back.to_dense(), message.to_dense())
    alone = composed(spec).quantize(
        values[1:2, :5], None, {}, StepInfo(RandomKey(0, torch.tensor([1])))
    )
    assert torch.equal(message.to_dense()[1, :5], alone.to_dense()[0])
    assert not message.to_dense()[1, 5:].any()


@pytest.mark.parametrize("spec", SPECS)
def test_scales_are_float32_in_a_float64_run(spec):
    message = compress(spec, normal(2, 100, torch.float64))
    assert message.to_dense().dtype == torch.float64
    if "elias" not in spec:
        assert torch.equal(message.payload_bytes(), compress(spec, normal(2, 100)).payload_bytes())
    back = type(message).unpack(buffers(message), message.header())
    assert torch.equal(back.to_dense(), message.to_dense())


@pytest.mark.parametrize("spec", SPECS)
def test_the_wire_does_not_change_what_is_quantized(spec):
    message = compress(spec, normal(2, 100))
    sent = message.on_wire(Wire("float16"))
    assert torch.equal(sent.to_dense(), message.to_dense())
    assert torch.equal(sent.payload_bytes(), message.payload_bytes())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sign", 125 + 4),
        ("sign:none", 125),
        ("onebit", 125 + 8),
        ("terngrad", 250 + 4),
        ("terngrad:pack=base3", 200 + 4),
        ("qsgd:15", 5 * 125 + 4),  # 16 levels and a sign
        ("qsgd:16", 6 * 125 + 4),
        ("qsgd:3,bucket=128", 3 * 125 + 4 * 8),
        ("natural", 1000),
        ("fp16", 2000),
        ("bf16", 2000),
        ("int8", 1000 + 4),
    ],
)
def test_bytes_of_a_thousand_entries(spec, expected):
    assert compress(spec, normal(2, 1000)).payload_bytes().tolist() == [expected] * 2


def test_nine_signs_take_two_bytes():
    assert compress("sign:none", normal(1, 9)).payload_bytes().item() == 2


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec != "sign:none"])
def test_zeros_stay_zeros(spec):
    assert not compress(spec, torch.zeros(2, 50)).to_dense().any()


def test_the_sign_of_zero_is_plus():
    sent = compress("sign", torch.tensor([[0.0, -0.0, 6.0]])).to_dense()
    assert sent.tolist() == [[2.0, 2.0, 2.0]]


def test_onebit_sends_the_means_of_both_kinds():
    sent = compress("onebit", torch.tensor([[-2.0, -4.0, 1.0, 3.0]])).to_dense()
    assert sent.tolist() == [[-3.0, -3.0, 2.0, 2.0]]


def test_error_feedback_keeps_what_signs_lose():
    memory, gradient = Residual(), torch.tensor([[1.0, -3.0]])
    state = memory.init(gradient, dense=False)
    for residual in ([-1.0, -1.0], [-2.0, -2.0]):
        inputs = memory.compensate(gradient, state)
        memory.update(inputs, compress("sign", inputs), state)
        assert state["residual"].tolist() == [residual]


def test_signs_contract_by_the_papers_delta():
    x = normal(5, 1000, torch.float64)
    delta = x.abs().sum(1) ** 2 / (1000 * x.square().sum(1))
    error = (compress("sign", x).to_dense() - x).square().sum(1)
    assert torch.allclose(error, (1 - delta) * x.square().sum(1), rtol=1e-5)


@pytest.mark.parametrize("spec", UNBIASED)
def test_the_mean_over_draws_is_the_input(spec):
    x = normal(1, 64)[0].add(normal(1, 64)[0].sign() * 0.2)  # no entry is too rare to be drawn
    sent = many(spec, x)
    assert not composed(spec).biased
    off = (sent.mean(0) - x).abs()
    assert (off <= WITHIN * sent.std(0) / math.sqrt(DRAWS) + 1e-6).all()


@pytest.mark.parametrize("spec", ["terngrad", "qsgd:4,biased=true", "sign", "int8", "fp16"])
def test_the_others_declare_that_they_are_biased(spec):
    assert composed(spec).biased


def test_terngrad_sends_its_largest_magnitude_or_nothing():
    sent = many("terngrad:none", torch.tensor([0.5, -1.0]))
    assert sent[:, 0].unique().tolist() == [0.0, 1.0]
    assert sent[:, 1].unique().tolist() == [-1.0]


def test_terngrad_clips_at_standard_deviations():
    x = normal(1, 200)
    x[0, 0] = 100.0
    most = 2.5 * x.std(1, correction=0)
    message = compress("terngrad", x)
    assert torch.allclose(message.scales[:, 0], most)
    assert message.to_dense()[0, 0] == message.scales[0, 0]


def test_a_shared_scale_is_the_largest_of_all_workers_and_is_not_sent_again():
    inputs = torch.tensor([[1.0, 0.5], [4.0, 2.0]]).repeat_interleave(DRAWS, 0)
    compressor = composed("terngrad:clip=none,shared_scale=true")
    assert compressor.needs_global_max
    assert compressor.local_max(inputs)[::DRAWS].tolist() == [[1.0], [4.0]]
    largest = compressor.local_max(inputs).amax(0, keepdim=True)
    message = compress("terngrad:clip=none,shared_scale=true", inputs, global_max=largest)
    assert message.payload_bytes()[0] == 1
    assert message.to_dense().unique().tolist() == [0.0, 4.0]
    for sent, x in zip(message.to_dense().double().split(DRAWS), inputs[::DRAWS], strict=True):
        off = (sent.mean(0) - x).abs()
        assert (off <= WITHIN * sent.std(0) / math.sqrt(DRAWS)).all()
    back = type(message).unpack([message.pack(0)], message.header())
    assert torch.equal(back.to_dense(), message.to_dense()[:1])


@pytest.mark.parametrize("levels", [1, 127, 128, 32767, 32768, 1 << 22])
@pytest.mark.parametrize("code", ["fixed", "elias"])
def test_the_highest_level_does_not_wrap(levels, code):
    inputs = torch.eye(2, 3) * torch.tensor([[-7.0], [1e30]])
    message = compress(f"qsgd:{levels},code={code}", inputs)
    assert torch.equal(message.to_dense(), inputs)
    back = type(message).unpack(buffers(message), message.header())
    assert torch.equal(back.codes, message.codes)


@pytest.mark.parametrize("n", [100, 10_000])
@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("levels", [1, 4])
def test_qsgd_keeps_the_bounds_of_its_paper(n, levels, root):
    s = math.isqrt(n) if root else levels
    x = normal(1, n)[0]
    sent = many(f"qsgd:{s}", x, draws=100)
    errors, kept = (sent - x).square().sum(1), (sent != 0).double().sum(1)
    omega = min(n / s**2, math.sqrt(n) / s)
    assert errors.mean() <= omega * x.square().sum()
    assert kept.mean() <= s * (s + math.sqrt(n))


@pytest.mark.parametrize("spec", ["qsgd:1", "qsgd:4", "qsgd:7,16", "qsgd:3,norm=max"])
def test_biased_qsgd_contracts(spec):
    s, n = composed(spec).levels, composed(spec).bucket or 64
    omega = min(n / s**2, math.sqrt(n) / s)
    x = normal(1, 64)[0]
    sent = many(f"{spec},biased=true", x)
    assert (sent - x).square().sum(1).mean() <= (1 - 1 / (1 + omega)) * x.square().sum()
    assert torch.allclose(sent * (1 + omega), many(spec, x), rtol=1e-6)


@pytest.mark.parametrize("n", [100, 10_000])
def test_an_elias_code_is_no_longer_than_the_bound_of_its_paper(n):
    dense = compress(f"qsgd:{math.isqrt(n)},code=elias", normal(50, n))
    assert 8 * dense.payload_bytes().double().mean() <= 2.8 * n + 32
    sparse = compress("qsgd:1,code=elias", normal(50, n))
    kept = 1 + math.sqrt(n)
    bits = (3 + 1.5 * math.log2(2 * (1 + n) / kept)) * kept + 32
    assert 8 * sparse.payload_bytes().double().mean() <= bits


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.just(0), st.integers(-(1 << 22), 1 << 22))))
def test_an_elias_stream_comes_back(numbers):
    row = torch.tensor(numbers, dtype=torch.int64)
    stream = elias.encode(row)
    assert len(stream) == -(-int(elias.num_bits(row.unsqueeze(0))) // 8)
    assert torch.equal(elias.decode(stream, len(row)), row)


def test_natural_has_a_variance_of_an_eighth_at_most():
    x = torch.linspace(1, 2, 101)
    variance = (many("natural", x) - x).square().mean(0) / x.double().square()
    assert 0.115 <= variance.max() <= 0.125 * (1 + WITHIN / math.sqrt(DRAWS))


def test_natural_stops_at_the_ends_of_its_range():
    sent = many("natural", torch.tensor([1e30, -(2.0**18), 1e-45, 2.0**-110, 2.0**-108]))
    assert sent[0].tolist()[:2] == [2.0**18, -(2.0**18)]
    assert not sent[:, 2].any()
    assert sent[:, 3].unique().tolist() == [0.0, 2.0**-108]
    assert abs((sent[:, 3] > 0).double().mean() - 0.25) <= WITHIN * math.sqrt(0.1875 / DRAWS)
    assert sent[:, 4].unique().tolist() == [2.0**-108]


@pytest.mark.parametrize(("spec", "most"), [("fp16", 65504.0), ("bf16", 3.3895313892515355e38)])
def test_a_cast_stops_at_the_largest_number(spec, most):
    assert compress(spec, torch.tensor([[3.4e38, -3.4e38]])).to_dense().tolist() == [[most, -most]]


def test_casts_sum_beyond_their_own_range():
    message = compress("fp16", torch.full((4, 1), 6e4))
    assert message.summable
    assert message.sum().tolist() == [240000.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_has_the_same_sums_wherever_it_stands(dtype):
    x = normal(3, 5000, dtype) * 1e20
    for n in (1, 7, 1000, 1025, 5000):
        part = torch.nn.functional.pad(x[:, :n], (0, 5000 - n))
        alone, entries = x[1:2, :n], torch.full((3, 1), n, dtype=dtype)
        assert torch.equal(row_sum(part)[1:2], row_sum(alone))
        assert torch.equal(row_norm(part)[1:2], row_norm(alone))
        assert torch.equal(row_std(part, entries)[1:2], row_std(alone, entries[:1]))
        mean = row_mean(part.abs(), entries)[1:2]
        assert torch.equal(mean, row_mean(alone.abs(), entries[:1]))
        assert torch.allclose(mean.double(), alone.double().abs().mean(1))
        assert torch.allclose(row_norm(alone).double(), alone.double().norm(dim=1))
        std = alone.double().std(1, correction=0)
        assert torch.allclose(row_std(alone, entries[:1])[0].double(), std)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("sign:scale=max", "scale must be mean, rms or none, got max"),
        ("terngrad:clip=0", "clip must be above 0, or none, got 0"),
        ("terngrad:pack=3bit", "pack must be 2bit or base3, got 3bit"),
        ("terngrad:shared_scale=yes", "shared_scale must be true or false, got yes"),
        ("qsgd", "lacks a value for levels"),
        ("qsgd:0", "levels must be a whole number from 1 to 4194304, got 0"),
        ("qsgd:4,bucket=0", "bucket must be a whole number from 1, or none, got 0"),
        ("qsgd:4,norm=l1", "norm must be l2 or max, got l1"),
        ("qsgd:4,biased=1", "biased must be true or false, got 1"),
        ("qsgd:4,code=huffman", "code must be fixed or elias, got huffman"),
    ],
)
def test_a_setting_out_of_range_is_refused(spec, error):
    name, _, rule = error.partition(" ")
    rule = re.escape(rule.partition(", got")[0])
    with pytest.raises(SettingError, match=rf"{error}|has {name} \S+, which {rule}"):
        composed(spec)


@pytest.mark.cuda
@pytest.mark.parametrize("spec", SPECS)
def test_cuda_sends_what_the_cpu_sends(spec):
    inputs = normal(3, 3000)
    here = compress(spec, inputs)
    step = StepInfo(RandomKey(0, torch.arange(3, device="cuda")).fold_in(4, "segment"), 4)
    there = composed(spec).compress(inputs.cuda(), {}, step)
    assert torch.equal(there.to_dense().cpu(), here.to_dense())
    assert torch.equal(there.payload_bytes().cpu(), here.payload_bytes())
    assert torch.equal(there.pack(1), here.pack(1))
