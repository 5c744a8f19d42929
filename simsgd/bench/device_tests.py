"""Runs the tests that need a GPU, where a checkout has them."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .tables import Row

CHECKOUT = Path(__file__).parents[2]  # where the package lies in one
_MARK = "pytest.mark.cuda"
_LINE = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)


def cuda_tests(device: str, seconds: float, root: Path = CHECKOUT) -> tuple[list[Row], list[str]]:
    """Return how each test with the mark `cuda` in `root`/tests ended, and notes.

    The tests see `device` alone, and are stopped after so many seconds. Notes say when they were,
    and why there are none.
    """
    files = [file for file in root.glob("tests/**/test_*.py") if _MARK in file.read_text("utf-8")]
    if not files:
        return [], ["the tests that need a GPU are not in this installation"]
    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("xdist") is None:
        return [], ["the tests that need a GPU need simsgd[test] to be installed"]
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-n", "0", "-v", "--no-header"]
    command += ["-p", "no:cacheprovider", *map(str, sorted(files))]
    try:
        done = subprocess.run(
            command, cwd=root, env=_seeing(device), capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as late:
        rows = _rows(late.stdout or b"")
        return rows, [f"the tests that need a GPU were stopped after {seconds:.0f} s"]
    rows = _rows(done.stdout)
    if done.returncode > 1:  # neither all passed nor some failed
        *_, last = (b"no output\n" + done.stdout + done.stderr).strip().splitlines()
        why = last.decode(errors="replace").strip("= ")
        return rows, [f"the tests that need a GPU did not run to their end: {why}"]
    return rows, []


def _rows(output: bytes) -> list[Row]:
    found = _LINE.findall(output.decode(errors="replace"))
    return [{"table": "tests", "test": test, "outcome": how.lower()} for test, how in found]


def _seeing(device: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment in which `device`, such as cuda:1, is the only GPU.

    >>> _seeing("cuda:1", {"CUDA_VISIBLE_DEVICES": "4,6"})["CUDA_VISIBLE_DEVICES"]
    '6'
    >>> _seeing("cuda:1", {})["CUDA_VISIBLE_DEVICES"], "CUDA_VISIBLE_DEVICES" in _seeing("cuda", {})
    ('1', False)
    """
    own = {**environment, "PYTHONUNBUFFERED": "1"}
    number = device.partition(":")[2]
    if number:
        visible = own.get("CUDA_VISIBLE_DEVICES", "")
        own["CUDA_VISIBLE_DEVICES"] = visible.split(",")[int(number)] if visible else number
    return own
