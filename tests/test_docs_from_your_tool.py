"""What docs/from-your-tool.md advises can be written."""

import re
import shlex
from pathlib import Path

import pytest

from simsgd.catalog import names as files
from simsgd.cli import main
from simsgd.cli.options import given
from simsgd.config import Config
from simsgd.methods.compressors import composed
from simsgd.methods.memories import Memory
from simsgd.registry import build
from simsgd.simulator.method_choice import algorithm_of
from simsgd.training.data import about

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
    config = Config(**settings)
    composed(config.compressor or "none")
    assert isinstance(build("memory", config.memory or "none")[0], Memory)
    algorithm_of(config.recipe())
    for kind, name in (("models", config.model), ("regimes", config.regime)):
        assert set((name or "model").split("+")) <= {"model", *files(kind)}
    known = {name.partition(":")[0] for name in about()}
    assert config.dataset.partition(":")[0] in known


def test_most_values_are_written_out():
    assert len(CONCRETE) > 85
