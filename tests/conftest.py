import os
import sys

import pytest
import torch

# Two processes run the tests, and sums must not depend on the machine: one thread here, and in all
# that is started from here, whose threads would wait for each other otherwise.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

# Files that take long are begun first, lest one process is left with the last of them.
_FIRST = (
    "docs_commands", "verify", "distributed", "notebooks", "figures", "plots", "long_runs",
    "launchers", "fuzz", "footprint", "fuzz_runs", "kills", "trainer", "algorithms", "survival",
    "bad_input", "language", "partition", "packaging", "results", "sweep",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if {"two", "four"} & set(item.fixturenames):
            item.add_marker("slow")
    rank = {f"test_{name}": place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="session")
def _importable(pytestconfig):
    """Let new processes import tests/crew.py."""
    root = str(pytestconfig.rootpath)
    sys.path.append(root)
    yield
    sys.path.remove(root)


@pytest.fixture(scope="session")
def four(_importable):
    """Four processes of one group."""
    from tests.crew import Crew

    crew = Crew(4)
    yield crew
    crew.dismiss()


@pytest.fixture(scope="session")
def two(_importable):
    """Two processes of one group."""
    from tests.crew import Crew

    crew = Crew(2)
    yield crew
    crew.dismiss()


@pytest.fixture(scope="session")
def lives(_importable):
    """Runs to be ended before their time, and what is compared of them."""
    from tests import lives

    return lives


@pytest.fixture(scope="session")
def draws(_importable):
    """Settings to be drawn at random."""
    from tests import draws

    return draws


@pytest.fixture(scope="session")
def type_in(_importable):
    """What runs `simsgd` with a user's words, as `tests.forked.type_in` says."""
    from tests.forked import type_in

    return type_in
