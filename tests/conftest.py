import os
import sys
from zlib import crc32

# Two processes run the tests, and sums must not depend on the machine: one thread here, and in all
# that is started from here. Torch reads both as it is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import pytest
import torch

torch.set_num_threads(1)

RANKS = {"two_ranks", "four_ranks"}  # fixtures that start processes
LONGEST = (  # files, each of which one process runs
    "test_verify.py", "test_notebooks.py", "test_docs_commands.py", "test_transport.py",
    "test_figures.py", "test_door.py", "test_kernels.py", "test_fuzz_runs.py",
)  # fmt: skip


def pytest_xdist_auto_num_workers(config):
    """Let three processes share two cores, and a fourth where slow tests wait for others' work."""
    return 3 if config.option.markexpr == "not slow" else 4


def pytest_collection_modifyitems(items):
    """Begin the longest files first, then those with slow tests, lest one process is left alone."""
    _mark_most_of_many_cases_slow(items)
    no_gpu = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if RANKS & set(item.fixturenames):
            item.add_marker("slow")
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, _place(item.path.name)))


def _place(name):
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def _mark_most_of_many_cases_slow(items):
    """Leave n cases of each test that is marked `quick_cases(n)` to the quick tests.

    Their names draw them, so that they stay the same when others are added.
    """
    cases = {}
    for item in items:
        mark = item.get_closest_marker("quick_cases")
        if mark and not item.get_closest_marker("slow"):
            of_test = cases.setdefault((item.path, item.cls, item.originalname), (*mark.args, []))
            of_test[1].append(item)
    for count, of_test in cases.values():
        for item in sorted(of_test, key=lambda item: crc32(item.name.encode()))[count:]:
            item.add_marker("slow")


@pytest.fixture(scope="session")
def _importable(pytestconfig):
    """Let new processes import tests/process_group.py."""
    root = str(pytestconfig.rootpath)
    sys.path.append(root)
    yield
    sys.path.remove(root)


@pytest.fixture(scope="session")
def four_ranks(_importable):
    """Four processes of one group."""
    from tests.process_group import ProcessGroup

    group = ProcessGroup(4)
    yield group
    group.close()


@pytest.fixture(scope="session")
def two_ranks(_importable):
    """Two processes of one group."""
    from tests.process_group import ProcessGroup

    group = ProcessGroup(2)
    yield group
    group.close()


@pytest.fixture(scope="session")
def kill_runs(_importable):
    """Runs to be ended before their time, and what is compared of them."""
    from tests import kill_runs

    return kill_runs


@pytest.fixture(scope="session")
def random_settings(_importable):
    """Settings to be drawn at random."""
    from tests import random_settings

    return random_settings


@pytest.fixture(scope="session")
def type_in(_importable):
    """What runs `simsgd` with a user's words, as `tests.fork_cli.type_in` says."""
    from tests.fork_cli import type_in

    return type_in
