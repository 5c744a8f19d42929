"""Wrong command lines: one line that says which option, which value, which rule; nothing stays."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import simsgd
from simsgd.cli import main
from simsgd.settings import SettingError

SMALL = "--model mlp --model-config hidden=4 --dataset digits --workers 4 --epochs 1 --quiet"
TEXT = (Path(__file__).parent / "data" / "bad_input.txt").read_text("utf-8")
LINES = TEXT.split("\n\n", 1)[1].splitlines()
CASES = [*zip(LINES[::2], (line.strip() for line in LINES[1::2]), strict=True)]
KEYWORDS = {name: name.replace("_", "-") for name in simsgd.Config.__dataclass_fields__}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(line):
    command, *words = shlex.split(line)
    small = shlex.split(SMALL) if command == "train" and "pydoc" not in words else []
    return CliRunner().invoke(main, [command, *small, *words])


def refused(done, message):
    assert (done.exit_code, done.stdout) == (2, "")
    assert isinstance(done.exception, SystemExit)
    error = done.stderr.replace(str(Path.cwd()), "HERE")
    assert len(error.splitlines()) == 1
    whole = error.removeprefix("simsgd: ").rstrip("\n")
    if message.endswith("..."):
        assert whole.startswith(message.removesuffix("..."))
    else:
        assert whole == message


@pytest.mark.quick_cases(120)
@pytest.mark.parametrize(("line", "message"), CASES, ids=[line for line, _ in CASES])
def test_a_wrong_line_gets_exactly_its_error_and_leaves_nothing(tmp_path, line, message):
    refused(call(line), message)
    assert list(tmp_path.iterdir()) == []


def test_no_line_is_listed_twice():
    assert len({line for line, _ in CASES}) == len(CASES) >= 80


def test_every_option_of_training_is_given_wrongly_somewhere():
    lines = " ".join(line for line, _ in CASES if line.startswith("train")) + " "
    harmless = {
        "data-dir",
        "deterministic",
        "download",
        "log-layers",
        "tensorboard",
        "wandb",
        "scale-epochs",
    }
    missing = {o for o in KEYWORDS.values() if f"--{o} " not in lines and f"--{o}=" not in lines}
    assert missing <= harmless | {"runs-dir", "warmup"}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    refused(
        call("train --runs-dir file/runs"), "--runs-dir cannot be made (HERE/file is no folder)..."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_too_long_for_a_folder_leaves_none_for_runs(tmp_path):
    refused(
        call(f"train --runs-dir a/b --name {'n' * 300}"),
        "--name cannot be the name of a folder (File name too long), got nnn...",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        (
            "runs/a",
            "--runs-dir is the folder of a run, got runs/a; name another, or the one tha...",
        ),
        ("file", "--runs-dir cannot be made (HERE/file is no folder), got file"),
        ("file/sweep", "--runs-dir cannot be made (HERE/file is no folder), got file/sweep"),
    ],
)
def test_a_sweep_in_no_folder_of_its_own_is_refused_before_its_settings_are_checked(
    tmp_path, folder, message
):
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/config.json").write_text("{}")
    (tmp_path / "file").write_text("")
    there = {*tmp_path.rglob("*")}
    refused(call(f"sweep --runs-dir {folder} --lr 0.1,0.2 --model nosuch"), message)
    assert {*tmp_path.rglob("*")} == there


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--steps 3", "--steps must be at least the 44 steps that the run has done, got 3"),
        (
            "--model-config hidden=5",
            "--model-config cannot change on resume, the run has hidden=4, g...",
        ),
        ("--workers 2", "--workers cannot change on resume, the run has 4, got 2"),
        ("--compressor sign", "--compressor cannot change on resume, the run has none, got sign"),
        ("--name b", "--name cannot change on resume, the run has a, got b"),
    ],
)
def test_a_resumed_run_keeps_its_settings(tmp_path, words, message):
    assert call("train --name a").exit_code == 0
    before = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}
    refused(CliRunner().invoke(main, f"train --resume runs/a {words}".split()), message)
    assert {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()} == before


@pytest.mark.slow
def test_a_network_that_does_not_go_with_a_resumed_run_is_refused_before_a_step(tmp_path):
    assert call("train --name a").exit_code == 0
    before = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}
    line = "train --resume runs/a --epochs 2 --network nvlink,10gbe"
    told = "--network is two networks, and only..."
    refused(CliRunner().invoke(main, line.split()), told)
    assert {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()} == before


@pytest.mark.parametrize("line", ["evaluate runs", "generate runs", "train --resume runs"])
def test_a_folder_of_runs_is_told_from_a_run(tmp_path, line):
    for name in "abcd":
        (tmp_path / "runs/sweep" / name).mkdir(parents=True)
        (tmp_path / "runs/sweep" / name / "config.json").write_text("{}")
    setting = "--resume" if "resume" in line else "checkpoint"
    fix = "give one, such as runs/sweep/a, runs/sweep/b or runs/sweep/c"
    refused(
        CliRunner().invoke(main, line.split()),
        f"{setting} is no run but a folder of runs, got runs; {fix}",
    )


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("last.pt", "evaluate a", "checkpoint is no file, got a/last.pt"),
        (
            "config.json",
            "train --resume a",
            "--resume is not a run folder...",
        ),
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_no_file(tmp_path, name, line, message):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / name)
    refused(CliRunner().invoke(main, line.split()), message)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def _cut_head(path):
    path.write_bytes(path.read_bytes()[5:])


def _folder(path):
    path.unlink()
    path.mkdir()


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("last.pt", _cut, "--resume cannot be read as a checkpoint, got runs/a/last.pt"),
        ("last.pt", _folder, "--resume is no file, got runs/a/last.pt; remove it"),
        ("last.pt", _pipe, "--resume is no file, got runs/a/last.pt; remove it"),
        ("log.txt", _pipe, "--resume is no file, got runs/a/log.txt; remove it"),
        ("steps.csv", _cut_head, "run is damaged: its rows cannot be read, got runs/a/steps.csv"),
    ],
)
def test_a_run_that_cannot_go_on_stays_as_it_is(tmp_path, name, damage, message):
    assert call("train --name a").exit_code == 0
    damage(tmp_path / "runs/a" / name)
    before = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}
    again = ["train", "--resume", "runs/a", "--epochs", "2", "--quiet"]
    refused(CliRunner().invoke(main, again), message)
    assert {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()} == before


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "lr",
            0.9,
            "--lr is not what the checkpoint was trained with, none, got 0.9...",
        ),
        (
            "epochs",
            "1",
            "--resume has \"epochs\": '1', which must be a whole number, got runs/a/con...",
        ),
        ("seed", 5, "--seed is not what the checkpoint was trained with, 0, got 5; put it..."),
        (
            "batch_size",
            7,
            "--batch-size is not what the checkpoint was trained with, none...",
        ),
    ],
)
def test_a_run_whose_settings_were_changed_by_hand_is_not_gone_on_with(tmp_path, name, value, told):
    assert call("train --name a").exit_code == 0
    config = json.loads((tmp_path / "runs/a/config.json").read_text())
    (tmp_path / "runs/a/config.json").write_text(json.dumps({**config, name: value}))
    before = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()}
    refused(CliRunner().invoke(main, ["train", "--resume", "runs/a", "--epochs", "2"]), told)
    assert {p: p.read_bytes() for p in sorted(tmp_path.rglob("*")) if p.is_file()} == before


@pytest.mark.slow
def test_a_run_of_another_model_is_not_gone_on_with(tmp_path):
    assert call("train --name a").exit_code == 0
    config = json.loads((tmp_path / "runs/a/config.json").read_text())
    (tmp_path / "runs/a/config.json").write_text(json.dumps({**config, "model_config": "hidden=5"}))
    done = CliRunner().invoke(main, ["train", "--resume", "runs/a", "--epochs", "2"])
    refused(done, "--model-config is not what the checkpoint was trained with, hidden=4, got ...")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"aggregate": "vote", "compressor": "topk:0.1"}, "aggregate"),
        ({"aggregate": "vote", "compressor": "topk:0.1+sign"}, "aggregate"),
        ({"aggregate": "vote", "compressor": "variance"}, "aggregate"),
        ({"aggregate": "vote", "compressor": "powersgd:1"}, "aggregate"),
        ({"aggregate": "vote", "prune": 0.5, "warmup": False}, "aggregate"),
        ({"algorithm": "local", "compressor": "terngrad:shared_scale=true"}, "compressor"),
        ({"algorithm": "butterfly", "compressor": "terngrad:shared_scale=true"}, "compressor"),
    ],
)
def test_a_compressor_that_does_not_suit_the_exchange_is_refused_before_a_step(settings, name):
    with pytest.raises(SettingError) as error:
        simsgd.Simulator(nn.Linear(4, 2), workers=2, lr=0.1, **settings)
    assert error.value.name == name


@pytest.mark.parametrize("setting", ["prune_1d", "index_dtype", "compress_if", "flush_every"])
def test_a_regime_that_compresses_later_gives_settings_an_effect(setting):
    value = {"prune_1d": True, "index_dtype": "packed", "compress_if": "all", "flush_every": 3}
    later = {0: {"lr": 0.1}, 3: {"compressor": "topk:0.5"}}
    given = {"workers": 2, "memory": "residual", setting: value[setting]}
    simsgd.Simulator(nn.Linear(4, 2), regime=later, **given)
    simsgd.Simulator(nn.Linear(4, 2), regime=lambda epoch: {"lr": 0.1}, **given)
    with pytest.raises(SettingError, match=f"{setting} has no effect where nothing is compressed"):
        simsgd.Simulator(nn.Linear(4, 2), regime={0: {"lr": 0.1}}, **given)


def test_a_momentum_that_the_regimes_optimizer_does_not_take_is_refused():
    with pytest.raises(SettingError, match=r"momentum is not taken by Adam, got 0\.9"):
        simsgd.Simulator(
            nn.Linear(4, 2), workers=2, regime={0: {"optimizer": "Adam", "lr": 0.1}}, momentum=0.9
        )


def test_text_nested_beyond_reason_is_text(tmp_path):
    refused(call(f"train --compressor topk:{'(' * 20000}"), "--compressor has ratio ((((...")
    refused(
        call(f"train --model-config hidden={'-' * 20000}1"), "--model-config does not fit: hid..."
    )
    assert torch.get_default_dtype() == torch.float32


def test_a_current_folder_that_is_gone_is_told(monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    done = CliRunner().invoke(main, ["list", "engines"])
    assert (done.exit_code, done.stdout) == (2, "")
    told = "simsgd: the current folder does not exist any more; change to another\n"
    assert done.stderr == told


def started(*words, **where):
    """Return what a process of `simsgd` with these words came to, its streams as given."""
    return subprocess.run(
        [sys.executable, "-m", "simsgd", *words],
        cwd=Path(simsgd.__file__).parents[1], text=True, check=False, **where,
    )  # fmt: skip


full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")


@pytest.mark.slow
@full_disk
def test_output_that_cannot_be_written_is_told():
    with open("/dev/full", "w") as full:
        done = started("list", "engines", stdout=full, stderr=subprocess.PIPE)
    told = "simsgd: standard output cannot be written (No space left on device)\n"
    assert (done.returncode, done.stderr) == (2, told)


@full_disk
def test_rows_that_cannot_be_written_are_told():
    words = ["bench", "compressors", "--quick", "--compressor", "sign", "--json", "/dev/full"]
    done = CliRunner().invoke(main, words)
    told = "simsgd: /dev/full cannot be written: No space left on device\n"
    assert (done.exit_code, done.output) == (5, told)


@pytest.mark.slow
@full_disk
def test_an_error_that_cannot_be_written_has_its_exit_code():
    with open("/dev/full", "w") as full:
        done = started("results", "nosuch", stdout=subprocess.PIPE, stderr=full)
    assert (done.returncode, done.stdout) == (2, "")
