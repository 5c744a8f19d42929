from pathlib import Path

import pytest

from simsgd.training.exit_codes import exit_code_table, exit_codes

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["command-line.md", "survival.md"])
def test_the_docs_hold_the_exit_codes_of_the_exceptions(page):
    assert f"\n\n{exit_code_table()}\n\n" in (DOCS / page).read_text()


def test_no_two_endings_share_an_exit_code():
    assert list(exit_codes()) == [0, 1, 2, 3, 4, 5, 6, 130]
