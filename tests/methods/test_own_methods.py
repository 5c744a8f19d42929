"""Methods of one's own: a file placed in a folder of methods is found by its name."""

import sys

import pytest
from click.testing import CliRunner

import simsgd.methods
from simsgd import registry
from simsgd.cli.group import main
from simsgd.methods import compressors, memories
from simsgd.settings import SettingError

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
OF_KIND = {
    "compressor": (compressors, "toy_first", COMPRESSOR),
    "memory": (memories, "toy_half", MEMORY),
}


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


def test_it_is_listed_with_its_settings(toys):
    done = CliRunner().invoke(main, ["list", "compressors"])
    assert "toy_first" in done.output
    assert "Each worker sends its first k entries." in done.output
    assert "settings: k=1" in done.output
    assert "toy_half" in CliRunner().invoke(main, ["list", "memories"]).output


def test_its_bytes_are_counted(toys):
    done = CliRunner().invoke(main, ["bytes", "--model", "lenet", "--compressor", "toy_first:2"])
    assert done.exit_code == 0, done.output
    assert "toy_first:2" in done.output


def test_it_trains(toys, tmp_path):
    run = simsgd.train(
        model="mlp", model_config="hidden=16", dataset="digits", workers=4, epochs=1, device="cpu",
        compressor="toy_first:3", memory="toy_half", quiet=True, runs_dir=tmp_path, name="run",
    )  # fmt: skip
    assert run.config["compressor"] == "toy_first:3"
    assert run.steps["loss"].iloc[-1] < run.steps["loss"].iloc[0]


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
