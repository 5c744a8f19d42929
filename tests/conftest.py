import os
import sys

# Two processes run the tests, and sums must not depend on the machine: one thread here, and in all
# that is started from here. Torch reads both as it is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import pytest
import torch

torch.set_num_threads(1)

RANKS = {"two_ranks", "four_ranks"}  # fixtures that start processes


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups
def pytest_collection_modifyitems(items):
    """Let processes of xdist share tests one by one, slow ones first, but some by file.

    The largest groups are begun before any single test.
    """
    for item in items:
        if RANKS & set(item.fixturenames):
            item.add_marker("slow")
        if RANKS & set(item.fixturenames) or uses_fixture_of_its_file(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def uses_fixture_of_its_file(item):
    """Return whether a test shares what a fixture makes once for all tests of the file."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return any(each.scope == "module" for same_name in fixtures for each in same_name)


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
