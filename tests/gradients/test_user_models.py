"""Models of others: what a plain loop over deep copies gives, or a refusal in one line."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from simsgd import SettingError, Simulator
from tests.against_loop import (
    CLOSE,
    OWN,
    SHARED,
    STEPS,
    B,
    W,
    Words,
    assert_same,
    batches,
    both,
    every_algorithm,
    made,
    normed,
    texts,
)  # fmt: skip
from tests.plain_loop import PlainLoop


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
    @pytest.mark.quick_cases(12)
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


@pytest.mark.quick_cases(12)
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


class OfDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, batch):
        return self.linear(batch["a"] * batch["mask"])


@pytest.mark.parametrize("more", [{"scale": None}, {"scale": 2}, {"name": "a"}])
def test_what_is_no_tensor_in_a_batch_goes_to_the_loop_that_takes_it(more):
    x, y = next(batches())
    batch = {"a": x, "mask": torch.ones_like(x), **more}
    found = {}
    for engine in ("auto", "loop", "threads"):
        simulator = Simulator(made(OfDict), workers=W, lr=0.1, engine=engine)
        found[engine] = simulator.step(batch, y).loss
    assert found["auto"] == found["loop"] == found["threads"]
    with pytest.raises(SettingError, match="its batches hold what is no tensor, got vmap"):
        Simulator(made(OfDict), workers=W, lr=0.1, engine="vmap").step(batch, y)


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
@every_algorithm
def test_batches_that_are_dicts(engine, method):
    data = [({"a": x, "mask": (x > 0).double()}, y) for x, y in batches()]
    assert_same(*both(lambda: made(OfDict), data=data, engine=engine, **method))


def test_looking_at_a_model_draws_nothing_of_the_callers():
    simulator = Simulator(made(Random, "noise"), workers=W, lr=0.1)
    before = torch.get_rng_state()
    x, y = next(batches())
    outputs = [simulator.forward_once(x, y) for _ in range(2)]
    assert torch.equal(*outputs)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", [SHARED, OWN, {"algorithm": "fedavg"}], ids=str)
def test_passes_over_dicts_are_those_over_tensors(method):
    settings = {"workers": W, "lr": 0.1, "accumulate": 2, **method}
    whole, parts = (Simulator(made(OfDict), **settings) for _ in range(2))
    for x, y in batches():
        one = whole.step({"a": x, "mask": torch.ones_like(x)}, y)
        two = parts.step({"mask": torch.ones_like(x), "a": x}, y)
        assert torch.equal(one.output, two.output)
    plain = Simulator(made(nn.Linear, 6, 3), **settings)
    for x, y in batches():
        plain.step(x, y)
    for name, value in plain.parameters().items():
        assert torch.allclose(whole.parameters()[f"linear.{name}"], value, rtol=CLOSE)


def test_gradients_of_samples_want_one_tensor():
    settings = {"workers": W, "lr": 0.1, "compressor": "variance", "memory": "none"}
    simulator = Simulator(made(OfDict), **settings)
    x, y = next(batches())
    with pytest.raises(SettingError, match="takes batches of one tensor alone"):
        simulator.step({"a": x, "mask": x}, y)
