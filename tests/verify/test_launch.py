import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simsgd.verify.launch import launch


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("_importable")
def test_ranks_have_the_environment_of_now(monkeypatch):
    from tests.process_group import put_variable

    for value in ("before", "now"):
        monkeypatch.setenv("SIMSGD_VALUE", value)
        assert list(launch(put_variable, 2, "SIMSGD_VALUE")) == [value, value]
    monkeypatch.delenv("SIMSGD_VALUE")
    assert list(launch(put_variable, 2, "SIMSGD_VALUE")) == [None, None]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux lists processes so")
def test_ranks_end_with_the_process_that_launched_them():
    code = (
        "from simsgd.verify.launch import launch\n"
        "from tests.process_group import put_pid_and_stay\n"
        "for rank in launch(put_pid_and_stay, 2): print(rank, flush=True)"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    ranks = [Path(f"/proc/{int(launcher.stdout.readline())}") for _ in range(2)]
    launcher.kill()
    launcher.communicate(timeout=30)
    end = time.monotonic() + 30
    while any(rank.exists() for rank in ranks):
        assert time.monotonic() < end, "they stay"
        time.sleep(0.1)


def test_ranks_are_forked_from_one_where_the_system_can(monkeypatch):
    asked = []
    monkeypatch.setattr(multiprocessing, "get_context", lambda start: asked.append(start))
    for known in (["spawn"], ["fork", "spawn", "forkserver"]):
        monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda known=known: known)
        with pytest.raises(AttributeError):
            next(launch(print, 2))
    assert asked == ["spawn", "forkserver"]
