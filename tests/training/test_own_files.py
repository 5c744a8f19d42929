"""A user's own file that is wrong is refused in one line, and no folder is left."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from simsgd import Run, registry
from simsgd.cli import main
from simsgd.config import Config
from simsgd.settings import SettingError

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
GOT = "got HERE/own.py"
TRANSFORMS = 'write {"train": f, "eval": f}, each a function of images'
MODELS = {
    "def model(): sys.exit(7)": RAISED.format("SystemExit at line 4: 7"),
    NET.format("sys.exit('enough')"): RAISED.format("SystemExit at line 9: enough"),
    NET.format("return self.linear(x.flatten(1)).detach()"): (
        f"--model gives a loss without a gradient, {GOT}; detach neither output nor loss, and "
        "compute them without argmax or torch.no_grad"
    ),
    NET.format("return self.linear(x.flatten(1)).argmax(1)"): (
        f"--model gives int64, which has no gradient, {GOT}; give scores of classes, without "
        "argmax or rounding"
    ),
    NET.format("return self.linear(x.view(8, 64))"): (
        "--model cannot be evaluated on 125 samples of digits: RuntimeError at line 9: shape "
        f"'[8, 64]' is invalid for input of size 8000, {GOT}"
    ),
    NET.format("return self.linear(x.flatten(1))[:, :10 if self.training else 3]"): (
        f"--model gives scores for too few classes: Target 6 is out of bounds., {GOT}"
    ),
    NET.format("return [self.linear(x.flatten(1)), 5 / self.training][0]"): (
        "--model cannot be evaluated on 125 samples of digits: ZeroDivisionError at line 9: "
        f"division by zero, {GOT}"
    ),
    NET.format("raise ValueError('deep\\ninside')"): (
        f"--model cannot be trained on digits: ValueError at line 9: deep inside, {GOT}"
    ),
    "def model(): return 1 / 0": (
        f"--model cannot be built: ZeroDivisionError at line 4: division by zero, {GOT}"
    ),
    "def model(): return nn.Linear(64, 10, dtype=torch.complex64)": (
        f"--model has complex parameters, weight, {GOT}; use real ones, two for each"
    ),
    MODEL.replace("10", "5"): (
        f"--model gives scores for too few classes: Target 9 is out of bounds., {GOT}"
    ),
    f"{MODEL}criterion = 'mse'": (
        f"--model declares a criterion that is no function but mse, {GOT}; such as "
        "torch.nn.functional.mse_loss"
    ),
    f"{MODEL}def criterion(o, y): return nn.functional.cross_entropy(o, y, reduction='none')": (
        f'--model has "criterion", which returns a tensor of shape (8,), {GOT}; return the mean, '
        "one number"
    ),
    f"{MODEL}def criterion(o, y): return 0.5": (
        f'--model has "criterion", which returns no tensor, {GOT}; return the mean, one number'
    ),
    f"{MODEL}def criterion(o, y): return torch.zeros(())": (
        f"--model gives a loss without a gradient, {GOT}; detach neither output nor loss, and "
        "compute them without argmax or torch.no_grad"
    ),
    f"{MODEL}def criterion(o, y): return y.no_such": (
        "--model cannot be trained on digits: AttributeError at line 6: 'Tensor' object has no "
        f"attribute 'no_such', {GOT}"
    ),
    f"{MODEL}input_transform = 'x'": (
        f"--model has an input_transform of type str, {GOT}; {TRANSFORMS}"
    ),
    f"{MODEL}input_transform = 5": (
        f"--model has an input_transform of type int, {GOT}; {TRANSFORMS}"
    ),
    f"{MODEL}input_transform = {{'test': print}}": (
        f"--model has an input_transform for test, {GOT}; {TRANSFORMS}"
    ),
    f"{MODEL}input_transform = {{'train': 5}}": (
        f"--model has an input_transform whose train is no function but 5, {GOT}; {TRANSFORMS}"
    ),
    f"{MODEL}input_transform = {{'train': lambda x: x[:3]}}": (
        f"--model has an input_transform whose train makes 3 samples of 32, {GOT}; return as many "
        "as it is given"
    ),
    f"{MODEL}input_transform = {{'eval': lambda x: x[:1]}}": (
        f"--model has an input_transform whose eval makes 1 samples of 2, {GOT}; return as many "
        "as it is given"
    ),
    f"{MODEL}input_transform = {{'eval': lambda x: None}}": (
        "--model has an input_transform whose eval returns NoneType and no tensor of samples, "
        f"{GOT}"
    ),
    f"{MODEL}input_transform = {{'train': lambda x: 1 / 0}}": (
        f"--model cannot be trained on digits: ZeroDivisionError at line 6: division by zero, {GOT}"
    ),
    f"{MODEL}epochs = -3": (
        f"--model declares epochs = -3, which is not a whole number of at least 1, {GOT}"
    ),
    "def model(): return None": (
        f"--model returns a NoneType and not a torch.nn.Module, {GOT}; let the function return the "
        "network"
    ),
}
FORMS = "write {0: {...}} by epoch, a list of phases, or a function"
TAKES = "take (epoch) or (epoch, step) or (epoch, step, results)"
REGIMES = {
    "def regime(epoch): sys.exit()": RAISED.format("SystemExit at line 4: SystemExit"),
    "def regime(epoch): raise ValueError('no')": RAISED.format("ValueError at line 4: no"),
    "regime = 5": f"--regime is of type int; {FORMS}",
    "regime = ({} for _ in range(2))": f"--regime is of type generator; {FORMS}",
    "regime = torch.optim.SGD": f"--regime is the class SGD; {FORMS}",
    "regime = {0: {'lr': sys.stdin}}": "--regime cannot be copied: ",
    'regime = {float("nan"): {"lr": 0.1}}': "--regime must be keyed by epoch, got {nan: ",
    'regime = {"0": {"lr": 0.1}}': "--regime must be keyed by epoch, got {'0': ",
    'regime = {0: {"lr": 0.1}, "1": {"lr": 0.1}}': "--regime must be keyed by epoch, got {0: ",
    'regime = {-1: {"lr": 0.1}}': "--regime must have a number of at least 0 as epoch, got -1",
    "def regime(): return {'lr': 0.1}": f"--regime has a function regime(); {TAKES}",
    "def regime(a, b, c, d): return {}": f"--regime has a function regime(a, b, c, d); {TAKES}",
    "def regime(epoch): return {'lr': 0.1} if epoch < 3 else 'x'": (
        "--regime must give a dict of settings, got x"
    ),
    'regime = {0: {"lr": None}}': ('--regime has "lr", which must be a number of at least 0, got '),
    'regime = {0: {"lr": "0.1"}}': (
        """--regime has "lr": '0.1', which must be a number, not text, got """
    ),
    'regime = {0: {"lr": torch.ones(2)}}': (
        '--regime has "lr": tensor([1., 1.]), which must be a number of at least 0'
    ),
    'regime = {0: {"lr": 1e300}}': (
        '--regime has "lr": 1e+300, which must be at most 3.4e+38, as float32 allows, got '
    ),
    'regime = {0: {"lr": 0.1, "step_lambda": 5}}': (
        "--regime must have a function as step_lambda, got 5"
    ),
    'regime = {0: {"lr": 0.1, "step_lambda": lambda a, b: {}}}': (
        "--regime has a function <lambda>(a, b); take (step)"
    ),
    'regime = {0: {"lr": 0.1, "lr_decay_rate": 0.5}}': (
        "--regime must have a whole number of at least 1 as lr_decay_steps"
    ),
    'regime = {0: {"lr": 0.1, "lr_decay_rate": 0.5, "lr_decay_steps": 0}}': (
        "--regime must have a whole number of at least 1 as lr_decay_steps, got 0"
    ),
    'regime = {0: {"lr": 0.1, "lr_decay_steps": 5}}': (
        "--regime must have a number of at least 0 as lr_decay_rate"
    ),
    'regime = {0: {"lr": 0.1, "lr_decay": 0.5}}': (
        "--regime sets lr_decay, which is taken by none of its optimizers, SGD, got 0.5; leave it"
    ),
    'regime = {0: {"lr": 0.1, "btach": 5}}': (
        "--regime sets something that is not known, got btach; did you mean "
    ),
    "regime = schedule = None": "--regime defines no regime, got HERE/own.py",
    "schedule = 5": "--regime declares schedule = 5, which is no function, got HERE/own.py",
    'regime = {0: {"lr": 0.1}}; batch = "64"': (
        "--regime declares batch = '64', which is not a whole number of samples of at least 1"
    ),
    'regime = {0: {"lr": 0.1}}; epochs = -3': (
        "--regime declares epochs = -3, which is not a whole number of at least 1, got HERE/own.py"
    ),
    'regime = {0: {"lr": 0.1}}; scale_lr = "cubic"': (
        "--regime declares scale_lr = 'cubic', which is none of sqrt, linear and none, got HERE"
    ),
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
    assert refused(source, tmp_path, *options).startswith(line)


@pytest.fixture
def modules(monkeypatch):
    """Leave imported modules and Python's path as they were."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_added", [])
    yield
    for name in ("only_beside", "in_both"):
        sys.modules.pop(name, None)


def write_two(tmp_path, name):
    """Write files of one name that import a file beside them, and return their paths."""
    files = [tmp_path / folder / "mine.py" for folder in "ab"]
    for number, file in enumerate(files):
        file.parent.mkdir()
        (file.parent / f"{name}.py").write_text(f"NUMBER = {number}\n")
        file.write_text(f"from {name} import NUMBER\n")
    return files


@pytest.mark.usefixtures("modules")
def test_a_file_imports_those_beside_it_and_not_others_of_their_name(tmp_path):
    one, other = write_two(tmp_path, "only_beside")
    one.write_text("NUMBER = 0\n")
    assert [registry.load_file(file, "model").NUMBER for file in (one, other, one)] == [0, 1, 0]


@pytest.mark.usefixtures("modules")
def test_files_that_import_two_of_one_name_are_refused(tmp_path):
    one, other = write_two(tmp_path, "in_both")
    assert registry.load_file(one, "model").NUMBER == 0
    with pytest.raises(SettingError) as wrong:
        registry.load_file(other, "dataset")
    told = f"dataset imports in_both, and that of {one.parent} is in use, got {other}"
    assert str(wrong.value) == f"{told}; rename one of them"
    assert registry.load_file(one, "model").NUMBER == 0


@pytest.mark.slow
def test_a_run_stays_where_its_command_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    moved = MODEL.replace("    return", "    import os\n    os.chdir('other')\n    return")
    (tmp_path / "own.py").write_text(HEAD + moved)
    words = [
        "--dataset",
        "digits",
        "--workers",
        "4",
        "--steps",
        "1",
        "--lr",
        "0.1",
        "--quiet",
        "--name",
        "a",
    ]
    assert CliRunner().invoke(main, ["train", "--model", "./own.py", *words]).exit_code == 0
    assert (tmp_path / "runs" / "a" / "last.pt").is_file()
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["c++", "p+q", "x y:z"])
def test_a_folder_with_a_plus_or_a_colon_in_its_name_is_as_any_other(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    Path("own.py").write_text(HEAD + MODEL)
    Path("reg.py").write_text("regime = {0: {'lr': 0.1}}\n")
    Path("comp.py").write_text(
        "from simsgd.methods import Compressor, Dense\nfrom dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Half(Compressor):\n    n: float = 1.0\n    biased = True\n"
        "    def compress(self, x, state, step): return Dense.of(x * self.n)\n"
    )
    words = "--dataset digits --workers 4 --steps 1 --quiet --name a"
    words += " --compressor ./comp.py:Half --model ./own.py --regime model+./reg.py"
    done = CliRunner().invoke(main, ["train", *words.split()])
    assert done.output == ""
    here = tmp_path / name
    names = [str(here / file) for file in ("own.py", "reg.py", "comp.py")]
    config = Run("runs/a").config
    settings = {name: config[name] for name in ("model", "regime", "compressor")}
    assert Config.of(settings).files_of_code == names
