import json

import pytest

from simsgd.config import Config
from simsgd.results.config_values import OF_ONE_RUN, OF_THE_MACHINE, ON_RESUME, PER_RANK, identity
from simsgd.results.figures.run_groups import grouped
from simsgd.results.results_table import results
from simsgd.results.run import Run
from simsgd.settings import SettingError
from simsgd.training.sweep.grid import Grid
from simsgd.training.sweep.run_names import names_of

IDENTITY = sorted(set(Config.__dataclass_fields__) - OF_THE_MACHINE - OF_ONE_RUN - {"seed"})


def pair(tmp_path, setting):
    """Return two runs with other values of a setting, and another seed."""
    for seed in (0, 1):
        folder = tmp_path / f"run-seed{seed}"
        folder.mkdir()
        config = {**Config().plain(), setting: f"value {seed}", "seed": seed, "used": {"lr": seed}}
        (folder / "config.json").write_text(json.dumps(config, default=str))
        (folder / "epochs.csv").write_text("epoch,step,payload_bytes,dense_bytes\n0,1,1,1\n")
    return [Run(tmp_path / f"run-seed{seed}") for seed in (0, 1)]


def test_what_changes_no_number_is_of_the_machine():
    assert {
        "checkpoint_every", "cuda_graph", "data_dir", "deterministic", "device", "download",
        "engine", "eval_every", "keep", "log_every", "log_layers", "metric", "metric_mode",
        "noise_scale", "plan", "quiet", "tensorboard", "threads", "wandb", "worker_chunk",
    } == OF_THE_MACHINE  # fmt: skip


def test_a_resumed_run_may_change_what_decides_no_number_of_the_steps_done():
    assert {
        "checkpoint_every", "cuda_graph", "data_dir", "device", "download", "epochs", "eval_every",
        "keep", "log_every",
        "on_nonfinite", "overwrite", "quiet", "resume", "steps", "tensorboard", "threads",
        "until_bytes", "wandb",
    } == ON_RESUME  # fmt: skip
    assert {"data_dir", "device", "quiet", "threads"} == PER_RANK


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("setting", sorted(OF_THE_MACHINE | OF_ONE_RUN - {"name"}))
def test_runs_that_differ_in_the_machine_are_one_for_figures_tables_and_sweeps(tmp_path, setting):
    runs = pair(tmp_path, setting)
    assert len(grouped(runs)) == 1
    assert set(results([tmp_path])) & {setting, "used"} == set()
    assert identity({setting: "a"}) == identity({setting: "b"})


@pytest.mark.quick_cases(24)
@pytest.mark.parametrize("setting", IDENTITY)
def test_runs_that_differ_in_their_identity_are_two_for_figures_tables_and_sweeps(
    tmp_path, setting
):
    runs = pair(tmp_path, setting)
    assert len(grouped(runs)) == 2
    assert setting in results([tmp_path])
    assert identity({setting: "a"}) != identity({setting: "b"})


@pytest.mark.parametrize("setting", sorted(OF_THE_MACHINE))
def test_a_sweep_takes_one_value_of_what_changes_no_number(setting):
    with pytest.raises(SettingError, match=f"^{setting} takes one value in a sweep"):
        Grid({setting: ["a", "b"]})
    assert names_of([{setting: "a", "seed": 0}], [{setting: "b"}]) == ["seed0"]
