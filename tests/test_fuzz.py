"""Whole settings drawn at random: finite losses, bytes that are buffers, and resuming.

Engine compiled is left out: it is vmap, and takes seconds for each model that it compiles.

Letters: W workers, n elements of one segment.
"""

import dataclasses
from collections import Counter
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import simsgd
from simsgd.recipe import Recipe
from simsgd.registry import names
from simsgd.settings import SettingError

from . import toy

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of an LSTM
STEPS, BATCH = 3, 2


class Scaled(nn.Module):
    """A layer by a number without dimensions, one that is fixed, and one that nobody uses."""

    def __init__(self):
        super().__init__()
        self.inner, self.unused = nn.Linear(6, 3), nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.inner.bias.requires_grad_(False)

    def forward(self, x):
        return self.inner(x) * self.scale


class Tied(nn.Module):
    """The same weights twice."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.one(x).relu())


class Recurrent(nn.Module):
    """Reads the features of a sample one after the other."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.inner(x.unflatten(1, (3, 2)))[0][:, -1])


MODELS = {
    "linear": lambda: nn.Linear(6, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)
    ),
    "norms": lambda: nn.Sequential(
        nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Linear(4, 3)
    ),
    "scaled": Scaled,
    "tied": Tied,
    "recurrent": Recurrent,
}
PENALTIES = [{"name": name, "value": 0.01} for name in ("WeightDecay", "L1", "GradClip")]
REGIMES = {
    "": None,
    "rates": {0: {"lr": 0.02, "momentum": 0.5}, 1: {"lr": 0.005}},
    "penalties": {0: {"regularizer": PENALTIES}, 1: {"weight_decay": 0.1}},
    "specs": {0: {"compressor": "topk:0.5"}, 1: {"compressor": "qsgd:15"}, 2: {"prune": 0.8}},
    "late": {0: {"compressor": "none"}, 1: {"compressor": "powersgd:1"}},
    "pruned": {0: {"prune": 0.5}, 1: {"prune": 0.9}, 2: {"prune": 0}},
    "optimizers": {0: {"optimizer": "SGD", "momentum": 0.9}, 1: {"optimizer": "Adam"}},
    "back": {0: {"optimizer": "RMSprop"}, 1: {"optimizer": "SGD", "nesterov": True}},
    "steps": [{"step": 0, "momentum": 0.9}, {"step": 2, "momentum": 0.5, "weight_decay": 0.1}],
    "called": lambda epoch, step: {"lr": 0.01 / (1 + step), "momentum": 0.1 * epoch},
}


class Drawn(NamedTuple):
    model: str
    dtype: torch.dtype
    chosen: dict
    regime: str = ""
    epochs: tuple = (0, 0, 0)  # of each step
    poison: tuple | None = None  # a step, how many samples of its batch, and what these are


def simulator(drawn, **more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = MODELS[drawn.model]().to(drawn.dtype)
    if "local_epochs" in drawn.chosen:
        clients = drawn.chosen.get("clients", drawn.chosen["workers"])
        devices = int(drawn.chosen.get("cluster", "2x1")[2:])
        batch = BATCH * devices * drawn.chosen.get("accumulate", 1)
        more |= {"samples": torch.arange(1, clients + 1), "worker_batch": batch}
    return simsgd.Simulator(
        network, regime=REGIMES[drawn.regime], **{"lr": 0.01, **drawn.chosen}, **more
    )


def batches(drawn):
    devices = int(drawn.chosen.get("cluster", "2x1")[2:])
    size = drawn.chosen["workers"] * devices * drawn.chosen.get("accumulate", 1) * BATCH
    for step, (x, y) in enumerate(toy.batches(STEPS, size)):
        x = x.to(drawn.dtype)
        if drawn.poison is not None and drawn.poison[0] == step:
            x[: drawn.poison[1]] = drawn.poison[2]
        yield x, y


def check(drawn):
    """Run three steps; hold the bytes to buffers, and a resumed run to one that never stopped."""
    sent = []
    whole = simulator(
        drawn, observers=[lambda *transfer_and_message: sent.append(transfer_and_message)]
    )
    for step, (x, y) in enumerate(batches(drawn)):
        if step == STEPS - 1:
            saved = whole.state_dict()
            resumed = simulator(drawn)
            resumed.load_state_dict(_copied(saved))
        sent.clear()
        record = whole.step(x, y, epoch=drawn.epochs[step])
        assert record.losses.isfinite().all() or drawn.poison is not None
        for transfer, message in sent:
            check_bytes(transfer, message, drawn.chosen.get("algorithm"))
    again = resumed.step(x, y, epoch=drawn.epochs[-1])
    assert torch.equal(again.losses.nan_to_num(7), record.losses.nan_to_num(7))
    assert again.payload_bytes == record.payload_bytes
    for name, value in whole.parameters().items():
        assert value.isfinite().all()
        assert torch.equal(resumed.parameters()[name], value), name


def check_bytes(transfer, message, algorithm):
    """Hold what was counted to what `pack` makes; a server's answer is one buffer for all."""
    if message is None:
        return
    packed = torch.tensor([len(message.pack(row)) for row in range(len(message.payload_bytes()))])
    assert packed.tolist() == message.payload_bytes().tolist()
    if algorithm == "butterfly":  # passes on more than its own
        return
    payload = transfer.payload.cpu()
    drawn_alone = algorithm in ("fedavg", "fedprox", "scaffold")
    absent = payload == 0 if drawn_alone else torch.zeros_like(payload, dtype=torch.bool)
    assert torch.equal(packed.expand_as(payload)[~absent], payload[~absent])


def _copied(state):
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, list) else state


QUIET = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


def anything(draw, random_settings):
    """Return settings drawn from all there are, a model, a regime, epochs, and bad numbers."""
    chosen = draw(random_settings.recipes())
    regime = draw(st.sampled_from(["", "", *REGIMES]))
    if regime in ("rates", "called"):
        chosen["lr"] = None
    poison = None
    if "on_nonfinite" in chosen and draw(st.booleans()):
        bad = st.sampled_from([float("nan"), float("inf"), 1e30])
        poison = draw(st.tuples(st.integers(0, STEPS - 1), st.sampled_from([1, 3, 99]), bad))
    return Drawn(
        draw(st.sampled_from(sorted(MODELS))),
        draw(st.sampled_from([torch.float32, torch.float64])),
        chosen,
        regime,
        draw(st.sampled_from([(0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 2)])),
        poison,
    )


def check_or_refuse(drawn):
    """Hold settings to it that are not refused, which they must be before or in the first step."""
    try:
        first, batch = simulator(drawn), next(batches(drawn))
        try:
            first.forward_once(*batch)
        except RuntimeError:  # torch has no LSTM in float16 on every processor
            return "refused"
        first.step(*batch, epoch=0)
    except SettingError:
        return "refused"
    check(drawn)
    return "trained"


def check_many(random_settings, examples, **how):
    """Hold so many draws to it; of which some must not be refused."""
    ends = Counter()

    @settings(max_examples=examples, **{**QUIET, **how})
    @given(st.data())
    def hold(data):
        ends[check_or_refuse(anything(data.draw, random_settings))] += 1

    hold()
    assert ends["trained"] > examples // 5


@pytest.mark.slow
def test_any_settings_at_all_train_count_and_resume_or_are_refused(random_settings):
    check_many(random_settings, 80)


@pytest.mark.slow
def test_many_settings_at_all_train_count_and_resume_or_are_refused(random_settings):
    check_many(random_settings, 600)


@pytest.mark.parametrize("engine", ["auto", "onepass", "vmap", "tune"])
@pytest.mark.parametrize("model", ["linear", "norm", "convolution"])
def test_a_first_batch_of_huge_numbers_decides_nothing(model, engine):
    chosen = {"workers": 2, "engine": engine, "on_nonfinite": "zero"}
    check(Drawn(model, torch.float32, chosen, poison=(0, 3, 1e30)))


def test_every_setting_of_a_recipe_is_drawn(random_settings):
    drawn = {*random_settings.ONCE}.union(
        *([*random_settings.ALWAYS], *random_settings.WHERE.values())
    )
    without_effect = {"cuda_graph"}  # on a CPU
    assert drawn == {f.name for f in dataclasses.fields(Recipe)} - without_effect


def _steps(found):
    own = isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
    return own and found is not torch.optim.Optimizer


@pytest.mark.parametrize("kind", ["engine", "compressor", "memory", "algorithm", "optimizer"])
def test_every_method_is_drawn(random_settings, kind):
    optimizers = {name for name in dir(torch.optim) if _steps(getattr(torch.optim, name))}
    known = optimizers if kind == "optimizer" else set(names(kind))
    drawn = {
        p.partition(":")[0] for spec in random_settings.drawn_of(kind) for p in spec.split("+")
    }
    assert known - {*random_settings.LEFT_OUT.get(kind, {}), "auto"} <= drawn


@pytest.mark.parametrize("algorithm", ["async", "butterfly"])
def test_ef21_is_refused_where_nobody_computes_a_mean(algorithm):
    chosen = {"workers": 2, "algorithm": algorithm, "compressor": "topk:0.5", "memory": "ef21"}
    with pytest.raises(SettingError, match=f"which algorithm {algorithm} never computes"):
        simulator(Drawn("linear", torch.float32, chosen))


@pytest.mark.parametrize("algorithm", ["dpsgd", "choco", "local", "diloco"])
def test_a_compressor_of_sample_gradients_is_refused_for_models(algorithm):
    chosen = {"workers": 2, "algorithm": algorithm, "compressor": "variance", "lr": 0.1}
    with pytest.raises(SettingError, match="looks at the gradients of single samples"):
        simulator(Drawn("linear", torch.float32, chosen))
