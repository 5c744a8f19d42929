import json

import pytest
from click.testing import CliRunner

from simsgd.bench import compressors as bench
from simsgd.cli import main
from simsgd.registry import names

PLAIN = {spec.partition(":")[0] for spec in bench.SPECS}


def test_every_compressor_of_ours_is_timed():
    assert set(names("compressor")) - PLAIN == {"grace"}


@pytest.mark.slow
def test_the_quick_bench_prints_a_table_and_writes_json(tmp_path):
    done = CliRunner().invoke(
        main, ["bench", "compressors", "--quick", "--json", str(tmp_path / "rows.json")]
    )
    assert done.exit_code == 0, done.output
    measured = json.loads((tmp_path / "rows.json").read_text())
    assert set(measured) == {"machine", "rows"}
    assert len(measured["rows"]) == 2 * (1 + len(bench.SPECS))
    for row in measured["rows"]:
        assert 0 < row["ms_min"] <= row["ms"] <= row["ms_max"]
        moved = row["workers"] * row["n"] * 4
        assert abs(row["gb_per_s"] - moved / row["ms"] / 1e6) < 1e-6 * row["gb_per_s"]
    assert all(spec in done.output for spec in (bench.FLOOR, *bench.SPECS))


def test_workers_go_in_parts_where_memory_would_not_do(monkeypatch):
    monkeypatch.setattr(bench, "_MOST_BYTES", 2 * 1000 * bench._BYTES_AN_ELEMENT)
    monkeypatch.setattr(bench, "_QUICK", ((5, 1000),))
    monkeypatch.setattr(bench, "SPECS", ("topk:0.1", "powersgd:2", "variance"))
    measured = bench.measure(quick=True)
    assert {row["rows_at_once"] for row in measured["rows"]} == {2}
    assert "2 workers at a time" in bench.tables(measured)[0].title


def test_a_file_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    path = str(tmp_path / "none" / "rows.json")
    done = CliRunner().invoke(main, ["bench", "compressors", "--quick", "--json", path])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
