import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simsgd import compiled_loops
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, composed
from simsgd.methods.compressors.topk import TopK
from simsgd.methods.compressors.topk_selection import largest
from simsgd.registry import names
from simsgd.settings import INDEX_CODINGS, SettingError, count

SPECS = [  # the contract table: every compressor
    "none",
    "topk:0.001",
    "topk:0.1",
    "topk:1",
    "randomk:0.1",
    "randomk:0.5",
    "randomk:0.1,shared=true",
    "randomk:0.1,scale=true",
    "block:0.1",
    "turns:0.1",
    "turns:0.1,fresh=true",
    "threshold:0.5",
    "adaptive_threshold",
    "sampled_topk:0.1",
    "sampled_topk:0.1,resample=false,strided=false",
    "adacomp",
    "adacomp:7,variant=values",
    "variance",
    "sign",
    "sign:none",
    "sign:rms",
    "tiled_topk:3,tile=8",
    "tiled_topk:3,tile=8,basis=dct",
    "bins:2",
    "e3m0",
    "sign:zero=keep",
    "sign:none,zero=keep",
    "onebit",
    "terngrad",
    "terngrad:none,pack=base3",
    "qsgd:4",
    "qsgd:255,bucket=128,norm=max",
    "qsgd:4,bucket=7,biased=true",
    "qsgd:1,code=elias",
    "natural",
    "fp16",
    "bf16",
    "int8",
    "topk:0.1+terngrad",
    "randomk:0.1,shared=true+fp16",
    "threshold:0.5+qsgd:4,bucket=8",
    "adacomp:7+sign",
    "tiled_topk:3,tile=8+bins:2",
    "tiled_topk:3,tile=8,basis=dct+bins:8",
    "threshold:0.5+bins:3",
]
INPUTS = {
    "normal": lambda n: torch.randn(3, n, generator=torch.Generator().manual_seed(n)),
    "zeros": lambda n: torch.zeros(3, n),
    "constant": lambda n: torch.full((3, n), 0.5),
    "outlier": lambda n: torch.eye(3, n) * 1e30,
    "denormal": lambda n: torch.full((3, n), 1e-42),
    "negative": lambda n: -1 - torch.rand(3, n, generator=torch.Generator().manual_seed(n)),
}


def compress(spec, inputs, workers=(0, 1, 2)):
    compressor = composed(spec)
    key = RandomKey(0, torch.tensor(workers)).fold_in(4, "segment")
    step = StepInfo(key, 4, gradient=inputs / 2, squares=inputs.abs() / 2)
    return compressor.compress(inputs, compressor.init(inputs), step)


@pytest.fixture(params=SPECS)
def spec(request):
    return request.param


@pytest.fixture(params=[1, 2, 33, 1000])
def n(request):
    return request.param


@pytest.mark.quick_cases(90)
def test_a_row_does_not_look_at_another(spec, n):
    inputs = INPUTS["normal"](n)
    together = compress(spec, inputs).to_dense()
    alone = [compress(spec, inputs[w : w + 1], workers=[w]).to_dense() for w in range(3)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.quick_cases(135)
@pytest.mark.parametrize("kind", INPUTS)
def test_finite_in_finite_out(spec, n, kind):
    assert compress(spec, INPUTS[kind](n)).to_dense().isfinite().all()


def test_the_input_stays_unchanged(spec, n):
    inputs = INPUTS["normal"](n)
    compress(spec, inputs)
    assert torch.equal(inputs, INPUTS["normal"](n))


def test_sent_and_kept_add_up_to_the_input(spec, n):
    inputs = INPUTS["normal"](n)
    message = compress(spec, inputs)
    rest = inputs.clone()
    message.subtract_from_(rest)
    atol = 1e-6 * float(inputs.abs().max() + message.to_dense().abs().max())
    torch.testing.assert_close(rest + message.to_dense(), inputs, rtol=0, atol=atol)


@pytest.mark.quick_cases(60)
def test_the_payload_is_the_buffer_and_the_buffer_the_message(spec, n):
    for coding in INDEX_CODINGS:
        message = compress(spec, INPUTS["normal"](n)).on_wire(Wire(None, coding))
        buffers = [message.pack(row) for row in range(3)]
        assert [len(buffer) for buffer in buffers] == message.payload_bytes().tolist()
        back = type(message).unpack(buffers, message.header())
        assert torch.equal(back.to_dense(), message.to_dense())


@pytest.mark.quick_cases(30)
def test_the_dtype_is_kept(spec, n):
    assert compress(spec, INPUTS["normal"](n).double()).to_dense().dtype == torch.float64


@pytest.mark.quick_cases(60)
def test_a_template_says_the_form_of_what_a_message_stands_for(spec, n):
    message = compress(spec, INPUTS["normal"](n).double())
    template, dense = message.template, message.to_dense()
    assert (template.shape, template.dtype) == (dense.shape, dense.dtype)
    assert template.device == dense.device


def test_every_compressor_is_in_the_table():
    listed = {part.partition(":")[0] for spec in SPECS for part in spec.split("+")}
    files_of_their_own = {"grace", "powersgd", "dion", "dion2"}  # test_adapters.py, ...
    assert set(names("compressor")) - listed == files_of_their_own


def test_a_probe_is_the_message_of_one_worker(spec):
    message = composed(spec).probe((4, 6))
    assert message.to_dense().shape == (1, 24)
    assert len(message.pack(0)) == int(message.payload_bytes())


def test_compressing_leaves_nothing_of_the_step_in_the_state(spec, n):
    inputs, compressor = INPUTS["normal"](n), composed(spec)
    state = compressor.init(inputs)
    before = set(state)
    key = RandomKey(0, torch.arange(3)).fold_in(4, "segment")
    compressor.compress(
        inputs, state, StepInfo(key, 4, gradient=inputs / 2, squares=inputs.abs() / 2)
    )
    assert set(state) == before


@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.5, 1.0])
def test_topk_keeps_the_largest_exactly(ratio, n):
    inputs = INPUTS["normal"](n)
    sent = TopK(ratio).compress(inputs, {}, StepInfo(RandomKey(0, torch.arange(3)))).to_dense()
    k = count(ratio, n)
    for row, got in zip(inputs, sent, strict=True):
        wanted = torch.zeros(n)
        order = sorted(range(n), key=lambda i: (-abs(row[i].item()), i))[:k]
        wanted[order] = row[order]
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("kind", ["zeros", "constant"])
def test_of_equal_magnitudes_the_lowest_index_goes(kind, n):
    k = count(0.3, n)
    index = largest(INPUTS[kind](n), k)
    assert torch.equal(index, torch.arange(k).expand(3, k))


def test_ties_are_settled_row_by_row():
    size = torch.tensor([[1.0, 2, 2, 2, 3], [5, 4, 3, 2, 1], [1, 1, 9, 1, 1]])
    assert largest(size, 3).tolist() == [[1, 2, 4], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("ratio", [0, -1, 1.5, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio):
    with pytest.raises(SettingError, match="ratio must lie in"):
        TopK(ratio)


@pytest.mark.cuda
def test_cuda_selects_as_the_cpu_does(n):
    for make in INPUTS.values():
        size = make(n)
        k = count(0.2, n)
        assert torch.equal(largest(size.cuda(), k).cpu(), largest(size, k))


def by_sorting(x, k):
    """Return the k largest of each row by a stable sort of all: the obvious way."""
    return x.abs().sort(dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values


@pytest.fixture(params=[False, True], ids=["numpy", "numba"])
def either_form(request):
    """Let inner loops run in either form."""
    with compiled_loops.switched(request.param):
        yield


@pytest.mark.usefixtures("either_form")
@pytest.mark.parametrize("n", [32_768, 100_003])
@pytest.mark.parametrize("k", [1, 33, 900])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_looking_at_few_finds_the_same_as_sorting_all(n, k, dtype):
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(k), dtype=dtype)
    assert torch.equal(largest(x, k), by_sorting(x, k))
    rounded = (x * 20).round()  # many ties
    assert torch.equal(largest(rounded, k), by_sorting(rounded, k))


@pytest.mark.usefixtures("either_form")
@pytest.mark.parametrize("k", [1, 50])
def test_rows_that_mislead_a_sample_are_searched_whole(k):
    n = 40_000
    x = torch.zeros(4, n)
    x[0, ::5] = 9.0  # what a stride may hit
    x[1, 17] = 1.0
    x[2] = torch.arange(n, 0, -1)
    assert torch.equal(largest(x, k), by_sorting(x, k))


@pytest.mark.usefixtures("either_form")
@pytest.mark.parametrize("n", [1, 2, 65, 1000, 40_000])
def test_whatever_the_magnitudes_the_same_are_found(n):
    x = torch.randn(6, n, generator=torch.Generator().manual_seed(n))
    x[1] = x[1].mul(9).exp()  # of all magnitudes
    x[2], x[3] = x[2].round(), 0.0  # many ties, nothing but ties
    x[4] *= 1e-42  # subnormal
    x[5, n // 2] = torch.inf
    for k in {1, min(n, 3), -(-n // 7), -(-n // 2), n}:
        assert torch.equal(largest(x, k), by_sorting(x, k))


@pytest.mark.usefixtures("either_form")
def test_a_view_into_a_wider_buffer_is_searched_as_it_is():
    wide = torch.randn(3, 90_000, generator=torch.Generator().manual_seed(0))
    view = wide[:, 1000:80_000]
    assert torch.equal(largest(view, 40), by_sorting(view, 40))


@pytest.mark.usefixtures("either_form")
def test_what_is_no_number_is_largest_to_a_sample_and_reaches_no_bar():
    x = torch.randn(2, 40_000, generator=torch.Generator().manual_seed(0))
    x[0, 0] = torch.nan  # which a sample has
    x[1, 17], x[1, 39_999] = torch.inf, -torch.inf
    index = largest(x, 30)
    assert index[0, 0] == 0
    assert largest(x[:, :9], 3)[0, 0] == 0
    assert torch.equal(index[1:], by_sorting(x[1:], 30))


SPARSIFIERS = [
    "topk:0.1", "randomk:0.3", "randomk:0.3,shared=true", "block:0.2", "threshold:0.8",
    "adaptive_threshold", "sampled_topk:0.2", "adacomp:5", "tiled_topk:2,tile=5",
]  # fmt: skip
QUANTIZERS = [
    "sign", "sign:none", "onebit", "terngrad", "terngrad:pack=base3", "qsgd:3", "qsgd:3,code=elias",
    "qsgd:3,bucket=4", "natural", "fp16", "bf16", "int8",
    "bins:2", "e3m0",
]  # fmt: skip
PAIRS = [f"{first}+{second}" for first in SPARSIFIERS for second in QUANTIZERS]


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    spec=st.sampled_from(SPECS + PAIRS),
    n=st.sampled_from([1, 2, 7, 31, 32, 33, 127, 1000]),
    workers=st.sampled_from([1, 3]),
    kind=st.sampled_from(list(INPUTS)),
    coding=st.sampled_from(["int32", "int64", "packed", "gap16"]),
)
def test_every_composition_packs_to_its_payload_and_back(spec, n, workers, kind, coding):
    inputs = INPUTS[kind](n)[:workers]
    message = compress(spec, inputs, workers=range(workers)).on_wire(Wire(None, coding))
    buffers = [message.pack(row) for row in range(workers)]
    assert [len(buffer) for buffer in buffers] == message.payload_bytes().tolist()
    back = type(message).unpack(buffers, message.header())
    assert torch.equal(back.to_dense(), message.to_dense())
    assert message.to_dense().isfinite().all()
