"""What docs/bring-your-own.md shows runs, in its order."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from simsgd.cli import main

TEXT = (Path(__file__).parents[1] / "docs" / "bring-your-own.md").read_text()
BLOCKS = re.findall(r"```(\w+)(?: file=(\S+))?\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.slow
@pytest.mark.distributed
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for language, file, code in BLOCKS:
        if file:
            Path(file).write_text(code)
        elif language == "python":
            exec(compile(code, "bring-your-own.md", "exec"), {})
        for command in code.splitlines() if language == "bash" else ():
            done = CliRunner().invoke(main, shlex.split(command)[1:])
            assert done.exit_code == 0, f"{command}\n{done.output}"


def test_each_python_example_is_short():
    examples = [code for language, _, code in BLOCKS if language == "python"]
    assert all(len([line for line in code.splitlines() if line]) < 15 for code in examples)
