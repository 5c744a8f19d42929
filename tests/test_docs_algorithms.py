"""What docs/algorithms.md says is so, and the commands for gossip print what they promise."""

import dataclasses
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.recipe import Recipe
from simsgd.registry import names

TEXT = (Path(__file__).parents[1] / "docs" / "algorithms.md").read_text()
TABLE = TEXT.split("## Algorithms\n")[1].split("\n## ")[0]
TINY = ["--model", "mlp", "--model-config", "hidden=16", "--dataset", "digits", "--workers", "4",
        "--batch-size", "30", "--epochs", "1"]  # fmt: skip


def run(*words, code=0):
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == code, done.output
    return done.output


def test_every_algorithm_has_its_row():
    rows = [line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `")]
    assert {re.match(r" `(\w+)", row)[1] for row in rows} == set(names("algorithm"))


def test_every_setting_of_an_algorithm_is_named():
    fields = [f for f in dataclasses.fields(Recipe) if f.metadata["group"] == "algorithm"]
    for name in (f.name for f in fields if f.name != "algorithm"):
        assert f"`--{name.replace('_', '-')}`" in TEXT


def test_ones_own_algorithm_is_used_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1])
    run("train", *TINY, "--algorithm", "./mine.py:Pairs", "--name", "own", "--quiet")
    own = simsgd.Run("runs/own")
    size = own.epochs["dense_bytes"].iloc[-1]
    assert own.epochs["payload_bytes"].iloc[-1] == size
    assert own.epochs["consensus_distance"].iloc[-1] > 0


def test_topologies_are_listed_with_what_they_cost():
    output = run("list", "topologies", "--workers", "16")
    assert "degree 2, spectral gap 0.0507, 32 messages a step" in output
    assert "not for 16 workers: is a graph of 32 workers, not 16" in output
    assert "ring" in run("list", "topologies")


def test_a_number_of_workers_is_for_topologies():
    assert "workers only applies to topologies" in run(
        "list", "models", "--workers", "3", code=2
    ).replace("--workers", "workers")


@pytest.mark.slow
def test_the_consensus_step_size_is_found_and_drawn(tmp_path):
    figure = tmp_path / "consensus.png"
    words = ["--workers", "8", "--compressor", "topk:0.2", "--elements", "50", "--rounds", "60"]
    output = run("tune-consensus", *words, "-o", str(figure))
    best = re.search(r"--consensus-stepsize (\S+) halves", output)[1]
    assert f"{best:<7} " in output
    assert output.count("<- best") == 1
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--algorithm", "dpsgd"], "--algorithm is not known, got dpsgd"),
        (["--rounds", "1"], "--rounds must be at least 2"),
        (["--topology", "torus", "--workers", "8"], "both must be at least 3"),
        (["--compressor", "topk:0.2", "-o", "figure.gif"], "must end in .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_tuned_is_refused(words, error):
    sizes = [] if "--rounds" in words else ["--rounds", "4"]
    assert error in run("tune-consensus", *sizes, "--elements", "50", *words, code=2)


def test_a_run_logs_how_workers_exchange(tmp_path):
    output = run("train", *TINY, "--algorithm", "choco", "--runs-dir", str(tmp_path))
    line = (
        "algorithm choco: topology ring, consensus stepsize 0.5 (2 neighbors, spectral gap 0.6667)"
    )
    assert line in output


@pytest.mark.slow
@pytest.mark.distributed
def test_ones_own_algorithm_is_verified_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1])
    tiny = ["--model", "mlp", "--model-config", "hidden=4", "--dataset", "digits", "--steps", "3"]
    own = ["--workers", "4", "--algorithm", "./mine.py:Pairs", "--compressor", "sign"]
    assert "simulation and processes agree" in run("verify", *tiny, *own)
