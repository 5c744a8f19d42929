"""The page of `simsgd report`."""

import base64
import hashlib
import html.parser
import json
import re
import shlex
import shutil
import subprocess

import pandas as pd
import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.results import html as page_parts
from simsgd.results.report import report_page
from simsgd.results.report_figures import figure_sections
from simsgd.results.run_command import command_of
from simsgd.results.sortable_tables import SCRIPT
from simsgd.results.text_table import TextTable
from simsgd.settings import SettingError

from ..toy import TINY
from .test_figures import make

SMALL = {**TINY, "workers": 4, "epochs": 1, "quiet": True}


def call(*words):
    return CliRunner().invoke(main, [*map(str, words)])


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


@pytest.mark.slow
def test_a_report_needs_nothing_but_itself(runs):
    page = Tags(report_page([runs]))
    sources = [a[key] for _, a in page.tags for key in ("src", "href") if key in a]
    assert len(sources) > 4
    assert all(source.startswith("data:") for source in sources)


def test_a_page_runs_its_own_script_alone():
    page = page_parts.page("title", "", [])
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{own}'\">" in page


TRIED = """
const document = { querySelectorAll: () => [] };
%s
const column = %s.map((text) => ({ cells: [{ textContent: text }] }));
const head = { getAttribute: () => "", setAttribute() {}, parentNode: { cells: [] } };
let order;
const body = { rows: column, append: (...rows) => { order = rows; } };
sort({ tBodies: [body] }, head, 0);
console.log(JSON.stringify(order.map((row) => row.cells[0].textContent)));
"""


def in_order(*cells):
    """Return the cells of a column in the order of a page's script."""
    words = ["node", "-e", TRIED % (SCRIPT, json.dumps(cells))]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    "cells",
    [
        ("9", "10", "1,000"),
        ("0.001", "0.01", "0.1", "none"),
        ("-1", "0", "1e-10", "1e3", "inf", "nan"),
        ("8.9 KiB", "375.2 KiB", "1.6 MiB", "-"),
        ("4.39 ms (1.00)", "1,512 ms (0.51)", "2 s (0.1)"),
        ("1.77 +- 0.2", "2.5 +- 0.1"),
        ("seed2", "seed10"),
        ("block:0.1", "topk:0.001", "topk:0.01", "topk:0.01+sign"),
        ("2/25", "10/25"),
        ("4", "16", "16x8"),
    ],
)
def test_a_click_on_a_head_sorts_numbers_as_numbers(cells):
    assert in_order(*reversed(cells)) == [*cells]


def test_a_table_of_many_columns_is_printed_across():
    few, many = (
        page_parts.table(TextTable([*"abcdefghijkl"][:columns], [])) for columns in (4, 12)
    )
    assert "many" not in few
    assert '<div class="wide many" style="--columns: 12">' in many


@pytest.mark.slow
def test_a_report_has_every_run_with_its_figures_and_settings(runs):
    page = Tags(report_page([runs]))
    assert {"seed2", "seed10", "dense", "batch_size"} <= set(page.words)
    assert len([1 for tag, _ in page.tags if tag == "img"]) == 5
    assert len([1 for tag, _ in page.tags if tag == "details"]) == 5
    error = f"{simsgd.Run(runs / 'seed2').last.val_error1:.2f}"
    assert error in page.words


@pytest.mark.slow
def test_a_report_escapes_whatever_a_run_is_called(tmp_path):
    name = "<script>alert('&\")<"
    simsgd.train(**TINY, workers=2, epochs=1, runs_dir=tmp_path, name=name, quiet=True)
    page = Tags(report_page([tmp_path / name]))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert name in page.words


@pytest.mark.slow
def test_a_report_of_a_run_that_has_just_begun_has_no_figures(runs, tmp_path):
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "config.json").write_text((runs / "seed2/config.json").read_text())
    page = Tags(report_page([begun]))
    assert "img" not in {tag for tag, _ in page.tags}
    assert "0/2" in page.words


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("page.pdf", "must end in .html"),
        ("none/page.html", "cannot be written (there is no folder"),
    ],
)
def test_a_report_that_cannot_be_written_is_an_error_of_one_line(runs, tmp_path, output, error):
    done = call("report", runs, "-o", tmp_path / output)
    assert done.exit_code == 2
    assert error in done.stderr
    assert done.stderr.startswith("simsgd: --output ")


@pytest.mark.slow
def test_a_report_is_written_where_it_was_asked_for(runs, tmp_path):
    done = call("report", runs, "-o", tmp_path / "page.html")
    assert done.output.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_runs_are_sorted_with_the_best_first(runs):
    page = report_page([runs / "seed2", runs / "seed10"])
    errors = {name: simsgd.Run(runs / name).last.val_error1 for name in ("seed2", "seed10")}
    best = min(errors, key=lambda name: errors[name])
    assert f'<tr class="best"><td>{best}</td>' in page


@pytest.mark.slow
def test_a_report_shows_what_the_runs_have(tmp_path):
    gossip = {"algorithm": "choco", "compressor": "topk:0.1", "partition": "sorted"}
    simsgd.train(**SMALL, **gossip, log_layers=True, runs_dir=tmp_path, name="choco")
    page = Tags(report_page([tmp_path]))
    captions = [a["alt"].split()[0] for tag, a in page.tags if tag == "img"]
    assert captions == ["Validation", "Validation", "Training", "How",
                        "Consensus", "Neighbors", "Samples", "Bytes"]  # fmt: skip
    assert {"On a network", "wan", "10gbe"} <= set(page.words)
    assert "Compared with real processes" not in page.words


@pytest.mark.slow
def test_a_run_that_has_sent_nothing_is_left_out_where_bytes_are_drawn(tmp_path):
    late = {"algorithm": "diloco:local_steps=99"}
    simsgd.train(**SMALL, **late, runs_dir=tmp_path, name="late")
    assert "img" in {tag for tag, _ in Tags(report_page([tmp_path])).tags}
    simsgd.train(**SMALL, runs_dir=tmp_path, name="plain")
    assert {"late", "plain"} <= set(Tags(report_page([tmp_path])).words)
    with pytest.raises(SettingError, match=r"run has sent nothing.*late"):
        simsgd.plot_results([tmp_path], kind="pareto", output=tmp_path / "a.png")
    simsgd.plot_results([tmp_path], kind="pareto", logx=False, output=tmp_path / "a.png")


@pytest.mark.slow
@pytest.mark.distributed
def test_a_report_shows_the_verdict_of_verify(tmp_path):
    recipe = {**TINY, "workers": 2, "compressor": "topk:0.1", "runs_dir": tmp_path, "name": "held"}
    verdict = simsgd.verify(2, **recipe)
    words = Tags(report_page([tmp_path])).words
    assert verdict.holds
    assert {"Compared with real processes", "2 of 2 steps"} <= {*words}
    assert "simulation and processes agree" in words
    assert command_of(simsgd.Run(tmp_path / "held")).startswith("simsgd verify --steps=2 ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"prune": 0.9, "warmup": False, "seed": 3},
        {"compressor": "qsgd:15,bucket=64", "momentum": 0.5, "prune_1d": True},
    ],
)
def test_the_command_of_a_run_makes_it_again(tmp_path, settings):
    run = simsgd.train(**SMALL, **settings, runs_dir=tmp_path, name="first")
    words = shlex.split(command_of(run))[1:]
    done = call(*words, "--runs-dir", tmp_path, "--name", "again", "--quiet")
    assert done.exit_code == 0, done.output
    again = simsgd.Run(tmp_path / "again")
    pd.testing.assert_frame_equal(
        run.epochs.drop(columns="seconds"), again.epochs.drop(columns="seconds"), check_exact=True
    )


@pytest.mark.slow
def test_a_run_of_objects_has_no_command(tmp_path):
    import torch
    from torch import nn

    data = (torch.randn(40, 6), torch.arange(40) % 2)
    objects = {"dataset": (data, data), "model": nn.Linear(6, 2)}
    run = simsgd.train(workers=2, batch_size=10, epochs=1, lr=0.1, runs_dir=tmp_path, **objects)
    assert command_of(run) is None
    assert "Made by" not in Tags(report_page([run])).words


@pytest.mark.slow
def test_a_page_has_colors_for_dark_screens_and_for_paper(runs):
    page = report_page([runs])
    assert "@media (prefers-color-scheme: dark)" in page
    assert "@media print" in page


@pytest.mark.slow
def test_a_method_has_one_name_and_color_in_all_figures(tmp_path, monkeypatch):
    for name, below, own in (("a", "x", {}), ("b", "x", {"lr": 0.2}),
                             ("c", "y", {"algorithm": "dpsgd", "momentum": 0.0})):  # fmt: skip
        simsgd.train(**SMALL, **own, runs_dir=tmp_path / below, name=name)
    seen = []

    def drawn(groups, x="epoch", y="", kind="curves"):
        seen.extend((kind, group.name, group.place) for group in groups)
        return b"<svg/>"

    monkeypatch.setitem(figure_sections.__globals__, "_svg", drawn)
    report_page([tmp_path])
    assert {kind for kind, name, _ in seen if name == "c"} == {"curves", "pareto", "topology"}
    assert {(name, place) for _, name, place in seen} == {("a", 0), ("b", 1), ("c", 2)}


@pytest.mark.slow
def test_images_and_texts_share_no_panel(tmp_path, monkeypatch):
    for name, tokens in (("a", None), ("b", "char"), ("c", "word"), ("d", "word")):
        make(tmp_path, name, config={"tokens": tokens, "lr": ord(name)})
    seen = []

    def drawn(groups, x="epoch", y="", kind="curves"):
        seen.append((y, {group.name for group in groups}))
        return b"<svg/>"

    monkeypatch.setitem(figure_sections.__globals__, "_svg", drawn)
    captions = [a["alt"] for tag, a in Tags(report_page([tmp_path])).tags if tag == "img"]
    losses = [names for y, names in seen if y == "train_loss"]
    assert losses == [{"a"}, {"b"}, {"c", "d"}]
    assert next(names for y, names in seen if y == "val_perplexity") == {"b"}
    assert "Training loss per char, mean over each epoch." in captions


@pytest.mark.slow
def test_runs_of_each_metric_are_sorted_with_the_best_first_and_a_comparison_is_no_run(tmp_path):
    for name, error in (("a", 5.0), ("b", 0.0), ("c", 7.0)):
        make(tmp_path, name, (error,))
    make(tmp_path, "text", (9.0,), config={"tokens": "word"})
    make(tmp_path, "compared", (), config={"verified_steps": 2})
    page = report_page([tmp_path])
    table = page.split("<h2>Results</h2>")[1].split("</section>")[0]
    assert re.findall(r"<tr><td>(\w+)", table) == ["b", "a", "c", "text"]
    assert "Sorted by error@1, then perplexity, the best first;" in table
    assert "2 steps compared with real processes" in page


@pytest.mark.slow
def test_outcomes_stand_before_the_settings_of_the_results(runs):
    head = report_page([runs]).split("<thead>")[1].split("</thead>")[0]
    words = Tags(head)
    assert words.words[:4] == ["run", "epochs", "error@1 (%)", "best"]
    assert words.words[-1] == "seed"
    classes = [attributes.get("class") for tag, attributes in words.tags if tag == "th"]
    assert (classes[0], classes[1], classes[-1]) == (None, "number", None)
