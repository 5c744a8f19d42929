import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd.catalog import build_model
from simsgd.gradients.contract import EngineConfig, UnsupportedModel
from simsgd.gradients.convolution import WAYS, Geometry, chosen_way
from simsgd.gradients.fold import Fold
from simsgd.gradients.grad_accumulator import Rows
from simsgd.gradients.onepass import OnePass
from simsgd.gradients.plan import CPU
from simsgd.keyed_random import RandomKey
from simsgd.registry import find
from simsgd.settings import SettingError

from ..toy import gradients, relative_distance

W, B = 3, 4
DOUBLE = torch.float64


def assert_same(got, wanted, close=1e-12):
    assert relative_distance(got.values, wanted.values) < close
    for name, value in wanted.values.items():
        assert torch.allclose(got.values[name], value, rtol=1e-8, atol=1e-12)
    assert torch.allclose(got.loss, wanted.loss, rtol=1e-12)
    assert torch.allclose(got.output, wanted.output, rtol=1e-10, atol=1e-12)
    for name, buffer in wanted.buffers.items():
        assert torch.allclose(got.buffers[name].double(), buffer.double(), rtol=1e-12, atol=1e-14)


def images(channels=3, size=16, seed=0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(W, B, channels, size, size, generator=generator, dtype=dtype)
    return x, torch.randint(10, (W, B), generator=generator)


def words(entries=11, length=5):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(entries, (W, B, length), generator=generator)
    return x, torch.randint(10, (W, B), generator=generator)


def vectors(n=6, classes=6):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(W, B, n, generator=generator, dtype=DOUBLE)
    return x, torch.randint(classes, (W, B), generator=generator)


def plain(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))


def norms():
    return plain(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.LayerNorm([8, 14, 14]),
        nn.AvgPool2d(2), nn.LayerNorm(7, elementwise_affine=False), nn.RMSNorm(7),
    )  # fmt: skip


def convolutions():
    return plain(
        nn.Conv2d(3, 8, 3, padding="same"), nn.Tanh(), nn.Conv2d(8, 8, (2, 4), padding="same"),
        nn.Conv2d(8, 12, 3, stride=2, padding=(1, 0), groups=4), nn.Tanh(),
        nn.Conv2d(12, 12, 3, dilation=2, padding=2, groups=12, bias=False),
        nn.Conv2d(12, 5, 1, padding="valid"),
        nn.Conv2d(5, 5, 3, padding=1, padding_mode="circular"),
    )  # fmt: skip


def batch_norms():
    return plain(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None), nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8, affine=False), nn.ReLU(), nn.BatchNorm2d(8, track_running_stats=False),
        nn.Flatten(), nn.LazyLinear(6), nn.BatchNorm1d(6),
    )  # fmt: skip


def dropouts():
    return plain(
        nn.Conv2d(3, 8, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Dropout(0.4), nn.AlphaDropout(0.2),
        nn.FeatureAlphaDropout(0.3),
    )  # fmt: skip


class Sentence(nn.Module):
    """An embedding whose weights classify too, convolved along the words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=2)
        self.along = nn.Conv1d(8, 8, 3, padding=1, stride=1)
        self.norm = nn.LayerNorm(8)
        self.same = nn.Linear(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        x = self.words(x)  # [b, length, 8]
        x = self.along(x.transpose(1, 2)).transpose(1, 2)
        x = self.same(self.same(self.norm(x)))  # one module, used twice
        return self.out(x).mean(1)


class Cell(nn.Module):
    """An LSTM of linear layers on time steps, whose embedding classifies too."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 16)
        self.ih, self.hh = nn.Linear(16, 64), nn.Linear(16, 64)
        self.out = nn.Linear(16, 11)
        self.out.weight = self.words.weight

    def forward(self, x):
        h = c = self.words.weight.new_zeros(len(x), 16)
        for inputs in self.ih(self.words(x)).unbind(1):
            i, f, g, o = (inputs + self.hh(h)).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.out(h)


class Partly(nn.Module):
    """Frozen weights with a trained bias, a trained weight with a frozen bias, and one unused."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 7), nn.Linear(7, 6)
        self.first.weight.requires_grad_(False)
        self.second.bias.requires_grad_(False)
        self.idle = nn.Linear(2, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def build(name, **config):
    return build_model(name, config, 10, (3, 16, 16))


CASES = {
    "mlp": (lambda: build("mlp"), images),
    "lenet": (lambda: build("lenet"), images),
    "resnet": (lambda: build("resnet", depth=8), images),
    "projecting resnet": (lambda: build("resnet", depth=8, shortcut="B"), images),
    "norms": (norms, images),
    "convolutions": (convolutions, images),
    "batch norms": (batch_norms, images),
    "dropouts": (dropouts, images),
    "tied and reused": (Sentence, words),
    "a cell used at every time": (Cell, words),
    "frozen and unused": (Partly, vectors),
}


def case(name, dtype=DOUBLE):
    torch.manual_seed(0)
    make, batch = CASES[name]
    model, (x, y) = make().to(dtype), batch()
    x = x.to(dtype) if x.is_floating_point() else x
    with torch.no_grad(), torch.random.fork_rng():
        model.eval()(x[0])  # gives lazy layers their shape
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.rand_like(parameter))  # a norm's weight of 1 shows no bug
    return model.to(dtype).train(), x, y


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("engine", ["onepass", "vmap", "auto"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_every_layer_gets_the_gradients_of_a_loop(engine, name):
    if (engine, name) == ("vmap", "batch norms"):
        pytest.skip("vmap cannot take BatchNorm with momentum None")
    model, x, y = case(name)
    assert_same(gradients(engine, model, x, y), gradients("loop", model, x, y))


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chunk", ["auto", 2])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_the_plan_of_a_gpu_gives_the_same(name, chunk):
    model, x, y = case(name)
    got = gradients("onepass", model, x, y, plan="gpu", chunk=chunk)
    assert_same(got, gradients("loop", model, x, y))


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("plan", ["cpu", "gpu"])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_models_that_differ_between_workers_go_in_one_pass(name, plan):
    model, x, y = case(name)
    generator = torch.Generator().manual_seed(2)
    params = {
        name: p.detach() + 0.1 * torch.randn(W, *p.shape, generator=generator).double()
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    buffers = {name: torch.stack([b] * W) for name, b in model.named_buffers()}
    keys = RandomKey(0, torch.arange(W)).keys()
    config = EngineConfig(per_worker=True, plan=plan)
    got, wanted = (
        find("engine", engine)(model, F.cross_entropy, config)(params, buffers, x, y, keys)
        for engine in ("onepass", "loop")
    )
    assert_same(got, wanted)
    assert got.unused.keys() == wanted.unused.keys()


@pytest.mark.parametrize("name", ["resnet", "dropouts", "tied and reused"])
@pytest.mark.parametrize("engine", ["onepass", "vmap"])
@pytest.mark.parametrize("chunk", [1, 2])
def test_workers_a_few_at_a_time_are_the_same_workers(engine, name, chunk):
    model, x, y = case(name)
    got = gradients(engine, model, x, y, chunk=chunk)
    assert_same(got, gradients("loop", model, x, y))


def test_a_weight_of_a_cell_is_written_once_for_all_times(monkeypatch):
    written = []
    contract = Rows._contract

    def noted(self, name, left, right):
        written.append((name, left.shape[2]))
        contract(self, name, left, right)

    monkeypatch.setattr(Rows, "_contract", noted)
    model, x, y = case("a cell used at every time")
    engine = OnePass(model, F.cross_entropy)
    params, keys = dict(model.named_parameters()), RandomKey(0, torch.arange(W)).keys()
    engine(params, {}, x, y, keys)
    written.clear()
    engine(params, {}, x, y, keys)
    assert [vectors for name, vectors in written if name == "hh.weight"] == [5 * B]


@pytest.mark.parametrize("name", ["lenet", "resnet"])
def test_in_float32_only_units_at_zero_differ(name):
    """A ReLU whose input is zero up to rounding may be on in one engine and off in another.

    That moves the gradients behind it by percents, in no direction: hence the loose bound.
    """
    model, x, y = case(name, torch.float32)
    got = gradients("onepass", model, x.float(), y)
    assert relative_distance(got.values, gradients("loop", model, x.float(), y).values) < 0.02


def test_frozen_batch_norm_uses_each_workers_own_statistics():
    model, x, y = case("resnet")
    model.eval()
    buffers = {name: torch.stack([b] * W) for name, b in model.named_buffers()}
    for name, buffer in buffers.items():
        if "running" in name:
            buffer.add_(torch.arange(W).view(W, 1) / 7)
    got, wanted = (gradients(e, model, x, y, buffers=buffers) for e in ("onepass", "loop"))
    assert_same(got, wanted)
    assert all(torch.equal(got.buffers[name], buffers[name]) for name in buffers)


def mean_of_weighted(output, y):
    weight = torch.arange(1, 11, dtype=output.dtype)
    return F.cross_entropy(output, y, weight=weight)  # each worker has a denominator of its own


def mean_square(output, y):
    return (output - F.one_hot(y, 10)).square().mean()


@pytest.mark.parametrize("criterion", [mean_of_weighted, mean_square, nn.CrossEntropyLoss()])
def test_any_mean_criterion_is_each_workers_own(criterion):
    model, x, y = case("lenet")
    got, wanted = (gradients(e, model, x, y, criterion) for e in ("onepass", "loop"))
    assert_same(got, wanted)


def test_ignored_targets_count_for_no_worker():
    model, x, y = case("lenet")
    y[0, :2] = y[1, 3] = -100
    assert_same(gradients("onepass", model, x, y), gradients("loop", model, x, y))


def test_a_target_for_each_pixel_is_counted_by_worker():
    model = nn.Conv2d(3, 10, 3, padding=1).double()
    x, _ = images()
    y = torch.randint(10, (W, B, 16, 16), generator=torch.Generator().manual_seed(0))
    assert_same(gradients("onepass", model, x, y), gradients("loop", model, x, y))


def test_calls_after_the_first_are_right_too():
    model, x, y = case("tied and reused")
    params = dict(model.named_parameters())
    keys = RandomKey(0, torch.arange(W)).keys()
    engine = OnePass(model, F.cross_entropy)
    engine(params, {}, x, y, keys)
    assert_same(engine(params, {}, x.flip(1), y, keys), gradients("loop", model, x.flip(1), y))


SHAPES = [(1, 8, 1, 5, 12), (8, 16, 1, 3, 6), (8, 8, 8, 3, 6), (6, 4, 2, 3, 6), (16, 24, 1, 1, 4)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by_turns", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(1, 1, 1), (2, 2, 1), (1, 0, 1), (1, 3, 2)]
)
def test_all_ways_to_a_convolutions_gradient_agree(way, by_turns, shape, stride, padding, dilation):
    entering, leaving, groups, kernel, size = shape
    if way == "product" and groups > 1:
        pytest.skip("products are for convolutions without groups")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(W, B, entering, size + 4, size + 3, generator=generator, dtype=DOUBLE)
    weight = torch.randn(leaving, entering // groups, kernel, kernel, generator=generator)
    weight = weight.to(DOUBLE).requires_grad_()
    outs = [F.conv2d(one, weight, None, stride, padding, dilation, groups) for one in x]
    slope = torch.randn(W, *outs[0].shape, generator=generator, dtype=DOUBLE)
    wanted = [torch.autograd.grad(o, weight, s)[0] for o, s in zip(outs, slope, strict=True)]
    rows = Rows({"weight": weight}, {"weight": torch.empty(W, *weight.shape, dtype=DOUBLE)})
    geometry = Geometry((stride,) * 2, (padding,) * 2, (dilation,) * 2, groups)
    fold = Fold(W, B, by_turns)
    with torch.no_grad():
        WAYS[way](rows, "weight", fold.folded(x), fold.folded(slope), weight, geometry, fold)
    assert torch.allclose(rows.values["weight"], torch.stack(wanted), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("workers", "entering", "leaving", "size", "way"),
    [
        (16, 8, 16, 12, "groups"),
        (16, 16, 16, 32, "each"),
        (4, 512, 512, 4, "product"),
        (1, 8, 16, 12, "each"),
    ],
)
def test_the_way_to_a_convolutions_gradient_follows_its_shape(
    workers, entering, leaving, size, way
):
    x, slope = (torch.zeros(1).expand(workers * 4, c, size, size) for c in (entering, leaving))
    weight = torch.zeros(leaving, entering, 3, 3)
    assert chosen_way(x, slope, weight, Geometry((1, 1), (1, 1), (1, 1)), workers, CPU) == way


class Using(nn.Module):
    """A linear layer beside something that a subclass does with a parameter or a batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.own = nn.Parameter(torch.ones(6, 6))
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        return self.use(self.layer(x))


class Distances(Using):
    def use(self, x):
        return torch.cdist(x, self.own)


class DistancesOfSlices(Using):
    def use(self, x):
        return torch.cdist(x, self.own.t()[1:])


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, slope):
        x, weight = ctx.saved_tensors
        return slope @ weight.t(), x.t() @ slope


class OwnFunction(Using):
    def use(self, x):
        return Hidden.apply(x, self.own)


class Centerd(Using):
    def use(self, x):
        return F.linear(x - x.mean(0), self.own)


class Noisy(Using):
    def use(self, x):
        return F.linear(x + torch.randn_like(x), self.own)


class Remembering(Using):
    def use(self, x):
        self.seen.copy_(x.detach().mean(0))
        return F.linear(x, self.own)


class Counting(Using):
    def use(self, x):
        return F.linear(x * len(x), self.own)


class Shared(Using):
    def use(self, x):
        return F.linear(x, self.own) + self.layer(torch.ones(6, dtype=x.dtype))


class Elsewhere(Using):
    """The weights are reached around the module's attributes."""

    def __init__(self):
        super().__init__()
        self.hidden = [nn.Parameter(torch.ones(6, 6, dtype=DOUBLE))]
        self.own = self.hidden[0]

    def use(self, x):
        return x @ self.hidden[0]


class RawProduct(Using):
    def use(self, x):
        return x @ self.own


class Transposed(Using):
    def use(self, x):
        return F.linear(x, self.own.t())


@pytest.mark.parametrize("kind", [RawProduct, Transposed, Shared])
def test_parameters_that_no_layer_has_get_their_gradient(kind):
    torch.manual_seed(0)
    model, (x, y) = kind().double(), vectors()
    assert_same(gradients("onepass", model, x, y), gradients("loop", model, x, y))


DECLINED = {
    Distances: "own is used by something onepass does not know (cdist)",
    DistancesOfSlices: "own is used by something onepass does not know (cdist)",
    OwnFunction: "own is used by something onepass does not know",
    Centerd: "is not what a loop over workers gives",
    Noisy: "draws random numbers of its own",
    Remembering: "the buffer seen is changed",
    Counting: "is not what a loop over workers gives",
}


@pytest.mark.parametrize("kind", DECLINED)
def test_what_is_not_known_is_declined_and_never_computed_wrongly(kind):
    with pytest.raises(SettingError) as caught:
        gradients("onepass", kind().double(), *vectors())
    assert "engine declines this model" in str(caught.value)
    assert DECLINED[kind] in str(caught.value)


class Peeking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(self.layer(x - self.norm.running_mean))


def test_statistics_that_something_else_reads_are_declined():
    with pytest.raises(SettingError, match=r"buffer norm.running_mean is read by something other"):
        gradients("onepass", Peeking().double(), *vectors())


def test_weights_reached_around_the_module_get_their_gradient_or_a_refusal():
    with pytest.raises(SettingError, match="declines"):
        gradients("onepass", Elsewhere().double(), *vectors())


class Late(Using):
    """Begins to use a parameter as onepass does not know after some calls."""

    late = False

    def use(self, x):
        return torch.cdist(x, self.own) if self.late else F.linear(x, self.own)


def test_a_use_that_begins_later_is_declined_when_it_begins():
    model, (x, y) = Late().double(), vectors()
    params, keys = dict(model.named_parameters()), RandomKey(0, torch.arange(W)).keys()
    buffers = {"seen": torch.zeros(W, 6, dtype=DOUBLE)}
    engine = OnePass(model, F.cross_entropy)
    engine(params, buffers, x, y, keys)
    model.late = True
    with pytest.raises(UnsupportedModel, match="cdist"):
        engine.attempt(params, buffers, x, y, keys)


def test_recurrent_layers_are_declined():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.LSTM(6, 6, batch_first=True)

        def forward(self, x):
            return self.inner(x.unsqueeze(1))[0][:, -1]

    with pytest.raises(SettingError, match="weight_ih_l0 is used by something"):
        gradients("onepass", Net().double(), *vectors())


def test_an_error_of_the_model_itself_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shape"):
        gradients("onepass", nn.Linear(3, 2), torch.randn(W, B, 4), torch.zeros(W, B).long())


def test_a_normalized_batch_of_one_sample_is_the_models_own_error():
    model, x, y = case("batch norms")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        gradients("onepass", model, x[:, :1], y[:, :1])


class Repeated(nn.Module):
    """A layer that is used `times` times; a worker of 4 samples has a result of 2^17 numbers."""

    def __init__(self, times):
        super().__init__()
        self.times = times
        self.cell, self.out = nn.Linear(8, 8), nn.Linear(8, 2**15)

    def forward(self, x):
        for _ in range(self.times):
            x = self.cell(x).tanh()
        return self.out(x)


@pytest.mark.parametrize(("times", "chunk_size"), [(1, 8), (3, 8), (4, 16)])
def test_more_workers_of_a_recurrent_model_go_at_a_time(times, chunk_size):
    model = Repeated(times)
    engine = OnePass(model, F.cross_entropy)
    x, y = torch.randn(16, B, 8), torch.zeros(16, B).long()
    engine(dict(model.named_parameters()), {}, x, y, RandomKey(0, torch.arange(16)).keys())
    assert engine.chunk_size(16) == chunk_size


def test_a_first_batch_that_is_not_finite_does_not_decide_about_the_engine():
    model, (x, y) = Partly().double(), vectors()
    x[0] = torch.nan
    got = gradients("onepass", model, x, y)
    assert got.loss.isnan().tolist() == [True] + [False] * (len(x) - 1)
