import json

import pytest
from click.testing import CliRunner

from simsgd.cli import main
from simsgd.results.run_folders import by_name, find_runs, natural_key
from simsgd.results.run_tables import RunTables
from simsgd.results.tables import EPOCH_COLUMNS, STEP_COLUMNS
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder


def made(folder, name, epochs=1):
    run = RunFolder.create(folder, name, {"workers": 2, "epochs": 1})
    for epoch in range(epochs):
        run.add_step(dict.fromkeys(STEP_COLUMNS, 1) | {"step": epoch + 1, "epoch": epoch})
        sizes = dict.fromkeys(("payload_bytes", "payload_bytes_max", "slowest_bytes"), 1)
        kind = {"step": epoch + 1, "collective": "all-reduce", "segments": 1, "messages": 1}
        run.add_transfers([{**kind, "rounds": 1, "degree": 0, "sending": 1, **sizes}])
        run.flush_steps()
        run.add_epoch(dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": epoch, "step": epoch + 1})
    return RunTables(run.folder)


@pytest.fixture
def runs(tmp_path):
    """A folder with runs in it and below."""
    made(tmp_path, "seed10")
    made(tmp_path, "seed2")
    made(tmp_path / "deep/deeper", "dense")
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def names(found):
    return [run.name for run in found]


def test_runs_are_found_at_any_depth_in_natural_order(runs):
    assert names(find_runs([runs])) == ["dense", "seed2", "seed10"]


def test_a_run_that_is_named_twice_is_there_once(runs, monkeypatch):
    monkeypatch.chdir(runs)
    assert len(find_runs([runs, runs / "seed2", "seed2", RunTables(runs / "seed2")])) == 3


def test_runs_come_in_the_order_in_which_they_are_named(runs):
    found = find_runs([runs / "seed10", RunTables(runs / "seed2"), runs])
    assert names(found) == ["seed10", "seed2", "dense"]


def test_a_run_inside_the_folder_of_another_is_not_found(runs):
    made(runs / "seed2", "inside")
    assert names(find_runs([runs])) == ["dense", "seed2", "seed10"]


def test_runs_of_the_same_name_go_by_their_folders(runs):
    made(runs / "again", "seed2")
    found = by_name(find_runs([runs]))
    assert {str(runs / "seed2"), str(runs / "again/seed2")} <= set(found)


def test_those_that_have_just_begun_may_be_left_out_of_a_folder(runs):
    made(runs, "begun", epochs=0)
    assert "begun" in names(find_runs([runs]))
    assert "begun" not in names(find_runs([runs], with_epochs=True))
    assert names(find_runs([runs / "begun"], with_epochs=True)) == ["begun"]


def test_where_all_have_just_begun_all_are_found(tmp_path):
    made(tmp_path, "begun", epochs=0)
    assert names(find_runs([tmp_path], with_epochs=True)) == ["begun"]


def test_parts_of_one_are_sorted_as_numbers():
    assert sorted(["k-0.01", "k-0.001", "k-0.1"], key=natural_key) == ["k-0.001", "k-0.01", "k-0.1"]


def test_a_place_without_runs_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"^run is not a run folder and holds none"):
        find_runs([tmp_path])
    with pytest.raises(SettingError, match=r"^run does not exist, got .*nowhere"):
        find_runs([tmp_path / "nowhere"])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("command", ["results", "network", "report", "plot-results"])
def test_every_command_finds_the_same_runs(runs, command, tmp_path):
    output = tmp_path / "figure.svg" if command == "plot-results" else tmp_path / "page.html"
    options = {"results": ["--json"], "network": ["--json"]}.get(command, ["-o", str(output)])
    done = CliRunner().invoke(main, [command, str(runs), *options])
    assert done.exit_code == 0, done.output
    if command in ("results", "network"):
        found = [row.get("name", row.get("run")) for row in json.loads(done.output)]
        assert found == ["dense", "seed2", "seed10"]
    else:
        assert all(name in output.read_text() for name in ("dense", "seed2", "seed10"))


def test_a_run_with_a_bad_config_is_named_and_the_others_are_shown(runs, capsys):
    bad = runs / "deep" / "deeper" / "dense" / "config.json"
    bad.write_text("{")
    assert names(find_runs([runs])) == ["seed2", "seed10"]
    assert names(find_runs([runs], with_epochs=True)) == ["seed2", "seed10"]
    told = f"simsgd: left out: run has a config.json that is not JSON, got {bad.parent}\n"
    assert capsys.readouterr().err == told
    done = CliRunner().invoke(main, ["results", str(runs)])
    assert done.exit_code == 0
    assert "seed2" in done.output
    for name in ("seed2", "seed10"):
        (runs / name / "config.json").write_text("[]")
    with pytest.raises(SettingError, match=r"^run has a config.json that is not JSON"):
        find_runs([runs])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("command", ["results", "network", "report", "plot-results"])
@pytest.mark.parametrize("table", ["evaluations.csv", "epochs.csv", "steps.csv"])
def test_a_run_with_a_damaged_table_is_named_and_the_others_are_shown(
    runs, table, command, tmp_path
):
    path = runs / "seed2" / table
    path.write_text((path.read_text() if path.exists() else "step,epoch\n") + "0,5,nan\n")
    output = tmp_path / "figure.svg" if command == "plot-results" else tmp_path / "page.html"
    options = {"results": ["--json"], "network": ["--json"]}.get(command, ["-o", str(output)])
    done = CliRunner().invoke(main, [command, str(runs), *options])
    assert done.exit_code == 0, done.output
    shown = done.stdout if "--json" in options else output.read_text()
    assert "seed10" in shown
    if (command, table) != ("plot-results", "steps.csv"):  # which draws no steps
        assert done.stderr.startswith("simsgd: left out: run is damaged: ")
        assert done.stderr.endswith(f", got {path}\n")
        assert "seed2" not in shown
    if command == "results":
        assert CliRunner().invoke(main, [command, str(runs / "seed2")]).exit_code == 2


def test_what_verify_leaves_is_not_drawn_beside_runs(tmp_path):
    made(tmp_path, "a")
    settings = {"workers": 2, "epochs": 1, "verified_steps": 5}
    verified = RunFolder.create(tmp_path, "verify-b", settings).folder
    both = [tmp_path / "a", verified]
    assert [run.name for run in find_runs(both, with_epochs=True)] == ["a"]
    assert [run.name for run in find_runs(both)] == ["a", "verify-b"]
    assert [run.name for run in find_runs(verified, with_epochs=True)] == ["verify-b"]


def test_an_empty_path_is_no_folder_of_runs():
    for read in (find_runs, RunTables):
        with pytest.raises(SettingError, match="run must not be empty"):
            read("")
