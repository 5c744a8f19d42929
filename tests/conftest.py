import sys

import pytest
import torch

torch.set_num_threads(1)  # two processes run the tests, and sums must not depend on the machine


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
