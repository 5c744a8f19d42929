"""Objects in Python where a name may stand: the same numbers, or one line."""

import copy
import functools
import re
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler, ReduceLROnPlateau

import simsgd
from simsgd import SettingError, Simulator
from simsgd.methods import Compressor
from simsgd.methods.adapters import grace
from simsgd.methods.algorithms.local import LocalSGD
from simsgd.methods.compressors.topk import TopK
from simsgd.methods.memories.residual import Residual
from tests.toy import batches, mlp

RUN = {"dataset": "digits", "model": "logistic", "workers": 2, "epochs": 2, "quiet": True}
METHODS = {
    "compressor": (TopK(0.3), "topk:0.3", {}),
    "memory": (Residual(beta=0.9), "residual:beta=0.9", {"compressor": "topk:0.3"}),
    "algorithm": (LocalSGD(local_steps=2), "local:local_steps=2", {"compressor": "topk:0.3"}),
    "downlink": (TopK(0.3), "topk:0.3", {"compressor": "topk:0.3"}),
}


class Signs(torch.optim.Optimizer):
    """Sign descent that counts its steps in Python."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                own = self.state[p]
                own["count"] = own.get("count", 0) + 1
                p.add_(p.grad.sign(), alpha=-group["lr"] / own["count"])


class Half:
    def compress(self, tensor, name):
        return [tensor.half()], tensor.dtype

    def decompress(self, tensors, ctx):
        return tensors[0].to(ctx)


def trained(steps=3, **settings):
    simulator = Simulator(mlp(), workers=4, **{"lr": 0.1, **settings})
    for x, y in batches(steps, 16):
        simulator.step(x, y, epoch=0)
    return simulator


def assert_same(one, other):
    for name, value in one.parameters().items():
        assert torch.equal(value, other.parameters()[name]), name


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_an_optimizer_with_hooks_is_refused():
    model = nn.Linear(3, 2)
    optimizer = _sgd(model)
    optimizer.register_step_pre_hook(lambda *given: None)
    with pytest.raises(SettingError, match="has hooks, which would not be called"):
        Simulator(model, workers=2, optimizer=optimizer)


class Signed(torch.optim.SGD):
    """SGD that keeps an argument under its name, in no group."""

    def __init__(self, params, lr=0.1, sign=False):
        super().__init__(params, lr=lr)
        self.sign = sign

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.sign() if self.sign else p.grad, alpha=group["lr"])


@pytest.mark.parametrize("how", ["object", "function", "regime"])
def test_what_an_optimizer_keeps_beside_its_groups_stays(how):
    given, model = nn.Linear(4, 3), nn.Linear(4, 3)
    model.load_state_dict(given.state_dict())

    def made():
        if how == "regime":
            return {"regime": {0: {"optimizer": Signed, "lr": 0.01, "sign": True}}}
        by = functools.partial(Signed, lr=0.01, sign=True)
        own = by(given.parameters()) if how == "object" else lambda m: by(m.parameters())
        return {"optimizer": own}

    simulator = Simulator(given, workers=2, **made())
    optimizer = Signed(model.parameters(), lr=0.01, sign=True)
    for step in range(4):
        x, y = torch.randn(8, 4), torch.arange(8) % 3
        simulator.step(x, y)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step == 1:  # also in one that goes on from a state
            state = simulator.state_dict()
            simulator = Simulator(given, workers=2, **made())
            simulator.load_state_dict(state)
    assert torch.allclose(given.weight, model.weight, atol=1e-6)


class Assigning(torch.optim.Optimizer):
    """Puts its parameters elsewhere in each step, as was usual once."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = p.data - group["lr"] * p.grad


@pytest.mark.parametrize(
    "method",
    [{}, {"algorithm": "local", "local_steps": 2}, {"algorithm": "dpsgd", "topology": "ring"},
     {"method": "diloco", "local_steps": 2}],
    ids=str,
)  # fmt: skip
def test_parameters_that_an_optimizer_assigns_are_stepped_in_place(method):
    def parameters(optimizer):
        torch.manual_seed(0)
        simulator = Simulator(mlp(), workers=4, lr=0.1, **method, optimizer=optimizer)
        for x, y in batches(4, 16):
            simulator.step(x, y, epoch=0)
        return [p.clone() for p in simulator.evaluation_model().parameters()]

    for own, wanted in zip(parameters(Assigning), parameters("SGD"), strict=True):
        assert torch.allclose(own, wanted, atol=1e-6)


def test_state_that_belongs_to_no_parameter_is_told():
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            self.state["calls"] = {"number": 1}
            super().step()

    simulator = Simulator(nn.Linear(3, 2), workers=2, lr=0.1, optimizer=Counting)
    with pytest.raises(SettingError, match=r"^optimizer keeps state of calls, which is no parame"):
        simulator.step(torch.ones(4, 3), torch.zeros(4).long())


def test_an_optimizer_whose_step_needs_its_closure_is_told():
    class Closed(torch.optim.SGD):
        def step(self, closure):
            closure()

    with pytest.raises(SettingError, match=r"^optimizer has a step that needs closure, got Closed"):
        Simulator(nn.Linear(3, 2), workers=2, lr=0.1, optimizer=Closed)


class Configured(torch.optim.SGD):
    """Keeps an argument under another name."""

    def __init__(self, params, lr=0.1, scale=1.0, keep=dict):
        super().__init__(params, lr=lr)
        self.kept = {
            dict: lambda: {"scale": scale}, list: lambda: [scale], set: lambda: {scale},
            SimpleNamespace: lambda: SimpleNamespace(scale=scale),
            torch.Tensor: lambda: torch.tensor([scale]), np.ndarray: lambda: np.array([scale]),
        }[keep]()  # fmt: skip
        self.keep = keep


@pytest.mark.parametrize("keep", [dict, list, set, SimpleNamespace, torch.Tensor, np.ndarray])
def test_an_argument_kept_in_something_else_is_told(keep):
    model = nn.Linear(3, 2)
    kind = type("Kind", (Configured,), {"__init__": _with_default(keep)})
    Simulator(model, workers=2, optimizer=kind(model.parameters()))
    with pytest.raises(
        SettingError, match=r"^optimizer has kept = .*, which one made anew of its "
    ):
        Simulator(model, workers=2, optimizer=kind(model.parameters(), scale=0.3))


def _with_default(keep):
    def make(self, params, lr=0.1, scale=1.0):
        Configured.__init__(self, params, lr, scale, keep)

    return make


@pytest.mark.parametrize("setting", [{"lr": 0.5}, {"momentum": 0.5}])
def test_what_a_scheduler_that_is_an_object_begins_without_is_told(setting):
    model = nn.Linear(3, 2)
    optimizer = _sgd(model)
    objects = {"optimizer": optimizer, "scheduler": ExponentialLR(optimizer, 0.9)}
    told = rf"^{next(iter(setting))} has no effect beside a scheduler that is an object, which has"
    with pytest.raises(SettingError, match=told):
        Simulator(model, workers=2, **objects, **setting)


def test_a_weight_decay_beside_a_scheduler_holds():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    plain = copy.deepcopy(model)
    optimizer = _sgd(model)
    other = torch.optim.SGD(plain.parameters(), lr=0.1, weight_decay=0.3)
    every = {"scheduler": ExponentialLR(optimizer, 0.9), "scheduler_every": "step"}
    simulator = Simulator(model, workers=2, optimizer=optimizer, weight_decay=0.3, **every)
    scheduler = ExponentialLR(other, 0.9)
    for _ in range(3):
        x, y = torch.randn(8, 4), torch.arange(8) % 3
        simulator.step(x, y)
        other.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        other.step()
        scheduler.step()
    assert torch.allclose(model.weight, plain.weight, atol=1e-6)


class Timed(torch.optim.SGD):
    """Has attributes that differ from object to object, or from themselves."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.began, self.best, self.table = time.perf_counter(), float("nan"), np.ones(3)


class Filtering(torch.optim.SGD):
    """Takes a function, or a table."""

    def __init__(self, params, lr=0.1, function=None, table=None):
        super().__init__(params, lr=lr)
        self.function = function or (lambda gradient: gradient)
        self.table = table


class Decaying(torch.optim.SGD):
    """Writes its own rate."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            group["lr"] *= 0.8


def test_a_rate_that_an_optimizer_writes_itself_is_told():
    simulator = Simulator(nn.Linear(3, 2), workers=2, lr=0.1, optimizer=Decaying)
    told = r"^optimizer writes lr in its step, which is set before each, got Decaying; keep a fact"
    with pytest.raises(SettingError, match=told):
        simulator.step(torch.ones(4, 3), torch.zeros(4).long())


def _lookahead():
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, base):
            self.base, self.param_groups, self.state = base, base.param_groups, base.state

    return lambda model: Lookahead(_sgd(model))


class SAM(torch.optim.Optimizer):
    """An optimizer around another, whose arguments come by **kwargs."""

    def __init__(self, params, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = torch.optim.SGD(self.param_groups, **kwargs)


def _changed(name, value, kind=torch.optim.SGD):
    def made(model):
        optimizer = kind(model.parameters(), lr=0.1)
        setattr(optimizer, name, value)
        return optimizer

    return made


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (_changed("power", 2, Signed), "has power = 2, which one made anew of its options would"),
        (_changed("step", print), "has step = "),
        (_changed("step", lambda closure=None: None), r"has step = function <lambda>, which one"),
        (lambda model: SAM(model.parameters(), lr=0.1), "takes no lr, got SAM"),
        (_lookahead(), r"has an __init__ that does not call torch\.optim\.Optimizer\.__init__"),
    ],
)
def test_an_optimizer_that_is_more_than_its_options_is_refused(made, told):
    model = nn.Linear(3, 2)
    with pytest.raises(SettingError, match=rf"^optimizer {told}"):
        Simulator(model, workers=2, optimizer=made(model))


@pytest.mark.parametrize(
    "made",
    [
        lambda p: torch.optim.Adam(p, fused=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(p, lr=0.1), 3).optimizer,
        lambda p: torch.optim.RMSprop(p, lr=torch.tensor(0.1)),
        lambda p: _changed("name", "head")(SimpleNamespace(parameters=lambda: p)),
        lambda p: torch.optim.AdamW(p, betas=[0.9, 0.95]),
        lambda p: Timed(p),
        lambda p: Filtering(p),
    ],
)
def test_an_optimizer_that_is_its_options_is_taken(made):
    model = nn.Linear(3, 2)
    simulator = Simulator(model, workers=2, optimizer=made(model.parameters()))
    simulator.step(torch.ones(4, 3), torch.zeros(4).long())


@pytest.mark.parametrize("in_a_list", [False, True])
def test_an_option_set_in_an_optimizer_later_is_refused(in_a_list):
    model = nn.Linear(3, 2)
    optimizer = _sgd(model)
    simulator = Simulator(model, workers=2, optimizer=[optimizer] if in_a_list else optimizer)
    x, y = torch.ones(4, 3), torch.zeros(4).long()
    simulator.step(x, y)
    optimizer.param_groups[0]["lr"] = 0.01
    with pytest.raises(SettingError, match=r"has lr 0\.01 by now, which is 0\.1 in the simulator"):
        simulator.step(x, y)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_by_object_is_that_of_its_name(name):
    given, spec, more = METHODS[name]
    assert_same(trained(**{name: given}, **more), trained(**{name: spec}, **more))


def test_an_object_of_another_library_compresses():
    simulator = trained(compressor=grace(Half()), memory="none")
    assert simulator.step(*next(batches(1, 16))).payload_bytes == [11 * 8 + 72 * 2] * 4


@pytest.mark.parametrize("algorithm", ["allreduce", "local"])
def test_an_optimizer_of_ones_own_steps_and_is_resumed(algorithm, tmp_path):
    settings = {"optimizer": Signs, "lr": 0.01, "algorithm": algorithm}
    whole, first, again = trained(6, **settings), trained(3, **settings), trained(0, **settings)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for x, y in list(batches(6, 16))[3:]:
        again.step(x, y, epoch=0)
    assert_same(whole, again)


@pytest.mark.slow
def test_a_run_with_objects_is_resumed_with_them_to_the_same_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {
        "compressor": TopK(0.3),
        "optimizer": lambda model: torch.optim.AdamW(
            [{"params": [p]} for p in model.parameters()], lr=0.01
        ),
        "scheduler": lambda optimizer: ExponentialLR(optimizer, 0.5),
        "param_groups": None,
    }
    whole = simsgd.train(name="whole", **given, **RUN)
    half = simsgd.train(name="half", **given, **{**RUN, "epochs": 1})
    simsgd.train(resume=half.folder, epochs=2, quiet=True, **given)
    states = [torch.load(run.folder / "last.pt", weights_only=True) for run in (whole, half)]
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name])
    assert whole.config["used"]["lr"] == [
        {"from": "start", "value": 0.01}, {"from": "epoch 1", "value": 0.005}
    ]  # fmt: skip
    assert whole.config["used"]["compressor"] == "object:TopK(ratio=0.3)"
    group = "linear.bias: optimizer=AdamW, lr="
    assert whole.config["used"]["param_groups"] == [
        {"from": "start", "value": f"{group}0.01"}, {"from": "epoch 1", "value": f"{group}0.005"}
    ]  # fmt: skip
    with pytest.raises(SettingError) as wrong:
        simsgd.train(resume=half.folder, epochs=3, quiet=True)
    assert "was an object in Python" in str(wrong.value)
    assert "give it again: simsgd.train(resume=..., " in str(wrong.value)


def test_groups_by_name_and_in_json_are_those_of_a_regime():
    groups = [{"params": "dim<2", "weight_decay": 0.0}]
    regime = {0: {"optimizer": "AdamW", "weight_decay": 0.3, "param_groups": groups}}
    wanted = trained(regime=regime)
    for given in (groups, "no_decay_1d", '[{"params": "dim<2", "weight_decay": 0}]'):
        own = {"optimizer": "AdamW", "weight_decay": 0.3, "param_groups": given}
        assert_same(trained(**own), wanted)


@pytest.mark.slow
def test_groups_in_python_are_written_down_and_resumed_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    groups = [{"params": "*.bias", "lr_mult": 0.5}]
    run = simsgd.train(name="run", lr=0.1, param_groups=groups, **{**RUN, "epochs": 1})
    assert run.config["param_groups"] == '[{"params": "*.bias", "lr_mult": 0.5}]'
    assert len(simsgd.train(resume=run.folder, epochs=2, quiet=True).epochs) == 2


@dataclass(frozen=True)
class NoCompressor:
    ratio: float = 0.1


def of_another_model(model):
    return torch.optim.SGD(mlp().parameters(), lr=0.1)


def of_some(model):
    return torch.optim.SGD([next(model.parameters())], lr=0.1)


def of_all_twice(model):
    return [torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.1, 9.0)]


def of_another_optimizer(optimizer):
    return ExponentialLR(torch.optim.SGD([torch.zeros(1)], lr=5.0), 0.5)


def plateau(optimizer):
    return ReduceLROnPlateau(optimizer)


REFUSED = [
    (
        {"compressor": NoCompressor()},
        "compressor is no Compressor, got NoCompressor; let its class",
    ),
    ({"compressor": TopK}, "compressor is the class TopK, got TopK; give an object of it"),
    ({"memory": 3}, "memory is no Memory, got int"),
    ({"optimizer": nn.Linear}, "optimizer must be one of Adafactor, "),
    ({"optimizer": 3}, "optimizer must be an optimizer of torch, a class of such"),
    ({"optimizer": of_another_model}, "has parameters that are not the model's, got SGD"),
    ({"optimizer": of_some}, "optimizer lacks the parameter 0.bias, got SGD; give it to a group"),
    ({"optimizer": of_all_twice}, "has the parameter 0.weight, which another optimizer has too"),
    ({"optimizer": torch.optim.LBFGS}, "optimizer must be one of Adafactor, "),
    ({"scheduler": 3}, "scheduler must be a scheduler of torch, or a function that makes one"),
    ({"scheduler": lambda own: own}, "makes no scheduler of torch.optim.lr_scheduler but a SGD"),
    ({"scheduler": of_another_optimizer}, "makes a scheduler of another optimizer than the one"),
    ({"scheduler": plateau, "scheduler_every": "step"}, "use scheduler_every epoch"),
    ({"scheduler": "Cosine"}, "did you mean CosineAnnealingLR?"),
    (
        {"scheduler": "StepLR:steps=3"},
        "scheduler has no argument steps, got StepLR:steps=3; it has",
    ),
    ({"scheduler": "StepLR"}, "scheduler lacks step_size, got StepLR"),
    ({"scheduler_every": "step"}, "has no effect without scheduler, got step; set scheduler too"),
    ({"param_groups": "[{"}, "param_groups is no JSON: "),
    ({"compressor": "object:Mine"}, "compressor was an object in Python, got Mine; give it"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_is_no_such_object_is_refused(settings, message):
    with pytest.raises(SettingError) as wrong:
        Simulator(mlp(), workers=2, **{"lr": 0.1, **settings})
    assert message in str(wrong.value)


def test_a_scheduler_of_another_optimizer_is_refused():
    model = mlp()
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.1, 7.0))
    with pytest.raises(SettingError, match="scheduler is of another optimizer than the one that"):
        Simulator(model, workers=2, optimizer=optimizer, scheduler=ExponentialLR(other, 0.5))
    Simulator(model, workers=2, optimizer=optimizer, scheduler=ExponentialLR(optimizer, 0.5))


def made_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("regime", "names"),
    [
        ({0: {"lr": 0.3, "optimizer": "Adam"}}, "lr, optimizer"),
        ({0: {"compressor": "none"}, 5: {"momentum": 0.9}}, "momentum"),
        (lambda epoch: {"weight_decay": 0.1}, "weight_decay"),
        ([{"epoch": 2, "param_groups": [{"params": "*.bias", "lr": 1.0}]}], "param_groups"),
    ],
)
def test_a_regime_beside_an_optimizer_that_has_its_own_settings_is_refused(regime, names):
    with pytest.raises(SettingError, match=f"^regime sets {names}, and optimizer is an object"):
        Simulator(mlp(), workers=2, optimizer=made_of, regime=regime)


@pytest.mark.parametrize("form", ["function", "epoch_lambda", "step_lambda"])
def test_a_function_that_comes_later_to_what_an_optimizer_has_itself_is_refused(form):
    def later(epoch):
        return {"lr": 0.3} if epoch else {"compressor": "none"}

    regime = later if form == "function" else [{form: later}]
    simulator = Simulator(mlp(), workers=2, optimizer=made_of, regime=regime)
    x, y = torch.ones(2, 6, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    simulator.step(x, y, 0)
    with pytest.raises(SettingError, match=r"^regime sets lr, and optimizer is an object"):
        simulator.step(x, y, 1)


def test_what_an_optimizer_has_not_may_be_in_a_regime_beside_it():
    regime = {0: {"compressor": "topk:0.5"}, 2: {"scheduler": {"name": "StepLR", "step_size": 1}}}
    assert Simulator(mlp(), workers=2, optimizer=made_of, regime=regime).compressor == "topk:0.5"


@pytest.mark.slow
def test_a_regime_named_beside_an_optimizer_that_is_an_object_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("regime = {0: {'lr': 0.3}}")
    with pytest.raises(SettingError, match=r"^regime sets lr, and optimizer is an object"):
        simsgd.train(optimizer=made_of, regime=str(file), runs_dir=tmp_path, **RUN)


def test_an_optimizer_that_took_steps_is_refused():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 6, dtype=torch.float64)).sum().backward()
    optimizer.step()
    with pytest.raises(SettingError, match="has taken steps already, got Adam; make a new one"):
        Simulator(copy.copy(model), workers=2, optimizer=optimizer)


def test_a_scheduler_that_looks_at_losses_is_told_of_epochs_without_them():
    simulator = Simulator(mlp(), workers=2, lr=0.1, scheduler=plateau)
    x, y = torch.ones(2, 6, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    simulator.step(x, y, 0)
    simulator.end_epoch({"val_loss": torch.tensor(0.5)})
    simulator.step(x, y, 1)
    other = Simulator(mlp(), workers=2, lr=0.1, scheduler=plateau)
    other.step(x, y, 0)
    other.end_epoch({"loss": 0.5})
    with pytest.raises(SettingError, match="scheduler looks at val_loss, which the results of"):
        other.step(x, y, 1)


def test_sweeps_refuse_objects():
    with pytest.raises(SettingError, match="which the processes of a sweep cannot make again"):
        simsgd.sweep(compressor=["none", TopK(0.1)], lr=0.1, **RUN)
    assert issubclass(TopK, Compressor)


def test_a_scheduler_that_a_later_phase_ends():
    cosine = {"name": "CosineAnnealingLR", "T_max": 2}
    regime = [
        {"epoch": 0, "lr": 0.1},
        {"epoch": 2, "lr": 0.4, "scheduler": cosine},
        {"epoch": 5, "lr": 0.3},
    ]
    whole = Simulator(mlp(), workers=2, regime=regime).components.regime
    rates = [whole.at(epoch, 0)["lr"] for epoch in range(6)]
    assert rates == pytest.approx([0.1, 0.1, 0.4, 0.2, 0.0, 0.3])


class Scaling(torch.optim.SGD):
    """Reads an option of a group that its class does not take, as a rate of each layer."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= group.get("lr_scale", 1.0)
        super().step()


@pytest.mark.parametrize("option", [{"lr_scale": 0.5}, {"name": "head"}])
def test_an_option_of_a_group_that_a_class_does_not_take_is_told(option):
    model = nn.Linear(3, 2)
    groups = [{"params": [model.weight], **option}, {"params": [model.bias]}]
    make = functools.partial(Simulator, model, workers=2)
    make(optimizer=torch.optim.SGD(groups, lr=0.1))  # which does not read it
    if "name" in option:
        make(optimizer=Scaling(groups, lr=0.1))
        return
    told = "optimizer has lr_scale in a group, which is no argument of its class, got Scaling; "
    with pytest.raises(SettingError, match=re.escape(told)):
        make(optimizer=Scaling(groups, lr=0.1))


class HandingOn(torch.optim.SGD):
    """Takes what SGD takes."""

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)


class Renaming(torch.optim.AdamW):
    """Makes an option of another argument."""

    def __init__(self, params, lr=0.05, beta=0.9):
        super().__init__(params, lr=lr, betas=(beta, 0.99))


class Grouping(torch.optim.SGD):
    """Makes groups itself."""

    def __init__(self, params, lr=0.1):
        parts = [[p for p in params if (p.dim() > 1) is matrix] for matrix in (True, False)]
        super().__init__([{"params": part} for part in parts], lr=lr)


def test_arguments_that_a_class_hands_on_are_those_of_its_base():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    plain = copy.deepcopy(model)
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    own, other = (HandingOn(each.parameters(), **options) for each in (model, plain))
    simulator = Simulator(model, workers=2, optimizer=own)
    for _ in range(3):
        x, y = torch.randn(8, 4), torch.arange(8) % 3
        simulator.step(x, y)
        other.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        other.step()
    assert torch.allclose(model.weight, plain.weight, atol=1e-6)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda p: Filtering(p, function=torch.sign), "has function = "),
        (lambda p: Filtering(p, function=lambda g: 2 * g), "has function = function <lambda>, "),
        (lambda p: Filtering(p, table=np.ones(2)), "has table = array([1., 1.]), which one made"),
        (lambda p: Renaming(p, beta=0.5), "has betas (0.5, 0.99), and one made anew (0.9, 0.99)"),
        (
            lambda p: Grouping([*p]),
            "cannot be made of groups of parameters: AttributeError",
        ),
    ],
)
def test_an_optimizer_that_cannot_be_made_anew_is_told(made, told):
    model = nn.Linear(3, 2)
    with pytest.raises(SettingError, match=re.escape(f"optimizer {told}")):
        Simulator(model, workers=2, optimizer=made(model.parameters()))


class Cosine(LRScheduler):
    """Sets another option than lr."""

    def __init__(self, optimizer, key, values):
        self.key, self.values = key, values
        super().__init__(optimizer)

    def get_lr(self):
        for group in self.optimizer.param_groups:
            group[self.key] = self.values[self.last_epoch % len(self.values)]
        return self.base_lrs


@pytest.mark.parametrize(
    ("kind", "options", "key", "values"),
    [
        ("SGD", {"momentum": 0.9}, "weight_decay", (0.0, 0.1, 0.2)),
        ("SGD", {"momentum": 0.9}, "nesterov", (False, True)),
        ("AdamW", {"weight_decay": 0.3}, "weight_decay", (0.3, 0.0)),
        ("Adam", {}, "eps", (1e-8, 1e-2)),
        ("RMSprop", {}, "alpha", (0.9, 0.5)),
    ],
)
def test_a_scheduler_may_write_any_option(kind, options, key, values):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    plain = copy.deepcopy(model)
    own, other = (
        getattr(torch.optim, kind)(each.parameters(), lr=0.01, **options) for each in (model, plain)
    )
    scheduler = Cosine(other, key, values)
    every = {"scheduler": Cosine(own, key, values), "scheduler_every": "step"}
    simulator = Simulator(model, workers=2, optimizer=own, **every)
    for _ in range(6):
        x, y = torch.randn(8, 4), torch.arange(8) % 3
        simulator.step(x, y)
        other.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        other.step()
        scheduler.step()
    assert torch.allclose(model.weight, plain.weight, atol=1e-6)


def test_a_regime_that_fails_as_a_state_is_loaded_says_so():
    def regime(epoch, step, results):
        return {"lr": results[-1]["missing"] if results else 0.1}

    first, again = (Simulator(nn.Linear(3, 2), workers=2, regime=regime) for _ in range(2))
    first.end_epoch({"val_loss": 1.0})
    with pytest.raises(KeyError, match="missing"):
        again.load_state_dict(first.state_dict())
