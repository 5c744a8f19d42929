"""A user's own file that is wrong is refused in one line, and no folder is left."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from simsgd.cli import main

HEAD = "import sys\nimport torch\nfrom torch import nn\n"  # three lines before each file
MODEL = "def model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)
    def forward(self, x):
        {}
def model():
    return Net()
"""
RAISED = "HERE/own.py raised {}; simsgd --traceback COMMAND shows all of it"
MODELS = {
    "def model(): sys.exit(7)": RAISED.format("SystemExit at line 4: 7"),
    NET.format("sys.exit('enough')"): RAISED.format("SystemExit at line 9: enough"),
    "def model(): return None": "--model returns a NoneType and not a torch.nn.Module, got own",
}
REGIMES = {
    "def regime(epoch): sys.exit()": RAISED.format("SystemExit at line 4: SystemExit"),
    'regime = {0: {"lr": None}}': "--lr must be a number of at least 0",
}


def refused(source: str, folder: Path, *options: str) -> str:
    """Return what `train` prints of a file ./own.py that is wrong."""
    (folder / "own.py").write_text(HEAD + source)
    words = ["train", "--workers", "4", "--dataset", "digits", "--epochs", "4", "--quiet"]
    result = CliRunner().invoke(main, [*words, *options])
    assert result.exit_code == 2, result
    assert not list(folder.glob("runs/*"))
    line, *more = result.stderr.splitlines()
    assert not more
    return line.removeprefix("simsgd: ").replace(str(folder), "HERE")


@pytest.mark.parametrize(("source", "line"), MODELS.items())
def test_a_wrong_model_is_refused(source, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(source, tmp_path, "--model", "./own.py", "--lr", "0.1") == line


@pytest.mark.parametrize(("source", "line"), REGIMES.items())
def test_a_wrong_regime_is_refused(source, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--model", "mlp", "--model-config", "hidden=4", "--regime", "./own.py"]
    assert refused(source, tmp_path, *options) == line
