import json

import pytest
from click.testing import CliRunner

from simsgd.bench import algorithms
from simsgd.bench.benches import bench
from simsgd.cli import main
from simsgd.registry import names


def run(*words):
    return CliRunner().invoke(main, ["bench", "algorithms", *words])


@pytest.mark.slow
def test_the_quick_bench_prints_and_writes_every_algorithm(tmp_path):
    path = tmp_path / "rows.json"
    done = run("--quick", "--json", str(path))
    assert done.exit_code == 0, done.output
    measured = json.loads(path.read_text())
    assert set(measured) == {"machine", "compressor", "rows", "notes"}
    [note] = measured["notes"]
    assert note.startswith("onebit_adam is left out with 4 workers: optimizer keeps no variance")
    there = {*names("algorithm")} - {"onebit_adam"}
    for model in {row["model"] for row in measured["rows"]}:
        rows = [row for row in measured["rows"] if row["model"] == model]
        assert rows[0]["algorithm"] == algorithms.FLOOR
        assert sorted(row["algorithm"] for row in rows) == sorted(there)
    for row in measured["rows"]:
        assert 0 < row["ms_min"] <= row["ms"] <= row["ms_max"]
        assert (row["workers"], row["rounds"]) == (4, 3)
    assert all(name in done.output for name in names("algorithm"))


@pytest.mark.slow
def test_the_ratio_is_to_allreduce():
    rows = algorithms.measure(quick=True, model=["mlp"], workers=[2])["rows"]
    assert [row["ratio"] for row in rows if row["algorithm"] == "allreduce"] == [1.0]


@pytest.mark.slow
def test_an_algorithm_that_so_many_cannot_follow_is_left_out_with_one_note():
    measured = bench("algorithms", quick=True, workers=3, compressor="topk:0.1")
    notes = measured.plain()["notes"]
    left_out = {note.split()[0] for note in notes}
    assert {row["algorithm"] for row in measured.rows} == {*names("algorithm")} - left_out
    assert left_out == {"butterfly", "onebit_adam", "powergossip", "sparta", "zero_one_adam"}
    assert notes[0].startswith("butterfly is left out with 3 workers: workers must be a power of 2")
    assert measured.summary().endswith(notes[-1])
    assert "b = 4, compressor topk:0.1, median of 3 rounds" in measured.summary()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--model", "lennet"), "--model is not known, got lennet; did you mean lenet"),
        (("--model", "resnet9"), "--model is not known, got resnet9; did you mean resnet"),
        (("--workers", "0"), "must be at least 1"),
        (("--compressor", "topl:0.1"), "--compressor is not known, got topl; did you mean topk"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_timed(words, error):
    done = run(*words)
    assert done.exit_code == 2
    assert error in done.stderr
    assert len(done.stderr.splitlines()) == 1
