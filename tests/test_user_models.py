"""Whatever a user brings is what a plain loop over deep copies gives, or is refused in one line.

What the code does not do yet is marked `wrong_still`: the marks go as it is mended.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from simsgd import SettingError, Simulator
from simsgd.data.partition import parted
from simsgd.evaluation import wrong
from tests.plain_loop import PlainLoop

W, B, STEPS = 4, 16, 3
CLOSE = 1e-10
SHARED = {"algorithm": "allreduce"}
OWN = {"algorithm": "dpsgd", "topology": "ring"}
EVERY = {"allreduce": SHARED, "dpsgd": OWN, "local": {"algorithm": "local", "local_steps": 2}}
every_algorithm = pytest.mark.parametrize("method", EVERY.values(), ids=EVERY)


def wrong_still(reason):
    return pytest.mark.xfail(strict=True, reason=reason)


def made(kind, *args, seed=0, dtype=torch.float64, **kwargs):
    torch.manual_seed(seed)
    return kind(*args, **kwargs).to(dtype)


def batches(steps=STEPS, size=B, inputs=6, classes=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(size, inputs, generator=generator, dtype=torch.float64)
        yield x, torch.randint(classes, (size,), generator=generator)


def both(make, criterion=F.cross_entropy, data=None, engine="auto", between=None, **settings):
    """Return a simulator and a loop that took the same steps from the same model."""
    settings = {"workers": W, "lr": 0.1, **settings}
    model, original = make(), make()
    simulator = Simulator(model, criterion, engine=engine, **settings)
    loop = PlainLoop(original, criterion, **settings)
    for number, (x, y) in enumerate(data or batches()):
        if between is not None:
            between(number, simulator)
        simulator.step(x, y)
        loop.step(x, y)
    return simulator, loop


def assert_same(simulator, loop):
    got, wanted = simulator.parameters(), loop.parameters()
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        own = got[name].detach().expand_as(value)
        assert own.dtype == value.dtype
        assert float((own - value).norm()) <= CLOSE * (1 + float(value.norm())), name
    for name, value in loop.buffers().items():
        assert torch.allclose(simulator.buffers[name], value, rtol=CLOSE, atol=CLOSE), name


class Checkpointed(nn.Module):
    def __init__(self, dropout=0.0, recomputed=True, reentrant=False):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout)) for _ in range(3)
        )
        self.last = nn.Linear(8, 3)
        self.recomputed, self.reentrant = recomputed, reentrant

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) if self.recomputed else block(x)
        return self.last(x)


class TestCheckpointing:
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_with_a_model_per_worker(self, reentrant):
        assert_same(*both(lambda: made(Checkpointed, reentrant=reentrant), **OWN))

    def test_with_one_model(self):
        assert_same(*both(lambda: made(Checkpointed), **SHARED))

    def test_reentrant_with_one_model(self):
        assert_same(*both(lambda: made(Checkpointed, reentrant=True), **SHARED))

    @every_algorithm
    def test_dropout_drops_the_same_when_it_is_recomputed(self, method):
        settings = {"workers": W, "lr": 0.1, **method}
        simulator = Simulator(made(Checkpointed, dropout=0.4), **settings)
        loop = PlainLoop(made(Checkpointed, dropout=0.4, recomputed=False), **settings)
        for x, y in batches():
            simulator.step(x, y)
            loop.step(x, y)
        assert_same(simulator, loop)

    @pytest.mark.parametrize("engine", ["loop", "threads", "onepass", "vmap"])
    def test_dropout_without_its_random_state_is_refused(self, engine, monkeypatch):
        forget = partial(checkpoint, preserve_rng_state=False)
        monkeypatch.setitem(Checkpointed.forward.__globals__, "checkpoint", forget)
        simulator = Simulator(made(Checkpointed, dropout=0.4), workers=W, lr=0.1, engine=engine)
        with pytest.raises(SettingError):
            simulator.step(*next(batches()))


class Twice(nn.Module):
    """One block under two names."""

    def __init__(self, normed=False, dropout=0.0):
        super().__init__()
        norm = nn.BatchNorm1d(6) if normed else nn.Identity()
        self.a = nn.Sequential(nn.Linear(6, 6), norm, nn.Tanh(), nn.Dropout(dropout))
        self.b = self.a
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.b(self.a(x)))


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.second(torch.tanh(self.first(x))))


class TestSharedModules:
    @pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
    @pytest.mark.parametrize("normed", [False, True])
    @every_algorithm
    def test_a_module_under_two_names(self, engine, normed, method):
        assert_same(*both(lambda: made(Twice, normed=normed), engine=engine, **method))

    @pytest.mark.parametrize("engine", ["loop", "auto"])
    def test_the_users_parameters_stay_parameters(self, engine):
        simulator, _ = both(lambda: made(Twice), engine=engine, **OWN)
        assert all(isinstance(p, nn.Parameter) for p in simulator.model.parameters())
        assert len(list(simulator.model.parameters())) == 4

    @every_algorithm
    def test_evaluation_between_two_steps_changes_nothing(self, method):
        def look(number, simulator):
            simulator.evaluation_model()

        assert_same(*both(lambda: made(Twice, normed=True), between=look, engine="loop", **method))

    @pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
    @every_algorithm
    def test_a_weight_under_two_names(self, engine, method):
        assert_same(*both(lambda: made(Tied), engine=engine, **method))


class Reassigned(nn.Module):
    """Keeps a mean of what it saw in a buffer that `forward` makes anew."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("ema", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.ema = 0.9 * self.ema + 0.1 * x.detach().mean(0)
        return self.linear(x - self.ema)


class TestReassignedBuffers:
    @pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
    @every_algorithm
    def test_they_move(self, engine, method):
        assert_same(*both(lambda: made(Reassigned), engine=engine, **method))

    def test_the_model_to_evaluate_has_their_mean(self):
        simulator, loop = both(lambda: made(Reassigned))
        ema = simulator.evaluation_model().ema
        assert torch.allclose(ema, loop.buffers()["ema"].mean(0), rtol=CLOSE)
        assert float(ema.norm()) > 0


class Random(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        if kind == "lstm":
            self.lstm = nn.LSTM(2, 8, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x):
        if self.kind == "lstm":
            return self.last(self.lstm(x.unflatten(1, (3, 2)))[0][:, -1])
        h = torch.tanh(self.first(x))
        if self.training:
            h = getattr(self, self.kind)(h)
        return self.last(h)

    def attention(self, h):
        parts = h.unflatten(1, (1, 4, 2))
        return F.scaled_dot_product_attention(parts, parts, parts, dropout_p=0.5).flatten(1)

    def drop_path(self, h):
        return h + h.sin() * (torch.rand(len(h), 1, dtype=h.dtype) < 0.5)

    def bernoulli(self, h):
        return h * h.new_empty(len(h), 1).bernoulli_(0.5) * 2

    def noise(self, h):
        return h + 0.1 * torch.randn_like(h)

    def own_dropout(self, h):
        return F.dropout(h, 0.5) + 0.1 * torch.randn_like(h)


RANDOM = ["attention", "drop_path", "bernoulli", "noise", "own_dropout", "lstm"]


class TestRandomnessOfTheModelsOwn:
    @pytest.mark.parametrize("kind", RANDOM)
    @pytest.mark.parametrize("engine", ["auto", "loop"])
    @every_algorithm
    def test_it_is_a_function_of_seed_step_and_worker(self, kind, engine, method):
        assert_same(*both(lambda: made(Random, kind), engine=engine, **method))

    @pytest.mark.parametrize("kind", RANDOM)
    @pytest.mark.parametrize("engine", ["onepass", "vmap", "threads"])
    def test_engines_that_cannot_key_it_decline(self, kind, engine):
        simulator = Simulator(made(Random, kind), workers=W, lr=0.1, engine=engine)
        before = torch.get_rng_state()
        with pytest.raises(SettingError, match="engine"):
            simulator.step(*next(batches()))
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_callers_generator_goes_on_as_if_nothing_was_drawn(self):
        simulator = Simulator(made(Random, "noise"), workers=W, lr=0.1, engine="loop")
        before = torch.get_rng_state()
        simulator.step(*next(batches()))
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_resumed_run_is_the_same_run(self):
        def after(resumed):
            torch.manual_seed(resumed)
            simulator = Simulator(made(Random, "noise"), workers=W, lr=0.1, engine="loop")
            for number, (x, y) in enumerate(batches()):
                if number == 1 and resumed:
                    state = simulator.state_dict()
                    torch.manual_seed(77)
                    simulator = Simulator(
                        made(Random, "noise", seed=5), workers=W, lr=0.1, engine="loop"
                    )
                    simulator.load_state_dict(state)
                simulator.step(x, y)
            return simulator.parameters()

        one, other = after(False), after(True)
        assert all(torch.equal(one[name], other[name]) for name in one)


def normed():
    return made(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


class TestFedAvg:
    FED = {"algorithm": "fedavg", "local_steps": 2, "participation": 0.25}  # noqa: RUF012

    @wrong_still("the steps of all are computed, and only what is sent is chosen")
    def test_clients_that_are_not_drawn_keep_their_statistics(self):
        simulator, loop = both(normed, data=batches(2), **self.FED)
        assert sorted(simulator.buffers["1.num_batches_tracked"].tolist()) == [0, 0, 0, 2]
        assert_same(simulator, loop)

    def test_without_statistics_it_is_the_loop(self):
        simulator, loop = both(lambda: made(nn.Linear, 6, 3), data=batches(4), **self.FED)
        assert_same(simulator, loop)

    @wrong_still("the steps of all are computed, and only what is sent is chosen")
    def test_only_the_drawn_compute(self):
        calls = []

        def counted(output, target):
            calls.append(len(output))
            return F.cross_entropy(output, target)

        simulator = Simulator(normed(), counted, workers=W, lr=0.1, engine="loop", **self.FED)
        simulator.step(*next(batches()))
        assert len(calls) == 1


class Unused(nn.Module):
    def __init__(self, by_parity=False):
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Parameter(torch.ones(2, 2))
        self.sometimes, self.by_parity = nn.Parameter(torch.ones(6)), by_parity

    def forward(self, x):
        if self.by_parity and x[0, 0] > 0:
            x = x * self.sometimes
        return self.used(x)


class TestParametersWithoutGradient:
    DECAY = {"weight_decay": 0.1, "momentum": 0.9}  # noqa: RUF012

    @wrong_still("what has no gradient gets zeros, and decays")
    @pytest.mark.parametrize("by_parity", [False, True])
    @every_algorithm
    def test_they_are_left_alone(self, by_parity, method):
        simulator, loop = both(
            lambda: made(Unused, by_parity), engine="loop", **self.DECAY, **method
        )
        assert torch.equal(loop.parameters()["unused"], torch.ones(W, 2, 2, dtype=torch.float64))
        assert_same(simulator, loop)

    @wrong_still("zeros are sent for them")
    def test_they_are_not_billed(self):
        simulator, _ = both(lambda: made(Unused))
        record = simulator.step(*next(batches()))
        assert record.payload_bytes == [(6 * 3 + 3) * 8] * W


class TestRequiresGradChangedLater:
    def train_all(self, number, simulator):
        simulator.model[0].requires_grad_(number > 0)

    def begun_frozen(self):
        model = normed()
        model[0].requires_grad_(False)
        return model

    @wrong_still("what is trained is decided when the Simulator is made")
    @pytest.mark.parametrize("begun", [True, False])
    def test_it_holds_from_then_on_or_is_refused(self, begun):
        settings = {"workers": W, "lr": 0.1}
        make = normed if begun else self.begun_frozen
        simulator, loop = Simulator(make(), **settings), PlainLoop(make(), **settings)
        for number, (x, y) in enumerate(batches()):
            for model in (simulator.model, *loop.models):
                model[0].requires_grad_((number == 0) == begun)
            try:
                simulator.step(x, y)
            except SettingError as refused:
                assert "requires_grad" in str(refused)  # noqa: PT017
                return
            loop.step(x, y)
        assert_same(simulator, loop)


class Scaled(nn.Module):
    """A criterion with a temperature that is learnt."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, output, target):
        return F.cross_entropy(output * self.temperature, target)


class TestCriterionWithParameters:
    @wrong_still("only the model's parameters are trained")
    def test_it_is_trained_too_or_refused(self):
        criterion = Scaled()
        try:
            _, loop = both(normed, criterion)
        except SettingError as refused:
            assert "criterion" in str(refused)  # noqa: PT017
            return
        assert torch.allclose(criterion.temperature, loop.criteria[0].temperature, rtol=CLOSE)


class TestPartition:
    LABELS = torch.arange(10).repeat_interleave(100)

    @pytest.mark.parametrize("alpha", [0.1, 1, 10000])
    @pytest.mark.parametrize("workers", [3, 8])
    def test_nobody_has_a_sample_twice(self, alpha, workers):
        parts = torch.cat(parted(f"dirichlet:{alpha}", self.LABELS, workers, 0))
        assert len(parts.unique()) == len(parts) == 1000

    def test_a_large_alpha_is_iid_for_every_worker(self):
        labels = torch.arange(10).repeat_interleave(1000)
        spread = torch.zeros(16, dtype=torch.float64)
        for seed in range(10):
            parts = parted("dirichlet:10000", labels, 16, seed)
            counts = torch.stack([labels[part].bincount(minlength=10) for part in parts])
            spread += counts.double().std(1) / 10
        assert spread.max() < 2 * spread.median()

    @pytest.mark.parametrize("spec", ["dirichlet:1", "iid-fixed", "sorted", "shards:2"])
    def test_every_sample_belongs_to_somebody(self, spec):
        labels = torch.arange(1003) % 10
        parts = parted(spec, labels, 8, 0)
        assert len(torch.cat(parts).unique()) == 1003
        assert max(map(len, parts)) - min(map(len, parts)) <= (2 if spec == "shards:2" else 1)


class Words(nn.Module):
    def __init__(self, sparse=False, dtype=torch.float64):
        super().__init__()
        self.words = nn.Embedding(20, 6, sparse=sparse)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.words(x).mean(1))


def texts(steps=STEPS):
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randint(10, (B, 5), generator=generator)  # words from 10 on never come
        yield x, torch.randint(3, (B,), generator=generator)


class TestSignOfZero:
    @wrong_still("a sign is one bit, and 0 is sent as +")
    def test_rows_without_gradient_do_not_move_or_it_is_told(self, capsys):
        model = made(Words)
        before = model.words.weight[10:].detach().clone()
        simulator = Simulator(model, workers=W, lr=0.1, compressor="sign", memory="none")
        for x, y in texts():
            simulator.step(x, y)
        assert torch.equal(model.words.weight[10:], before)


class TestLocalStepsLeftOver:
    @wrong_still("nothing ends a simulation, and nothing is said")
    def test_a_simulation_can_be_flushed(self):
        simulator, loop = both(normed, data=batches(3), algorithm="local", local_steps=2)
        simulator.flush()
        mean = {name: value.mean(0) for name, value in loop.parameters().items()}
        for name, value in simulator.parameters().items():
            assert torch.allclose(value, mean[name].expand_as(value), rtol=CLOSE)


class TestRegimeThatBeginsToCompressLater:
    @wrong_still("only the first phase is looked at")
    def test_it_gets_the_memory_that_its_compressor_needs(self):
        regime = [{"epoch": 0, "compressor": "none"}, {"epoch": 1, "compressor": "topk:0.1"}]
        simulator = Simulator(normed(), workers=W, lr=0.1, regime=regime)
        assert simulator.recipe.memory == "residual"


class TestBinaryOutput:
    @pytest.mark.parametrize("shape", [(4,), (4, 1)])
    def test_it_is_right_where_its_sign_is(self, shape):
        output = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]])
        target = torch.tensor([1.0, 0.0, 0.0, 1.0]).view(shape)
        assert wrong(output, target).tolist() == [2, 0]


# A traceback where the right thing or one line is due


@pytest.mark.parametrize(
    ("dtype", "compressor"),
    [
        (torch.bfloat16, "topk:0.25"), (torch.bfloat16, "sign"), (torch.bfloat16, "qsgd:4"),
        (torch.float16, "sign"), (torch.float16, "qsgd:4"),
    ],
)  # fmt: skip
def test_models_of_narrow_dtypes_can_be_compressed(dtype, compressor):
    model = made(nn.Linear, 6, 3, dtype=dtype)
    simulator = Simulator(model, workers=W, lr=0.1, compressor=compressor)
    for x, y in batches():
        simulator.step(x.to(dtype), y)
    assert model.weight.isfinite().all()


@pytest.mark.parametrize("engine", ["auto", "loop", "threads"])
@every_algorithm
def test_sparse_embeddings(engine, method):
    assert_same(*both(lambda: made(Words, sparse=True), data=[*texts()], engine=engine, **method))


def regression(output, target):
    return F.mse_loss(output, target)


TARGETS = {
    "regression": (regression, lambda g: torch.randn(B, 3, generator=g, dtype=torch.float64)),
    "multilabel": (
        F.binary_cross_entropy_with_logits,
        lambda g: torch.randint(2, (B, 3), generator=g).double(),
    ),
}


@pytest.mark.parametrize("kind", TARGETS)
@every_algorithm
def test_targets_that_are_no_classes(kind, method):
    criterion, draw = TARGETS[kind]
    generator = torch.Generator().manual_seed(3)
    data = [(x, draw(generator)) for x, _ in batches()]
    assert_same(*both(normed, criterion, data, **method))


@every_algorithm
def test_segmentation(method):
    def net():
        return made(
            lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
        )

    generator = torch.Generator().manual_seed(3)
    data = [
        (torch.randn(8, 1, 5, 5, generator=generator, dtype=torch.float64),
         torch.randint(3, (8, 5, 5), generator=generator))
        for _ in range(STEPS)
    ]  # fmt: skip
    assert_same(*both(net, F.cross_entropy, data, **method))


class Structured(nn.Module):
    """Returns what people return: a tuple, a dict, or the loss itself beside it."""

    def __init__(self, form):
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.form = form

    def forward(self, x):
        h = torch.tanh(self.body(x))
        out, aux = self.head(h), self.aux(h)
        return {"tuple": (out, aux), "dict": {"out": out, "aux": aux}, "loss": out.square().mean()}[
            self.form
        ]


FORMS = {
    "tuple": lambda o, y: F.cross_entropy(o[0], y) + 0.4 * F.cross_entropy(o[1], y),
    "dict": lambda o, y: F.cross_entropy(o["out"], y) + 0.4 * F.cross_entropy(o["aux"], y),
    "loss": lambda o, y: o,
}


@wrong_still("an output must be one tensor, [b, ...]")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
@every_algorithm
def test_criteria_take_whatever_the_model_returns(form, engine, method):
    assert_same(*both(lambda: made(Structured, form), FORMS[form], engine=engine, **method))


class InnerGradient(nn.Module):
    """Moves along the gradient of an energy before it answers, as physics models do."""

    def __init__(self):
        super().__init__()
        self.energy, self.last = (
            nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)),
            nn.Linear(6, 3),
        )

    def forward(self, x):
        x = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return self.last(x - force)


@pytest.mark.parametrize("engine", ["auto", "loop", "threads"])
@every_algorithm
def test_gradients_inside_forward(engine, method):
    assert_same(*both(lambda: made(InnerGradient), engine=engine, **method))


class TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8).float(), nn.Linear(8, 3).double()

    def forward(self, x):
        return self.last(self.first(x.float()).double())


@pytest.mark.parametrize("granularity", ["layer", "model", "bucket:1MB"])
@every_algorithm
def test_parameters_of_two_dtypes(granularity, method, request):
    if granularity != "layer":
        request.applymarker(wrong_still("a segment of several has the dtype of torch.cat"))

    def make():
        torch.manual_seed(0)
        return TwoDtypes()

    settings = {"workers": W, "lr": 0.1, **method}
    simulator = Simulator(make(), granularity=granularity, **settings)
    loop = PlainLoop(make(), **settings)
    for x, y in batches():
        simulator.step(x, y)
        loop.step(x, y)
    for name, value in loop.parameters().items():
        own = simulator.parameters()[name]
        assert own.dtype == value.dtype
        assert torch.allclose(own.expand_as(value), value, rtol=1e-5)


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.nothing = nn.Linear(6, 3), nn.Parameter(torch.zeros(0, 4))

    def forward(self, x):
        return self.linear(x) + self.nothing.sum()


@pytest.mark.parametrize("compressor", [None, "topk:0.5", "sign", "qsgd:4"])
def test_an_empty_parameter(compressor):
    model = made(Empty)
    settings = {"compressor": compressor, "compress_if": "all"} if compressor else {}
    simulator = Simulator(model, workers=W, lr=0.1, **settings)
    for x, y in batches():
        simulator.step(x, y)
    assert model.nothing.shape == (0, 4)
    assert model.linear.weight.isfinite().all()


@wrong_still("torch's own error")
def test_a_lazy_module_is_refused_in_one_line():
    with pytest.raises(SettingError, match="lazy"):
        Simulator(nn.Sequential(nn.LazyLinear(3)), workers=W, lr=0.1)


@wrong_still("a name is wanted")
def test_an_optimizer_class_in_a_regime():
    model, other = normed(), normed()
    Simulator(
        model, workers=W, regime=[{"epoch": 0, "optimizer": torch.optim.Adam, "lr": 0.1}]
    ).step(*next(batches()), 0)
    Simulator(other, workers=W, regime=[{"epoch": 0, "optimizer": "Adam", "lr": 0.1}]).step(
        *next(batches()), 0
    )
    assert torch.equal(model[0].weight, other[0].weight)


class OfDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, batch):
        return self.linear(batch["a"] * batch["mask"])


@wrong_still("len() of a dict is taken for a number of samples")
@pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
@every_algorithm
def test_batches_that_are_dicts(engine, method):
    data = [({"a": x, "mask": (x > 0).double()}, y) for x, y in batches()]
    assert_same(*both(lambda: made(OfDict), data=data, engine=engine, **method))


@wrong_still("it does not say what a loader can do about it")
def test_a_short_last_batch_is_told_to_be_dropped():
    simulator = Simulator(normed(), workers=W, lr=0.1)
    with pytest.raises(SettingError, match="drop_last"):
        simulator.step(torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, dtype=torch.long))
