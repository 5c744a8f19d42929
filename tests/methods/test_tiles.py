"""Tiles, cosines, tables of means and the mean over senders, against plain loops."""

import math

import pytest
import torch
from scipy.fft import dctn

from simsgd import SettingError
from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import Sparse
from simsgd.communication.segments import Segment
from simsgd.communication.tiles import Tiling
from simsgd.communication.transport import Channel, InProcess
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.aggregations import aggregation_of
from simsgd.methods.compressors import StepInfo, composed
from simsgd.registry import build

from ..toy import normal

MATRIX = (128, 256)


def compressed(spec, x, shape=MATRIX):
    compressor = composed(spec).for_shape(shape)
    step = StepInfo(RandomKey(0, torch.arange(len(x))).fold_in(0, "segment"))
    return compressor.compress(x, compressor.init(x), step)


@pytest.mark.parametrize(
    ("shape", "side", "tiles"),
    [((128, 256), 64, (2, 64, 4, 64)), ((128,), 64, (1, 1, 2, 64)), ((66, 128), 64, (2, 33, 2, 64)),
     ((8, 3, 3, 3), 64, (1, 8, 1, 27)), ((7, 67), 64, (1, 7, 67, 1)), ((), 64, (1, 1, 1, 1))],
)  # fmt: skip
def test_sides_of_a_tile_are_the_largest_divisors(shape, side, tiles):
    tiling = Tiling.of(shape, side)
    assert (tiling.down, tiling.height, tiling.across, tiling.width) == tiles


@pytest.mark.parametrize("cosines", [False, True])
@pytest.mark.parametrize("shape", [(12, 20), (30,), (4, 3, 5)])
def test_tiles_join_to_what_was_split_and_keep_its_norm(shape, cosines):
    tiling = Tiling.of(shape, 8, cosines)
    x = normal(3, math.prod(shape), dtype=torch.float64)
    tiles = tiling.split(x)
    torch.testing.assert_close(tiling.join(tiles), x, rtol=0, atol=1e-13)
    torch.testing.assert_close(tiles.flatten(1).norm(dim=1), x.norm(dim=1), rtol=1e-13, atol=0)


def test_tiles_hold_the_cosines_that_scipy_computes():
    tiling, x = Tiling.of((12, 20), 5, cosines=True), normal(2, 240, dtype=torch.float64)
    tiles = tiling.split(x).view(2, tiling.down, tiling.across, tiling.height, tiling.width)
    matrix = x.view(2, 12, 20)
    for i in range(tiling.down):
        for j in range(tiling.across):
            part = matrix[:, 4 * i : 4 * i + 4, 5 * j : 5 * j + 5].numpy()
            wanted = torch.from_numpy(dctn(part, axes=(1, 2), norm="ortho"))
            torch.testing.assert_close(tiles[:, i, j], wanted, rtol=0, atol=1e-13)


def test_cosines_in_float32_come_back_to_six_digits():
    tiling, x = Tiling.of(MATRIX, 64, cosines=True), normal(2, 128 * 256)
    assert float((tiling.join(tiling.split(x)) - x).abs().max()) < 1e-6 * float(x.abs().max())


def test_the_largest_of_each_tile_go():
    x = normal(2, 240, dtype=torch.float64)
    sent = compressed("tiled_topk:3,tile=5", x, (12, 20)).to_dense().view(2, 12, 20)
    wanted = torch.zeros(2, 12, 20, dtype=torch.float64)
    for w in range(2):
        for i in range(0, 12, 4):
            for j in range(0, 20, 5):
                tile = x.view(2, 12, 20)[w, i : i + 4, j : j + 5]
                bar = tile.abs().flatten().sort(descending=True).values[2]
                wanted[w, i : i + 4, j : j + 5] = tile * (tile.abs() >= bar)
    assert torch.equal(sent, wanted)


@pytest.mark.parametrize("basis", ["none", "dct"])
def test_a_worker_among_others_sends_what_it_sends_alone(basis):
    x = normal(3, 128 * 256)
    spec = f"tiled_topk:32,basis={basis}"
    alone = torch.cat([compressed(spec, row.unsqueeze(0)).to_dense() for row in x])
    assert torch.equal(compressed(spec, x).to_dense(), alone)


@pytest.mark.parametrize(
    ("spec", "shape", "coding", "size"),
    [
        ("tiled_topk:64+bins:2", (128, 256), "packed", 896 + 20),  # 8 tiles x 64 x 14 bits; a table
        ("tiled_topk:32,basis=dct", (128, 256), "int64", 3072),  # as DeMo's code sends it
        ("tiled_topk:32,basis=dct", (128, 256), "packed", 8 * 32 * 4 + 384),  # 12 bits an index
        ("tiled_topk:32,basis=dct", (128,), "int64", 768),  # more than the 512 of the tensor
        ("e3m0", (128, 256), "int32", 128 * 256 // 2 + 4),
        ("bins:8", (128, 256), "int32", 128 * 256 + 4 * 257),
    ],
)
def test_bytes_are_those_of_the_papers(spec, shape, coding, size):
    x = normal(1, math.prod(shape))
    assert compressed(spec, x, shape).on_wire(Wire(None, coding)).payload_bytes().tolist() == [size]


@pytest.mark.parametrize("coding", ["int32", "int64", "packed", "gap16"])
@pytest.mark.parametrize("spec", ["tiled_topk:9,basis=dct", "tiled_topk:9+bins:2"])
def test_tiles_come_back_from_their_buffers(spec, coding):
    x = normal(2, 128 * 256)
    message = compressed(spec, x).on_wire(Wire(None, coding))
    buffers = [message.pack(row) for row in range(2)]
    back = type(message).unpack(buffers, message.header())
    assert torch.equal(back.to_dense(), message.to_dense())
    assert back.explained(0) == message.explained(0)


def test_what_was_sent_of_the_cosines_is_gone_from_the_rest():
    x = normal(2, 240, dtype=torch.float64)
    message = compressed("tiled_topk:3,tile=5,basis=dct", x, (12, 20))
    taken, cleared = x.clone(), x.clone()
    message.subtract_from_(taken)
    message.clear_(cleared)
    torch.testing.assert_close(taken, cleared, rtol=0, atol=1e-14)
    left = Tiling.of((12, 20), 5, cosines=True).split(taken).flatten(1)
    assert float(left.gather(1, message.index).abs().max()) < 1e-14


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_bins_are_those_of_a_plain_loop(bits):
    x, bins = normal(1, 200, dtype=torch.float64), 2**bits
    x[0, :3] = torch.tensor([40.0, -40.0, 0.0])
    shift = float(x.mean().float())
    width = 6 * math.sqrt(sum((float(v) - shift) ** 2 for v in x[0]) / 199) / bins
    codes = [min(max(round((float(v) - shift) / width + bins // 2), 0), bins - 1) for v in x[0]]
    means = {
        c: sum(float(v) - shift for v, own in zip(x[0], codes, strict=True) if own == c)
        / codes.count(c)
        for c in codes
    }
    message = compressed(f"bins:{bits}", x, (200,))
    assert message.codes[0].tolist() == codes
    wanted = torch.tensor([shift + means[c] for c in codes], dtype=torch.float64)
    torch.testing.assert_close(message.to_dense()[0], wanted, rtol=1e-6, atol=1e-6)


def test_e3m0_takes_the_nearest_of_its_fifteen_numbers():
    x = torch.cat([normal(1, 100), torch.tensor([[3.0, -3.0, 0.0, 3 / 128.1, 3 / 127.9]])], 1)
    peak = float(x.abs().max())
    numbers = torch.tensor([0.0] + [s * peak * 2.0**-e for e in range(7) for s in (1, -1)])
    nearest = numbers[(x[0].unsqueeze(1) - numbers).abs().argmin(1)]
    assert torch.equal(compressed("e3m0", x, (105,)).to_dense()[0], nearest)


def exchanged(rule, message):
    segment = Segment("segment", ("segment",), (torch.Size((message.n,)),), dense=False)
    channel = Channel(InProcess(), Ledger(len(message.index)), Wire())
    return aggregation_of(rule).aggregate(message, segment, channel, False)[1]


def test_an_entry_of_one_worker_moves_by_its_full_value_among_senders():
    message = Sparse.of(torch.tensor([[2.0, 4.0], [6.0, -8.0]]), torch.tensor([[0, 2], [2, 3]]), 5)
    assert exchanged("mean", message).tolist() == [1, 0, 5, -4, 0]
    assert exchanged("senders", message).tolist() == [2, 0, 5, -8, 0]
    assert exchanged("senders:sign=true", message).tolist() == [1, 0, 1, -1, 0]


def test_senders_of_padded_rows_are_those_that_sent():
    x = torch.tensor([[3.0, 0.1, -2.0, 0.1], [0.1, 0.1, 4.0, 0.1]])
    assert exchanged("senders", compressed("threshold:1", x, (4,))).tolist() == [3, 0, 1, 0]


def test_the_mean_of_cosines_is_over_those_who_sent_each():
    x = normal(3, 240, dtype=torch.float64)
    message = compressed("tiled_topk:6,tile=5,basis=dct", x, (12, 20))
    tiling = Tiling.of((12, 20), 5, cosines=True)
    tiles = tiling.split(x).flatten(1)
    total, count = torch.zeros(240, dtype=torch.float64), torch.zeros(240, dtype=torch.float64)
    for row, places in zip(tiles, message.index, strict=True):
        for place in places.tolist():
            total[place] += row[place]
            count[place] += 1
    mean = (total / count.clamp(min=1)).view(1, tiling.tiles, tiling.size)
    got = exchanged("senders", message)
    torch.testing.assert_close(got, tiling.join(mean)[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("spec", "rule"),
    [("tiled_topk:0", "from 1 to"), ("tiled_topk:4,tile=129", "from 1 to 128"),
     ("tiled_topk:4,basis=fourier", "none or dct"), ("bins:1", "from 2 to 8"),
     ("bins:9", "from 2 to 8")],
)  # fmt: skip
def test_wrong_settings_are_refused(spec, rule):
    with pytest.raises(SettingError, match=rule):
        composed(spec)


@pytest.mark.parametrize(
    "name", ["Adam", "Adagrad", "NAdam", "RMSprop", "AdamW", "SGD", "Rprop", "ASGD"]
)
def test_an_outer_optimizer_of_torch_is_that_of_torch(name):
    anchor = torch.linspace(-1, 1, 6, dtype=torch.float64).view(1, 6)
    wanted = torch.nn.Parameter(anchor.clone())
    more = {"momentum": 0.9} if name == "SGD" else {}
    plain = getattr(torch.optim, name)([wanted], lr=0.03, **more)
    outer = build("outer_optimizer", f"torch:name={name},lr=0.03")[0].filled(0.7, 0.9)
    state = outer.init(anchor)
    forms = dict.fromkeys(outer.init(torch.empty(1, 6, device="meta")), anchor.shape)
    for step in range(5):
        gradient = torch.sin(torch.arange(6, dtype=torch.float64) + step)
        wanted.grad = gradient.clone().view(1, 6)
        plain.step()
        outer.step(anchor, gradient, state)
        assert {key: t.shape for key, t in state.items()} == forms  # as a checkpoint must have them
    assert torch.equal(anchor, wanted)


@pytest.mark.parametrize(
    ("spec", "rule"),
    [("torch:name=Muon", "is not known, got Muon"), ("torch:name=SGD,beta1=0.5", "which SGD lacks"),
     ("torch:name=Adam,beta1=1.5", "is refused: Invalid beta"), ("torch:lr=0", "greater than 0")],
)  # fmt: skip
def test_an_outer_optimizer_that_torch_refuses_is_refused(spec, rule):
    with pytest.raises(SettingError, match=rule):
        build("outer_optimizer", spec)
