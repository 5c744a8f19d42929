import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as some

from simsgd.cli import main
from simsgd.config import Config
from simsgd.results.config_values import identity
from simsgd.settings import SettingError
from simsgd.training.command_line import train_command
from simsgd.training.sweep.grid import Grid
from simsgd.training.sweep.run_names import names_of
from simsgd.training.sweep.sweep import _listed, _require_values
from simsgd.training.sweep.value_list import values_of


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4", ["4"]),
        ("4,16", ["4", "16"]),
        ("none, topk:0.01 ,terngrad", ["none", "topk:0.01", "terngrad"]),
        ("qsgd:15,bucket=512", ["qsgd:15,bucket=512"]),
        ("qsgd:15,bucket=512,code=elias,none", ["qsgd:15,bucket=512,code=elias", "none"]),
        ("topk:0.01+qsgd:4, bucket=9,sign", ["topk:0.01+qsgd:4, bucket=9", "sign"]),
        ("depth=8, width=2", ["depth=8, width=2"]),
        ("hidden=((4,8),2)", ["hidden=((4,8),2)"]),
        ("", [""]),
    ],
)
def test_a_comma_begins_a_value_unless_an_argument_follows(text, values):
    assert values_of(text) == values


@given(some.lists(some.sampled_from(["none", "qsgd:4,bucket=2", "topk:0.1", "16"]), min_size=1))
def test_values_are_what_was_joined(values):
    assert values_of(",".join(values)) == values


def test_every_combination_is_there_once_with_each_seed():
    grid = Grid({"workers": [2, 4], "lr": [0.1], "memory": ["none", "residual"]}, [0, 1, 2])
    runs = {(run["workers"], run["memory"], run["seed"]) for run in grid.runs()}
    assert len(grid.runs()) == len(runs) == 12


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"wrokers": [2]}, "did you mean workers"),
        ({"name": ["a"]}, "setting is not known, got name"),
        ({"workers": []}, "workers needs at least one value"),
        ({"lr": [1, 1.0]}, "lr is given twice"),
        ({"device": ["cpu", "cuda"]}, "device takes one value"),
        ({"seed": [1]}, "seed is counted apart"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(values, error):
    with pytest.raises(SettingError, match=error):
        Grid(values)


def test_names_hold_what_varies_and_are_folders_names():
    runs = [
        {"workers": 4, "compressor": spec, "memory": memory, "warmup": warmup, "seed": 7}
        for spec in ("qsgd:15,bucket=512", "./some/mine.py:Mine:5", None)
        for memory, warmup in (("none", True), ("residual", False))
    ]
    assert names_of(runs) == [
        "qsgd-15-bucket-512-no-memory-warmup-seed7",
        "qsgd-15-bucket-512-residual-no-warmup-seed7",
        "mine.py-Mine-5-no-memory-warmup-seed7",
        "mine.py-Mine-5-residual-no-warmup-seed7",
        "no-compressor-no-memory-warmup-seed7",
        "no-compressor-residual-no-warmup-seed7",
    ]


def test_no_two_runs_have_the_same_name():
    runs = [{"compressor": spec, "seed": 0} for spec in ("topk:0.1", "topk:0:1", "topk-0.1")]
    assert len(set(names_of(runs, taken=["topk-0.1-seed0"]))) == 3
    assert "topk-0.1-seed0" not in names_of(runs, taken=["topk-0.1-seed0"])


def test_a_run_is_itself_whatever_the_machine_and_however_a_default_is_given():
    assert identity({"workers": 16, "device": "cuda", "seed": 0}) == identity({"device": "cpu"})
    assert identity({"workers": 16.0}) != identity({"workers": 4})
    assert identity({"memory": None}) != identity({"memory": "none"})


def test_what_a_sweep_hands_to_train_is_what_was_given():
    asked = {
        "workers": 4, "compressor": "qsgd:15,bucket=512", "model_config": "depth=8, width=2",
        "lr": 1e-3, "momentum": 0.0, "nesterov": False, "prune_1d": True, "seed": 3,
        "runs_dir": "a b",
    }  # fmt: skip
    train = main.commands["train"]
    context = train.make_context("train", train_command(asked)[1:])
    assert {name: context.params[name] for name in asked} == {
        **asked,
        "runs_dir": type(context.params["runs_dir"])("a b"),
    }
    assert train_command({"download": False, "prune": None, "warmup": True}) == ["train"]


def test_arrays_and_series_are_several_values_and_their_numbers_pythons_own():
    given = np.float32([0.1, 0.2]), pd.Series([2, 4]), range(3, 4)
    values = [_listed("lr", each) for each in given]
    assert values == [[0.1, 0.2], [2, 4], [3]]
    assert [type(one) for each in values for one in each] == [float, float, int, int, int]
    config = Config(workers=np.int64(2), lr=np.float32(0.5), prune_1d=np.bool_(False))
    assert [type(v) for v in (config.workers, config.lr, config.prune_1d)] == [int, float, bool]
    assert (config.workers, config.lr, config.prune_1d) == (2, 0.5, False)


def test_a_nan_among_the_values_is_refused_as_any_other_is():
    grid = Grid({"lr": [0.1, math.nan]})
    wrong = SettingError("lr", math.nan, "must be finite")
    refused = {grid.described(point): wrong for point in grid.points()[1:]}
    with pytest.raises(SettingError, match="lr must be finite, got nan"):
        _require_values(grid, refused)
    _require_values(grid, {})
