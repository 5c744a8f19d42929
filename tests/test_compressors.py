import pytest
import torch

from simsgd.compressors.sparsify import TopK, largest
from simsgd.draw import Draw
from simsgd.registry import build
from simsgd.settings import SettingError, count

SPECS = ["none", "topk:0.001", "topk:0.1", "topk:1"]  # the contract table: every compressor
INPUTS = {
    "normal": lambda n: torch.randn(3, n, generator=torch.Generator().manual_seed(n)),
    "zeros": lambda n: torch.zeros(3, n),
    "constant": lambda n: torch.full((3, n), 0.5),
    "outlier": lambda n: torch.eye(3, n) * 1e30,
    "denormal": lambda n: torch.full((3, n), 1e-42),
    "negative": lambda n: -1 - torch.rand(3, n, generator=torch.Generator().manual_seed(n)),
}


def compress(spec, said, workers=(0, 1, 2)):
    compressor = build("compressor", spec)[0]
    draw = Draw(0, torch.tensor(workers)).at(4, "segment")
    return compressor.compress(said, compressor.init(said), draw)


@pytest.fixture(params=SPECS)
def spec(request):
    return request.param


@pytest.fixture(params=[1, 2, 33, 1000])
def n(request):
    return request.param


def test_a_row_does_not_look_at_another(spec, n):
    said = INPUTS["normal"](n)
    together = compress(spec, said).to_dense()
    alone = [compress(spec, said[w : w + 1], workers=[w]).to_dense() for w in range(3)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("kind", INPUTS)
def test_finite_in_finite_out(spec, n, kind):
    assert compress(spec, INPUTS[kind](n)).to_dense().isfinite().all()


def test_what_was_said_stays_unchanged(spec, n):
    said = INPUTS["normal"](n)
    compress(spec, said)
    assert torch.equal(said, INPUTS["normal"](n))


def test_sent_and_kept_add_up_to_what_was_said(spec, n):
    said = INPUTS["normal"](n)
    message = compress(spec, said)
    rest = said.clone()
    message.subtract_from_(rest)
    assert torch.equal(rest + message.to_dense(), said)


def test_the_dtype_is_kept(spec, n):
    assert compress(spec, INPUTS["normal"](n).double()).to_dense().dtype == torch.float64


@pytest.mark.parametrize("ratio", [0.001, 0.1, 0.5, 1.0])
def test_topk_keeps_the_largest_exactly(ratio, n):
    said = INPUTS["normal"](n)
    sent = TopK(ratio).compress(said, {}, Draw(0, torch.arange(3))).to_dense()
    k = count(ratio, n)
    for row, got in zip(said, sent, strict=True):
        wanted = torch.zeros(n)
        order = sorted(range(n), key=lambda i: (-abs(row[i].item()), i))[:k]
        wanted[order] = row[order]
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("kind", ["zeros", "constant"])
def test_of_equal_magnitudes_the_lowest_index_goes(kind, n):
    k = count(0.3, n)
    index = largest(INPUTS[kind](n).abs(), k)
    assert torch.equal(index, torch.arange(k).expand(3, k))


def test_ties_are_settled_row_by_row():
    size = torch.tensor([[1.0, 2, 2, 2, 3], [5, 4, 3, 2, 1], [1, 1, 9, 1, 1]])
    assert largest(size, 3).tolist() == [[1, 2, 4], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("ratio", [0, -1, 1.5, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio):
    with pytest.raises(SettingError, match="ratio must lie in"):
        TopK(ratio)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_selects_as_the_cpu_does(n):
    for make in INPUTS.values():
        size = make(n).abs()
        k = count(0.2, n)
        assert torch.equal(largest(size.cuda(), k).cpu(), largest(size, k))
