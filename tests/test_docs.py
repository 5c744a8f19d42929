"""What docs/compressors.md says is so."""

import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import simsgd
from simsgd.cli import main
from simsgd.methods.compressors import composed
from simsgd.registry import names
from simsgd.simulator.step_bytes import sizes
from simsgd.training.choices import list_names

TEXT = (Path(__file__).parents[1] / "docs" / "compressors.md").read_text()
SNIPPET = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]


def table(heading):
    """Return the cells of the first table under a heading, without its head."""
    lines = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in lines[first + 2 :]]
    end = next(i for i, row in enumerate(rows) if len(row) == 1)
    return rows[:end]


def named(rows):
    return {re.match(r"\w+", name)[0] for row in rows for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_compressor_has_its_row():
    assert named(table("Compressors")) == set(names("compressor"))


def test_every_memory_has_its_row():
    assert named(table("Memories")) == set(names("memory"))


def test_nature_in_the_table_is_that_of_the_list():
    listed = list_names("compressors")
    for row in table("Compressors"):
        for name in named([row]):
            nature = next(line for line in listed[name].splitlines() if "all-reducible" in line)
            assert nature.startswith("unbiased") == (row[3] in ("no", "if `biased=true`"))
            assert (row[4] == "yes") == ("not all-reducible" not in nature)


@pytest.mark.parametrize(
    ("spec", "bits"),
    [
        ("none", 32),
        ("topk:0.1", 64 / 10),
        ("randomk:0.1,shared=true", 32 / 10),
        ("block:0.1", 32 / 10),
        ("sign", 1 + 32 / 1000),
        ("sign:none", 1),
        ("onebit", 1 + 64 / 1000),
        ("terngrad", 2 + 32 / 1000),
        ("terngrad:pack=base3", 8 / 5 + 32 / 1000),
        ("qsgd:4,bucket=100", 1 + 3 + 32 / 100),
        ("natural", 8),
        ("fp16", 16),
        ("bf16", 16),
        ("int8", 8 + 32 / 1000),
        ("powersgd:2", 32 * 2 * (20 + 50) / 1000),
    ],
)
def test_the_formula_of_bits_is_right(spec, bits):
    counted = sizes({"weight": (20, 50)}, compressor=spec)
    assert 8 * counted.payload_bytes == pytest.approx(bits * 1000)


def test_ones_own_compressor_is_used_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SNIPPET)
    assert len([line for line in SNIPPET.splitlines() if line]) <= 15
    assert composed("./mine.py:Mine:20").k == 20
    model = ["--model", "mlp", "--model-config", "hidden=16"]
    done = CliRunner().invoke(
        main, ["bytes", *model, "--compressor", "./mine.py:Mine:k=20", "--explain"]
    )
    assert done.exit_code == 0, done.output
    assert "20 values x 4 B + 20 indices x 4 B" in done.output
    words = ["--dataset", "digits", "--workers", "4", "--batch-size", "30", "--epochs", "1"]
    done = CliRunner().invoke(main, ["train", *model, *words, "--compressor", "./mine.py:Mine:20"])
    assert done.exit_code == 0, done.output


def test_ones_own_memory_is_used_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = next(code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "Half" in code)
    Path("mine.py").write_text(code)
    simulator = simsgd.Simulator(
        nn.Linear(4, 3), workers=2, lr=0.1, compressor="topk:0.1", memory="./mine.py:Half"
    )
    record = simulator.step(torch.randn(8, 4), torch.randint(3, (8,)))
    assert record.memory_norm > 0


README = (Path(__file__).parents[1] / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readmes_own_compressor_is_used_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(next(code for code in PYTHON if "class Largest" in code))
    assert "--compressor ./mine.py:Largest:5" in README
    counted = sizes({"weight": (20, 50)}, compressor="./mine.py:Largest:5")
    assert counted.payload_bytes == 5 * (4 + 4)


DIFF = re.search(r"```diff\n(.*?)```", README, re.DOTALL)[1].splitlines()


def run_side(sign):
    """Run the lines of the README's diff that one side of it has."""
    scope = {}
    exec("\n".join(line[1:] for line in DIFF if line[:1] in ("", " ", sign)), scope)
    return scope


def test_the_readmes_plain_loop_runs_as_it_stands():
    assert "optimizer" in run_side("-")


def test_the_readmes_loop_runs_as_it_stands():
    scope = run_side("+")
    record = scope["record"]
    assert record.step == 10
    assert len(record.payload_bytes) == 16
    assert record.ratio > 1
    assert scope["model"](scope["batches"][0][0]).shape == (64, 3)


def test_the_page_shows_what_simsgd_bytes_prints():
    command = "simsgd bytes --model resnet18_cifar --workers 16 --compressor powersgd:2"
    words = next(line for line in TEXT.splitlines() if line.startswith(command)).split()[1:]
    printed = CliRunner().invoke(main, words).output.strip()
    assert printed in TEXT
