import errno
import json
import os
import resource
import shutil
import subprocess
import sys

import pytest
import torch

import simsgd
from simsgd.results import atomic_files as files
from simsgd.results.atomic_files import NotWritten
from simsgd.settings import SettingError
from simsgd.training import folder_files
from simsgd.training.checkpoint import load_checkpoint, load_last
from simsgd.training.errors import Unwritten
from simsgd.training.run_folder import RunFolder

CONFIG = {"model": "lenet", "dataset": "mnist5k", "workers": 16, "prune": 0.999}


@pytest.fixture
def saved(tmp_path):
    """A run folder with two checkpoints."""
    run = RunFolder.create(tmp_path, "a", CONFIG)
    for step in (1, 2):
        run.save({"step": step, "weights": torch.arange(1000.0)})
    return run


def damage_end(path):
    path.write_bytes(path.read_bytes()[:-20])


def damage_middle(path):
    content = bytearray(path.read_bytes())
    content[content.index(torch.arange(500.0, 501.0).numpy().tobytes()) + 1] ^= 8
    path.write_bytes(content)


# the checkpoint before the last


def test_the_checkpoint_before_the_last_is_kept(saved):
    before = load_checkpoint(saved.folder / "previous.pt")
    assert (load_checkpoint(saved.folder)["step"], before["step"]) == (2, 1)


@pytest.mark.parametrize("harm", [os.unlink, damage_end, damage_middle, os.truncate])
def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(saved, harm):
    last = saved.folder / "last.pt"
    harm(*((last, 0) if harm is os.truncate else (last,)))
    state, warning = load_last(saved.folder)
    assert state["step"] == 1
    assert warning.startswith("warning: last.pt ")
    assert warning.endswith(f"continuing from {saved.folder / 'previous.pt'}, which is older")


def test_a_sound_last_checkpoint_is_taken_without_a_word(saved):
    state, warning = load_last(saved.folder)
    assert (state["step"], warning) == (2, "")


def test_two_damaged_checkpoints_are_refused_in_one_line(saved):
    for name in ("last.pt", "previous.pt"):
        damage_end(saved.folder / name)
    with pytest.raises(SettingError, match=r"^resume cannot be read as a checkpoint.*previous\.pt"):
        load_last(saved.folder)


def test_what_is_put_back_is_not_replaced_by_what_is_damaged(saved, monkeypatch):
    damage_end(saved.folder / "last.pt")
    saved.put_back()
    monkeypatch.setattr(folder_files, "_move", stopped)  # a kill just before the next last.pt
    with pytest.raises(KeyboardInterrupt):
        saved.save({"step": 2})
    assert [load_checkpoint(saved.folder / f"{n}.pt")["step"] for n in ("last", "previous")] == [
        1,
        1,
    ]


def stopped(*_):
    raise KeyboardInterrupt


def test_a_replaced_name_is_on_disk_too(saved, monkeypatch):
    folders, real = [], os.fsync

    def fsync(number):
        folders.append(os.path.isdir(f"/proc/self/fd/{number}"))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    saved.save({"step": 3})
    assert folders[-1]  # the last thing that is waited for is the folder
    assert folders[0] is False


@pytest.mark.slow
def test_a_run_whose_last_checkpoint_is_damaged_ends_as_if_it_were_not(kill_runs, tmp_path, capsys):
    whole = simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="whole")
    part = simsgd.train(
        **kill_runs.TINY | {"epochs": 1}, runs_dir=tmp_path, name="part", checkpoint_every=2
    )
    damage_end(part.folder / "last.pt")
    resumed = simsgd.train(resume=part.folder, epochs=2, quiet=False)
    assert kill_runs.differences(resumed.folder, whole.folder) == []
    assert "warning: last.pt cannot be read as a checkpoint" in resumed.log
    assert "warning: last.pt cannot be read as a checkpoint" in capsys.readouterr().err
    assert (part.folder / "damaged.pt").exists()


def test_a_folder_left_by_a_kill_before_its_config_can_be_overwritten(kill_runs, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".config.json.part").write_text("{")
    settings = kill_runs.TINY | {"runs_dir": tmp_path, "name": "a", "overwrite": True}
    assert len(simsgd.train(**settings).epochs) == 2


@pytest.mark.slow
def test_a_run_that_replaced_another_can_go_on(kill_runs, tmp_path):
    whole = simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="whole")
    shorter = kill_runs.TINY | {"epochs": 1}
    part = simsgd.train(**shorter, runs_dir=tmp_path, name="part", overwrite=True)
    resumed = simsgd.train(resume=part.folder, epochs=2)
    assert kill_runs.differences(resumed.folder, whole.folder) == []


def test_an_epoch_in_which_nothing_is_sent_is_logged_so(kill_runs, tmp_path):
    few = {"algorithm": "local", "local_steps": 100}
    run = simsgd.train(**kill_runs.TINY, **few, runs_dir=tmp_path, name="run")
    assert run.log.count(", nothing sent so far") == 2
    assert "nothing was sent" in run.summary()


# a disk that fails


class Full:
    """Lets so many writes to disk pass, and then none: ENOSPC, EROFS."""

    def __init__(self, monkeypatch, passes, code=errno.ENOSPC):
        self.left, self.code = passes, code
        real = os.fsync

        def fsync(number):
            self.left -= 1
            if self.left < 0:
                raise OSError(self.code, os.strerror(self.code))
            real(number)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [*range(8, 28, 3)])
def test_a_disk_that_fills_at_any_write_leaves_a_run_that_can_go_on(
    kill_runs, tmp_path, monkeypatch, passes
):
    whole = simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="whole")
    with monkeypatch.context() as patch:
        full = Full(patch, passes)
        with pytest.raises(Unwritten, match=r"cannot be written: No space left on device; .+") as e:
            simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="part", checkpoint_every=3)
    assert full.left < 0
    assert "\n" not in str(e.value)
    assert not list((tmp_path / "part").glob(".*.part"))
    assert kill_runs.differences(simsgd.train(resume=tmp_path / "part").folder, whole.folder) == []


def test_a_folder_that_becomes_read_only_is_an_error_with_the_last_good_checkpoint(
    kill_runs, tmp_path, monkeypatch
):
    Full(monkeypatch, 14, errno.EROFS)
    folder = tmp_path / "part"
    error = (
        f"Read-only file system; the last good checkpoint is {folder / 'last.pt'}; "
        f"to continue: simsgd train --resume {folder}"
    )
    with pytest.raises(Unwritten, match=f"{error}$"):
        simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="part", checkpoint_every=1)
    assert load_checkpoint(folder)["simulator"]["steps"] >= 1


def test_a_folder_deleted_during_a_run_is_an_error_and_not_made_again(
    kill_runs, tmp_path, monkeypatch
):
    step, folder = simsgd.Simulator.step, tmp_path / "part"

    def deleting(self, *arguments):
        if self.steps == 3:
            shutil.rmtree(folder)
        return step(self, *arguments)

    monkeypatch.setattr(simsgd.Simulator, "step", deleting)
    with pytest.raises(Unwritten, match=f"there is no folder {folder}; nothing of the run is left"):
        simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="part", log_every=1)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("passes", "kind", "end"),
    [(2, NotWritten, ""), (6, Unwritten, "; nothing of the run was kept")],
)
def test_a_disk_too_full_for_a_run_to_begin_is_left_as_it_was(
    kill_runs, tmp_path, monkeypatch, passes, kind, end
):
    Full(monkeypatch, passes)
    with pytest.raises(kind, match=f"No space left on device{end}$"):
        simsgd.train(**kill_runs.TINY, runs_dir=tmp_path, name="part")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_checkpoint_cut_short_in_the_middle_of_its_archive_leaves_the_last(saved):
    """The system itself refuses to let the file grow, as it does under a quota."""
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from simsgd.training.run_folder import RunFolder\n"
        "try:\n    RunFolder(Path(sys.argv[1])).save({'weights': torch.ones(100_000)})\n"
        "except OSError as wrong:\n    print(wrong)\n"
    )
    limit = (50_000, 50_000)
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved.folder)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    error = f"{saved.folder / '.last.pt.part'} cannot be written: File too large\n"
    assert (done.stdout, done.stderr) == (error, "")
    assert load_checkpoint(saved.folder)["step"] == 2


@pytest.mark.slow
def test_the_command_line_reports_a_full_disk_in_one_line_with_its_own_code(kill_runs, tmp_path):
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in kill_runs.TINY.items()
        if name != "quiet"
    ]
    done = subprocess.run(
        [sys.executable, "-m", "simsgd", "train", *options, "--name=a", f"--runs-dir={tmp_path}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)),
    )
    assert done.returncode == 5
    assert done.stderr.startswith("simsgd: ")
    assert done.stderr.count("\n") == 1
    assert "cannot be written: File too large; nothing was saved yet" in done.stderr


def test_a_write_that_fails_names_the_file_and_the_reason(tmp_path):
    with pytest.raises(NotWritten, match=f"^{tmp_path / 'no' / 'a'} cannot be written: there is"):
        files.append(tmp_path / "no" / "a", "text")
    (tmp_path / "a").mkdir()
    with pytest.raises(NotWritten, match="cannot be written: Is a directory"):
        files.replace(tmp_path / "a", lambda file: file.write(b"text"))
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == '["a"]'


def test_a_run_that_lost_its_checkpoints_is_not_begun_again(tmp_path, kill_runs):
    settings = {**kill_runs.TINY, "runs_dir": tmp_path, "quiet": True, "epochs": 2}
    run = simsgd.train(**settings, name="a")
    for name in ("last.pt", "previous.pt"):
        (run.folder / name).unlink(missing_ok=True)
    with pytest.raises(simsgd.SettingError, match="resume has lost its checkpoints"):
        simsgd.train(resume=run.folder, epochs=3, quiet=True)
    assert len(simsgd.Run(run.folder).epochs) == 2


def test_a_run_without_a_checkpoint_says_that_it_begins_again(tmp_path, kill_runs, capsys):
    settings = {**kill_runs.TINY, "runs_dir": tmp_path, "quiet": True, "epochs": 1}
    run = simsgd.train(**settings, name="a")
    for name in ("last.pt", "previous.pt"):
        (run.folder / name).unlink(missing_ok=True)
    again = simsgd.train(resume=run.folder, quiet=False)
    told = "note: there is no checkpoint, so that the run begins again"
    assert told in again.log
    assert told in capsys.readouterr().err
    assert again.steps["step"].tolist() == run.steps["step"].tolist()
