"""The page that holds simulations to real processes is made as it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.distributed
def test_recipes_are_run_and_hold():
    words = [sys.executable, "docs/fidelity.py", "--quick"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    ends = re.findall(r"\| (yes|no) \|$", done.stdout, re.MULTILINE)
    assert len(ends) >= 7
    assert set(ends) == {"yes"}
    assert done.stderr.endswith(f"{len(ends) + 2} of {len(ends) + 2} recipes\n")
