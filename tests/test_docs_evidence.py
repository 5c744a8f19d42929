"""docs/evidence.md and what other pages take from it are what its tables hold."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import simsgd

DOCS = Path(__file__).parents[1] / "docs"
MODEL = "--model mlp --model-config hidden=8 --dataset digits --workers 2 --batch-size 100"
ROW = f"{MODEL} --epochs 2"


def script(name):
    spec = spec_from_file_location(name, DOCS / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


evidence = script("evidence")


@pytest.mark.slow
def test_every_page_has_what_the_tables_hold():
    for path, text in evidence.pages().items():
        assert path.read_text() == text, f"python docs/evidence.py writes another {path.name}"


def test_every_measured_run_was_made_by_the_options_of_its_row():
    listed = evidence.experiments()
    for run in evidence.stored("runs").itertuples():
        assert run.options == listed[run.experiment]


def test_the_two_tables_have_the_same_runs():
    runs, epochs = (evidence.stored(name)[["experiment", "seed"]] for name in ("runs", "epochs"))
    assert set(runs.itertuples(index=False)) == set(epochs.itertuples(index=False))
    assert not runs.duplicated().any()


def test_every_experiment_stands_on_the_page():
    page = (DOCS / "evidence.md").read_text()
    assert {evidence.group_of(name) for name in evidence.experiments()} == set(evidence.GROUPS)
    for name in evidence.experiments():
        assert page.count(f"| `{name}` |") == 1


def test_every_other_experiment_is_a_row_of_the_table_of_all():
    table = (DOCS / "experiments.md").read_text().split("this table</summary>")[1]
    rows = re.findall(r"^\| ([a-z]\S*-\S+) \|", table, re.MULTILINE)
    assert rows == [n for n in evidence.all_experiments() if not n.startswith(evidence.PREFIXES)]


def test_claims_compare_experiments_that_there_are():
    listed = evidence.experiments()
    for claim in pd.read_csv(evidence.STORE / "claims.csv").itertuples():
        names = {evidence.short(n) for n in listed if evidence.group_of(n) == claim.group}
        assert {claim.first, claim.second} <= names


@pytest.mark.slow
def test_the_experiments_of_a_group_have_equal_epochs_but_where_the_page_says_so():
    others = {"evidence-gossip-ring-dpsgd-bytes", "evidence-batch-longer"}
    for group in evidence.GROUPS:
        lengths = {
            dict(evidence.pairs(options)).get("--epochs")
            for name, options in evidence.experiments().items()
            if evidence.group_of(name) == group and name not in others
        }
        assert len(lengths) == 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a folder of two seeds of one experiment."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        simsgd.train(
            model="mlp", model_config="hidden=8", dataset="digits", workers=2, batch_size=100,
            epochs=2, seed=seed, runs_dir=folder, name=f"evidence-dgc-dense-seed{seed}",
        )  # fmt: skip
    return folder


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "STORE", tmp_path)
    monkeypatch.setattr(evidence, "experiments", lambda: {"evidence-dgc-dense": ROW})


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_ended_runs_are_taken_once(runs):
    evidence.take(runs)
    evidence.take(runs)
    table = evidence.stored("runs")
    assert list(table["seed"]) == [0, 1]
    assert list(table["options"]) == [ROW] * 2
    assert list(evidence.stored("epochs")["epochs"]) == [1, 2] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_a_result_is_the_mean_over_seeds(runs):
    evidence.take(runs)
    found = evidence.results(evidence.stored("epochs"), evidence.stored("runs"))
    result = found["evidence-dgc-dense"]
    ends = [
        simsgd.Run(runs / f"evidence-dgc-dense-seed{seed}").last["val_error1"] for seed in (0, 1)
    ]
    assert result["values"] == pytest.approx(ends, rel=1e-5)
    assert result["mean"] == pytest.approx(np.mean(ends), rel=1e-5)
    assert result["ratio"] == result["steady"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_a_row_is_empty_until_it_is_measured(runs):
    listed = {"evidence-dgc-dense": ROW, "evidence-dgc-other": f"{MODEL} --epochs 2 --prune 0.5"}
    evidence.take(runs)
    found = evidence.results(evidence.stored("epochs"), evidence.stored("runs"))
    dense, other = evidence.group_table("dgc", listed, found).splitlines()[2:]
    assert dense.startswith("| `evidence-dgc-dense` | | 2 | ")
    assert other == "| `evidence-dgc-other` | `--prune 0.5` | | | | | | | | |"


@pytest.mark.usefixtures("store")
def test_runs_of_other_options_are_refused(runs, monkeypatch):
    row = {"evidence-dgc-dense": ROW.replace("--workers 2", "--workers 4")}
    monkeypatch.setattr(evidence, "experiments", lambda: row)
    with pytest.raises(ValueError, match="has workers 2, not 4"):
        evidence.take(runs)


@pytest.mark.usefixtures("store")
def test_a_run_that_has_not_ended_is_left_out(runs, tmp_path):
    begun = tmp_path / "runs" / "evidence-dgc-dense-seed2"
    begun.mkdir(parents=True)
    whole = runs / "evidence-dgc-dense-seed0"
    for file in ("config.json", "epochs.csv", "steps.csv"):
        (begun / file).write_bytes((whole / file).read_bytes())
    lines = (whole / "epochs.csv").read_text().splitlines()
    (begun / "epochs.csv").write_text("\n".join(lines[:2]) + "\n")
    evidence.take(tmp_path / "runs")
    assert evidence.stored("runs").empty


@pytest.mark.usefixtures("store")
def test_a_claim_shows_where_its_difference_lies_within_its_limits(tmp_path):
    lines = ["group,published,source,first,second,least,most"]
    lines += [f"dgc,claim {most},paper,one,two,,{most}" for most in (0.4, 0.6, 1.4, 1.6)]
    (tmp_path / "claims.csv").write_text("\n".join(lines))
    ends = {"one": 11.0, "two": 10.0}
    found = {f"evidence-dgc-{n}": {"measure": "error", "mean": mean} for n, mean in ends.items()}
    rows = evidence.claims("dgc", found).splitlines()[2:]
    assert rows == [
        "| claim 0.4 | paper | `one`, `two` | 11.0, 10.0 | **no** |",
        "| claim 0.6 | paper | `one`, `two` | 11.0, 10.0 | too close |",
        "| claim 1.4 | paper | `one`, `two` | 11.0, 10.0 | too close |",
        "| claim 1.6 | paper | `one`, `two` | 11.0, 10.0 | yes |",
    ]


def test_the_images_are_a_share_of_those_there_are_at_half_their_size(tmp_path):
    for part, number in (("train", 11), ("test", 3)):
        for kind in ("cat", "dog"):
            (tmp_path / "all" / part / kind).mkdir(parents=True)
            for place in range(number):
                pixels = np.full((32, 32, 3), place, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "all" / part / kind / f"{place:04}.png")
    script("evidence_images").main(tmp_path / "all", tmp_path / "small")
    made = sorted(path.relative_to(tmp_path / "small") for path in tmp_path.glob("small/*/*/*"))
    assert len(made) == 2 * (3 + 2)
    image = Image.open(tmp_path / "small" / "train" / "dog" / "0010.png")
    assert image.size == (16, 16)
    assert image.getpixel((3, 5)) == (10, 10, 10)
