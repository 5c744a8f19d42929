"""Methods of one's own: one file each, found by its name in a folder of methods, or by its path.

Each is trained, counted, listed and verified against real processes.
"""

import re
import sys

import pytest
from click.testing import CliRunner

import simsgd.methods
from simsgd import registry
from simsgd.cli.group import main
from simsgd.methods import algorithms, compressors, memories
from simsgd.settings import SettingError

from ..process_group import verified

COMPRESSOR = """
from dataclasses import dataclass

from simsgd.methods import Compressor, Sparse, register


@register("compressor", "toy_first")
@dataclass(frozen=True)
class First(Compressor):
    \"\"\"Each worker sends its first k entries.\"\"\"

    k: int = 1  # entries sent of each segment, at least 1
    biased = True

    def compress(self, x, state, step):
        index = step.key.workers.new_zeros(1).new_tensor(range(min(self.k, x.shape[1])))
        return Sparse.of(x[:, index], index.expand(len(x), -1), x.shape[1])
"""
MEMORY = """
from dataclasses import dataclass

import torch

from simsgd.methods import Memory, register


@register("memory", "toy_half")
@dataclass(frozen=True)
class Half(Memory):
    \"\"\"Half of what is not sent is added to the next gradient.\"\"\"

    def init(self, like, dense):
        return {} if dense else {"residual": torch.zeros_like(like)}

    def compensate(self, grad, state):
        return state["residual"].mul_(0.5).add_(grad) if "residual" in state else grad

    def update(self, compensated, message, state):
        if "residual" in state:
            message.subtract_from_(state["residual"])
"""
ALGORITHM = """
from dataclasses import dataclass

from simsgd.methods import GradientAlgorithm, register


@register("algorithm", "toy_scaled")
@dataclass(frozen=True)
class Scaled(GradientAlgorithm):
    \"\"\"All move along a multiple of the mean gradient.\"\"\"

    scale: float = 1.0  # of the mean
    parameters_per_worker = False

    def gradients(self, compensated, context, state=None):
        message = context.compress(compensated)
        message, mean = context.channel.all_reduce_mean(message, context.segment)
        return message, self.scale * mean
"""
OF_KIND = {
    "compressor": (compressors, "toy_first", COMPRESSOR),
    "memory": (memories, "toy_half", MEMORY),
    "algorithm": (algorithms, "toy_scaled", ALGORITHM),
}
SMALL = {"model": "mlp", "model_config": "hidden=16", "dataset": "digits", "workers": 4}
RUN = {**SMALL, "epochs": 1, "device": "cpu", "quiet": True, "name": "run"}


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Place a file of each kind where `simsgd.methods` looks for them."""
    for kind, (folder, name, text) in OF_KIND.items():
        place = tmp_path / kind
        place.mkdir()
        (place / f"{name}.py").write_text(text)
        (place / "_draft.py").write_text("raise RuntimeError")
        (place / "row_kernels.py").write_text("raise RuntimeError")
        monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(place)])
    yield
    for kind, (folder, name, _) in OF_KIND.items():
        registry._methods[kind].pop(name, None)
        sys.modules.pop(f"{folder.__name__}.{name}", None)
        vars(folder).pop(name, None)


def test_a_file_placed_beside_the_others_is_found_by_name(toys):
    assert registry.build("compressor", "toy_first:3")[0].k == 3
    assert "toy_first" in registry.names("compressor")
    assert "toy_half" in registry.names("memory")
    assert registry.build("algorithm", "toy_scaled:0.5")[0].scale == 0.5


@pytest.mark.slow
def test_it_is_listed_with_its_settings(toys):
    done = CliRunner().invoke(main, ["list", "compressors"])
    assert "toy_first" in done.output
    assert "Each worker sends its first k entries." in done.output
    assert "settings: k=1" in done.output
    assert "toy_half" in CliRunner().invoke(main, ["list", "memories"]).output
    listed = CliRunner().invoke(main, ["list", "algorithms"]).output
    assert "toy_scaled" in listed
    assert "All move along a multiple of the mean gradient." in listed
    assert "settings: scale=1.0" in listed


def test_its_bytes_are_counted(toys):
    done = CliRunner().invoke(main, ["bytes", "--model", "lenet", "--compressor", "toy_first:2"])
    assert done.exit_code == 0, done.output
    assert "toy_first:2" in done.output
    counted = simsgd.bytes_of(model="lenet", compressor="toy_first:2")
    sent = {s.name: s.payload_bytes for s in counted.segments if s.name.endswith("weight")}
    assert set(sent.values()) == {2 * (4 + 4)}  # two values and their indices


def test_it_trains(toys, tmp_path):
    settings = {"compressor": "toy_first:3", "memory": "toy_half", "algorithm": "toy_scaled"}
    run = simsgd.train(**RUN, **settings, runs_dir=tmp_path)
    assert {name: run.config[name] for name in settings} == settings
    assert run.steps["loss"].iloc[-1] < run.steps["loss"].iloc[0]


@pytest.mark.slow
def test_an_algorithm_that_scales_by_1_is_all_reduce(toys, tmp_path):
    usual = simsgd.train(**RUN, runs_dir=tmp_path / "usual")
    scaled = simsgd.train(**RUN, runs_dir=tmp_path / "scaled", algorithm="toy_scaled:1")
    halved = simsgd.train(**RUN, runs_dir=tmp_path / "halved", algorithm="toy_scaled:0.5")
    assert scaled.steps["loss"].tolist() == usual.steps["loss"].tolist()
    assert scaled.steps["payload_bytes"].tolist() == usual.steps["payload_bytes"].tolist()
    assert halved.steps["loss"].tolist() != usual.steps["loss"].tolist()


def test_it_holds_in_real_processes(two_ranks, tmp_path):
    """Each is given by the path of its file, which the processes import themselves."""
    given = {}
    for kind, (_, name, text) in OF_KIND.items():
        (tmp_path / f"{name}.py").write_text(re.sub("^@register.*\n", "", text, flags=re.M))
        given[kind] = f"{tmp_path / name}.py"
    settings = {
        **SMALL, "workers": 2, "batch_size": 6, "dtype": "float64", "momentum": 0.5, "lr": 0.1,
        "compressor": f"{given['compressor']}:First:3", "memory": f"{given['memory']}:Half",
        "algorithm": f"{given['algorithm']}:Scaled:0.5",
    }  # fmt: skip
    rows, _ = two_ranks(verified, 3, settings)
    assert max(row["parameter_difference"] for row in rows) < 1e-10
    assert [row["sent_bytes"] for row in rows] == [row["ledger_bytes"] for row in rows]


def test_without_the_file_the_name_is_unknown():
    with pytest.raises(SettingError, match="compressor is not known"):
        registry.build("compressor", "toy_first")


@pytest.mark.parametrize("name", simsgd.methods.__all__)
def test_every_public_name_is_there(name):
    assert getattr(simsgd.methods, name) is not None
    assert name in dir(simsgd.methods)


def test_a_name_that_is_not_public_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        simsgd.methods.Nothing  # noqa: B018 - looks it up


@pytest.mark.parametrize("name", ["a+b", "a:b", "a,b", "a b", "", "./a.py"])
def test_a_name_that_no_spec_can_have_is_refused(name):
    with pytest.raises(SettingError, match="must be named by letters, digits"):
        registry.register("compressor", name)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (compressors.Compressor, "names a class that is no dataclass.*above class Mine"),
        (object, "names a class that is no Compressor"),
    ],
)
def test_a_registered_class_is_held_to_what_one_of_a_file_is(base, message):
    registry.register("compressor", "mine_registered")(type("Mine", (base,), {"biased": True}))
    try:
        with pytest.raises(SettingError, match=message):
            registry.build("compressor", "mine_registered")
    finally:
        registry._methods["compressor"].pop("mine_registered")
