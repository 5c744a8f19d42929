"""The public names of `simsgd`: each command is a function here, and each is used by its name."""

import inspect
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import matplotlib.figure
import pandas as pd
import pytest
import torch
from torch import nn

import simsgd
from simsgd.cli import main

CHECKOUT = Path(__file__).parents[1]
SMALL = {"model": "mlp", "model_config": "hidden=8", "workers": 2}
TINY = {**SMALL, "dataset": "digits", "batch_size": 40, "epochs": 1, "quiet": True}
COMMANDS = {  # the function of each, and the options that only say how it is printed
    "advise": (simsgd.advise, {"as_json"}),
    "bytes": (simsgd.bytes_of, {"as_json", "explain", "per_layer"}),
    "evaluate": (simsgd.evaluate, set()),
    "generate": (simsgd.generate, set()),
    "list": (simsgd.list_names, set()),
    "network": (simsgd.network, {"as_json"}),
    "plot-results": (simsgd.plot_results, set()),
    "report": (simsgd.report, set()),
    "results": (simsgd.results, {"columns", "in_csv", "in_json", "wide"}),
    "sweep": (simsgd.sweep, {"network"}),
    "train": (simsgd.train, {"network", "dry_run"}),
    "tune-consensus": (simsgd.tune_consensus, set()),
    "verify": (simsgd.verify, {"quiet"}),
}
FUNCTIONS = ("advise", "bench", "bytes_of", "evaluate", "generate", "list_names", "network",
             "plot_results", "recording", "report", "results", "sweep", "train", "tune_consensus",
             "verify")  # fmt: skip
CLASSES = ("Config", "Recipe", "Recording", "Run", "Simulator", "StepRecord", "Sweep")
ERRORS = ("Diverged", "Interrupted", "NotWritten", "OutOfMemory", "RankLost", "SettingError")
MODULES = ("adapters", "ddp", "methods")
TYPED = """
from pathlib import Path
from typing import assert_type

import pandas as pd
import simsgd
from torch import nn
from simsgd.methods import Compressor, Message

run = simsgd.train(workers=2)
assert_type(run, simsgd.Run)
assert_type(simsgd.sweep(workers=[2]), simsgd.Sweep)
assert_type(simsgd.verify(steps=2).holds, bool)
assert_type(simsgd.evaluate(run.folder).error1, float)
assert_type(simsgd.results("runs"), pd.DataFrame)
assert_type(simsgd.report("runs"), Path)
assert_type(simsgd.network("runs"), pd.DataFrame)
assert_type(simsgd.advise("10gbe").summary(), str)
assert_type(simsgd.bytes_of(workers=2).payload_bytes, int)
assert_type(simsgd.tune_consensus(workers=4).best, float)
assert_type(simsgd.count(0.1, 10), int)
assert_type(simsgd.list_names("models"), dict[str, str])
with simsgd.recording("runs/mine", simsgd.Simulator(nn.Linear(2, 2))) as recorded:
    assert_type(recorded, simsgd.Recording)
error: type[Exception] = simsgd.Diverged
simsgd.plot_results("runs").savefig("runs.png")
simsgd.no_such_name  # error
simsgd.results(sorted_by="lr")  # error
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with one run, which has a checkpoint."""
    folder = tmp_path_factory.mktemp("runs")
    simsgd.train(**TINY, runs_dir=folder, name="one")
    return folder


def test_the_public_names_are_these_and_no_others():
    names = {*FUNCTIONS, *CLASSES, *ERRORS, *MODULES, "count", "__version__"}
    assert set(simsgd.__all__) == set(dir(simsgd)) == names


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_one_and_documented(name):
    assert inspect.isfunction(getattr(simsgd, name))
    assert inspect.getdoc(getattr(simsgd, name))


def test_every_command_has_a_function():
    assert set(main.commands) == {*COMMANDS, "bench"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_function_has_the_settings_of_its_command(name):
    function, printed = COMMANDS[name]
    parameters = inspect.signature(function).parameters
    options = {str(p.name) for p in main.commands[name].params} - printed
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        options -= set(simsgd.Config.__dataclass_fields__)
    assert options <= set(parameters)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_function_has_the_defaults_of_its_command(name):
    parameters = inspect.signature(COMMANDS[name][0]).parameters
    for option in main.commands[name].params:
        own = parameters.get(str(option.name))
        default = option.get_default(click.Context(main.commands[name]))
        if own is None or isinstance(option, click.Argument) or own.default is None:
            continue
        if option.multiple:
            several = (own.default,) if isinstance(own.default, str) else own.default
            assert several == (tuple(default) if isinstance(default, list) else ())
        else:
            assert str(own.default) == str(default)


ORDERS = [
    *itertools.permutations(["simsgd.results.run", "simsgd.verify.verdict", "simsgd"]),
    ["simsgd.bench.benches", "simsgd.cli"],
    ["simsgd.training.trainer"],
    ["simsgd.cli", "simsgd.results"],
    ["simsgd.verify", "simsgd.results", "simsgd.bench"],
]
IMPORTS = """
import importlib, inspect, json, os, sys, pandas, torch
for modules in json.loads(sys.argv[1]):
    child = os.fork()  # where nothing of the package is imported
    if child:
        assert os.waitpid(child, 0)[1] == 0, modules
        continue
    for module in modules:
        importlib.import_module(module)
    import simsgd
    from simsgd.results.run import Run
    from simsgd import bench, results, verify
    assert inspect.isfunction(simsgd.results) and inspect.isfunction(results)
    assert inspect.isfunction(simsgd.verify) and inspect.isfunction(verify)
    assert inspect.isfunction(simsgd.bench) and inspect.isfunction(bench)
    from simsgd.verify import verdict
    from simsgd.bench import benches
    assert inspect.ismodule(verdict) and inspect.ismodule(benches)
    assert inspect.isfunction(simsgd.verify) and Run is simsgd.Run
    os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX forks")
def test_functions_win_over_packages_of_their_name_in_whatever_order():
    words = [sys.executable, "-c", IMPORTS, json.dumps(ORDERS)]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, simsgd; sys.exit(any(m in sys.modules for m in ('torch', 'pandas')))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CHECKOUT)


@pytest.mark.slow
def test_a_type_checker_sees_the_types(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "typed.py")],
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = TYPED.splitlines()
    expected = [i for i, line in enumerate(lines, 1) if line.endswith("# error")]
    found = [int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line]
    assert found == expected, checked.stdout


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        simsgd.trian  # noqa: B018


def test_train_returns_a_run(runs):
    run = simsgd.train(**TINY, runs_dir=runs.parent / "more", name="two")
    assert isinstance(run, simsgd.Run)
    assert len(run.epochs) == 1


@pytest.mark.slow
def test_sweep_returns_a_sweep(tmp_path):
    found = simsgd.sweep(**{**TINY, "workers": [1, 2]}, runs_dir=tmp_path / "sweep")
    assert isinstance(found, simsgd.Sweep)
    assert found.table["workers"].tolist() == ["1", "2"]


@pytest.mark.distributed
@pytest.mark.slow
def test_verify_returns_a_verdict_and_logs_its_lines(tmp_path):
    lines = []
    verdict = simsgd.verify(steps=2, log=lines.append, **TINY, runs_dir=tmp_path)
    assert verdict.holds
    assert lines[1].startswith("step    1: loss ")


def test_evaluate_returns_the_numbers_of_a_checkpoint(runs):
    evaluation = simsgd.evaluate(runs / "one")
    assert evaluation.error1 == simsgd.Run(runs / "one").last["val_error1"]
    assert evaluation.summary().startswith("validation loss")


def test_results_is_a_table(runs):
    assert simsgd.results(runs)["name"].tolist() == ["one"]


@pytest.mark.slow
def test_report_is_a_page(runs, tmp_path):
    assert "<html" in simsgd.report(runs, tmp_path / "page.html").read_text()


def test_plot_results_is_a_figure(runs):
    assert isinstance(simsgd.plot_results(runs, x="bytes"), matplotlib.figure.Figure)


def test_network_is_a_table(runs):
    table = simsgd.network(runs, ["10gbe", "wan"], compute_ms=1)
    assert isinstance(table, pd.DataFrame)
    assert table["network"].tolist() == ["10gbe", "wan"]
    run = simsgd.Run(runs / "one")
    assert run.summary("10gbe") == run.summary(["10gbe"])


def test_advise_prices_compressors_on_networks():
    advice = simsgd.advise(["10gbe", "wan"], "sign", measure=False, input_shape="1x8x8", **SMALL)
    assert {name: [o.compressor for o in rows] for name, rows in advice.offers.items()} == {
        "10gbe": ["sign"],
        "wan": ["sign"],
    }
    assert advice.summary().count("mlp, 2 workers on ") == 2
    assert json.dumps(advice.plain())


def test_bytes_of_counts_without_training():
    counted = simsgd.bytes_of(**SMALL, input_shape="1x8x8", compressor="topk:0.5", prune_1d=True)
    assert counted.payload_bytes < 2 * counted.dense_bytes
    assert counted.summary().startswith("mlp: ")
    assert simsgd.bytes_of(**SMALL, samples=400).steps == 25


@pytest.mark.slow
def test_tune_consensus_finds_the_step_size(tmp_path):
    figure = tmp_path / "tuning.png"
    tuning = simsgd.tune_consensus(4, compressor="none", elements=10, rounds=20, output=figure)
    assert 0 < tuning.best <= 1
    assert figure.exists()


@pytest.mark.slow
def test_bench_measures_and_refuses_what_it_does_not_take(tmp_path):
    found = simsgd.bench("step", quick=True, model="mlp", processes=False, plot=tmp_path / "a.png")
    assert {row["model"] for row in found.rows} == {"mlp"}
    assert "torch" in found.summary().splitlines()[0]
    assert (tmp_path / "a.png").exists()
    with pytest.raises(simsgd.SettingError, match="setting is not known, got batch"):
        simsgd.bench("data", batch=3)
    with pytest.raises(simsgd.SettingError, match="bench is not known, got steps; did you mean"):
        simsgd.bench("steps")


def test_list_names_has_every_kind():
    assert {"topk", "powersgd"} <= set(simsgd.list_names("compressors"))
    with pytest.raises(simsgd.SettingError, match="did you mean models"):
        simsgd.list_names("model")


def test_a_simulator_steps_and_counts():
    simulator = simsgd.Simulator(nn.Linear(4, 2), workers=2, prune=0.5, warmup=False, lr=0.1)
    record = simulator.step(torch.ones(6, 4), torch.zeros(6, dtype=torch.long))
    assert isinstance(record, simsgd.StepRecord)
    assert record.payload_bytes == [40, 40]


def test_config_and_recipe_check_their_settings():
    assert isinstance(simsgd.Config(workers=4), simsgd.Recipe)
    with pytest.raises(simsgd.SettingError, match="workers must be at least 1"):
        simsgd.Recipe(workers=0)


def test_a_run_that_diverges_raises_a_public_error(tmp_path):
    with pytest.raises(simsgd.Diverged, match="the loss of worker"):
        simsgd.train(**TINY, lr=1e38, runs_dir=tmp_path)


def test_a_disk_that_cannot_be_written_raises_a_public_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(simsgd.NotWritten):
        simsgd.train(**TINY, runs_dir=tmp_path)


def test_modules_are_public_too():
    assert callable(simsgd.ddp.register)
    assert callable(simsgd.adapters.grace)
    assert issubclass(simsgd.methods.Compressor, object)
    assert simsgd.count(0.001, 1000) == 1
