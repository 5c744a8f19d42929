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
