"""Of two processes that would write one run's folder, one is refused and touches nothing."""

import os
import shutil
import signal
import time
import warnings

import pytest

import simsgd
from simsgd.settings import SettingError
from simsgd.training import folder_lock
from simsgd.training.folder_lock import FolderLock
from simsgd.training.run_folder import RunFolder
from tests.fork_cli import process, type_in

DELAYS = (0.0, 0.01, 0.05, 0.2, 0.4)  # seconds between two starts


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def train_and_send(settings, pipe):
    try:
        simsgd.train(**settings)
        pipe.send("")
    except SettingError as error:
        pipe.send(str(error))


def started_apart(settings, delay):
    """Return how two processes with these settings ended, the second started after a delay."""
    children = []
    for _ in range(2):
        child, pipe, other_end = process(train_and_send, settings)
        child.start()
        other_end.close()
        children.append((child, pipe))
        time.sleep(delay if len(children) == 1 else 0)
    ends = [pipe.recv() for _, pipe in children]
    for child, _ in children:
        child.join()
    return ends


@pytest.fixture(scope="module")
def short(kill_runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    return simsgd.train(**kill_runs.TINY | {"epochs": 1}, runs_dir=folder, name="a").folder


@pytest.mark.slow
@pytest.mark.parametrize("delay", DELAYS)
def test_two_processes_that_resume_one_run_leave_the_run_that_one_would(
    kill_runs, short, tmp_path, delay
):
    folder = shutil.copytree(short, tmp_path / "a")
    whole = simsgd.train(**kill_runs.TINY | {"epochs": 9}, runs_dir=tmp_path, name="whole")
    ends = started_apart({"resume": folder, "epochs": 9}, delay)
    assert "" in ends
    assert all(end == "" or "is being written by another process" in end for end in ends)
    assert kill_runs.differences(folder, whole.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("delay", DELAYS)
def test_two_processes_that_overwrite_one_run_leave_a_whole_one(kill_runs, short, tmp_path, delay):
    folder = shutil.copytree(short, tmp_path / "a")
    settings = kill_runs.TINY | {"runs_dir": tmp_path, "name": "a", "overwrite": True}
    ends = started_apart(settings | {"epochs": 9}, delay)
    assert "" in ends
    assert all(end == "" or "is being written by another process" in end for end in ends)
    assert simsgd.Run(folder).steps["step"].tolist() == [*range(1, 9 * 3 + 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "option"),
    [("--resume runs/a", "--resume"), ("--runs-dir runs --name a --overwrite", "--name")],
)
def test_a_run_that_is_being_written_is_refused_in_one_line_and_left_as_it_is(
    short, tmp_path, line, option
):
    folder = shutil.copytree(short, tmp_path / "runs" / "a")
    lock = FolderLock.of(folder, "name", "a")
    before = bytes_of(folder)
    words = f"train --model mlp --dataset digits --workers 4 --epochs 9 {line}"
    if option == "--resume":
        words = f"train {line} --epochs 9"
    code, output = type_in(words.split(), tmp_path, {})
    assert code == 2
    assert output.startswith(
        f"simsgd: {option} is being written by another process, process {os.getpid()} on "
    )
    assert len(output.splitlines()) == 1
    assert bytes_of(folder) == before
    lock.release()


def hold_until_killed(folder, pipe):
    lock = FolderLock.of(folder, "name", "a")
    pipe.send(lock.number)
    signal.pause()


def test_a_lock_ends_with_its_process(tmp_path):
    child, pipe, other_end = process(hold_until_killed, tmp_path)
    child.start()
    other_end.close()
    pipe.recv()
    with pytest.raises(SettingError, match=rf"process {child.pid} on .*; wait for its end"):
        FolderLock.of(tmp_path, "name", "a")
    child.kill()
    child.join()
    FolderLock.of(tmp_path, "name", "a").release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX forks")
def test_a_process_that_was_forked_does_not_hold_the_lock(tmp_path):
    lock = FolderLock.of(tmp_path, "name", "a")
    (ours, theirs), (begun, begins) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forked threads
        child = os.fork()
    if child == 0:
        os.close(theirs)
        os.write(begins, b"!")
        os.read(ours, 1)  # until the parent has tried
        lock.release()
        os._exit(0)
    os.read(begun, 1)
    os.close(lock.number)  # as a kill does
    lock.number = -1
    again = FolderLock.of(tmp_path, "name", "a")
    os.close(theirs)
    os.waitpid(child, 0)
    assert (tmp_path / ".lock").exists()
    again.release()


def test_a_lock_whose_file_was_taken_away_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    first, real = FolderLock.of(tmp_path, "name", "a"), folder_lock._locked

    def locked_late(number):
        first.release()  # and its file goes, between another's opening it and locking it
        return real(number)

    monkeypatch.setattr(folder_lock, "_locked", locked_late)
    second = FolderLock.of(tmp_path, "name", "a")
    monkeypatch.undo()
    with pytest.raises(SettingError):
        FolderLock.of(tmp_path, "name", "a")
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_ended_leaves_no_lock(short):
    assert not (short / ".lock").exists()


def test_a_file_system_without_locks_refuses_nobody(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(folder_lock.fcntl, "flock", refuse)
    folder = RunFolder.create(tmp_path, "a", {"model": "lenet"})
    RunFolder.resume(folder.folder).close()
    folder.close()
