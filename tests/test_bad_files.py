"""Wrong files of a user's own: one line that says which, and what is expected; nothing stays."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from simsgd.cli import main

SMALL = "--model mlp --model-config hidden=4 --dataset digits --workers 4 --epochs 1 --quiet"
DATA = Path(__file__).parent / "data" / "bad_files.json"
CASES = json.loads(DATA.read_text("utf-8"))  # HERE is the folder, "..." stands for the rest


@pytest.mark.quick_cases(40)
@pytest.mark.parametrize("case", CASES, ids=[case["line"] for case in CASES])
def test_a_wrong_file_gets_exactly_its_error_and_leaves_nothing(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    for name, text in case["files"].items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    there = {*tmp_path.rglob("*")}
    command, *words = shlex.split(case["line"])
    done = CliRunner().invoke(main, [command, *(SMALL.split() * (command == "train")), *words])
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    told = done.stderr.replace(str(tmp_path), "HERE").removeprefix("simsgd: ").rstrip("\n")
    message, open_end, _ = case["message"].partition("...")
    assert told.startswith(message) if open_end else told == message
    assert {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts} == there


LATE = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(64, 10), 0
    def forward(self, x):
        self.calls += 1
        return self.inner(x.flatten(1))[: 3 if self.calls > 60 else None]
def model():
    return Net()
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "onepass", "vmap"])
def test_a_model_that_fails_later_is_told_in_one_line(tmp_path, monkeypatch, engine):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(LATE)
    words = f"{SMALL} --epochs 3 --model ./m.py --model-config '' --lr 0.1 --engine {engine}"
    done = CliRunner().invoke(main, ["train", *shlex.split(words), "--name", "late"])
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    told = "simsgd: --model fails in training: ValueError: Expected input batch_size (3) to match"
    assert done.stderr.startswith(told)
    early = engine == "loop"  # which calls the model for each worker: before anything was saved
    end = "nothing of the run was kept" if early else "simsgd train --resume runs/late"
    assert done.stderr.endswith(f"{end}\n")
    assert (tmp_path / "runs").exists() != early
