"""Steps of models of others: what plain loops over deep copies do, or a refusal in one line."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.recipe import Recipe
from simsgd.simulator.notes import notes
from simsgd.simulator.step_settings import regime_of
from tests.against_loop import (
    CLOSE,
    EVERY,
    OWN,
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


class TestFedAvg:
    FED = {"algorithm": "fedavg", "local_steps": 2, "participation": 0.25}  # noqa: RUF012

    def test_clients_that_are_not_drawn_keep_their_statistics(self):
        simulator, loop = both(normed, data=batches(2), **self.FED)
        assert sorted(simulator.buffers["1.num_batches_tracked"].tolist()) == [0, 0, 0, 2]
        assert_same(simulator, loop)

    @pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
    def test_it_is_the_loop_within_a_round_and_after(self, engine):
        momentum = {"momentum": 0.9, "weight_decay": 0.1}
        for steps in (3, 4):
            assert_same(*both(normed, data=batches(steps), engine=engine, **momentum, **self.FED))

    def test_only_the_drawn_compute(self):
        calls = []

        def counted(output, target):
            calls.append(len(output))
            return F.cross_entropy(output, target)

        simulator = Simulator(normed(), counted, workers=W, lr=0.1, engine="loop", **self.FED)
        for batch in batches(2):  # the first is also tried
            calls.clear()
            simulator.step(*batch)
        assert len(calls) == 1

    def test_statistics_are_evaluated_by_the_weights_of_the_models(self):
        samples = torch.tensor([1.0, 2.0, 3.0, 4.0])
        fed = {**self.FED, "participation": 0.5}
        simulator = Simulator(normed(), workers=W, lr=0.1, samples=samples, **fed)
        for x, y in batches(2):
            drawn = simulator.step(x, y).participants
        weights = (samples * drawn).double() / (samples * drawn).sum()
        wanted = torch.einsum("w,wc->c", weights, simulator.buffers["1.running_mean"])
        got = simulator.evaluation_model()[1].running_mean
        assert torch.allclose(got, wanted, rtol=CLOSE)

    def test_averaged_statistics_are_everybodys_and_are_sent(self):
        settings = {"workers": W, "lr": 0.1, **self.FED}
        local = Simulator(normed(), **settings)
        averaged = Simulator(normed(), client_buffers="average", **settings)
        for x, y in batches(2):
            plain, record = local.step(x, y), averaged.step(x, y)
        drawn = int(plain.participants.nonzero())
        for name, own in averaged.buffers.items():
            assert torch.equal(own, local.buffers[name][drawn].expand_as(own))
        more = [a - b for a, b in zip(record.payload_bytes, plain.payload_bytes, strict=True)]
        assert more == [8 * (8 + 8 + 1) * (w == drawn) for w in range(W)]
        assert torch.equal(record.bytes.downlink - plain.bytes.downlink, torch.tensor(more))

    def test_a_round_begins_with_the_servers_statistics(self):
        settings = {"workers": W, "lr": 0.1, "client_buffers": "server", **self.FED}
        simulator = Simulator(normed(), **settings)
        for number, (x, y) in enumerate(batches(4)):
            simulator.step(x, y)
            moved = int(simulator.buffers["1.num_batches_tracked"].sum())
            assert moved == (1 if number % 2 == 0 else 0)

    def test_who_is_not_drawn_keeps_what_the_memory_holds(self):
        settings = {"workers": W, "lr": 0.1, "compressor": "topk:0.1", **self.FED}
        simulator = Simulator(normed(), **settings)
        for x, y in batches(6):
            before = kept(simulator)
            drawn = simulator.step(x, y).participants
            assert torch.equal(kept(simulator)[~drawn], before[~drawn])
        assert float(kept(simulator).norm()) > 0


def kept(simulator):
    states = simulator.components.segment_states
    rows = [own.memory_state["residual"] for own in states if not own.segment.dense]
    return torch.cat(rows, dim=1).clone()


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

    @pytest.mark.parametrize("by_parity", [False, True])
    @every_algorithm
    def test_they_are_left_alone(self, by_parity, method):
        simulator, loop = both(
            lambda: made(Unused, by_parity), engine="loop", **self.DECAY, **method
        )
        assert torch.equal(loop.parameters()["unused"], torch.ones(W, 2, 2, dtype=torch.float64))
        assert_same(simulator, loop)

    @pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads", "onepass"])
    def test_every_engine_finds_them(self, engine):
        assert_same(*both(Plainly, engine=engine, **self.DECAY))

    @pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
    @pytest.mark.parametrize("method", [OWN, EVERY["local"]], ids=["dpsgd", "local"])
    def test_every_engine_finds_them_in_models_per_worker(self, engine, method):
        assert_same(*both(Plainly, engine=engine, **self.DECAY, **method))

    @pytest.mark.parametrize("granularity", ["layer", "model"])
    def test_they_are_left_alone_whatever_the_granularity(self, granularity):
        model = Plainly()
        settings = {"granularity": granularity, "compressor": "topk:0.5", "compress_if": "all"}
        simulator = Simulator(model, workers=W, lr=0.1, **settings, **self.DECAY)
        for x, y in batches():
            simulator.step(x, y)
        assert torch.equal(model.unused.weight, torch.ones(4, 6, dtype=torch.float64))

    def test_they_are_not_billed(self):
        simulator, _ = both(lambda: made(Unused))
        record = simulator.step(*next(batches()))
        assert record.payload_bytes == [(6 * 3 + 3) * 8] * W
        assert record.ratio == 1

    def test_they_are_named(self):
        simulator = Simulator(made(Unused), workers=W, lr=0.1)
        assert simulator.unused_parameters(*next(batches())) == ["unused", "sometimes"]


class Plainly(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(6, 3).double(), nn.Linear(6, 4).double()
        nn.init.ones_(self.unused.weight)

    def forward(self, x):
        return self.used(x)


class TestRequiresGradChangedLater:
    @pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
    @every_algorithm
    def test_what_is_frozen_later_is_left_alone(self, engine, method):
        settings = {"workers": W, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, **method}
        simulator = Simulator(normed(), engine=engine, **settings)
        loop = PlainLoop(normed(), **settings)
        for number, (x, y) in enumerate(batches(4)):
            for model in (simulator.model, *loop.models):
                model[0].requires_grad_(number in (0, 3))
            simulator.step(x, y)
            loop.step(x, y)
        assert_same(simulator, loop)

    @pytest.mark.parametrize(
        "settings",
        [
            {"compressor": "sign:none", "memory": "none"},
            {"compressor": "topk:0.1", "memory": "dgc", "momentum": 0.9},
            {"attack": "noise:1"},
            {"algorithm": "async"},
        ],
    )
    def test_what_goes_in_one_message_with_others_is_left_alone_too(self, settings):
        simulator = Simulator(normed(), workers=W, lr=0.1, granularity="model", **settings)
        one, two, three = batches(3)
        simulator.step(*one)
        simulator.step(*two)
        simulator.model[0].requires_grad_(False)
        before = copy.deepcopy(simulator.model)
        simulator.step(*three)
        assert torch.equal(simulator.model[0].weight, before[0].weight)
        assert not torch.equal(simulator.model[-1].weight, before[-1].weight)

    @pytest.mark.parametrize("steps", [0, 1])
    def test_what_is_frozen_before_a_batch_of_another_kind_is_left_alone(self, steps):
        simulator = Simulator(normed(), workers=W, lr=0.1, engine="onepass")
        for batch in itertools.islice(batches(), steps):
            simulator.step(*batch)
        simulator.model[0].requires_grad_(False)
        before = copy.deepcopy(simulator.model[0])
        x, y = next(batches())
        simulator.step(torch.cat([x, x]), torch.cat([y, y]))
        assert torch.equal(simulator.model[0].weight, before.weight)

    @pytest.mark.parametrize("engine", ["auto", "loop", "threads", "onepass", "vmap"])
    def test_parameters_may_take_turns_from_the_first_step_on(self, engine):
        simulator, loop = (
            Simulator(normed(), workers=W, lr=0.1, engine=e) for e in (engine, "loop")
        )
        for number, (x, y) in enumerate(batches(4)):
            for each in (simulator, loop):
                each.model[0].requires_grad_(number % 2 == 1)
                each.step(x, y)
        torch.testing.assert_close(simulator.parameters(), loop.parameters(), rtol=1e-9, atol=1e-12)

    def test_what_is_unfrozen_later_is_refused(self):
        model = normed()
        model[0].requires_grad_(False)
        simulator = Simulator(model, workers=W, lr=0.1)
        model[0].requires_grad_(True)
        with pytest.raises(SettingError, match=r"0\.weight, whose requires_grad was False"):
            simulator.step(*next(batches()))


class Scaled(nn.Module):
    """A criterion with a temperature that is learnt."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, output, target):
        return F.cross_entropy(output * self.temperature, target)


class TestCriterionWithParameters:
    def test_it_is_refused(self):
        with pytest.raises(SettingError, match=r"criterion has parameters \(temp"):
            Simulator(normed(), Scaled(), workers=W, lr=0.1)

    def test_it_is_taken_once_they_are_frozen(self):
        criterion = Scaled()
        criterion.requires_grad_(False)
        assert_same(*both(normed, criterion))


class WithCenters(nn.Module):
    """Has the parameters of its loss, and returns them: ArcFace's centers, a temperature."""

    def __init__(self):
        super().__init__()
        self.body, self.centers = nn.Linear(6, 4), nn.Parameter(torch.randn(3, 4))
        self.temperature = nn.Parameter(torch.tensor(4.0))

    def forward(self, x):
        cosines = F.normalize(self.body(x)) @ F.normalize(self.centers).T
        return {"cosines": cosines, "temperature": self.temperature.expand(len(x), 1)}


def arcface(output, target):
    """Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019."""
    angles = output["cosines"].clamp(-0.999, 0.999).acos()
    margins = 0.3 * torch.eye(3, dtype=angles.dtype)[target]
    return F.cross_entropy(output["temperature"] * (angles + margins).cos(), target)


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
@every_algorithm
def test_a_model_may_have_the_parameters_of_its_loss(engine, method):
    assert_same(*both(lambda: made(WithCenters), arcface, engine=engine, **method))


class TestSignOfZero:
    def test_rows_without_gradient_do_not_move_if_a_zero_is_kept(self):
        model = made(Words)
        before = model.words.weight[10:].detach().clone()
        compressor = {"compressor": "sign:zero=keep", "memory": "none"}
        simulator = Simulator(model, workers=W, lr=0.1, **compressor)
        for x, y in texts():
            simulator.step(x, y)
        assert torch.equal(model.words.weight[10:], before)

    def test_that_they_move_otherwise_is_noted(self):
        model, recipe = normed(), Recipe(compressor="sign", memory="none")
        (note,) = notes(recipe, regime_of(recipe, None, model, {}))
        assert "sign sends a zero as +" in note
        assert "sign:zero=keep leaves them" in note
        kept = Recipe(compressor="sign:zero=keep", memory="none")
        assert "zero" not in notes(kept, regime_of(kept, None, model, {}))[0]


class TestLocalStepsLeftOver:
    @pytest.mark.parametrize("algorithm", ["local", "diloco"])
    def test_a_last_step_is_followed_by_an_exchange_if_asked_for(self, algorithm):
        settings = {"workers": W, "lr": 0.1, "algorithm": algorithm, "local_steps": 2}
        simulator = Simulator(normed(), final_exchange=True, **settings)
        for number, (x, y) in enumerate(batches(3)):
            record = simulator.step(x, y, last=number == 2)
        assert record.payload_bytes > [0] * W
        assert simulator.consensus_distance() == 0

    def test_the_workers_take_their_mean(self):
        settings = {"algorithm": "local", "local_steps": 2}
        simulator = Simulator(normed(), workers=W, lr=0.1, final_exchange=True, **settings)
        loop = PlainLoop(normed(), workers=W, lr=0.1, **settings)
        for number, (x, y) in enumerate(batches(3)):
            simulator.step(x, y, last=number == 2)
            loop.step(x, y)
        mean = {name: value.mean(0) for name, value in loop.parameters().items()}
        for name, value in simulator.parameters().items():
            assert torch.allclose(value, mean[name].expand_as(value), rtol=CLOSE)


class TestRegimeThatBeginsToCompressLater:
    def test_it_gets_the_memory_that_its_compressor_needs(self):
        regime = [{"epoch": 0, "compressor": "none"}, {"epoch": 1, "compressor": "topk:0.1"}]
        simulator = Simulator(normed(), workers=W, lr=0.1, regime=regime)
        assert simulator.recipe.memory == "residual"


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


class TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8).float(), nn.Linear(8, 3).double()

    def forward(self, x):
        return self.last(self.first(x.float()).double())


@pytest.mark.parametrize("granularity", ["layer", "model", "bucket:1MB"])
@every_algorithm
def test_parameters_of_two_dtypes(granularity, method):
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


def test_a_lazy_module_is_refused_in_one_line():
    with pytest.raises(SettingError, match="lazy"):
        Simulator(nn.Sequential(nn.LazyLinear(3)), workers=W, lr=0.1)


def test_an_optimizer_class_in_a_regime():
    model, other = normed(), normed()
    Simulator(
        model, workers=W, regime=[{"epoch": 0, "optimizer": torch.optim.Adam, "lr": 0.1}]
    ).step(*next(batches()), 0)
    Simulator(other, workers=W, regime=[{"epoch": 0, "optimizer": "Adam", "lr": 0.1}]).step(
        *next(batches()), 0
    )
    assert torch.equal(model[0].weight, other[0].weight)


def test_a_short_last_batch_is_refused_with_how_to_drop_it():
    simulator = Simulator(normed(), workers=W, lr=0.1)
    with pytest.raises(SettingError, match="drop_last"):
        simulator.step(torch.zeros(6, 6, dtype=torch.float64), torch.zeros(6, dtype=torch.long))


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads", "onepass"])
@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (lambda output, target: (output - 1).square(), "criterion returns a tensor of shape"),
        (lambda output, target: 1.0, "criterion returns no tensor; return the mean, one number"),
    ],
    ids=["each", "number"],
)
def test_a_loss_that_is_not_one_number_is_refused(engine, criterion, message):
    simulator = Simulator(made(nn.Linear, 6, 3), criterion, workers=W, lr=0.1, engine=engine)
    with pytest.raises(SettingError, match=message):
        simulator.step(*next(batches()))


@pytest.mark.parametrize("engine", ["auto", "loop", "vmap", "threads"])
def test_a_loss_may_have_one_element(engine):
    def criterion(output, target):
        return F.cross_entropy(output, target).reshape(1)

    assert_same(*both(normed, criterion, engine=engine))
