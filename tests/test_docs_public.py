"""README, docs and notebooks use public names only."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

import simsgd

CHECKOUT = Path(__file__).parents[1]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((CHECKOUT / "notebooks").glob("*.ipynb"))
PUBLIC = {"simsgd", "simsgd.methods", "simsgd.ddp"}  # modules that one may import from


def code_of(path):
    """Return the Python in a page or a notebook."""
    if path.suffix == ".ipynb":
        cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
        return "\n".join(re.sub(r"^%.*", "", source, flags=re.MULTILINE) for source in sources)
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL))


def imported(code):
    """Yield the modules of simsgd that some code imports, and the name from each, if any."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((a.name, None) for a in node.names if a.name.split(".")[0] == "simsgd")
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "simsgd":
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_imports_are_public(path):
    for module, name in imported(code_of(path)):
        if not module.startswith("simsgd.models."):  # these are files that know torch alone
            assert module in PUBLIC, f"{path.name} imports {module}"
            assert name is None or name in importlib.import_module(module).__all__


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: path.name)
def test_names_of_the_package_are_public(path):
    used = re.findall(r"\bsimsgd\.([A-Za-z_]\w*)", code_of(path) or "")
    text = path.read_text() if path.suffix == ".md" else ""
    used += re.findall(r"`simsgd\.([A-Za-z_]\w*)[^`]*`", text)
    entry_points = {"compressors", "models", "regimes"}  # groups of pyproject.toml, and files
    assert set(used) - set(simsgd.__all__) - entry_points == set()


def test_code_that_is_not_public_would_be_found():
    assert list(imported("from simsgd.results.run import Run")) == [("simsgd.results.run", "Run")]
    assert list(imported("import simsgd.cli")) == [("simsgd.cli", None)]
