"""Many runs and long tables: each file is read once, of long ones the columns that are needed."""

import os

import numpy as np
import pandas as pd
import pytest

import simsgd
from simsgd.results.figures.legends import Curve
from simsgd.results.figures.style import look_of
from simsgd.results.figures.thinning import MOST_POINTS
from simsgd.results.report import report_page
from simsgd.results.run_tables import RunTables
from simsgd.results.tables import EPOCH_COLUMNS, STEP_COLUMNS, read_table
from simsgd.results.whole_rows import open_whole_rows
from simsgd.training.run_folder import RunFolder


def made(folder, name, steps=2):
    """Return the folder of a run, whose files are old enough to be kept."""
    run = RunFolder.create(folder, name, {"workers": 2, "epochs": 1, "seed": 0, "name": name})
    sizes = dict.fromkeys(("payload_bytes", "payload_bytes_max", "slowest_bytes"), 1)
    sizes |= {"segments": 1, "messages": 1, "rounds": 1, "degree": 0, "sending": 1}
    for step in range(1, steps + 1):
        run.add_step(dict.fromkeys(STEP_COLUMNS, 1) | {"step": step, "epoch": 0})
        run.add_transfers([{"step": step, "collective": "all-reduce", **sizes}])
    run.flush_steps()
    run.add_epoch(dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": 0, "step": steps})
    run.close()
    for path in run.folder.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return run.folder


@pytest.fixture
def read(monkeypatch):
    """The columns of each table that is read, None for all."""
    asked, parse = [], pd.read_csv

    def counted(*arguments, **named):
        asked.append(named["usecols"] and sorted(named["usecols"]))
        return parse(*arguments, **named)

    monkeypatch.setattr(pd, "read_csv", counted)
    return asked


def test_results_read_two_files_of_each_run_and_the_bytes_of_each_step(tmp_path, read):
    for name in ("one", "two", "three"):
        made(tmp_path, name)
    simsgd.results(tmp_path)
    of_steps = [
        "busiest_link_bytes",
        "payload_bytes",
        "payload_bytes_max",
        "received_bytes",
        "step",
    ]
    assert read == [None, of_steps] * 3


def test_a_run_is_priced_on_all_networks_from_one_look_at_its_tables(tmp_path, read):
    run = RunTables(made(tmp_path, "one"))
    simsgd.network(run, ["wan", "1gbe", "10gbe"])
    of_steps, of_transfers = read
    assert len(of_steps) == 8
    assert of_transfers == [
        "collective", "degree", "messages", "payload_bytes", "payload_bytes_max", "rounds",
        "segments", "sending", "step",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_report_reads_no_table_of_a_run_more_often_than_it_has_uses(tmp_path, read):
    for name in ("one", "two", "three"):
        made(tmp_path, name)
    report_page(tmp_path)
    assert len(read) == 3 * 4  # epochs, bytes of steps, steps and transfers to be priced


def test_what_changed_is_read_again(tmp_path):
    folder = made(tmp_path, "one")
    run = RunTables(folder)
    assert (len(run.epochs), run.peak_bytes) == (1, pytest.approx(np.nan, nan_ok=True))
    rows = (folder / "epochs.csv").read_text().splitlines(keepends=True)
    with (folder / "epochs.csv").open("a") as file:
        file.write("1" + rows[-1].removeprefix("0"))
    assert len(run.epochs) == len(run.evaluations) == 2
    (folder / "config.json").write_text('{"workers": 7}')
    assert run.config == {"workers": 7}


def test_a_file_that_changed_just_now_is_not_kept_as_it_may_change_within_one_tick(tmp_path):
    folder = made(tmp_path, "one")
    path, run = folder / "config.json", RunTables(folder)
    path.write_text('{"workers": 7}')
    before = path.stat()
    assert run.config == {"workers": 7}
    path.write_text('{"workers": 8}')
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert run.config == {"workers": 8}


def test_what_a_run_returned_may_be_changed(tmp_path):
    run = RunTables(made(tmp_path, "one"))
    run.config["workers"] = run.used["workers"] = 5
    for table in (run.epochs, run.evaluations):
        table.loc[0, "val_loss"] = 5.0
    assert (run.epochs["val_loss"][0], run.evaluations["val_loss"][0]) == (1.0, 1.0)
    assert run.config["workers"] == run.used["workers"] == 2


@pytest.mark.parametrize("tail", ["", "2,3", "2,3" * 40_000])
def test_half_a_row_at_the_end_is_not_read_however_long(tmp_path, tail):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n" + tail)
    with open_whole_rows(path) as rows:
        assert rows.read() == b"a,b\n1,2\n"
    assert read_table(path, {"a": "int64", "b": "float64"}).to_numpy().tolist() == [[1, 2.0]]


def test_no_whole_row_is_no_row(tmp_path):
    (tmp_path / "table.csv").write_text("a,b")
    assert open_whole_rows(tmp_path / "table.csv") is None
    assert read_table(tmp_path / "table.csv", {"a": "int64"}).empty


def test_numbers_are_read_to_their_last_bit(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**63, 2000, dtype="int64").view("float64")
    written = [*values[np.isfinite(values)].tolist(), 5e-324, float("inf"), float("nan")]
    path = tmp_path / "table.csv"
    path.write_text("a\n" + "".join(f"{value!r}\n" for value in written))
    read = read_table(path, {"a": "float64"})["a"].to_numpy()
    assert read.tobytes() == np.array(written).tobytes()


@pytest.mark.parametrize("cell", ["", "x", "1,5"])
def test_a_cell_that_is_no_number_is_damage(tmp_path, cell):
    path = tmp_path / "table.csv"
    path.write_text(f"a,b\n1,2\n2,{cell}\n")
    with pytest.raises(simsgd.SettingError, match="is damaged: its rows cannot be read"):
        read_table(path, {"a": "int64", "b": "float64"})


def test_a_text_that_reads_nan_stays_a_text(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\nnan,nan\n")
    table = read_table(tmp_path / "table.csv", {"a": "str", "b": "float64"})
    assert table["a"].tolist() == ["nan"]
    assert table["b"].isna().all()


def test_a_long_line_keeps_its_ends_and_all_that_stands_out():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(200_000)
    y[123_457], y[1] = 50.0, -50.0
    x = np.arange(1.0, len(y) + 1)
    curve = Curve("a", x, y, look_of(0, False), low=y - 1, high=y + 1)
    drawn = curve.thinned()
    assert len(drawn.x) == len(drawn.y) == len(drawn.low) == len(drawn.high) <= 40_000
    assert {1.0, 2.0, 123_458.0, 200_000.0} <= set(drawn.x)
    assert np.array_equal(drawn.y, y[drawn.x.astype(int) - 1])
    for start in range(0, len(y), 1000):  # half a pixel of a wide figure
        shown = drawn.y[(drawn.x > start) & (drawn.x <= start + 1000)]
        part = y[start : start + 1000]
        assert (shown.max(), shown.min()) == (part.max(), part.min())


def test_a_short_line_is_drawn_whole():
    y = np.zeros(MOST_POINTS)
    curve = Curve("a", y, y, look_of(0, False))
    assert curve.thinned() is curve
