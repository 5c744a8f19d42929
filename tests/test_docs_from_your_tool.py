"""What docs/from-your-tool.md advises can be written."""

import dataclasses
import itertools
import math
import re
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import simsgd
from simsgd.catalog import names as files
from simsgd.cli import main
from simsgd.cli.options import given
from simsgd.config import Config
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, composed
from simsgd.methods.memories import Memory
from simsgd.recipe import Recipe
from simsgd.registry import build
from simsgd.simulator.method_choice import algorithm_of
from simsgd.training.data import about

from . import toy
from .toy import normal

TEXT = (Path(__file__).parents[1] / "docs" / "from-your-tool.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| theirs")
]
SPANS = sorted({span for row in ROWS for span in re.findall(r"`([^`]+)`", row[-1])})
STANDS_FOR = re.compile(r"\b(C|LR|NAME|FILE|FOLDER)\b|\./")
CONCRETE = [s for s in SPANS if re.match("--.* ", s) and not STANDS_FOR.search(s)]


def options_of(command):
    return {word for p in command.params for word in (*p.opts, *p.secondary_opts)}


def test_every_row_has_its_four_cells():
    assert len(ROWS) > 100
    assert [row for row in ROWS if len(row) != 4] == []


@pytest.mark.parametrize("span", SPANS)
def test_every_option_in_the_last_column_exists(span):
    words = span.split()
    command = main.commands[words[1] if words[0] == "simsgd" else "train"]
    named = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    assert set(named) - options_of(command) == set()


@pytest.mark.parametrize("span", CONCRETE)
def test_values_that_are_written_out_are_taken(span):
    words = shlex.split(span)
    with main.commands["train"].make_context("train", words) as context:
        assert context.args == []
        settings = given(context.params)
    config = Config.of(settings)
    composed(config.compressor or "none")
    assert isinstance(build("memory", config.memory or "none")[0], Memory)
    algorithm_of(config.recipe())
    for kind, name in (("models", config.model), ("regimes", config.regime)):
        assert set((name or "model").split("+")) <= {"model", *files(kind)}
    known = {name.partition(":")[0] for name in about()}
    assert config.dataset.partition(":")[0] in known


def test_most_values_are_written_out():
    assert len(CONCRETE) > 85


TODAY = TEXT.split("\n## The tools of today\n")[1]
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", TODAY, re.DOTALL)
TOOLS = re.findall(r"\n## (.*)\n", TODAY)
ADVISED = [span for span in CONCRETE if f"`{span}`" in TODAY]
BY_NAME = {setting.name for setting in dataclasses.fields(Recipe)}


def ran(scope):
    """Run the blocks of the tools as they stand; return the runs of commands and of Python."""
    task, runs = "", ([], [])
    for language, code in BLOCKS:
        if language == "python":
            exec(code, scope)
            runs[1].extend([scope["run"]] if "run = " in code else [])
        elif code.startswith("TASK="):
            task = shlex.split(code)[0].removeprefix("TASK=")
        else:
            words = shlex.split(code.replace("$TASK", task))[1:]
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, f"{code}\n{done.output}"
            runs[0].append(simsgd.Run(re.search(r"run folder +(\S+)", done.output)[1]))
    return runs


@pytest.mark.slow
def test_the_runs_in_the_place_of_other_tools_are_the_same_typed_and_in_python(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    typed, called = ran({})
    assert len(typed) == len(called) == len(TOOLS)
    for one, other in zip(typed, called, strict=True):
        assert one.folder != other.folder
        assert one.steps["payload_bytes"].tolist() == other.steps["payload_bytes"].tolist()
        assert one.steps["loss"].tolist() == other.steps["loss"].tolist()
    exogym, torchft = (typed[TOOLS.index(tool)].steps for tool in ("exogym", "torchft"))
    assert exogym.index[exogym["payload_bytes"] > 0].tolist() == [4, 9, 14, 19]
    assert (torchft["payload_bytes"] > 0).tolist() == [False, True] * 11


@pytest.mark.quick_cases(16)
@pytest.mark.parametrize("span", ADVISED)
def test_what_is_advised_for_the_tools_of_today_takes_a_step(span):
    with main.commands["train"].make_context("train", shlex.split(span)) as context:
        settings = given(context.params)
    recipe = {name: value for name, value in settings.items() if name in BY_NAME}
    workers = 8
    sides = (6, 6, 12000, 6)  # some of them large enough for a rule on sizes
    net = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sides)))
    simulator = simsgd.Simulator(net, **{"lr": 0.1, **recipe, "workers": workers})
    size = workers * recipe.get("accumulate", 1)
    record = simulator.step(torch.randn(size, 6), torch.randint(6, (size,)), 0)
    assert math.isfinite(record.loss)


def test_hiveminds_uniform_quantization_is_that_of_bins():
    """As hivemind/compression/quantization.py has it; it sends the table's length too."""
    x = normal(1, 5000, seed=3)
    centered = x[0] - x[0].mean()
    scale = 6 * centered.norm() / math.sqrt(x.numel() - 1) / 256
    codes = torch.round(centered / scale + 128).clamp(0, 255).long()
    sums = torch.zeros(256).scatter_add_(0, codes, x[0])
    table = sums / torch.bincount(codes, minlength=256).clamp(min=1)
    key = RandomKey(0, torch.arange(1)).fold_in(0, "segment")
    message = composed("bins:8").for_shape((5000,)).compress(x, {}, StepInfo(key))
    torch.testing.assert_close(message.to_dense()[0], table[codes], rtol=1e-5, atol=1e-5)
    assert message.payload_bytes().tolist() == [5000 + 1028]


@pytest.mark.parametrize(
    ("outer", "beta2", "power", "ratio"),
    [("torch:name=Adagrad,lr=0.1,eps=1e-9", 0, 0, 1),
     ("torch:name=Adam,lr=0.1,beta2=0.99", 0.99, 2, 0.74),
     ("fedadam:lr=0.1,tau=1e-9", 0.99, 2, 0.74)],
)  # fmt: skip
def test_flowers_first_step_is_so_much_of_others(outer, beta2, power, ratio):
    """As fedadagrad.py and fedadam.py have it, of an entry that changed by 0.5."""
    change, eta, beta1 = 0.5, 0.1, 0.9
    anchor = torch.zeros(1, 1, dtype=torch.float64)
    made = build("outer_optimizer", outer)[0].filled(0.7, 0.9)
    made.step(anchor, torch.full((1,), -change, dtype=torch.float64), made.init(anchor))
    first, second = (1 - beta1) * change, (1 - beta2) * change**2
    if power:
        eta *= math.sqrt(1 - beta2**power) / (1 - beta1**power)
    else:
        first = change
    assert eta * first / math.sqrt(second) / float(anchor) == pytest.approx(ratio, abs=0.005)


def test_a_median_of_changes_is_that_of_models():
    """FedMedian takes the median of the clients' models, diloco that of their changes."""
    settings = {"local_steps": 2, "outer_optimizer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}
    batches = list(toy.batches(2, 12))
    one, _ = toy.simulated(
        toy.mlp(), batches, 0, workers=3, algorithm="diloco", aggregate="median", **settings
    )
    alone = [
        toy.trained_by_torch(toy.mlp(), [(x.chunk(3)[w], y.chunk(3)[w]) for x, y in batches])
        for w in range(3)
    ]
    for name, value in one.parameters().items():
        models = torch.stack([dict(model.named_parameters())[name] for model in alone])
        torch.testing.assert_close(value[0], models.median(0).values, rtol=0, atol=1e-12)
