"""Parameter groups, and optimizers of models per worker, held to torch's own, float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd import SettingError, Simulator
from tests.against_loop import EVERY, assert_same, batches, made
from tests.plain_loop import PlainLoop
from tests.toy import mlp

RATES = {"Adadelta": 1.0, "ASGD": 0.05, "Adagrad": 0.05, "SGD": 0.1}
MUON = {
    "optimizer": "Muon",
    "lr": 0.02,
    "param_groups": [{"params": "dim!=2", "optimizer": "AdamW", "lr": 0.003}],
}
NO_DECAY = {
    "optimizer": "AdamW",
    "lr": 0.01,
    "weight_decay": 0.1,
    "param_groups": [
        {"params": ["2.*", lambda name, p: p.numel() > 1000], "lr_mult": 0.5, "weight_decay": 0.3},
        "no_decay_1d",
    ],
}


def muon_and_adamw(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.003)]


def no_decay(model):
    named = dict(model.named_parameters())
    last = [named["2.weight"], named["2.bias"]]
    groups = [
        {"params": [named["0.weight"]]},
        {"params": last, "lr": 0.005, "weight_decay": 0.3},
        {"params": [named["0.bias"]], "weight_decay": 0.0},
    ]
    return [torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)]


GROUPED = {"muon": (MUON, muon_and_adamw), "no_decay": (NO_DECAY, no_decay)}
grouped = pytest.mark.parametrize(("regime", "wanted"), GROUPED.values(), ids=GROUPED)
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="a newer torch has it")


def loops(make, wanted=None, regime=None, steps=4, data=None, **method):
    method = {"workers": 4, **method}
    simulator = Simulator(make(), regime=None if regime is None else {0: regime}, **method)
    del method["engine"]
    loop = PlainLoop(make(), optimizers_of=wanted, **method)
    for x, y in itertools.islice(data or batches(steps), steps):
        simulator.step(x, y, epoch=0)
        loop.step(x, y)
    return simulator, loop


@grouped
@pytest.mark.parametrize("method", EVERY.values(), ids=EVERY)
def test_groups_are_stepped_as_by_torch(regime, wanted, method):
    assert_same(*loops(mlp, wanted, regime, engine="auto", **method))


@pytest.mark.parametrize(
    "name", ["Adafactor", "Muon", "Adagrad", "Adadelta", "NAdam", "RAdam", "Rprop", "ASGD"]
)
def test_each_worker_has_what_an_optimizer_of_its_own_would_have(name):
    def matrices():
        return made(lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 3, bias=False)))

    lr = RATES.get(name, 0.01)
    assert_same(
        *loops(matrices, engine="auto", algorithm="local", local_steps=3, optimizer=name, lr=lr)
    )


class Either(nn.Module):
    """Two branches, of which a batch uses one."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        branch = self.a if float(x.sum()) > 0 else self.b
        return self.last(torch.tanh(branch(x)))


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "Adam", "lr": 0.01},
        {"optimizer": "NAdam", "lr": 0.01},
        {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "dampening": 0.5},
        {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9},
    ],
)
def test_workers_count_the_steps_of_what_they_use_alone(given):
    def wanted(model):
        kind = getattr(torch.optim, given["optimizer"])
        return [kind(model.parameters(), **{k: v for k, v in given.items() if k != "optimizer"})]

    simulator, loop = loops(
        lambda: made(Either), wanted, given, steps=6, engine="loop", algorithm="dpsgd"
    )
    assert_same(simulator, loop)
    again = Simulator(made(Either), regime={0: given}, engine="loop", algorithm="dpsgd", workers=4)
    again.load_state_dict(simulator.state_dict())
    for x, y in batches(3):
        simulator.step(x, y, epoch=0)
        again.step(x, y, epoch=0)
    for name, value in simulator.parameters().items():
        assert torch.equal(again.parameters()[name], value)


@grouped
@pytest.mark.parametrize("method", EVERY.values(), ids=EVERY)
def test_groups_are_resumed_to_the_same_bit(regime, wanted, method, tmp_path):
    simulator, again = (Simulator(mlp(), regime={0: regime}, workers=4, **method) for _ in range(2))
    for number, (x, y) in enumerate(batches(6)):
        if number == 3:
            torch.save(simulator.state_dict(), tmp_path / "state.pt")
            again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        for each in (simulator, again)[: 1 + (number >= 3)]:
            each.step(x, y, epoch=0)
    for name, value in simulator.parameters().items():
        assert torch.equal(again.parameters()[name], value)


@pytest.mark.parametrize("where", ["global", "local"])
@pytest.mark.parametrize("memory", ["none", "dgc", "residual"])
def test_the_decay_of_a_group_acts_where_the_usual_one_does(where, memory):
    regime = {0: {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "param_groups": "no_decay_1d"}}
    by_hand = [{"name": "WeightDecay", "value": 0.1}]  # spares biases
    plain = {0: {"lr": 0.1, "momentum": 0.9, "regularizer": by_hand}}
    both = [
        Simulator(mlp(), regime=form, workers=2, memory=memory, weight_decay_at=where)
        for form in (regime, plain)
    ]
    for x, y in batches(4):
        for simulator in both:
            simulator.step(x, y, epoch=0)
    for name, value in both[0].parameters().items():
        assert torch.allclose(value, both[1].parameters()[name], rtol=1e-10), name


def test_a_parameter_that_moves_to_another_group_keeps_its_momentum():
    phases = [
        {"epoch": 0, "optimizer": "Adam", "lr": 0.01, "weight_decay": 0.1},
        {"epoch": 1, "param_groups": "no_decay_1d"},
        {"epoch": 2, "param_groups": "none"},
    ]
    simulator, model = Simulator(mlp(), regime=phases, workers=1), mlp()
    wanted = torch.optim.Adam(
        [{"params": [p for p in model.parameters() if p.dim() == d]} for d in (1, 2)], lr=0.01
    )
    for epoch, (x, y) in enumerate(batches(3)):
        for group, decay in zip(
            wanted.param_groups, (0.0 if epoch == 1 else 0.1, 0.1), strict=True
        ):
            group["weight_decay"] = decay
        simulator.step(x, y, epoch=epoch)
        wanted.zero_grad()
        F.cross_entropy(model(x), y).backward()
        wanted.step()
    for name, value in model.named_parameters():
        assert torch.equal(simulator.parameters()[name], value)


REFUSED = [
    (
        [{"params": "3.*", "lr": 0.1}],
        "param_groups matches no parameter, got 3.*; the model has 0.w",
    ),
    ([{"params": "dim<2", "betas2": 1}], "param_groups"),
    ([{"params": "dim<2", "betas": (0.9, 0.9)}], "a group with betas, which SGD does not take"),
    ([{"params": "dim<2", "optimizer": "Adam", "betas": [0.9]}], "optimizer refuses its settings"),
    (
        [{"params": lambda name, own: own, "lr": 0.1}],
        "is a function <lambda> that returns a tensor",
    ),
    ([{"params": "dim<2"}], "has a group without options"),
    ([{"params": "dim<2", "lr": 0.1, "lr_mult": 2}], "sets lr and lr_mult at once"),
    ([{"params": 3, "lr": 0.1}], "must be a rule, a pattern or a function"),
    (
        [{"params": "dim<2", "lr": -1}],
        "has a group with lr -1, which must be a number of at least 0",
    ),
    ("no_decay_2d", "no_decay_1d"),
    (5, "must be a list of dicts with params and options"),
    ([{"params": "dim<2", "optimizer": "Muon"}], "optimizer refuses its settings: Muon only"),
    ([{"params": "dim<2", "optimizer": "Adams"}], "optimizer"),
]


@pytest.mark.parametrize(("groups", "message"), REFUSED)
def test_groups_that_mean_nothing_are_refused(groups, message):
    with pytest.raises(SettingError) as wrong:
        Simulator(mlp(), regime={0: {"lr": 0.1, "param_groups": groups}}, workers=2)
    assert message in str(wrong.value)


@pytest.mark.parametrize(("memory", "option"), [("dgc", "momentum"), ("residual:lr=true", "lr")])
def test_an_option_that_a_memory_has_for_all_is_refused_in_a_group(memory, option):
    regime = {0: {"lr": 0.1, "param_groups": [{"params": "dim<2", option: 0.5}]}}
    rule = "has no place in a parameter group beside memory"
    with pytest.raises(SettingError, match=rule):
        Simulator(mlp(), regime=regime, workers=2, memory=memory, compressor="topk:0.5")


def test_what_has_no_place_beside_lr_in_memory_names_it():
    regime = {0: {"lr": 0.1, "param_groups": [{"params": "dim<2", "lr": 0.5}]}}
    settings = {"memory": "residual", "lr_in_memory": True, "compressor": "topk:0.5"}
    rule = "group beside lr_in_memory, got 0.5; leave lr_in_memory out, or it$"
    with pytest.raises(SettingError, match=rule):
        Simulator(mlp(), regime=regime, workers=2, **settings)


def test_a_new_round_begins_with_a_new_optimizer_that_holds_its_sums():
    settings = {"optimizer": "Adagrad", "lr": 0.05, "participation": 0.5}
    assert_same(*loops(mlp, engine="auto", algorithm="fedavg", local_steps=2, **settings))
