"""The order of rooms: imports go upward in this list only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1] / "simsgd"
GROUND = {
    "__init__", "__main__", "catalog", "compiled_loops", "config", "ddp", "given_object",
    "keyed_random", "keyed_random_kernels", "recipe", "recipe_rules", "registry",
    "settings", "units",
}  # fmt: skip
LAYERS = [  # each imports from those before it and from itself; those of one line not each other
    {"ground"}, {"communication", "gradients"}, {"methods"}, {"results"}, {"simulator"},
    {"training"}, {"verify"}, {"bench"}, {"cli"},
]  # fmt: skip
SOURCES = sorted(HOUSE.rglob("*.py"))
DOORS = {"__init__", "__main__"}  # they name what lies in the rooms, lazily


def named(path):
    return str(path.relative_to(HOUSE))


def module(path):
    """Return a file's name within the package, such as `results.run` or `results`."""
    parts = path.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in SOURCES}


def room(name):
    first = name.split(".")[0]
    return first if any(first in layer for layer in LAYERS) else "ground"


def rank(name):
    """Return the place of a module's room in the order; ddp stands beside training."""
    place = "training" if name == "ddp" else room(name)
    return next(i for i, layer in enumerate(LAYERS) if place in layer)


def imports(path):
    """Return the modules of the package that a file imports, at its top or later.

    Those imported for type checking alone are not counted.
    """
    tree = ast.parse(path.read_text())
    typing = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    folder = path.relative_to(HOUSE).parts[:-1]
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level or node in typing:
            continue
        base = [*folder[: len(folder) - node.level + 1], *(node.module or "").split(".")]
        above = ".".join(filter(None, base))
        for alias in node.names:
            whole = f"{above}.{alias.name}".strip(".")
            yield whole if whole in MODULES else above


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_go_upward_only(path):
    own = module(path)
    if own in DOORS | {""}:
        return
    for name in imports(path):
        if name:
            assert rank(name) <= rank(own), f"{own} imports {name}"
            if rank(name) == rank(own) and own != "ddp":
                assert room(name) == room(own), f"{own} imports {name}"


def test_no_imports_go_in_a_circle():
    edges = {own: {n for n in imports(p) if n and n != own} for own, p in MODULES.items()}
    done, path = set(), []

    def visit(name):
        assert name not in path, " > ".join([*path, name])
        if name not in done:
            path.append(name)
            for other in edges.get(name, ()):
                visit(other)
            done.add(path.pop())

    for name in edges:
        if name not in DOORS:
            visit(name)


def test_the_top_of_the_package_holds_what_is_listed_here():
    assert {path.stem for path in HOUSE.glob("*.py")} == GROUND
    assert len(GROUND) <= 14


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_a_file_is_one_idea_of_at_most_350_lines(path):
    assert len(path.read_text().splitlines()) <= 350


def test_only_one_room_names_torch_distributed():
    naming = {named(path.parent) for path in SOURCES if "torch.distributed" in path.read_text()}
    assert naming == {"communication/transport"}


@pytest.mark.parametrize(
    "name",
    ["cli", "results.figures.plot", "config", "training.run_folder", "training.sweep.sweep"],
)
def test_help_figures_and_what_starts_runs_do_not_wait_for_torch(name):
    code = f"import sys, simsgd.{name}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOUSE.parent
    )
    assert done.stdout.strip() == "False"
