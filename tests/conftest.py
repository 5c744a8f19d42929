import os
import sys

# Two processes run the tests, and sums must not depend on the machine: one thread here, and in all
# that is started from here. Torch reads both as it is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import pytest
import torch

torch.set_num_threads(1)

# Files that take long are begun first, lest one process is left with the last of them.
_FIRST = (
    "docs_commands", "verify", "transport", "notebooks", "figures", "plot_results", "long_runs",
    "launchers", "fuzz", "estimate", "fuzz_runs", "kills", "trainer", "algorithms", "survival",
    "bad_input", "language", "partition", "packaging", "results_table", "sweep",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if {"two", "four"} & set(item.fixturenames):
            item.add_marker("slow")
    rank = {f"test_{name}": place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def _importable(pytestconfig):
    """Let new processes import tests/process_group.py."""
    root = str(pytestconfig.rootpath)
    sys.path.append(root)
    yield
    sys.path.remove(root)


@pytest.fixture(scope="session")
def four(_importable):
    """Four processes of one group."""
    from tests.process_group import Crew

    crew = Crew(4)
    yield crew
    crew.dismiss()


@pytest.fixture(scope="session")
def two(_importable):
    """Two processes of one group."""
    from tests.process_group import Crew

    crew = Crew(2)
    yield crew
    crew.dismiss()


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
