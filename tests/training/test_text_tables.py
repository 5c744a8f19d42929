"""Language models show perplexity wherever others show an error."""

import math
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main

pytestmark = pytest.mark.slow  # a sweep is made for all of them

TINY = (
    "--model", "lstm_lm", "--model-config", "hidden=4", "--dataset", "text:tiny", "--workers", 2,
    "--batch-size", 2, "--bptt", 8, "--epochs", 2, "--lr", 0.5, "--data-dir", ".",
)  # fmt: skip


def call(*words):
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A folder with a sweep of two compressors, and what the sweep printed."""
    place = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("tiny").write_text("the cat sat on the mat and\nthe dog sat on the cat\n" * 19)
        printed = call("sweep", *TINY, "--compressor", "none,sign", "--runs-dir", "s", "--jobs", 1)
    return place / "s", printed


def test_the_lines_of_a_sweep(swept):
    folder, printed = swept
    for run in simsgd.Sweep(folder).runs:
        assert f"{run.name}: perplexity {run.last.val_perplexity:.2f}, sent" in printed
    assert "error@1" not in printed


def test_the_table_of_a_sweep(swept):
    folder, printed = swept
    table = pd.read_csv(folder / "sweep.csv")
    runs = simsgd.Sweep(folder).runs
    wanted = [math.exp(run.last.val_loss) for run in runs]
    assert table["val_perplexity_mean"].tolist() == pytest.approx(wanted, rel=1e-12)
    best = [run.epochs["val_perplexity"].min() for run in runs]
    assert table["best_val_perplexity_mean"].tolist() == pytest.approx(best, rel=1e-12)
    assert {"val_error1_mean", "best_val_error1_mean", "val_loss_mean"} <= {*table}
    head = next(line for line in printed.splitlines() if "compressor" in line and "seeds" in line)
    assert head.split()[:4] == ["compressor", "seeds", "perplexity", "best"]


def test_results(swept):
    table = simsgd.results(swept[0])
    runs = [simsgd.Run(swept[0] / name) for name in table["name"]]
    assert table["perplexity"].tolist() == [run.last.val_perplexity for run in runs]
    assert table["best"].tolist() == [run.epochs["val_perplexity"].min() for run in runs]
    assert "error" not in table
    assert " perplexity " in call("results", swept[0])
    assert ",epochs,perplexity,best,bytes," in call("results", swept[0], "--csv")


def test_a_figure(swept):
    figure = simsgd.plot_results(swept[0])
    assert figure.axes[0].get_ylabel() == "validation perplexity"
    run = simsgd.Sweep(swept[0]).runs[0]
    assert list(run.plot().axes[0].lines[0].get_ydata()) == run.epochs["val_perplexity"].tolist()


def test_a_report(swept, tmp_path):
    page = simsgd.report(swept[0], tmp_path / "page.html").read_text()
    assert "Validation perplexity per word after each epoch; a dot marks the best." in page
    assert "Sorted by perplexity, the best first;" in page
    assert "validation perplexity" in page
    assert "error@1" not in page


def test_another_metric_of_a_text(swept, tmp_path, monkeypatch):
    monkeypatch.chdir(swept[0].parent)
    line = call("train", *TINY, "--metric", "accuracy", "--runs-dir", tmp_path, "--name", "a")
    run = simsgd.Run(tmp_path / "a")
    accuracy = 100 - run.last.val_error1
    assert f"validation accuracy        {accuracy:.2f} % after 2 epochs" in line
    assert run.last.val_perplexity == math.exp(run.last.val_loss)
