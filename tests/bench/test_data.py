import json

from click.testing import CliRunner

from simsgd.bench.data import measure
from simsgd.cli import main


def test_the_quick_bench_prints_a_table_and_writes_json(tmp_path):
    path = tmp_path / "rows.json"
    done = CliRunner().invoke(main, ["bench", "data", "--quick", "--json", str(path)])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(path.read_text())["rows"]
    assert row["model"] == "resnet depth=8"
    assert 0 < row["share"] < 1
    assert all(0 < row[part]["ms_min"] <= row[part]["ms"] for part in ("data", "step"))
    assert "data (ms)" in done.output


def test_the_share_is_that_of_the_data_in_both():
    (row,) = measure(quick=True)["rows"]
    least = row["data"]["ms_min"] / (row["data"]["ms_min"] + row["step"]["ms_max"])
    most = row["data"]["ms_max"] / (row["data"]["ms_max"] + row["step"]["ms_min"])
    assert least <= row["share"] <= most
