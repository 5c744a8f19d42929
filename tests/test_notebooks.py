"""The notebooks run, for fewer epochs than they say, and are stored with what they show."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

CHECKOUT = Path(__file__).parents[1]
NOTEBOOKS = sorted((CHECKOUT / "notebooks").glob("*.ipynb"))
SHORTER = {  # what cells say, and what is run
    "epochs=12,": "epochs=2,",
    "epochs=40,": "epochs=3,",
    "epochs=15,": "epochs=2,",
    "epochs=20,": "epochs=3,",
    "epochs = 20": "epochs = 3",
    "epochs = 8": "epochs = 2",
    "epochs=1,": "steps=60,",
    "steps=300)": "steps=30)",
}
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def shortened(source):
    """Return a cell that trains for less long."""
    for long, short in SHORTER.items():
        source = source.replace(long, short)
    return source


@pytest.mark.slow
@every_notebook
@pytest.mark.filterwarnings("default")  # of the kernel's own packages
def test_a_notebook_runs_from_its_first_cell_to_its_last(path, tmp_path, monkeypatch):
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(CHECKOUT), before])))
    notebook = nbformat.read(path, 4)
    for cell in notebook.cells:
        cell.source = shortened(cell.source)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=place).execute()


@every_notebook
def test_a_notebook_is_stored_as_run_in_order(path):
    numbers = [cell.execution_count for cell in cells(path)]
    assert numbers == list(range(1, len(numbers) + 1))


@every_notebook
def test_a_notebook_is_stored_with_figures_and_without_errors_or_places(path):
    outputs = [output for cell in cells(path) for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert [word for word in ("/tmp/", "/home/", "/root/", "/work/") if word in str(outputs)] == []


def test_all_that_is_shortened_stands_in_a_notebook():
    said = "".join(cell.source for path in NOTEBOOKS for cell in cells(path))
    assert [long for long in SHORTER if long not in said] == []
