"""What a simulator says of itself: a line in a terminal, a table in a notebook.

Letters: W simulated workers.
"""

from typing import TYPE_CHECKING

from ..results import html as page
from ..units import in_units

if TYPE_CHECKING:
    from .simulator import Simulator


def in_a_line(simulator: "Simulator") -> str:
    """Return the simulator in one line."""
    recipe = simulator.recipe
    return (
        f"Simulator(workers={recipe.workers}, compressor={simulator.spec!r}, "
        f"memory={recipe.memory!r}, parameters={simulator.layout.n}, steps={simulator.steps})"
    )


def in_html(simulator: "Simulator") -> str:
    """Return the simulator as a table: who trains what, what is sent of it, and how far it is."""
    recipe, layout = simulator.recipe, simulator.layout
    whole = sum(segment.n for segment in layout.segments if segment.dense)
    tensors = f"{layout.n:,} in {len(simulator.params)} tensors"
    size = sum(p.numel() * p.element_size() for p in simulator.params.values())
    return page.facts(
        [
            ("model", f"{type(simulator.model).__name__}, {tensors}, {in_units(size)}"),
            ("workers", f"{recipe.workers}, engine {recipe.engine}"),
            ("compressor", f"{simulator.spec} on {layout.n - whole:,} entries; {whole:,} whole"),
            ("memory", str(recipe.memory)),
            ("algorithm", recipe.algorithm + (" by vote" if recipe.aggregate == "vote" else "")),
            ("steps done", f"{simulator.steps:,}"),
        ]
    )
