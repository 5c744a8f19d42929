import numpy as np
import pytest
import torch
from torch import Tensor

from simsgd.communication.ledger import Ledger
from simsgd.communication.messages import Foreign
from simsgd.communication.segments import Segment
from simsgd.communication.transport import Channel, InProcess
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.adapters import grace
from simsgd.methods.algorithms import AllReduce, ExchangeContext
from simsgd.methods.compressors import StepInfo
from simsgd.methods.compressors.none import NoCompression
from simsgd.registry import build
from simsgd.settings import SettingError

from .. import toy


class Strongest:
    """Without state: the values and int64 places of the k largest."""

    def __init__(self, k=3):
        self.k = k

    def compress(self, tensor, name):
        flat = tensor.flatten()
        index = flat.abs().topk(self.k).indices
        return [flat[index], index], tensor.shape

    def decompress(self, tensors, ctx):
        values, index = tensors
        return torch.zeros(ctx.numel()).scatter_(0, index, values).view(ctx)


class Bytes:
    """One int8 an entry and a float32; a tuple, as some return."""

    def compress(self, tensor, name):
        scale = tensor.abs().max() / 127
        return (torch.round(tensor / scale).to(torch.int8), scale), tensor.shape

    def decompress(self, tensors, ctx):
        return (tensors[0].float() * tensors[1]).view(ctx)


class Delta:
    """With state: sends the change since its last call for this name."""

    def __init__(self):
        self.last = {}
        self.shapes = []

    def compress(self, tensor, name):
        self.shapes.append((name, tuple(tensor.shape)))
        change = tensor - self.last.get(name, torch.zeros_like(tensor))
        self.last[name] = tensor
        return [change], None

    def decompress(self, tensors, ctx):
        return tensors[0]


class Coin:
    """Draws from the global generator, and reseeds it."""

    def compress(self, tensor, name):
        noise = torch.rand(tensor.shape)
        torch.manual_seed(7)
        return noise, None

    def decompress(self, tensors, ctx):
        assert isinstance(tensors, Tensor)
        return tensors


class Spoiler(Strongest):
    """Writes into its argument."""

    def compress(self, tensor, name):
        sent = super().compress(tensor, name)
        tensor.zero_()
        return sent


class Kept:
    """A memory: what was not sent is added to the next."""

    def __init__(self):
        self.residual = {}

    def compensate(self, tensor, name):
        return tensor + self.residual.get(name, 0)

    def update(self, tensor, name, compressor, tensor_compressed, ctx):
        self.residual[name] = tensor - compressor.decompress(tensor_compressed, ctx)


SHAPE, N = (3, 4), 12
OBJECTS = [Strongest(), Bytes(), Delta(), Coin(), Spoiler()]
EACH = pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: type(thing).__name__)


def normal(seed=0, workers=3):
    return toy.normal(workers, N, seed)


def step_of(step=0, workers=(0, 1, 2), segment="layer.weight"):
    key = RandomKey(0, torch.tensor(workers)).fold_in(step, segment)
    return StepInfo(key, step, segment=segment)


def started(thing, memory=None, workers=3):
    compressor = grace(thing, memory).for_shape(SHAPE)
    return compressor, compressor.init(torch.empty(workers, N))


def compress(thing, x, workers=(0, 1, 2)):
    compressor, state = started(thing, workers=len(x))
    return compressor.compress(x, state, step_of(workers=workers))


def test_the_object_decides_what_arrives():
    x = normal()
    sent = compress(Strongest(), x).to_dense()
    least = x.abs().topk(3).values[:, -1:]
    assert torch.equal(sent, torch.where(x.abs() >= least, x, 0.0))


@pytest.mark.parametrize(
    ("thing", "size"),
    [(Strongest(), 3 * 4 + 3 * 8), (Bytes(), N + 4), (Delta(), N * 4), (Coin(), N * 4)],
)
def test_bytes_are_those_of_the_tensors_it_returns(thing, size):
    assert compress(thing, normal()).payload_bytes().tolist() == [size] * 3


@EACH
def test_a_buffer_has_the_length_that_is_counted(thing):
    message = compress(thing, normal())
    buffers = [message.pack(row) for row in range(3)]
    assert [len(buffer) for buffer in buffers] == message.payload_bytes().tolist()
    assert all(buffer.dtype == torch.uint8 for buffer in buffers)


@EACH
def test_unpacking_gives_the_message_back(thing):
    message = compress(thing, normal())
    buffers = [message.pack(row) for row in range(3)]
    back = Foreign.unpack(buffers, message.header())
    assert torch.equal(back.to_dense(), message.to_dense())
    assert torch.equal(back.payload_bytes(), message.payload_bytes())


def test_the_memory_of_a_tensor_is_sent_as_it_lies():
    message = compress(Bytes(), normal())
    values, scale = message.tensors[0]
    wanted = values.flatten().numpy().tobytes() + scale.numpy().tobytes()
    assert message.pack(0).numpy().astype(np.uint8).tobytes() == wanted


@EACH
def test_a_row_does_not_look_at_another(thing):
    x = normal()
    together = compress(thing, x).to_dense()
    alone = [compress(thing, x[w : w + 1], [w]).to_dense() for w in range(3)]
    assert torch.equal(together, torch.cat(alone))


@EACH
def test_the_input_stays_unchanged(thing):
    x = normal()
    compress(thing, x)
    assert torch.equal(x, normal())


@EACH
def test_the_global_generator_goes_on_as_if_nothing_was_drawn(thing):
    before = torch.random.get_rng_state()
    compress(thing, normal())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_its_draws_follow_run_step_worker_and_segment():
    compressor, state = started(Coin())
    first = compressor.compress(normal(), state, step_of(0)).to_dense()
    second = compressor.compress(normal(), state, step_of(1)).to_dense()
    again = compress(Coin(), normal()).to_dense()
    assert torch.equal(first, again)
    assert len({tuple(row) for row in torch.cat([first, second]).tolist()}) == 6


def test_each_worker_has_an_instance_that_remembers():
    compressor, state = started(Delta())
    fed = [normal(seed) for seed in range(3)]
    sent = [compressor.compress(g, state, step_of(t)).to_dense() for t, g in enumerate(fed)]
    assert torch.allclose(sum(sent), fed[-1], atol=1e-6)
    assert len({id(member.compressor) for member in compressor.objects.members}) == 3


def test_the_object_given_is_only_copied():
    given = Delta()
    compressor, state = started(given)
    compressor.compress(normal(), state, step_of())
    assert given.last == {}


def test_an_instance_sees_every_segment_by_name_and_shape():
    compressor = grace(Delta)
    one, other = compressor.for_shape((3, 4)), compressor.for_shape((12,))
    states = [one.init(torch.empty(3, N)), other.init(torch.empty(3, N))]
    one.compress(normal(), states[0], step_of(segment="a"))
    other.compress(normal(), states[1], step_of(segment="b"))
    assert compressor.objects.members[0].compressor.shapes == [("a", (3, 4)), ("b", (12,))]


def test_the_name_is_the_segments_whatever_the_key():
    compressor, state = started(Delta())
    key = RandomKey(0, torch.arange(3)).fold_in("elsewhere")
    compressor.compress(normal(), state, StepInfo(key, segment="layer.weight"))
    assert compressor.objects.members[0].compressor.shapes == [("layer.weight", SHAPE)]


def test_its_objects_are_no_setting_of_a_spec():
    with pytest.raises(SettingError, match="has no setting shape"):
        build("compressor", "grace:theirs.py:Half,shape=3")


def test_its_own_memory_loses_nothing():
    compressor, state = started(Strongest, Kept)
    fed = [normal(seed) for seed in range(6)]
    sent = [compressor.compress(g, state, step_of(t)).to_dense() for t, g in enumerate(fed)]
    left = [
        member.memory.residual["layer.weight"].flatten() for member in compressor.objects.members
    ]
    assert torch.allclose(sum(sent) + torch.stack(left), sum(fed), atol=1e-5)


def test_the_aggregate_is_the_mean_of_what_is_decoded():
    compressor, state = started(Bytes())
    segment = Segment("s", ("s",), (torch.Size(SHAPE),), dense=False)
    channel = Channel(InProcess(), Ledger(3), Wire("float16"))
    context = ExchangeContext(compressor, state, step_of(), segment, channel)
    message, aggregated = AllReduce().gradients(normal(), context)
    assert torch.allclose(aggregated, message.to_dense().mean(0))
    assert [(t.collective, t.payload.tolist()) for t in channel.ledger.transfers] == [
        ("all-gather", [16] * 3)
    ]


def test_what_is_kept_is_the_rest():
    rest = normal()
    message = compress(Bytes(), normal())
    message.subtract_from_(rest)
    assert torch.allclose(rest + message.to_dense(), normal(), atol=1e-6)
    assert torch.allclose(message.sum(), message.to_dense().sum(0))


def test_no_entry_counts_as_selected():
    x = torch.ones(3, N)
    compress(Strongest(), normal()).clear_(x)
    assert torch.equal(x, torch.ones(3, N))


def test_a_message_may_be_empty():
    class Silent:
        def compress(self, tensor, name):
            return [], tensor

        def decompress(self, tensors, ctx):
            return torch.zeros_like(ctx)

    message = compress(Silent(), normal())
    assert message.payload_bytes().tolist() == [0, 0, 0]
    assert len(message.pack(0)) == 0


def test_a_compressor_fitted_again_goes_on_with_the_same_objects():
    compressor, state = started(Delta())
    compressor.compress(normal(0), state, step_of(0))
    sent = compressor.for_shape(SHAPE).compress(normal(1), state, step_of(1)).to_dense()
    assert torch.allclose(sent, normal(1) - normal(0))


def test_asking_for_the_shapes_of_a_state_makes_no_objects():
    compressor, state = started(Delta())
    compressor.compress(normal(0), state, step_of(0))
    compressor.init(torch.empty(2, N, device="meta"))
    sent = compressor.compress(normal(1), state, step_of(1)).to_dense()
    assert torch.allclose(sent, normal(1) - normal(0))


def test_a_server_keeps_its_objects_from_step_to_step(tmp_path):
    (tmp_path / "counts.py").write_text(COUNTS)
    segment = Segment("s", ("s",), (torch.Size(SHAPE),), dense=False)
    channel = Channel(InProcess(), Ledger(3), Wire())
    algorithm = AllReduce(downlink=f"grace:{tmp_path}/counts.py:Counts")
    own = algorithm.init(normal(), segment)
    for step in range(3):
        known = ExchangeContext(NoCompression(), {}, step_of(step), segment, channel)
        _, aggregated = algorithm.gradients(normal(), known, own)
        assert aggregated.unique().tolist() == [step + 1]


def test_a_run_is_not_resumed():
    compressor, state = started(Strongest())
    compressor.compress(normal(), state, step_of())
    _, other = started(Strongest())
    other["calls"].copy_(state["calls"])
    for wrong in (other, {"calls": state["calls"].clone()}):
        with pytest.raises(SettingError, match="cannot be resumed: the objects of a grace"):
            compressor.compress(normal(), wrong, step_of(1))


COUNTS = """
import torch

class Counts:
    calls = 0

    def compress(self, tensor, name):
        self.calls += 1
        return [torch.full_like(tensor, self.calls)], None

    def decompress(self, tensors, ctx):
        return tensors[0]
"""
THEIRS = """
import torch

class Half:
    def compress(self, tensor, name):
        return [tensor.half()], None

    def decompress(self, tensors, ctx):
        return tensors[0].float()

class Nothing:
    def compensate(self, tensor, name):
        return tensor

    def update(self, tensor, name, compressor, tensor_compressed, ctx):
        pass

class Short(Half):
    def decompress(self, tensors, ctx):
        return tensors[0][0].float()

class Deaf:
    def compress(self, tensor, name):
        return [tensor], None

def made():
    return Half()

number = 3
"""


@pytest.fixture
def theirs(tmp_path):
    (tmp_path / "theirs.py").write_text(THEIRS)
    return f"grace:{tmp_path}/theirs.py"


@pytest.mark.parametrize("name", ["Half", "made", "Half,memory=Nothing"])
def test_a_file_and_a_name_are_enough(theirs, name):
    (compressor,) = build("compressor", f"{theirs}:{name}")
    message = compressor.compress(normal(), compressor.init(normal()), step_of())
    assert torch.equal(message.to_dense(), normal().half().float())
    assert message.payload_bytes().tolist() == [2 * N] * 3


def test_the_same_spec_gives_an_equal_compressor(theirs):
    assert build("compressor", f"{theirs}:Half") == build("compressor", f"{theirs}:Half")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (":Absent", "compressor is no class or function in .*theirs.py, got Absent"),
        (":number", "compressor is no class or function in"),
        (":Deaf", "compressor has no method decompress, got Deaf"),
        (":Half,memory=Deaf", "compressor has no method compensate, got Deaf"),
        (":Short", "compressor must decompress to 12 entries, not 4, got Short"),
        ("", "names no file and class, got .*; give grace:FILE.py:Name"),
        ("x:Half", "names no file and class"),
    ],
)
def test_the_error_of_what_does_not_fit_is_one_line(theirs, name, message):
    def compress_it():
        compressor = build("compressor", f"{theirs}{name}")[0].for_shape(SHAPE)
        compressor.compress(normal(), compressor.init(normal()), step_of())

    with pytest.raises(SettingError, match=message) as caught:
        compress_it()
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(SettingError, match="names a file that does not exist"):
        build("compressor", "grace:./absent.py:Half")[0].init(normal())
