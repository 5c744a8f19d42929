import csv
import io
import json

import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.results.results_table import as_json, dispensable, result_rows, result_table
from simsgd.settings import SettingError
from simsgd.units import in_units

from ..toy import TINY


def call(*words):
    return CliRunner().invoke(main, [*map(str, words)])


@pytest.mark.slow
def test_a_row_has_what_varies_and_how_the_run_ended(runs):
    rows = {row["name"]: row for row in result_rows([runs])}
    run = simsgd.Run(runs / "seed2")
    assert list(rows["seed2"]) == [
        "name", "workers", "seed", "done", "epochs", "error", "best", "bytes", "received", "link",
        "network", "ratio", "seconds",
    ]  # fmt: skip
    assert rows["seed2"]["error"] == run.last.val_error1
    assert rows["seed2"]["best"] == run.epochs["val_error1"].min()
    assert rows["seed2"]["bytes"] == run.last.payload_bytes
    assert (rows["dense"]["workers"], rows["dense"]["done"], rows["dense"]["epochs"]) == (4, 1, 2)


def test_what_was_received_is_shown_if_asked(tmp_path):
    """Of four workers one counts the votes: it receives what three send, and sends the outcome."""
    simsgd.train(
        **{**TINY, "workers": 4, "epochs": 1}, compressor="sign:none", aggregate="vote",
        memory="none", compress_if="all", runs_dir=tmp_path, name="vote", quiet=True,
    )  # fmt: skip
    (row,) = result_rows([tmp_path])
    sent = row["bytes"]
    assert row["received"] == pytest.approx(3 / 4 * 2 * sent, rel=0.01)
    assert row["link"] == 3 * sent
    assert not {"received", "busiest link"} & {*result_table([row]).head}
    every = result_table([row], every=True)
    assert every.rows[0][every.head.index("busiest link")] == in_units(3 * sent)
    shown = call("results", tmp_path, "--columns", "sent,received,busiest link").output
    assert shown.split() == ["run", "sent", "received", "busiest", "link", "vote", *(
        word for name in ("bytes", "received", "link") for word in in_units(row[name]).split()
    )]  # fmt: skip


@pytest.mark.slow
def test_runs_of_earlier_versions_do_not_know_what_was_received(tmp_path):
    run = simsgd.train(**{**TINY, "workers": 2, "epochs": 1}, runs_dir=tmp_path, quiet=True)
    table = run.steps.drop(columns=["received_bytes", "received_bytes_max", "busiest_link_bytes"])
    table.to_csv(run.folder / "steps.csv", index=False)
    assert {"received", "link"}.isdisjoint(result_rows([tmp_path])[0])
    assert "busiest link" not in result_table(result_rows([tmp_path]), every=True).head


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("column", "first"), [("seed", "dense"), ("name", "dense"), ("workers", "seed2")]
)
def test_rows_are_sorted_by_any_column(runs, column, first):
    assert result_rows([runs], sort=column)[0]["name"] == first


def test_rows_are_sorted_as_numbers(runs):
    bytes_sent = [row["bytes"] for row in result_rows([runs], sort="bytes")]
    assert bytes_sent == sorted(bytes_sent)
    assert [row["seed"] for row in result_rows([runs], sort="seed")] == [0, 2, 10]


def test_the_terminal_shows_every_run_under_its_columns(runs):
    done = call("results", runs)
    assert done.exit_code == 0, done.output
    head, *lines = done.output.splitlines()
    assert head.split() == [
        "run", "workers", "seed", "epochs", "error@1", "(%)", "best", "sent", "on", "the",
        "network", "ratio", "time", "(s)",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines] == ["dense", "seed2", "seed10"]
    assert "1/2" in lines[0]
    backwards = call("results", runs, "--reverse").output.splitlines()
    assert backwards == [head, *lines[::-1]]


def test_csv_and_json_hold_the_same_numbers_in_full(runs):
    table = list(csv.DictReader(io.StringIO(call("results", runs, "--csv").output)))
    plain = json.loads(call("results", runs, "--json").output)
    assert [row["name"] for row in table] == [row["name"] for row in plain]
    assert [float(row["error"]) for row in table] == [row["error"] for row in plain]
    assert plain[1]["error"] == simsgd.Run(runs / "seed2").last.val_error1


def test_json_has_null_where_there_is_no_number():
    assert json.loads(as_json([{"a": float("nan"), "b": float("inf"), "c": 1}])) == [
        {"a": None, "b": None, "c": 1}
    ]


def test_a_place_without_runs_is_refused(tmp_path):
    with pytest.raises(SettingError, match="run does not exist"):
        result_rows([tmp_path / "none"])
    with pytest.raises(SettingError, match="is not a run folder and holds none"):
        result_rows([tmp_path])


def test_an_unknown_column_is_refused_with_those_near(runs):
    done = call("results", runs, "--sort", "eror")
    assert done.exit_code == 2
    assert done.stderr.startswith("simsgd: --sort is not known, got eror; did you mean error")
    told = {
        ("--sort", "run"): "--sort is not known, got run; here it is called name",
        ("--columns", "name"): "--columns is not known, got name; here it is called run",
        ("--columns", "bytes"): "--columns is not known, got bytes; here it is called sent",
        ("--columns", ""): "--columns must name at least one column, got ''",
        ("--columns", ","): "--columns must name at least one column, got ,",
        ("--columns", "run,,sent"): "--columns has a comma with no name beside it, got run,,sent",
    }
    for words, text in told.items():
        assert call("results", runs, *words).stderr == f"simsgd: {text}\n"
    alike = call("results", runs, "--sort", "momentum").stderr
    assert alike.startswith(
        "simsgd: --sort is no column of these runs, got momentum; settings have one where runs "
        "differ in them; known: name, "
    )


@pytest.mark.slow
def test_the_most_of_a_step_is_shown_where_steps_differ(runs, tmp_path):
    small = {**TINY, "workers": 2, "epochs": 1, "quiet": True}
    run = simsgd.train(**small, algorithm="local", local_steps=4, runs_dir=tmp_path, name="local")
    size = int(run.last.dense_bytes) // len(run.steps)
    rows = {row["name"]: row for row in result_rows([tmp_path, runs])}
    assert rows["local"]["peak"] == size
    assert str(rows["seed2"]["peak"]) == "nan"
    assert "in a step" in call("results", tmp_path).output
    mean = in_units(float(run.steps["payload_bytes"].mean()))
    assert f"{mean} on average, {in_units(size)} at most" in run.summary()


def test_columns_are_chosen_by_name(runs):
    lines = call("results", runs, "--columns", "error@1,sent,seed").output.splitlines()
    assert lines[0].split() == ["run", "seed", "error@1", "(%)", "sent"]
    assert len(lines) == 4
    done = call("results", runs, "--columns", "sent,sead")
    assert done.exit_code == 2
    assert done.stderr.startswith("simsgd: --columns is not known, got sead; did you mean seed")


def test_a_narrow_terminal_gets_the_columns_that_it_has_room_for(runs):
    table = result_table(result_rows(runs))
    names = dispensable(table)
    assert table.fitted(table.width, names) == (table.with_columns(range(len(table.head))), [])
    narrow, left_out = table.fitted(40, names)
    assert narrow.width <= 40
    assert max(map(len, str(narrow).splitlines())) == narrow.width
    assert narrow.head[0] == "run"
    assert {"error@1 (%)", "sent"} <= set(narrow.head)
    assert set(narrow.head) | set(left_out) == set(table.head)


def test_all_columns_are_printed_where_no_terminal_reads(runs):
    assert call("results", runs).output == call("results", runs, "--wide").output
    assert "time (s)" in call("results", runs).output
