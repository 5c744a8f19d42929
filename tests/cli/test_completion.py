"""What the shells complete, and that it is what there is."""

import re
import shutil
import subprocess

import pytest
from click.shell_completion import BashComplete, FishComplete, ZshComplete
from click.testing import CliRunner

from simsgd.cli import main
from simsgd.cli.completion import known_names
from simsgd.config import Config
from simsgd.results.figures.plot import KINDS as FIGURES
from simsgd.results.network import NETWORKS
from simsgd.training.choices import _KINDS as LISTED
from simsgd.training.choices import list_names

KINDS = {
    "model": "models", "regime": "regimes", "dataset": "datasets", "compressor": "compressors",
    "memory": "memories", "algorithm": "algorithms", "aggregate": "aggregations",
    "attack": "attacks", "method": "methods", "outer_optimizer": "outer-optimizers",
    "topology": "topologies", "engine": "engines",
}  # fmt: skip
SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@pytest.mark.parametrize("setting", KINDS)
def test_names_are_those_that_are_listed(setting):
    listed = {name.partition(":")[0] for name in list_names(KINDS[setting])}
    known = {name.partition(":")[0] for name in known_names(setting)}
    beside = {"engine": {"auto", "tune"}, "regime": {"model"}, "topology": {"FILE"}}
    assert known ^ listed <= beside.get(setting, set())


def test_kinds_and_networks_are_those_that_there_are():
    assert set(known_names("kind")) == set(FIGURES)
    assert set(known_names("network")) == {*NETWORKS, "bandwidth="}
    assert set(known_names("listed")) == set(LISTED)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "begun", "completed"),
    [
        (["train", "--compressor"], "power", {"powersgd"}),
        (["train", "--model"], "len", {"lenet"}),
        (["sweep", "--topology"], "hyper", {"hypercube"}),
        (["train", "--value-dtype"], "bf", {"bfloat16"}),
        (["plot-results", "--kind"], "par", {"pareto", "partition"}),
        (["list"], "topo", {"topologies"}),
        (["network", "runs", "--network"], "10", {"10gbe", "100g-ib"}),
        ([], "plot", {"plot-results"}),
    ],
)
def test_a_shell_completes_names(shell, words, begun, completed):
    found = SHELLS[shell](main, {}, "simsgd", "_SIMSGD_COMPLETE").get_completions(words, begun)
    assert {item.value for item in found} == completed


def test_a_path_that_has_begun_is_completed_as_a_file():
    found = BashComplete(main, {}, "simsgd", "_SIMSGD_COMPLETE")
    (item,) = found.get_completions(["train", "--compressor"], "./mi")
    assert (item.value, item.type) == ("./mi", "file")


@pytest.mark.parametrize(
    ("words", "begun", "completed"),
    [
        (["report"], "", ["runs/alone", "runs/swept"]),
        (["train", "--resume"], "runs/al", ["runs/alone"]),
        (["plot-results", "runs/alone"], "runs/swept/", ["runs/swept/seed0", "runs/swept/seed1"]),
        (["results"], "runs/none", ["runs/none"]),
    ],
)
def test_runs_are_completed_from_their_folder(tmp_path, monkeypatch, words, begun, completed):
    for name in ("alone", "swept/seed0", "swept/seed1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text("{}")
    (tmp_path / "runs/other").mkdir()
    monkeypatch.chdir(tmp_path)
    found = BashComplete(main, {}, "simsgd", "_SIMSGD_COMPLETE").get_completions(words, begun)
    assert [item.value for item in found] == completed
    assert {item.type for item in found} == {"file" if begun == "runs/none" else "plain"}


def test_every_partition_is_completed():
    text = Config.__dataclass_fields__["partition"].metadata["help"]
    assert all(name.rstrip(":") in text for name in known_names("partition"))
    named = re.findall(r"[a-z-]+(?= \(|:[A-Z])", text)
    assert {name.rstrip(":") for name in known_names("partition")} >= {*named}


@pytest.mark.parametrize(
    "asked",
    [
        {"_SIMSGD_COMPLETE": "bash_complete"},
        {"_SIMSGD_COMPLETE": "bash_complete", "COMP_WORDS": "simsgd", "COMP_CWORD": "x"},
        {"_SIMSGD_COMPLETE": "nosuch_source"},
        {"_SIMSGD_COMPLETE": "yes"},
    ],
)
def test_a_shell_that_asks_wrongly_is_told(asked):
    done = CliRunner().invoke(main, [], prog_name="simsgd", env=asked)
    assert done.exit_code == 2
    assert done.stderr.startswith("simsgd: _SIMSGD_COMPLETE must be bash_source, zsh_source or ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_sound(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = SHELLS[shell](main, {}, "simsgd", "_SIMSGD_COMPLETE").source()
    subprocess.run([shell, "-n"], input=script, text=True, check=True)
