"""Runs that the package left before it was laid out anew go on, and are drawn and output.

`dgc` and `lm` were ended by SIGTERM within an epoch, `choco` was killed after its last checkpoint,
and `diloco` ended its one epoch. Their best.pt and previous.pt were taken away, to keep the folders
small. expected.json holds what the package of then made of the very same folders.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main

FOLDER = Path(__file__).parent / "data" / "old_runs"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
MORE = {"diloco": ["--epochs", "2"], "lm": ["--data-dir", str(FOLDER)]}
CLOSENESS = {"diloco": 1e-5}  # it is in float32, the others are in float64
KINDS = {
    "dgc": ["curves", "pareto", "layers"],
    "choco": ["curves", "topology", "partition"],
    "lm": ["curves"],
    "diloco": ["curves", "pareto"],
}


@pytest.fixture(params=EXPECTED)
def old(request, tmp_path, monkeypatch):
    """A copy of an old run, at the place where it was made: runs/NAME in the working directory."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(FOLDER / request.param, Path("runs") / request.param)


def call(*words):
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.quick_cases(2)
def test_an_old_run_goes_on_to_the_numbers_it_went_on_to_before(old):
    call("train", "--resume", old, *MORE.get(old.name, []))
    rel = CLOSENESS.get(old.name, 1e-9)
    for table, columns in EXPECTED[old.name].items():
        got = getattr(simsgd.Run(old), table)
        assert {*columns} == {name for name in got if "seconds" not in name}
        for name, wanted in columns.items():
            own = got[name].tolist()
            if os.environ.get("SIMSGD_GOLDEN_EXACT"):
                assert (table, name, own) == (table, name, wanted)
            elif isinstance(wanted[0], float):
                assert (table, name, own) == (table, name, pytest.approx(wanted, rel=rel))
            else:
                assert (table, name, own) == (table, name, wanted)


def test_an_old_run_may_be_given_again_what_it_cannot_change(old):
    done = CliRunner().invoke(main, ["train", "--resume", str(old), "--workers", "8"])
    workers = simsgd.Run(old).num_workers
    assert done.exit_code == 2
    assert f"--workers cannot change on resume, the run has {workers}, got 8" in done.output


def test_an_old_runs_checkpoint_is_evaluated(old):
    epochs, done = simsgd.Run(old).epochs, EXPECTED[old.name]["epochs"]
    assert epochs["val_loss"].tolist() == done["val_loss"][: len(epochs)]
    given = MORE["lm"] if old.name == "lm" else []
    assert "loss" in call("evaluate", old / "last.pt", *given)


@pytest.mark.quick_cases(1)
def test_an_old_run_is_drawn(old):
    # `lm` has no epoch that ended, so that only its steps can be drawn.
    curve = ["-x", "step", "-y", "loss"] if old.name == "lm" else []
    for kind in KINDS[old.name]:
        words = curve if kind == "curves" else []
        figure = Path(f"{kind}.png")
        output = call("plot-results", old, "--kind", kind, "-o", figure, *words)
        assert output.strip() == str(figure)
        assert figure.read_bytes().startswith(b"\x89PNG")


def test_old_runs_are_in_the_table_of_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in EXPECTED:
        shutil.copytree(FOLDER / name, Path("runs") / name)
    output = call("results", "runs")
    assert {line.split()[0] for line in output.splitlines() if line} >= {*EXPECTED}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_run_is_priced_on_a_network(name):
    assert "10gbe" in call("network", FOLDER / name, "--network", "10gbe")


def test_a_setting_of_another_version_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = shutil.copytree(FOLDER / "diloco", Path("runs") / "diloco")
    config = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps({**config, "zzz": 1}))
    call("report", old, "-o", "page.html")
    call("results", "runs")
    page = Path("page.html").read_text()
    assert "simsgd train" in page
    assert "--zzz" not in page
