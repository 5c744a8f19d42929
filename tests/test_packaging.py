"""The wheel, installed apart from the checkout and used from another folder."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def python(*words, folder, path=None):
    own = {n: value for n, value in os.environ.items() if n != "PYTEST_ADDOPTS"}  # such as --cov
    environment = {**own, "PYTHONPATH": str(path or "")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(CHECKOUT, source, ignore=shutil.ignore_patterns(".*", "runs", "*.egg-info"))
    flags = ["--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    python("-m", "pip", "wheel", str(source), *flags, folder=folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel):
    target = wheel.parent / "site"
    python("-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel),
           folder=wheel.parent)  # fmt: skip
    return target


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of an unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    shutil.copytree(CHECKOUT, source, ignore=shutil.ignore_patterns(".git", "runs", "build"))
    python("setup.py", "-q", "sdist", "-d", str(folder), folder=source)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    return next((folder / "unpacked").iterdir())


def test_tests_run_from_a_source_distribution(unpacked):
    some = [f"tests/{name}.py" for name in ("test_settings", "test_docs_public", "test_old_runs")]
    python("-m", "pytest", "-q", "-n", "0", *some, folder=unpacked, path=unpacked)


def test_a_source_distribution_has_what_its_tests_need(unpacked):
    packed = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    patterns = ("tests/**/*", "docs/**/*", "models/*.py", "regimes/*.py", "notebooks/*.ipynb")
    needed = {
        path.relative_to(CHECKOUT).as_posix()
        for pattern in patterns
        for path in CHECKOUT.glob(pattern)
        if path.is_file() and path.suffix != ".pyc"
    }
    tops = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml", "run_experiments.sh"}
    assert needed | tops | {".ci/run"} <= packed


def test_the_wheel_puts_nothing_but_simsgd_at_the_top(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"simsgd"}


def test_every_module_of_the_checkout_is_in_the_wheel(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    here = [p for room in ("simsgd", "models", "regimes") for p in (CHECKOUT / room).rglob("*.py")]
    places = [str(path.relative_to(CHECKOUT)) for path in here]
    wanted = {p if p.startswith("simsgd/") else f"simsgd/{p}" for p in places}
    assert wanted - packed == set()


def test_the_installed_package_trains_from_another_folder(installed, tmp_path):
    options = [
        "--model",
        "mlp",
        "--dataset",
        "digits",
        "--workers",
        "2",
        "--epochs",
        "1",
        "--prune",
        "0.9",
        "--name",
        "a",
    ]
    output = python("-m", "simsgd", "train", *options, folder=tmp_path, path=installed)
    assert "validation error@1" in output
    assert (tmp_path / "runs/a/best.pt").exists()


def test_the_installed_package_lies_where_it_was_installed(installed, tmp_path):
    code = "import simsgd, simsgd.models.lenet as m; print(simsgd.__file__); print(m.__file__)"
    places = python("-c", code, folder=tmp_path, path=installed).split()
    assert all(place.startswith(str(installed)) for place in places)


def test_no_package_named_models_lands_beside_it(installed, tmp_path):
    code = "import importlib.util as u; print(u.find_spec('models'), u.find_spec('regimes'))"
    assert python("-c", code, folder=tmp_path, path=installed).split() == ["None", "None"]
