"""Chooses the points of a long line that show it as all of its points would."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 20_000  # of a line that is drawn whole
_PARTS = 2_000  # of a longer one: as many as a wide figure has pixels


def shown_points(heights: Sequence["NDArray[np.float64]"]) -> "NDArray[np.int64]":
    """Return the places of the points to draw of lines that have x in common, [points] each.

    Of a long line these are the first, the last, the least and the greatest of each of its parts,
    which are even along x and, for a logarithmic axis, along its logarithm too.
    """
    num_points = len(heights[0])
    if num_points <= MOST_POINTS:
        return np.arange(num_points)
    even = np.linspace(0, num_points, _PARTS + 1)
    growing = np.geomspace(1, num_points, _PARTS + 1)
    edges = np.unique(np.concatenate([even, growing]).astype("int64"))
    kept = [edges[:-1], edges[1:] - 1]
    for start, end in itertools.pairwise(edges):
        parts = [line[start:end] for line in heights]
        kept.append(start + np.array([p.argmin() for p in parts] + [p.argmax() for p in parts]))
    return np.unique(np.concatenate(kept))
