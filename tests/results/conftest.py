"""What tests of several files read."""

import pytest

import simsgd

from ..toy import TINY


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with three runs, one of them in a folder below and one unfinished."""
    folder = tmp_path_factory.mktemp("runs")
    for name, below, own in (("seed10", "", {"seed": 10}), ("seed2", "", {"seed": 2}),
                             ("dense", "deep", {"workers": 4})):  # fmt: skip
        simsgd.train(**{**TINY, "workers": 2, "epochs": 2, **own}, runs_dir=folder / below,
                     name=name, quiet=True)  # fmt: skip
    lines = (folder / "deep/dense/epochs.csv").read_text().splitlines(keepends=True)
    (folder / "deep/dense/epochs.csv").write_text("".join(lines[:2]))
    return folder
