import subprocess
import sys

import pytest

CODE = """
import resource, torch
from simsgd.training.memory_use import malloc as heap
from simsgd.training.memory_use.peak import _resident

torch.set_num_threads(1)

def step():
    return sum(t[0] for t in [torch.ones(2**21) for _ in range(6)])  # 48 MiB, freed at its end

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

step()
torn = faults()
heap.keep()
step()
kept, held = min(faults() for _ in range(3)), _resident("VmRSS")  # the system may take pages back
heap.trim()
print(torn, kept, held - _resident("VmRSS"))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="another C library")
def test_what_a_step_freed_is_kept_for_the_next_and_given_back_at_the_end():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    torn, kept, given_back = map(int, done.stdout.split())
    assert torn > 1000
    assert kept < 100
    assert given_back > 40 * 2**20
