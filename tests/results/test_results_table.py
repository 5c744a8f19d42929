import csv
import html.parser
import io
import json

import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.results.report import report_page
from simsgd.results.results_table import as_json, result_rows
from simsgd.settings import SettingError
from simsgd.units import in_units

TINY = {"model": "mlp", "model_config": "hidden=8", "dataset": "digits", "batch_size": 60}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with three runs, one of them in a folder below and one unfinished."""
    folder = tmp_path_factory.mktemp("runs")
    for name, below, own in (("seed10", "", {"seed": 10}), ("seed2", "", {"seed": 2}),
                             ("dense", "deep", {"workers": 4})):  # fmt: skip
        simsgd.train(**{**TINY, "workers": 2, "epochs": 2, **own}, runs_dir=folder / below,
                     name=name, quiet=True)  # fmt: skip
    lines = (folder / "deep/dense/epochs.csv").read_text().splitlines(keepends=True)
    (folder / "deep/dense/epochs.csv").write_text("".join(lines[:2]))
    return folder


def call(*words):
    return CliRunner().invoke(main, [*map(str, words)])


def test_a_row_has_what_varies_and_how_the_run_ended(runs):
    rows = {row["name"]: row for row in result_rows([runs])}
    run = simsgd.Run(runs / "seed2")
    assert list(rows["seed2"]) == [
        "name", "workers", "seed", "done", "epochs", "error", "best", "bytes", "network", "ratio",
        "seconds",
    ]  # fmt: skip
    assert rows["seed2"]["error"] == run.last.val_error1
    assert rows["seed2"]["best"] == run.epochs["val_error1"].min()
    assert rows["seed2"]["bytes"] == run.last.payload_bytes
    assert (rows["dense"]["workers"], rows["dense"]["done"], rows["dense"]["epochs"]) == (4, 1, 2)


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


class Tags(html.parser.HTMLParser):
    """Collects tags with their attributes, and what is written between them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, words):
        self.words.append(words)


def test_a_report_needs_nothing_but_itself(runs):
    page = Tags(report_page([runs]))
    assert "script" not in {tag for tag, _ in page.tags}
    sources = [a[key] for _, a in page.tags for key in ("src", "href") if key in a]
    assert len(sources) > 4
    assert all(source.startswith("data:") for source in sources)


def test_a_report_has_every_run_with_its_figures_and_settings(runs):
    page = Tags(report_page([runs]))
    assert {"seed2", "seed10", "dense", "batch_size"} <= set(page.words)
    assert len([1 for tag, _ in page.tags if tag == "img"]) == 4
    assert len([1 for tag, _ in page.tags if tag == "details"]) == 3
    error = f"{simsgd.Run(runs / 'seed2').last.val_error1:.2f}"
    assert error in page.words


def test_a_report_escapes_whatever_a_run_is_called(tmp_path):
    name = "<script>alert('&\")<"
    simsgd.train(**TINY, workers=2, epochs=1, runs_dir=tmp_path, name=name, quiet=True)
    page = Tags(report_page([tmp_path / name]))
    assert "script" not in {tag for tag, _ in page.tags}
    assert name in page.words


def test_a_report_of_a_run_that_has_just_begun_has_no_figures(runs, tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_text((runs / "seed2/config.json").read_text())
    page = Tags(report_page([begun]))
    assert "img" not in {tag for tag, _ in page.tags}
    assert "0/2" in page.words


def test_a_report_of_a_sweep_has_its_means(tmp_path):
    from simsgd.results.sweep import write_definition

    runs = {f"seed{seed}": {**TINY, "workers": 2, "epochs": 1, "seed": seed} for seed in (0, 1)}
    for name, settings in runs.items():
        simsgd.train(**settings, runs_dir=tmp_path, name=name, quiet=True)
    write_definition(tmp_path, {}, runs)
    mean = sum(simsgd.Run(tmp_path / name).last.val_error1 for name in runs) / 2
    words = Tags(report_page([tmp_path])).words
    assert any(f"{mean:.2f} +-" in word for word in words)
    band = "in a band from the least to the most"
    assert any(band in word for word in words)
    assert not any(band in word for word in Tags(report_page([tmp_path / "seed0"])).words)


@pytest.mark.parametrize(
    ("output", "error"),
    [("page.pdf", "must end in .html"), ("none/page.html", "cannot be written (the folder")],
)
def test_a_report_that_cannot_be_written_is_an_error_of_one_line(runs, tmp_path, output, error):
    done = call("report", runs, "-o", tmp_path / output)
    assert done.exit_code == 2
    assert error in done.stderr
    assert done.stderr.startswith("simsgd: --output ")


def test_a_report_is_written_where_it_was_asked_for(runs, tmp_path):
    done = call("report", runs, "-o", tmp_path / "page.html")
    assert done.output.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


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
