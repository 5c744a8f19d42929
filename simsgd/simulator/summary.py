"""A simulator in one line for a terminal, and as a table for a notebook.

Letters: W simulated workers.
"""

from typing import TYPE_CHECKING

from ..results import html
from ..units import in_units

if TYPE_CHECKING:
    from .simulator import Simulator


def one_line(simulator: "Simulator") -> str:
    """Return the simulator in one line."""
    recipe = simulator.recipe
    return (
        f"Simulator(workers={recipe.workers}, compressor={simulator.compressor!r}, "
        f"{_layers(simulator)}"
        f"memory={recipe.memory!r}, parameters={simulator.components.layout.n}, "
        f"steps={simulator.steps})"
    )


def html_table(simulator: "Simulator") -> str:
    """Return the simulator as a table: model, workers, what is sent, and how far it is."""
    parts, recipe = simulator.components, simulator.recipe
    n = parts.layout.n
    whole = sum(segment.n for segment in parts.layout.segments if segment.dense)
    tensors = f"{n:,} in {len(parts.params)} tensors"
    size = sum(p.numel() * p.element_size() for p in parts.params.values())
    return html.facts(
        [
            ("model", f"{type(parts.model).__name__}, {tensors}, {in_units(size)}"),
            ("workers", f"{recipe.workers}, engine {recipe.engine}"),
            *([("cluster", recipe.cluster)] if recipe.cluster else []),
            ("compressor", f"{simulator.compressor} on {n - whole:,} entries; {whole:,} whole"),
            *([("by layer", simulator.compress_layers)] if simulator.compress_layers else []),
            ("memory", str(recipe.memory)),
            (
                "algorithm",
                recipe.algorithm
                + ("" if recipe.aggregate == "mean" else f" by {recipe.aggregate}"),
            ),
            ("steps done", f"{simulator.steps:,}"),
        ]
    )


def _layers(simulator: "Simulator") -> str:
    return f"compress_layers={simulator.compress_layers!r}, " if simulator.compress_layers else ""
