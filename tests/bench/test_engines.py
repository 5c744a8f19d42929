import json
import time

import pytest
import torch
from click.testing import CliRunner

from simsgd.bench import engines
from simsgd.bench.cases import Case, task_of
from simsgd.bench.floors import floors
from simsgd.bench.timing import milliseconds, taking_turns
from simsgd.cli import main


@pytest.mark.slow
def test_the_quick_bench_prints_a_table_and_writes_json(tmp_path):
    path = tmp_path / "rows.json"
    done = CliRunner().invoke(main, ["bench", "engines", "--quick", "--json", str(path)])
    assert done.exit_code == 0, done.output
    measured = json.loads(path.read_text())
    assert set(measured) == {"machine", "rows"}
    timed = {*engines.FLOORS, *engines.TIMED}
    assert len(measured["rows"]) == 2 * len(timed)
    assert {row["engine"] for row in measured["rows"]} == timed
    for row in measured["rows"]:
        assert 0 < row["ms_min"] <= row["ms"] <= row["ms_max"]
        assert (row["workers"], row["rounds"]) == (4, 3)
    assert all(name in done.output for name in timed)


def test_one_of_the_floors_has_the_ratio_one():
    rows = engines.measure(quick=True, model=["mlp"], workers=[2])["rows"]
    assert {row["workers"] for row in rows} == {2}
    assert min(row["ratio"] for row in rows if row["engine"] in engines.FLOORS) <= 1


def test_auto_is_the_first_of_the_engines():
    rows = engines.measure(quick=True, model=["mlp"], workers=[1])["rows"]
    assert [row["engine"] for row in rows][:3] == [*engines.FLOORS, "auto"]


def test_a_model_that_is_not_timed_is_refused_with_those_that_are():
    done = CliRunner().invoke(main, ["bench", "engines", "--model", "resnett"])
    assert done.exit_code == 2
    assert "did you mean resnet" in done.stderr


def test_a_number_of_workers_below_one_is_refused():
    done = CliRunner().invoke(main, ["bench", "engines", "--workers", "0"])
    assert done.exit_code == 2
    assert "workers must be at least 1" in done.stderr


def test_all_work_is_done_in_every_round_and_what_is_brief_twice():
    done = []

    def long():
        done.append("long")
        if done.count("long") == 1:
            time.sleep(0.6)  # its first run shows that it is long

    seconds = taking_turns({"brief": lambda: done.append("brief"), "long": long}, "cpu", rounds=4)
    assert done == ["brief", "long", *["brief", "brief", "long"] * 4]
    assert {name: len(spent) for name, spent in seconds.items()} == {"brief": 4, "long": 4}


def test_a_work_that_takes_all_turns_is_run_as_often_in_every_process():
    done = []
    taking_turns({"step": lambda: done.append(1)}, "cpu", rounds=4)
    assert len(done) == 5


def test_rounds_end_early_once_they_took_long_enough():
    assert len(taking_turns({"a": lambda: None}, "cpu", rounds=50, enough=0.0)["a"]) == 3


def test_milliseconds_are_median_least_and_most():
    assert milliseconds([0.5, 0.25, 4.0]) == {"ms": 500.0, "ms_min": 250.0, "ms_max": 4000.0}


def test_the_floor_of_a_language_model_is_torchs_own_lstm_of_the_same_size():
    case = Case("lstm_lm", "hidden=6,layers=2", (5,), 3, workers=2, vocabulary=11)
    task = task_of(case, "cpu")
    works = floors(task)
    shapes = {name: sorted(tuple(g.shape) for g in work()) for name, work in works.items()}
    assert list(shapes) == ["plain", "plain in W parts", "plain nn.LSTM"]
    assert shapes["plain"] == shapes["plain in W parts"] == shapes["plain nn.LSTM"]
    image = Case("mlp", "", (1, 4, 4), 3, workers=2)
    assert list(floors(task_of(image, "cpu"))) == ["plain", "plain in W parts"]


def test_parts_of_a_batch_add_up_to_the_whole():
    works = floors(task_of(Case("mlp", "", (1, 4, 4), 3, workers=2), "cpu"))
    for whole, parts in zip(works["plain"](), works["plain in W parts"](), strict=True):
        assert torch.allclose(whole, parts, atol=1e-6)
