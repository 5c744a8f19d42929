import sys

import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.cli.error_text import with_options
from simsgd.cli.options import USUAL
from simsgd.cli.terminal import echo_table
from simsgd.results.text_table import TextTable
from simsgd.settings import SettingError

TINY = ["--model", "mlp", "--model-config", "hidden=16", "--dataset", "digits", "--workers", "4"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(*words):
    return CliRunner().invoke(main, [*words])


def train(*words):
    return call("train", *TINY, "--batch-size", "30", "--epochs", "1", *words)


def test_training_prints_its_epochs_and_a_closing_table():
    done = train("--prune", "0.99", "--name", "mine")
    assert done.exit_code == 0, done.output
    assert "prune 0.99 keeps 13 of 1,184 entries of each worker's gradient" in done.output
    assert "epoch   0: lr 0.05, kept 0.25" in done.output
    for line in ("validation error@1", "sent per worker", "dense equivalent", "ratio", "runs/mine"):
        assert line in done.output


def test_quiet_prints_nothing():
    assert train("--quiet").output == ""


def test_the_options_are_the_keywords_with_the_same_defaults():
    train("--name", "typed")
    keywords = {"model": "mlp", "model_config": "hidden=16", "dataset": "digits", "workers": 4}
    called = simsgd.train(**keywords, batch_size=30, epochs=1, name="called", quiet=True)
    typed = simsgd.Run("runs/typed")
    for left, right in (
        (typed.config, called.config),
        (typed.config["used"], called.config["used"]),
    ):
        differ = {key for key in left if left[key] != right[key]}
        assert differ <= {"name", "quiet", "environment", "used"}
    assert typed.steps["loss"].tolist() == called.steps["loss"].tolist()


@pytest.mark.slow
def test_results_are_plotted(tmp_path):
    train("--name", "a")
    train("--name", "b", "--prune", "0.9")
    for suffix in ("png", "svg", "pdf"):
        done = call("plot-results", "runs/a", "runs/b", "-x", "bytes", "-o", f"figure.{suffix}")
        assert done.exit_code == 0, done.output
        assert (tmp_path / f"figure.{suffix}").stat().st_size > 1000


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_as_it_was_in_training():
    train("--name", "a")
    done = call("evaluate", "runs/a")
    error = simsgd.Run("runs/a").epochs["val_error1"].iloc[-1]
    assert done.exit_code == 0, done.output
    assert f"validation error@1  {error:.2f} %" in done.output


@pytest.mark.parametrize(
    "kind", ["models", "regimes", "datasets", "compressors", "memories", "engines"]
)
def test_what_can_be_chosen_is_listed(kind):
    done = call("list", kind)
    assert done.exit_code == 0
    assert all(len(line.split()) > 1 for line in done.output.splitlines())


def test_the_help_of_training_shows_the_thirty_options_most_used():
    lines = call("train", "--help").output.splitlines()
    shown = {line.split()[0] for line in lines if line.startswith("  --")}
    assert shown == {f"--{n.replace('_', '-')}" for n in (*USUAL, "help", "help_all")} - {"--help"}
    assert len(USUAL) == 30


def test_the_long_help_of_training_names_every_setting():
    text = call("train", "--help-all").output
    for name in simsgd.Config.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--workers 0", "--workers must be at least 1, got 0"),
        ("--workers many", "Invalid value for '--workers': 'many' is not a valid integer."),
        ("--prune 1.5", "--prune must lie in [0, 1), got 1.5; for 99.9 % use 0.999"),
        ("--prune 1", "at 1 nothing would be sent; for 99.9 % use 0.999"),
        ("--prune nan", "--prune must lie in [0, 1), got nan"),
        ("--batch-size 400", "must not exceed the 1438 training samples, got 400; at most 359"),
        ("--batch-size 2 --global-batch-size 8", "and --batch-size were both given"),
        ("--global-batch-size 30", "must be a multiple of the 4 workers, got 30"),
        ("--model lenett", "--model is not known, got lenett; did you mean lenet"),
        ("--model ./none.py", "--model names a file that does not exist, got"),
        ("--model-config depth=20", "has arguments that mlp does not take: depth"),
        ("--dataset mnst", "--dataset is not known, got mnst; did you mean mnist"),
        ("--dataset cifar10", "or fetch them with --download"),
        ("--regime warmup", "did you mean dgc_warmup"),
        ("--memory dcg", "--memory is not known, got dcg; did you mean dgc"),
        ("--engine lop", "--engine is not known, got lop; did you mean loop"),
        ("--granularity tensor", "--granularity must be layer, model or bucket:SIZE"),
        ("--value-dtype int8", "Invalid value for '--value-dtype'"),
        ("--device cuda:99", "--device is not on this machine, got cuda:99; use cpu"),
        ("--device tpu", "--device must be auto, cpu, cuda or cuda:N, got tpu"),
        ("--resume runs/none", "--resume does not exist, got runs/none"),
        ("--lr 0", "--lr must be greater than 0, got 0"),
        ("--clip -1", "--clip must be greater than 0, got -1"),
        ("--epochs 0", "--epochs must be at least 1, got 0"),
        ("--name a/b", "--name must be one folder's name"),
        ("--prune 0.9 --optimizer Adam", "--memory must not be dgc with Adam"),
        ("--wrokers 4", "No such option"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, words, message):
    done = call("train", *TINY, *words.split())
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half a zip"])
def test_an_unreadable_checkpoint_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "bad.pt").write_bytes(content)
    done = call("evaluate", "bad.pt")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "bad.pt" in done.stderr


@pytest.mark.slow
def test_a_run_that_exists_is_refused_with_both_ways_out():
    train("--name", "a")
    done = train("--name", "a")
    assert done.exit_code == 2
    assert "--overwrite replaces it, --resume runs/a continues it" in done.stderr


def test_a_diverging_run_ends_with_code_3():
    done = train("--name", "a", "--lr", "1e38")
    assert done.exit_code == 3
    assert "the loss of worker" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tables_fit_a_narrow_terminal_and_are_whole_elsewhere(monkeypatch, capsys):
    table = TextTable(["run", "time", "error"], [["a" * 30, "1.25", "9.5"]])
    echo_table(table, ["time"], "--json has all")
    assert capsys.readouterr().out == f"{table}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "38")
    echo_table(table, ["time"], "--json has all")
    shown = capsys.readouterr().out
    assert shown == f"{table.with_columns([0, 2])}\n\nwithout time: --json has all\n"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("train", "--lr is wrong: without --noise-scale; known: lr, noise_scale"),
        ("results", "lr is wrong: without noise_scale; known: lr, noise_scale"),
    ],
)
def test_an_error_has_the_options_of_its_command_alone_and_lists_names_as_they_are(command, told):
    error = SettingError("lr", None, "is wrong: without noise_scale", "known: lr, noise_scale")
    assert with_options(error, main.commands[command]) == told
