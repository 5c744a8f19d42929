import inspect
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import simsgd
from simsgd.results.run import Run
from simsgd.results.tables import (
    EPOCH_COLUMNS,
    LAYER_COLUMNS,
    STEP_COLUMNS,
    TRANSFER_COLUMNS,
    WORKER_COLUMNS,
    ratio,
)
from simsgd.settings import SettingError
from simsgd.training import checkpoint, run_names
from simsgd.training.checkpoint import load_checkpoint
from simsgd.training.run_folder import RunFolder
from simsgd.training.run_names import default_name
from simsgd.training.totals import Totals

CONFIG = {"model": "lenet", "dataset": "mnist5k", "workers": 16, "prune": 0.999}


def step_row(step, epoch=0, **values):
    row = dict.fromkeys(STEP_COLUMNS, 1) | {"step": step, "epoch": epoch, "loss": 0.1 + step}
    return row | values


def epoch_row(epoch, step, **values):
    row = dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": epoch, "step": step}
    row |= {"payload_bytes": 100 * (epoch + 1), "dense_bytes": 3000 * (epoch + 1)} | values
    return row | {"ratio": ratio(row["dense_bytes"], row["payload_bytes"])}


def written(tmp_path, epochs=2, steps_per_epoch=3):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    for step in range(1, epochs * steps_per_epoch + 1):
        run.add_step(step_row(step, (step - 1) // steps_per_epoch))
    run.flush_steps()
    for epoch in range(epochs):
        run.add_epoch(epoch_row(epoch, (epoch + 1) * steps_per_epoch))
    return run


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


# making a folder


def test_a_new_run_has_its_config_and_empty_tables(tmp_path):
    run = Run(RunFolder.create(tmp_path / "runs", "a", CONFIG).folder)
    assert (run.config, len(run.epochs), len(run.steps)) == (CONFIG, 0, 0)


def test_a_path_in_the_config_is_written_as_text(tmp_path):
    run = RunFolder.create(tmp_path, "a", {"data_dir": Path("data")})
    assert Run(run.folder).config == {"data_dir": "data"}


def test_a_name_that_exists_is_refused_with_both_ways_out(tmp_path):
    RunFolder.create(tmp_path, "a", CONFIG)
    with pytest.raises(SettingError, match=r"^name exists already .*--overwrite .*--resume "):
        RunFolder.create(tmp_path, "a", CONFIG)


def test_overwrite_begins_an_old_run_anew(tmp_path):
    written(tmp_path)
    run = RunFolder.create(tmp_path, "a", CONFIG, overwrite=True)
    assert len(Run(run.folder).steps) == 0


def test_overwrite_spares_a_folder_that_is_no_run(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(SettingError, match="is not a run folder"):
        RunFolder.create(tmp_path, "thesis", CONFIG, overwrite=True)
    assert names_in(tmp_path / "thesis") == ["chapter.txt"]


def test_overwrite_spares_what_a_link_points_to(tmp_path):
    run = written(tmp_path)
    (tmp_path / "link").symlink_to(run.folder)
    with pytest.raises(SettingError, match="cannot be overwritten"):
        RunFolder.create(tmp_path, "link", CONFIG, overwrite=True)
    assert len(Run(run.folder).steps) == 6


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/b", "/a", "a/", "a\\b", "C:a", "a..b", "a\0b", "a\nb"]
)
def test_nothing_is_written_outside_the_runs_dir(tmp_path, name):
    with pytest.raises(SettingError, match=r"^name must be one folder's name"):
        RunFolder.create(tmp_path / "runs", name, CONFIG, overwrite=True)
    assert names_in(tmp_path) == []


def test_a_runs_dir_that_is_a_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(SettingError, match=r"^runs_dir cannot be made \(.+\), got .*runs$"):
        RunFolder.create(tmp_path / "runs", "a", CONFIG)


def test_a_runs_dir_that_can_hold_no_folder_is_told_from_a_wrong_name(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "none")
    with pytest.raises(SettingError, match=r"^runs_dir cannot be made \(.*runs is no folder\)"):
        RunFolder.create(tmp_path / "runs", "a", CONFIG)
    with pytest.raises(SettingError, match=r"^runs_dir cannot hold a run \(.+\), got /dev/fd"):
        RunFolder.create(Path("/dev/fd"), "a", CONFIG)


def test_a_name_too_long_for_a_folder_is_refused_in_one_line(tmp_path):
    with pytest.raises(SettingError, match=r"^name cannot be the name of a folder"):
        RunFolder.create(tmp_path, "a" * 300, CONFIG)


def test_discard_leaves_nothing_of_a_run_that_failed_before_its_first_step(tmp_path):
    RunFolder.create(tmp_path, "a", CONFIG).discard()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "learn",
    [
        lambda run: run.add_step(step_row(1)),
        lambda run: run.add_epoch(epoch_row(0, 3)),
        lambda run: run.save({}),
    ],
    ids=["step", "epoch", "checkpoint"],
)
def test_discard_spares_a_run_that_has_learned_something(tmp_path, learn):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    learn(run)
    run.discard()
    assert run.folder.exists()


def test_discard_spares_a_run_that_was_resumed(tmp_path):
    folder = RunFolder.create(tmp_path, "a", CONFIG).folder
    RunFolder.resume(folder).discard()
    assert folder.exists()


def test_resume_refuses_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(SettingError, match=r"^resume is not a run folder"):
        RunFolder.resume(tmp_path)


# its name


def test_the_default_name_is_date_and_recipe():
    assert re.fullmatch(r"\d{8}-\d{6}-lenet-mnist5k-w16-prune0\.999", default_name(CONFIG))


def test_the_default_name_without_pruning_ends_with_the_workers():
    assert default_name(CONFIG | {"prune": None}).endswith("-lenet-mnist5k-w16")


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({"compressor": "topk:0.01+terngrad"}, "topk-0.01+terngrad"),
        ({"algorithm": "allreduce", "compressor": "none"}, "w16"),
        ({"algorithm": "choco", "compressor": "sign"}, "w16-choco-sign"),
        ({"algorithm": "local:8"}, "w16-local-8"),
        ({"method": "diloco", "compressor": "qsgd:15,bucket=512"}, "diloco-qsgd-15-bucket-512"),
        ({"algorithm": "async", "compressor": "topk:0.1", "prune": 0.9}, "w16-async-prune0.9"),
        ({"compressor": "/my files/mine.py:Mine:5"}, "w16-Mine-5"),
        ({"compressor": "turns:" + "1" * 99}, "w16-turns-" + "1" * 34),
    ],
)
def test_the_default_name_says_method_algorithm_and_compressor(settings, end):
    assert default_name(CONFIG | {"prune": None} | settings).endswith(f"-{end}")


def test_the_default_name_of_a_model_file_is_its_stem():
    assert "-net-mnist5k-" in default_name(CONFIG | {"model": "../my nets/net.py"})


def test_the_default_name_is_always_allowed(tmp_path):
    config = CONFIG | {"model": "./a b/..x...y.py", "dataset": "imagefolder:/data/../x"}
    assert RunFolder.create(tmp_path, default_name(config), config).folder.parent == tmp_path


def test_a_default_name_that_is_taken_is_numbered(tmp_path, monkeypatch):
    class Still(run_names.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 27, 23, 15)

    monkeypatch.setattr(run_names, "datetime", Still)
    for _ in range(3):
        RunFolder.create(tmp_path, default_name(CONFIG, tmp_path), CONFIG)
    name = "20261127-231500-lenet-mnist5k-w16-prune0.999"
    assert names_in(tmp_path) == [name, f"{name}-2", f"{name}-3"]


# tables


def test_the_tables_have_the_promised_columns(tmp_path):
    run = written(tmp_path)
    tables = [(run.folder / name).read_text() for name in ("epochs.csv", "steps.csv")]
    assert [table.splitlines()[0] for table in tables] == [
        "epoch,step,lr,kept,train_loss,train_error1,train_error5,val_loss,val_error1,val_error5,"
        "payload_bytes,dense_bytes,network_bytes,ratio,consensus_distance,seconds",
        "step,epoch,loss,lr,kept,payload_bytes,payload_bytes_min,payload_bytes_max,dense_bytes,"
        "network_bytes,received_bytes,received_bytes_max,busiest_link_bytes,sent_elements,relative_error,memory_norm,compute_seconds,"
        "compression_seconds,seconds,samples",
    ]


def test_bytes_past_what_a_float_can_count_are_read_back_exactly(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    run.add_epoch(epoch_row(0, 1, payload_bytes=2**53 + 1, network_bytes=2**62 + 1))
    read = Run(run.folder).last
    assert (read.payload_bytes, read.network_bytes) == (2**53 + 1, 2**62 + 1)


def test_integers_are_written_without_a_point(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    run.add_step(step_row(7, payload_bytes=torch.tensor(12), dense_bytes=np.int64(34)))
    run.flush_steps()
    assert (run.folder / "steps.csv").read_text().splitlines()[1].startswith("7,0,7.1,")
    assert ",12,1,1,34,1," in (run.folder / "steps.csv").read_text()


@pytest.mark.parametrize(
    "value", [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, math.inf, 1e22]
)
def test_a_float_is_read_back_to_its_last_bit(tmp_path, value):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    run.add_step(step_row(1, loss=value))
    run.flush_steps()
    assert Run(run.folder).steps["loss"][0] == value


def test_a_loss_that_is_no_number_is_read_back_as_such(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    run.add_step(step_row(1, loss=math.nan))
    run.flush_steps()
    assert math.isnan(Run(run.folder).steps["loss"][0])


@pytest.mark.parametrize("rows", [0, 2])
def test_the_tables_read_have_the_promised_types(tmp_path, rows):
    run = Run(written(tmp_path, epochs=rows).folder)
    read = {**run.epochs.dtypes.astype(str)}, {**run.steps.dtypes.astype(str)}
    assert read == (EPOCH_COLUMNS, STEP_COLUMNS)


def test_steps_are_on_disk_once_their_block_ends(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    run.add_step(step_row(1))
    before = len(Run(run.folder).steps)
    run.flush_steps()
    assert (before, len(Run(run.folder).steps)) == (0, 1)


def test_steps_are_on_disk_before_the_checkpoint_that_counts_them(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    run.add_step(step_row(1))
    run.save({})
    assert len(Run(run.folder).steps) == 1


def test_the_ratio_follows_from_the_bytes():
    measured = {"loss": 1.0, "error1": 9.0, "error5": 5.0}
    tally = Totals(payload_bytes=16, dense_bytes=100)
    assert tally.epoch_row(0, 1, workers=2, measured=measured, spread=0.0)["ratio"] == 12.5


def test_a_row_with_a_column_missing_is_our_mistake(tmp_path):
    row = step_row(1)
    del row["loss"]
    with pytest.raises(AssertionError):
        RunFolder.create(tmp_path, "a", CONFIG).add_step(row)


def test_a_half_written_row_is_not_read(tmp_path):
    run = written(tmp_path)
    with (run.folder / "steps.csv").open("a") as file:
        file.write("7,2,0.")
    assert list(Run(run.folder).steps["step"]) == [1, 2, 3, 4, 5, 6]


def test_a_table_that_something_else_wrote_is_refused_in_one_line(tmp_path):
    run = written(tmp_path)
    (run.folder / "epochs.csv").write_text("epoch,step,lr\nzero,1,2\n")
    with pytest.raises(SettingError, match=r"^run is damaged: its rows cannot be read"):
        _ = Run(run.folder).epochs


# going on


def test_truncate_forgets_the_steps_after_the_checkpoint(tmp_path):
    run = written(tmp_path)
    run.truncate(step=4, epoch=1)
    assert list(Run(run.folder).steps["step"]) == [1, 2, 3, 4]


def test_truncate_forgets_the_epochs_after_the_checkpoint(tmp_path):
    run = written(tmp_path)
    run.truncate(step=4, epoch=1)
    assert list(Run(run.folder).epochs["epoch"]) == [0]


@pytest.mark.parametrize(
    ("name", "kept", "told"),
    [
        ("steps.csv", 0, "steps.csv ends before step 6, whose rows are lost"),
        ("steps.csv", 3, "steps.csv ends before step 6, whose rows are lost"),
        ("epochs.csv", 1, "epochs.csv ends before epoch 1, whose rows are lost"),
        ("steps.csv", 7, ""),
    ],
)
def test_truncate_tells_of_rows_that_are_lost(tmp_path, name, kept, told):
    run = written(tmp_path)
    path = run.folder / name
    if kept:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    else:
        path.unlink()
    lost = run.truncate(step=6, epoch=2)
    assert lost.startswith(told)
    assert bool(lost) == bool(told)
    assert lost in (run.folder / "log.txt").read_text()


def test_truncate_forgets_an_epoch_that_will_end_again(tmp_path):
    run = written(tmp_path)
    run.truncate(step=6, epoch=1)  # saved after the last step of epoch 1, before its evaluation
    assert list(Run(run.folder).epochs["epoch"]) == [0]


def test_truncate_mends_a_half_written_row_so_that_the_next_stands_alone(tmp_path):
    run = written(tmp_path)
    with (run.folder / "steps.csv").open("a") as file:
        file.write("7,2,0.")
    run.close()
    going_on = RunFolder.resume(run.folder)
    going_on.truncate(step=6, epoch=2)
    going_on.add_step(step_row(7, 2))
    going_on.flush_steps()
    assert list(Run(run.folder).steps["step"]) == [1, 2, 3, 4, 5, 6, 7]


def test_truncate_leaves_the_rows_it_keeps_identical(tmp_path):
    run = written(tmp_path)
    run.add_epoch(epoch_row(2, 9, val_loss=1 / 3, val_error5=math.nan, network_bytes=2**60 + 1))
    before = (run.folder / "epochs.csv").read_text()
    run.truncate(step=9, epoch=3)
    assert (run.folder / "epochs.csv").read_text() == before


def test_a_table_that_a_kill_left_without_a_header_gets_one(tmp_path):
    run = written(tmp_path)
    (run.folder / "epochs.csv").write_text("epo")
    run.truncate(step=0, epoch=0)
    run.add_epoch(epoch_row(0, 3))
    assert list(Run(run.folder).epochs["step"]) == [3]


def test_the_log_grows_by_lines_with_the_time(tmp_path):
    run = written(tmp_path, epochs=1)
    run.log("began")
    run.close()
    RunFolder.resume(run.folder).log("went on\nand on")
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  "
    assert re.fullmatch(f"{stamp}began\n{stamp}went on\n{stamp}and on\n", Run(run.folder).log)


# checkpoints


def test_a_checkpoint_is_read_back_as_it_was_saved(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    state = {"step": 3, "memory": {"u": [torch.arange(3.0)]}, "generator": torch.get_rng_state()}
    run.save(state)
    read = load_checkpoint(run.folder / "last.pt")
    assert (read.keys(), read["step"]) == (state.keys(), 3)
    assert read["memory"]["u"][0].equal(state["memory"]["u"][0])


STATE = {"config": {}, "model": {"w": torch.zeros(2)}, "simulator": {"steps": 1}, "epoch": 1,
         "batch": 0, "best": 0.5}  # fmt: skip


def evaluated(run, step, best=True, keep="best"):
    """Save what an evaluation after `step` steps saves."""
    run.save_model(STATE, step, best, keep)
    run.save({"step": step})


def models_in(run):
    """Return the steps of the models that a folder has, by their files."""
    paths = [*run.folder.glob("models/*.pt"), *run.folder.glob("best.pt")]
    return {str(path.relative_to(run.folder)): load_checkpoint(path)["step"] for path in paths}


def test_a_folder_means_its_last_checkpoint_not_its_best(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    evaluated(run, 1)
    run.save({"step": 2})
    assert load_checkpoint(run.folder) == {"step": 2}


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("last", {}),
        ("best", {"best.pt": 2}),
        ("all", {"models/step-1.pt": 1, "models/step-2.pt": 2, "models/step-3.pt": 3,
                 "best.pt": 2}),
    ],
)  # fmt: skip
def test_the_models_that_are_kept_are_those_asked_for(tmp_path, keep, kept):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    for step, best in ((1, True), (2, True), (3, False)):
        evaluated(run, step, best, keep)
    assert models_in(run) == kept
    assert load_checkpoint(run.folder) == {"step": 3}


def test_a_kept_model_is_the_model_alone(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    evaluated(run, 1)
    best = load_checkpoint(run.folder / "best.pt")
    assert best.keys() == {"config", "model", "epoch", "batch", "best", "step"}


def test_a_best_model_that_is_the_best_no_more_goes(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    evaluated(run, 1)
    evaluated(run, 2, best=False, keep="last")
    assert models_in(run) == {"best.pt": 1}
    evaluated(run, 3, keep="last")
    assert models_in(run) == {}


def test_models_after_the_checkpoint_go_when_a_run_goes_on(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    for step in (9, 10):
        evaluated(run, step, keep="all")
    (run.folder / "models/step-mine.pt").write_bytes((run.folder / "best.pt").read_bytes())
    run.truncate(9, 1)
    assert {*models_in(run)} == {"models/step-9.pt", "models/step-mine.pt", "best.pt"}


def test_models_are_kept_where_files_cannot_be_linked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    run = RunFolder.create(tmp_path, "a", CONFIG)
    evaluated(run, 1, keep="all")
    assert models_in(run) == {"models/step-1.pt": 1, "best.pt": 1}


def killed(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", [(torch, "save"), (os, "replace")], ids=["write", "replace"])
def test_a_kill_in_the_middle_of_save_leaves_the_previous_checkpoint(tmp_path, monkeypatch, moment):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    evaluated(run, 1)
    monkeypatch.setattr(*moment, killed)
    for save in (lambda: run.save_model(STATE, 2, True, "best"), lambda: run.save({"step": 2})):
        with pytest.raises(KeyboardInterrupt):
            save()
    assert (load_checkpoint(run.folder), models_in(run)) == ({"step": 1}, {"best.pt": 1})


def test_a_save_that_failed_can_be_tried_again(tmp_path, monkeypatch):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    (run.folder / ".best.pt.part").write_text("left by a kill")
    (run.folder / ".last.pt.part").write_text("left by a kill")
    evaluated(run, 2)
    assert names_in(run.folder) == sorted(
        [".lock", "best.pt", "config.json", "epochs.csv", "last.pt", "log.txt", "steps.csv"]
    )


def test_a_missing_checkpoint_is_refused_in_one_line(tmp_path):
    folder = RunFolder.create(tmp_path, "a", CONFIG).folder
    with pytest.raises(SettingError, match=r"^resume names a file that does not exist.*last\.pt$"):
        load_checkpoint(folder)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half a zip"])
def test_an_unreadable_checkpoint_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "last.pt").write_bytes(content)
    with pytest.raises(
        SettingError, match=r"^resume cannot be read as a checkpoint, got .*last\.pt$"
    ):
        load_checkpoint(tmp_path / "last.pt")


def test_half_a_checkpoint_is_refused_in_one_line(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    run.save({"weights": torch.zeros(1000)})
    whole = (run.folder / "last.pt").read_bytes()
    (run.folder / "last.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SettingError, match="cannot be read as a checkpoint"):
        load_checkpoint(run.folder)


@pytest.mark.parametrize("foreign", [{"state_dict": {}}, {"format": "other/1"}, [1], torch.ones(2)])
def test_a_foreign_checkpoint_is_refused_in_one_line(tmp_path, foreign):
    torch.save(foreign, tmp_path / "last.pt")
    with pytest.raises(SettingError, match=r"^resume is not a checkpoint of simsgd"):
        load_checkpoint(tmp_path / "last.pt")


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_no_code_in_a_checkpoint_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": checkpoint.FORMAT, "trap": Trap()}, tmp_path / "last.pt")
    with pytest.raises(SettingError, match="cannot be read"):
        load_checkpoint(tmp_path / "last.pt")
    assert names_in(tmp_path) == ["last.pt"]


# reading


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(SettingError, match=r"^run is not a run folder \(no config.json in it\)"):
        Run(tmp_path)


def test_a_broken_config_is_refused_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SettingError, match=r"^run has a config.json that is not JSON"):
        _ = Run(tmp_path).config


def test_the_best_epoch_has_the_least_error_the_first_of_equals_and_never_nan(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    for epoch, error in enumerate([math.nan, 3.0, 2.5, 2.5, 4.0]):
        run.add_epoch(epoch_row(epoch, epoch + 1, val_error1=error))
    assert Run(run.folder).best.epoch == 2


def test_the_last_epoch_is_the_one_that_ended_last(tmp_path):
    assert Run(written(tmp_path).folder).last.step == 6


def test_the_last_of_no_epochs_is_refused_in_one_line(tmp_path):
    with pytest.raises(SettingError, match=r"^run has no finished epoch yet"):
        _ = Run(written(tmp_path, epochs=0).folder).last


def test_the_summary_has_error_bytes_ratio_time_and_place(tmp_path):
    run = RunFolder.create(tmp_path, "a", CONFIG)
    mebi = 2**20
    for epoch, (error, sent) in enumerate([(9.0, 10), (2.0, 11), (2.25, 12)]):
        total = {"dense_bytes": 200 * (epoch + 1) * mebi, "network_bytes": 15 * sent * mebi}
        total |= {"payload_bytes": sent * mebi}
        run.add_epoch(epoch_row(epoch, epoch + 1, val_error1=error, seconds=1.5, **total))
    assert Run(run.folder).summary().splitlines() == [
        "validation error@1         2.25 % after 3 epochs (best 2.00 % in epoch 1)",
        "sent per worker            12 MiB (12,582,912 bytes)",
        "dense equivalent           600 MiB (629,145,600 bytes)",
        "ratio                      50.0 over the run, 200.0 in the last epoch",
        "on the network per worker  180 MiB (188,743,680 bytes)",
        "time                       4.5 s",
        "settings                   model lenet; workers 16; prune 0.999",
        f"run folder                 {run.folder}",
    ]


def test_the_summary_of_a_run_without_epochs_is_that_none_has_ended(tmp_path):
    assert "none has ended yet" in Run(written(tmp_path, epochs=0).folder).summary()


def test_the_ratio_of_a_single_epoch_is_its_own_steady_state(tmp_path):
    run = Run(written(tmp_path, epochs=1).folder)
    assert "30.0 over the run, 30.0 in the last epoch" in run.summary()


def test_the_html_shows_the_summary_and_the_last_epochs(tmp_path):
    shown = Run(written(tmp_path, epochs=7).folder)._repr_html_()
    assert shown.count("<tr") == 8 + 1 + 5


def test_the_html_escapes_what_a_name_brings_along(tmp_path):
    run = RunFolder.create(tmp_path, "<b>&", CONFIG)
    assert "&lt;b&gt;&amp;" in Run(run.folder)._repr_html_()


def test_a_run_prints_as_the_call_that_opens_it(tmp_path):
    folder = RunFolder.create(tmp_path, "a", CONFIG).folder
    assert repr(Run(folder)) == f"Run({str(folder)!r})"


def test_the_config_is_plain_json(tmp_path):
    folder = RunFolder.create(tmp_path, "a", CONFIG).folder
    assert json.loads((folder / "config.json").read_text()) == CONFIG


@pytest.mark.slow
def test_reading_a_run_does_not_import_torch(tmp_path):
    folder = written(tmp_path).folder
    code = (
        "import sys; from simsgd.results.run import Run; import simsgd.results.figures.plot\n"
        f"Run({str(folder)!r}).plot(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_rank_that_does_not_write_leaves_the_folder_as_it_is(tmp_path):
    run = written(tmp_path)
    run.save({"step": 1})
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    other = RunFolder(run.folder, fresh=True, writes=False)
    row = {"step": 7, "epoch": 9, "worker": 0, "class": 0, "samples": 1, "did": "skipped"}
    columns = {**WORKER_COLUMNS, **TRANSFER_COLUMNS, **LAYER_COLUMNS}
    rows = [{**dict.fromkeys(columns, 1), "collective": "gather", "segment": "weight", **row}]
    given = {
        "add_step": step_row(7), "add_epoch": epoch_row(9, 7), "log": "text", "save": {"step": 7},
        "write_config": {}, "truncate": (0, 0), "put_back": (), "flush_steps": (), "discard": (),
        "close": (), "forget_unwritten": (), "add_evaluation": epoch_row(9, 7) | {"epochs": 9.5},
        "save_model": (STATE, 7, True, "all"),
    }  # fmt: skip
    methods = [
        name
        for name, method in vars(RunFolder).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]
    for name in methods:  # a new one that adds rows is tried too
        arguments = given.get(name, rows)
        getattr(other, name)(*(arguments if isinstance(arguments, tuple) else [arguments]))
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


class Mixing(torch.nn.Module):
    """Mixes the samples of a batch, which no engine takes with workers together."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = torch.nn.Linear(64, 10), 0

    def forward(self, x):
        x = x.flatten(1)
        return self.linear(x - x.mean(0) * (1 + float(x.sum() > 0)))


class CountingCalls(Mixing):
    def forward(self, x):
        self.calls += 1
        return self.linear(x.flatten(1)) * self.calls


def trains_another(output, target):
    return torch.nn.functional.cross_entropy(output * ANOTHER, target)


ANOTHER = torch.nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    "settings",
    [
        {"model": Mixing(), "engine": "vmap"},
        {"model": Mixing(), "engine": "onepass"},
        {"model": CountingCalls()},
        {"criterion": trains_another},
        {"criterion": trains_another, "engine": "vmap"},
    ],
    ids=["vmap", "onepass", "counting", "outside", "outside, vmap"],
)
def test_what_is_refused_leaves_the_run_that_it_would_overwrite(tmp_path, settings):
    usual = {"model": "mlp", "dataset": "digits", "workers": 2, "steps": 2, "lr": 0.1}
    usual |= {"name": "mine", "quiet": True, "runs_dir": tmp_path}
    before = simsgd.train(**usual)
    log = before.log
    with pytest.raises(SettingError):
        simsgd.train(**{**usual, **settings}, overwrite=True)
    assert simsgd.Run(tmp_path / "mine").log == log
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
