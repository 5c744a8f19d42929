import inspect
import subprocess
import sys
from pathlib import Path

import click
import pytest

from simsgd.cli import main
from simsgd.results.figures.plot import PlotSettings, plot_results
from simsgd.results.network_prices import PriceRow, network
from simsgd.results.report import report
from simsgd.results.results_table import results
from simsgd.results.run import Run
from simsgd.results.tables import EPOCH_COLUMNS, STEP_COLUMNS
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder

FUNCTIONS = {
    "results": results,
    "report": report,
    "plot-results": plot_results,
    "network": network,
}


@pytest.fixture
def folder(tmp_path):
    """A folder of two runs."""
    for name, lr in (("a", 0.1), ("b", 0.2)):
        run = RunFolder.create(tmp_path / "runs", name, {"workers": 2, "lr": lr, "epochs": 1})
        sizes = dict.fromkeys(("payload_bytes", "payload_bytes_max", "slowest_bytes"), 1)
        kind = {"step": 1, "collective": "all-reduce", "segments": 1, "messages": 1}
        run.add_transfers([{**kind, "rounds": 1, "degree": 0, "sending": 1, **sizes}])
        run.add_step(dict.fromkeys(STEP_COLUMNS, 1))
        run.flush_steps()
        run.add_epoch(dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": 0})
    return tmp_path / "runs"


PRINTED = {"as_json", "columns", "in_csv", "in_json", "wide"}  # how the terminal shows it


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_the_settings_of_its_command(name):
    own = set(inspect.signature(FUNCTIONS[name]).parameters)
    options = {str(p.name) for p in main.commands[name].params} - PRINTED
    assert own == {"network" if option == "networks" else option for option in options}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_defaults_of_its_command(name):
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    options = [p for p in main.commands[name].params if isinstance(p, click.Option)]
    for option in options:
        own = parameters.get("network" if option.name == "networks" else str(option.name))
        default = option.get_default(click.Context(main.commands[name]))
        unset = not isinstance(default, str | int | Path | tuple | list)
        if own is None or unset or own.default is None:
            continue
        value = (own.default,) if option.multiple and isinstance(own.default, str) else own.default
        assert str(value) == str(tuple(default) if option.multiple else default)


def test_runs_and_sweeps_draw_themselves_with_the_settings_of_the_function():
    parameters = inspect.signature(plot_results).parameters
    assert list(PlotSettings.__annotations__) == list(parameters)[4:]


def test_the_results_are_a_data_frame(folder):
    table = results(folder, sort="lr", reverse=True)
    assert table["name"].tolist() == ["b", "a"]
    assert list(table.columns[:4]) == ["name", "lr", "done", "epochs"]


def test_the_prices_are_a_data_frame_with_a_row_for_each_run_and_network(folder):
    table = network([folder / "a", Run(folder / "b")], ["10gbe", "wan"], compute_ms=5)
    assert set(table.columns) == PriceRow.__required_keys__
    assert table["run"].tolist() == ["a", "a", "b", "b"]
    assert table["compute_ms"].tolist() == [5, 5, 5, 5]


@pytest.mark.slow
def test_the_report_is_in_the_file_that_the_function_returns(folder, tmp_path):
    path = report(folder, tmp_path / "page.html")
    assert path.read_text().startswith("<!doctype html>")


def test_a_run_draws_any_kind(folder, tmp_path):
    run = Run(folder / "a")
    assert len(run.plot(kind="time", network=["10gbe", "wan"]).axes) == 2
    run.plot("bytes", "val_loss", tmp_path / "figure.svg", theme="paper")
    assert (tmp_path / "figure.svg").exists()


@pytest.mark.slow
def test_none_of_them_needs_torch(folder, tmp_path):
    code = (
        "import sys\n"
        "from simsgd.results.figures.plot import plot_results\n"
        "from simsgd.results.network_prices import network\n"
        "from simsgd.results.report import report\n"
        "from simsgd.results.results_table import results\n"
        f"results({str(folder)!r}); network({str(folder)!r}); plot_results({str(folder)!r})\n"
        f"report({str(folder)!r}, {str(tmp_path / 'page.html')!r})\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("function", [results, report, plot_results])
def test_no_run_at_all_is_refused_in_one_line(function):
    with pytest.raises(SettingError, match="run must name at least one run folder"):
        function([])
