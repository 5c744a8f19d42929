"""Methods of a user's own that return what they must not are refused in one line."""

import pytest
from click.testing import CliRunner

from simsgd.cli import main

TINY = ["--model", "mlp", "--model-config", "hidden=4", "--dataset", "digits", "--workers", "4",
        "--epochs", "1", "--quiet"]  # fmt: skip
HEAD = """
from dataclasses import dataclass
import torch
from simsgd.methods import Compressor, Memory, ParameterAlgorithm, GradientAlgorithm, Dense, Sparse

@dataclass(frozen=True)
class Base(Compressor):
    biased = True
    def compress(self, x, state, step):
        return Dense.of(x)

"""
COMPRESSORS = {
    "class Mine: pass": "names a class that is no Compressor",
    "class Mine(Compressor): biased = True": "names a class that is no dataclass",
    "@dataclass(frozen=True)\nclass Mine(Compressor): biased = True": "lacks compress",
    "@dataclass(frozen=True)\nclass Mine(Base):\n  def compress(self, x, state, step): return x":
        "no message but a Tensor",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return Dense.of(x[:2])": "gives [2, ",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return Dense.of(x.zero_())": "changes its input",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return Sparse.of(x[:, [2, 2]],"
    " torch.tensor([[2, 2]] * len(x)), x.shape[1])": "gives a message that has an index twice in a",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return Sparse.of(x[:, [3, 2]],"
    " torch.tensor([[3, 2]] * len(x)), x.shape[1])": "has indices that do not ascend in each row",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return Sparse.of(torch.tensor([[2, 3]] * len(x)),"
    " x[:, [2, 3]], x.shape[1])": "torch.float32 as indices and torch.int64 as values, got Mine; "
        "give Sparse.of(values, index, n)",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return Sparse.of(x[:, [2, 3]],"
    " torch.tensor([[2]] * len(x)), x.shape[1])": "has values [4, 2] and indices [4, 1], got",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return Sparse.of(x[:, [2, 3]],"
    " torch.tensor([[2, 3]] * len(x)), float(x.shape[1]))": "has float as n, which must be a whole",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return Sparse.of(x[:, [2, 3]],"
    " torch.tensor([[2, 10**6]] * len(x)), x.shape[1])": "has an index outside [0, ",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def init(self, like): return {'e': torch.zeros(3, 5)}": "no tensor with a row a worker",
    "@dataclass(frozen=True)\nclass Mine(Base):\n  ratio: float = 'a lot'": "must be a number",
    "@dataclass(frozen=True)\nclass Mine(Base):\n  def __post_init__(self): raise ValueError('no')":
        "cannot be made: ValueError at line",
    "@dataclass(frozen=True)\nclass Mine(Base):\n"
    "  def compress(self, x, state, step): return 1 / 0": "raised ZeroDivisionError at line",
    "import sys\nsys.exit(3)": "cannot be run: SystemExit at line",
    "def f(:": "cannot be run: SyntaxError at line",
}  # fmt: skip


def refused(tmp_path, monkeypatch, body, *words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(HEAD + body + "\n")
    done = CliRunner().invoke(main, ["train", *TINY, *words])
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


@pytest.mark.parametrize(("body", "message"), COMPRESSORS.items(), ids=COMPRESSORS.values())
def test_a_wrong_compressor_is_refused_in_one_line(tmp_path, monkeypatch, body, message):
    assert message in refused(tmp_path, monkeypatch, body, "--compressor", "./mine.py:Mine")


def test_a_wrong_sparsifier_is_refused_before_a_quantizer_too(tmp_path, monkeypatch):
    body, message = next(pair for pair in COMPRESSORS.items() if "index twice" in pair[1])
    assert message in refused(tmp_path, monkeypatch, body, "--compressor", "./mine.py:Mine+sign")


def test_a_wrong_memory_is_refused_in_one_line(tmp_path, monkeypatch):
    body = (
        "@dataclass(frozen=True)\nclass Mine(Memory):\n"
        "  def init(self, like, dense): return {}\n"
        "  def compensate(self, grad, state): return grad[:2]\n"
        "  def update(self, compensated, message, state): pass"
    )
    words = "--memory", "./mine.py:Mine", "--compressor", "topk:0.1"
    assert "has a compensate that gives [2, " in refused(tmp_path, monkeypatch, body, *words)


def test_a_compressor_is_no_memory(tmp_path, monkeypatch):
    words = "--memory", "./mine.py:Base"
    assert "is no Memory" in refused(tmp_path, monkeypatch, "", *words)


@pytest.mark.parametrize(
    ("base", "call", "message"),
    [
        ("ParameterAlgorithm", "parameters(self, x, context, state)", "no Exchanged but a Tensor"),
        ("GradientAlgorithm", "gradients(self, x, context, state=None)", "no pair of a message"),
    ],
)
def test_a_wrong_algorithm_is_refused_in_one_line(tmp_path, monkeypatch, base, call, message):
    body = f"@dataclass(frozen=True)\nclass Mine({base}):\n  def {call}: return torch.ones(2)"
    assert message in refused(tmp_path, monkeypatch, body, "--algorithm", "./mine.py:Mine")


def test_the_error_of_a_file_without_a_class_lists_those_there_are(tmp_path, monkeypatch):
    assert "it has Base" in refused(tmp_path, monkeypatch, "", "--compressor", "./mine.py")


def test_annotations_may_be_postponed_and_the_file_beside_be_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_it.py").write_text("HALF = 0.5\n")
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom beside_it import HALF\n" + HEAD
    )
    words = ["train", *TINY, "--compressor", "./mine.py:Base", "--memory", "none"]
    assert CliRunner().invoke(main, words).exit_code == 0


def test_the_traceback_is_shown_where_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    body = "@dataclass(frozen=True)\nclass Mine(Base):\n  def compress(self, x, state, step): 1 / 0"
    (tmp_path / "mine.py").write_text(HEAD + body + "\n")
    words = ["--traceback", "train", *TINY, "--compressor", "./mine.py:Mine"]
    assert isinstance(CliRunner().invoke(main, words).exception, ZeroDivisionError)
