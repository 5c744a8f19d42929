"""verify from scripts without a guard, from standard input, and ended by a signal."""

import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest

import simsgd
from simsgd.settings import SettingError
from simsgd.verify import main_module
from simsgd.verify.main_module import without_main

TINY = {
    "model": "mlp", "model_config": "hidden=4", "dataset": "digits", "workers": 2, "steps": 3,
}  # fmt: skip


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A main module that comes from a file, whose text may be set."""
    module = ModuleType("__main__")
    module.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return tmp_path / "script.py"


@pytest.fixture
def own_method(monkeypatch):
    """As if the script had registered a method."""
    monkeypatch.setattr(main_module, "methods_of", lambda module: ["mine"])


def test_processes_are_started_without_the_script(script):
    before = sys.modules["__main__"]
    with without_main():
        assert vars(sys.modules["__main__"]).get("__file__") is None
    assert sys.modules["__main__"] is before


@pytest.mark.usefixtures("own_method")
def test_a_script_with_a_method_of_its_own_is_imported_if_it_is_guarded(script):
    script.write_text("import simsgd\nif __name__ == '__main__':\n    simsgd.verify()\n")
    with without_main():
        assert sys.modules["__main__"].__file__ == str(script)


@pytest.mark.usefixtures("own_method")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import simsgd\nsimsgd.verify()\n", 'put the call of verify under if __name__ == "__main'),
        (None, "but it comes from standard input; put the class in a file of its own and name it"),
    ],
)
def test_a_script_with_a_method_of_its_own_that_cannot_be_imported_is_refused(script, text, words):
    if text is not None:
        script.write_text(text)
    with pytest.raises(SettingError) as refused, without_main():
        pass
    assert str(refused.value).startswith("mine is registered in the script that calls verify, ")
    assert words in str(refused.value)


@pytest.mark.slow
@pytest.mark.distributed
def test_verify_works_from_standard_input_and_without_a_guard(tmp_path):
    code = f"import simsgd\nprint(simsgd.verify(**{TINY}).holds)\n"
    (tmp_path / "script.py").write_text(code)
    for words, text in (([], code), (["script.py"], "")):
        done = subprocess.run(
            [sys.executable, *words], input=text, cwd=tmp_path, capture_output=True, text=True,
            check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_verify_says_which_signal_ended_it(tmp_path, number):
    before = signal.getsignal(number)
    with pytest.raises(simsgd.Interrupted) as ended:
        simsgd.verify(
            **TINY, runs_dir=tmp_path, name="a", log=lambda line: signal.raise_signal(number)
        )
    name = signal.Signals(number).name
    assert str(ended.value) == f"verify was stopped by {name} after 0 of 3 steps"
    assert not [*tmp_path.iterdir()]
    assert signal.getsignal(number) is before


@pytest.mark.slow
@pytest.mark.distributed
def test_verify_that_is_ended_leaves_what_it_has_compared(tmp_path):
    def stop(line):
        if line.startswith("step "):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(simsgd.Interrupted, match="after 1 of 300 steps"):
        simsgd.verify(**{**TINY, "steps": 300}, runs_dir=tmp_path, name="a", log=stop)
    assert len((tmp_path / "a" / "verify.csv").read_text().splitlines()) == 2
    run = simsgd.Run(tmp_path / "a")
    assert run.steps["step"].tolist() == [1]
    assert f"verify was stopped by SIGTERM after 1 of 300 steps: {run.folder}" in run.log
