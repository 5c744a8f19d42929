from typing import get_type_hints

import pytest

from simsgd.results import tables
from simsgd.results.run import Run
from simsgd.results.tables import append_rows, columns_of, read_table
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder

ROWS = {
    tables.EpochRow: tables.EPOCH_COLUMNS,
    tables.EvaluationRow: tables.EVALUATION_COLUMNS,
    tables.StepRow: tables.STEP_COLUMNS,
    tables.NoiseStepRow: tables.NOISE_STEP_COLUMNS,
    tables.NodeStepRow: tables.NODE_STEP_COLUMNS,
    tables.LayerRow: tables.LAYER_COLUMNS,
    tables.TransferRow: tables.TRANSFER_COLUMNS,
    tables.SegmentRow: tables.SEGMENT_COLUMNS,
    tables.WorkerRow: tables.WORKER_COLUMNS,
    tables.NonfiniteRow: tables.NONFINITE_COLUMNS,
    tables.PartitionRow: tables.PARTITION_COLUMNS,
}


def test_every_row_has_its_columns():
    rows = {kind for name, kind in vars(tables).items() if name.endswith("Row")}
    assert rows == set(ROWS)
    assert all(columns_of(row) == columns for row, columns in ROWS.items())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_what_is_read_has_the_types_of_the_row(tmp_path, row):
    kinds = get_type_hints(row)
    values = {int: 2**53 + 1, float: 0.1, str: "a, b"}
    written = {name: values[kind] for name, kind in kinds.items()}
    append_rows(tmp_path / "table.csv", [written], ROWS[row])
    table = read_table(tmp_path / "table.csv", ROWS[row])
    assert table.astype(object).iloc[0].to_dict() == written


def test_an_empty_table_has_the_types_too(tmp_path):
    table = read_table(tmp_path / "none.csv", tables.LAYER_COLUMNS)
    assert table.dtypes.map(str).to_dict() == tables.LAYER_COLUMNS


def test_rows_with_more_cells_than_there_are_columns_are_damage(tmp_path):
    """As where a point became a comma."""
    path = tmp_path / "layers.csv"
    head = ",".join(tables.LAYER_COLUMNS)
    path.write_text(f"{head}\n{','.join('1' for _ in tables.LAYER_COLUMNS)},5\n")
    with pytest.raises(SettingError, match=r"^run is damaged: its rows cannot be read"):
        read_table(path, tables.LAYER_COLUMNS)


def test_counts_below_0_are_damage(tmp_path):
    columns = {"step": "int64", "payload_bytes": "int64"}
    append_rows(tmp_path / "steps.csv", [{"step": 1, "payload_bytes": -1}], columns)
    with pytest.raises(SettingError, match=r"^run is damaged: it counts fewer than 0, got "):
        read_table(tmp_path / "steps.csv", columns)


@pytest.mark.parametrize(
    ("name", "columns", "rows"),
    [
        ("steps.csv", {"step": "int64"}, [2, 1]),
        ("steps.csv", {"step": "int64"}, [1, 1]),
        ("epochs.csv", {"epoch": "int64", "step": "int64"}, [1, 0]),
        ("evaluations.csv", {"epoch": "int64", "step": "int64"}, [3, 3]),
        ("transfers.csv", {"step": "int64"}, [2, 2, 1]),
        ("transfers.csv", {"step": "int64", "collective": "str"}, [1, 1]),
        ("workers.csv", tables.WORKER_COLUMNS, [1, 1]),
    ],
)
def test_rows_out_of_order_are_damage(tmp_path, name, columns, rows):
    append_rows(tmp_path / name, [dict.fromkeys(columns, number) for number in rows], columns)
    with pytest.raises(SettingError, match="damaged: its rows are not in the order in which"):
        read_table(tmp_path / name, columns)


@pytest.mark.parametrize("name", ["epochs.csv", "steps.csv"])
def test_a_table_that_was_emptied_is_damaged_and_not_a_run_without_epochs(tmp_path, name):
    run = RunFolder.create(tmp_path, "a", {})
    (run.folder / name).write_text("")
    assert Run(run.folder).evaluations.empty  # killed before its head was written
    (run.folder / "last.pt").touch()
    table = name.removesuffix(".csv")
    with pytest.raises(SettingError, match=rf"^run is damaged: it is empty.*{table}\.csv$"):
        getattr(Run(run.folder), table)


@pytest.mark.parametrize("name", ["los", 5])
def test_a_column_that_no_run_has_is_refused(tmp_path, name):
    run = Run(RunFolder.create(tmp_path, "a", {}).folder)
    for columns in (run.step_columns, run.transfer_columns):
        with pytest.raises(SettingError, match=f"^column is not known, got {name}; "):
            columns("step", name)
