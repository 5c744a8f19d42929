"""The tests that need a GPU, as `simsgd bench device` runs them; here in place of a GPU's."""

import pytest

from simsgd.bench import device_tests
from simsgd.bench.device_tests import CHECKOUT, cuda_tests

TESTS = """
import os, time
import pytest

@pytest.mark.cuda
@pytest.mark.parametrize("spec", ["a b", "c"])
def test_that_passes(spec):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"

@pytest.mark.cuda
def test_that_fails():
    assert not 1

@pytest.mark.cuda
def test_that_takes_long():
    time.sleep({seconds})

def test_for_a_cpu():
    assert not 1
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A function that writes a checkout with the tests above."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def write(seconds=0):
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = cuda: needs a GPU\n")
        (tmp_path / "tests" / "deep").mkdir(parents=True)
        (tmp_path / "tests" / "deep" / "test_it.py").write_text(TESTS.format(seconds=seconds))
        (tmp_path / "tests" / "test_other.py").write_text("raise ValueError")
        return tmp_path

    return write


@pytest.mark.slow
def test_those_that_need_a_gpu_are_run_and_listed_one_by_one(checkout):
    rows, notes = cuda_tests("cuda:2", 60, checkout())
    assert notes == []
    assert {row["table"] for row in rows} == {"tests"}
    assert [(row["test"].partition("::")[2], row["outcome"]) for row in rows] == [
        ("test_that_passes[a b]", "passed"), ("test_that_passes[c]", "passed"),
        ("test_that_fails", "failed"), ("test_that_takes_long", "passed"),
    ]  # fmt: skip


@pytest.mark.slow
def test_what_had_ended_when_time_was_up_is_listed(checkout):
    rows, notes = cuda_tests("cuda:2", 5, checkout(seconds=60))
    assert [row["outcome"] for row in rows] == ["passed", "passed", "failed"]
    assert notes == ["the tests that need a GPU were stopped after 5 s"]


@pytest.mark.slow
def test_tests_that_cannot_be_run_are_a_note(checkout, tmp_path, monkeypatch):
    assert cuda_tests("cuda", 9, tmp_path) == (
        [], ["the tests that need a GPU are not in this installation"]
    )  # fmt: skip
    root = checkout()
    with monkeypatch.context() as without:
        without.setattr(device_tests.importlib.util, "find_spec", lambda name: None)
        assert cuda_tests("cuda", 9, root)[1] == [
            "the tests that need a GPU need simsgd[test] to be installed"
        ]
    (root / "tests" / "deep" / "test_it.py").write_text("import nothing  # pytest.mark.cuda")
    rows, [note] = cuda_tests("cuda", 60, root)
    assert rows == []
    assert note.startswith("the tests that need a GPU did not run to their end: ")
    assert "1 error in" in note


def test_this_checkout_has_such_tests():
    files = CHECKOUT.glob("tests/**/test_*.py")
    marked = [file.name for file in files if "\n@pytest.mark.cuda\n" in file.read_text()]
    assert {"test_compressors.py", "test_device.py", "test_transfer.py"} <= set(marked)
