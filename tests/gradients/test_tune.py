import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simsgd
from simsgd.gradients import auto, compiled, tune
from simsgd.gradients.contract import EngineConfig
from simsgd.gradients.vmap import Vmap
from simsgd.keyed_random import RandomKey
from simsgd.registry import find
from simsgd.settings import SettingError
from simsgd.simulator.simulator import Simulator

from .. import toy

W, B = 3, 4


class Net(nn.Module):
    """With `raw`, a parameter is used as onepass does not know."""

    def __init__(self, raw=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.raw = nn.Linear(6, 5), raw
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x):
        x = self.layer(x)
        return torch.logaddexp2(x, self.scale) if self.raw else x


def batch(dtype=torch.float64):
    return toy.batch(W, B, shape=(6,), seed=0, dtype=dtype)


def engine(name, model, **options):
    return find("engine", name)(model, F.cross_entropy, EngineConfig(**options))


def called(engine, model, x, y):
    keys = RandomKey(0, torch.arange(W)).keys()
    return engine(dict(model.named_parameters()), {}, x, y, keys)


def clock(monkeypatch, slow):
    """Let time stand still but for engines in `slow`, {class name: seconds}."""
    now = [0.0]
    for name in ("OnePass", "Vmap", "Loop", "Threads"):
        kind = next(k for k in auto.ENGINES.values() if k.__name__ == name)
        plain = kind.__call__

        def timed(self, *arguments, plain=plain, name=name):
            now[0] += slow.get(name, 0.1)
            return plain(self, *arguments)

        monkeypatch.setattr(kind, "__call__", timed)
    monkeypatch.setattr(tune, "_now", lambda device: now[0])


@pytest.mark.parametrize(
    ("slow", "chosen"),
    [
        ({"OnePass": 3, "Loop": 2, "Threads": 4}, "vmap"),
        ({"OnePass": 3, "Vmap": 2, "Threads": 4}, "loop"),
    ],
)
def test_the_fastest_is_chosen_and_what_each_took_is_logged(monkeypatch, slow, chosen):
    clock(monkeypatch, slow)
    model, (x, y) = Net().double(), batch()
    tuned = engine("tune", model)
    got = called(tuned, model, x, y)
    assert tuned.chosen == chosen
    assert "onepass took 3e+03 ms" in tuned.note
    wanted = called(engine("loop", model), model, x, y)
    assert torch.allclose(got.values["layer.weight"], wanted.values["layer.weight"], rtol=1e-12)


def test_what_declines_is_logged_and_not_timed():
    model, (x, y) = Net(raw=True).double(), batch()
    tuned = engine("tune", model)
    called(tuned, model, x, y)
    assert tuned.chosen != "onepass"
    assert "onepass declines: scale is used by something onepass does not know" in tuned.note


def test_workers_at_a_time_leave_the_engines_that_take_them():
    model, (x, y) = Net().double(), batch()
    tuned = engine("tune", model, chunk=2)
    called(tuned, model, x, y)
    assert "loop" not in tuned.note


@pytest.mark.slow
def test_the_choice_is_written_and_kept_on_resume(tmp_path):
    asked = {
        "model": "mlp", "model_config": "hidden=4", "dataset": "digits", "workers": 4,
        "batch_size": 16, "quiet": True, "runs_dir": tmp_path, "name": "tuned", "epochs": 1,
    }  # fmt: skip
    run = simsgd.train(engine="tune", **asked)
    chosen = json.loads((run.folder / "config.json").read_text())["engine"]
    assert chosen in {"onepass", "vmap", "loop", "threads"}
    assert f"engine {chosen}; onepass took" in run.log
    resumed = simsgd.train(resume=run.folder, epochs=2, quiet=True)
    assert resumed.config["engine"] == chosen


@pytest.mark.parametrize("name", ["auto", "tune", "compiled"])
def test_a_simulation_that_goes_on_computes_by_the_engine_it_had(name, monkeypatch):
    monkeypatch.setattr(Vmap, "compile_", lambda self: None)
    x, y = (t.flatten(0, 1) for t in batch(torch.float32))
    before = Simulator(Net(), workers=W, lr=0.1, engine=name)
    before.step(x, y)
    before.components.engine.keep_choice("vmap")
    saved = before.state_dict()
    assert saved["engine"] == "vmap"
    after = Simulator(Net(), workers=W, lr=0.1, engine=name)
    after.load_state_dict(saved)
    assert after.engine_for(x, y) == "vmap"
    assert after.step(x, y).loss == before.step(x, y).loss


def test_a_choice_that_the_settings_rule_out_is_not_kept():
    x, y = (t.flatten(0, 1) for t in batch(torch.float32))
    before = Simulator(Net(), workers=W, lr=0.1)
    before.step(x, y)
    before.components.engine.keep_choice("loop")
    for settings, engine in (({"worker_chunk": 2}, "onepass"), ({"engine": "vmap"}, "vmap")):
        after = Simulator(Net(), workers=W, lr=0.1, **settings)
        after.load_state_dict(before.state_dict())
        assert after.engine_for(x, y) == engine


def test_a_compiler_that_refuses_is_logged_and_vmap_used(monkeypatch):
    def refused(self):
        def fails(*arguments):
            raise RuntimeError("no C++ compiler\nfound here")

        self._mapped = fails

    monkeypatch.setattr(Vmap, "compile_", refused)
    model, (x, y) = Net().double(), batch()
    own = engine("compiled", model)
    got = called(own, model, x, y)
    assert (own.chosen, own.note) == ("vmap", "compiled declines: no C++ compiler")
    assert torch.equal(got.loss, called(engine("vmap", model), model, x, y).loss)


def test_a_compiler_that_miscompiles_is_not_used(monkeypatch):
    def wrong(self):
        plain = self._mapped

        def doubled(*arguments):
            values, rest = plain(*arguments)
            return {name: 2 * value for name, value in values.items()}, rest

        self._mapped = doubled

    monkeypatch.setattr(Vmap, "compile_", wrong)
    model, (x, y) = Net().double(), batch()
    own = engine("compiled", model)
    called(own, model, x, y)
    assert own.chosen == "vmap"
    assert "is not what" in own.note


def test_the_choice_of_compiled_is_made_before_the_first_step(monkeypatch):
    monkeypatch.setattr(Vmap, "compile_", lambda self: None)
    simulator = Simulator(Net(), workers=W, lr=0.1, engine="compiled")
    x, y = batch(torch.float32)
    assert simulator.engine_for(x.flatten(0, 1), y.flatten()) == "compiled"
    assert isinstance(simulator.components.engine, compiled.Compiled)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_gradients_are_those_of_a_loop():
    model, (x, y) = Net().double(), batch()
    own = engine("compiled", model)
    got, wanted = called(own, model, x, y), called(engine("loop", model), model, x, y)
    for name, value in wanted.values.items():
        assert torch.allclose(got.values[name], value, rtol=1e-10, atol=1e-14)


def test_an_unknown_engine_is_refused_with_a_list_of_those_known():
    with pytest.raises(SettingError, match="did you mean tune"):
        Simulator(Net(), workers=W, lr=0.1, engine="tuned")
