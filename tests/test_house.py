"""The order of rooms: imports go upward in this list only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1] / "simsgd"
ORDER = """
    settings network units page registry draw layout wire elias messages compressors adapters memory
    topology ledger transport measures exchange gradients regularizers regime recipe language config
    algorithm method voice belonging holding averaging speaking nonfinite preparing optimizer spent
    foresight record portrait simulator consensus ddp data catalog schedule files columns tables run
    pricing runlog ending experiment evaluation traffic tally environment interrupt heap peak
    dashboards journal progress elsewhere opening determinism trainer processes flips kinks reality
    verdict verify labels ticks figure figures plots details listing shapes sizing bill allocations
    footprint relief bench effort advice grid options swept pool launchers rehearsal sweep_progress
    sweeping results report cli __main__
"""  # imports go from right to left
ROOMS = ORDER.split()
APART = {"__init__"}  # names its rooms lazily


def sources():
    return sorted(path for path in HOUSE.rglob("*.py") if path.relative_to(HOUSE) != Path("x"))


def room(path):
    first = path.relative_to(HOUSE).parts[0]
    return first.removesuffix(".py")


def imports(path):
    """Return the rooms that a file imports at module level."""
    depth = len(path.relative_to(HOUSE).parts)
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (name.split(".")[0] for name in names)


def test_every_room_has_its_place():
    assert {room(path) for path in sources()} - APART - set(ROOMS) == set()


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(HOUSE)))
def test_imports_go_upward_only(path):
    if room(path) in APART:
        return
    lower = [name for name in imports(path) if name not in ROOMS[: ROOMS.index(room(path))]]
    assert [name for name in lower if name != "__version__"] == []


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(HOUSE)))
def test_a_file_is_one_idea_of_at_most_350_lines(path):
    assert len(path.read_text().splitlines()) <= 350


def test_only_one_room_names_torch_distributed():
    naming = [path for path in sources() if "torch.distributed" in path.read_text()]
    assert {room(path) for path in naming} <= {"transport"}


@pytest.mark.parametrize("module", ["cli", "plots", "config", "runlog"])
def test_help_and_figures_do_not_wait_for_torch(module):
    code = f"import sys, simsgd.{module}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HOUSE.parent
    )
    assert done.stdout.strip() == "False"
