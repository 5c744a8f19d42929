"""The layout of a topology's workers: circles, stars, grids, and networkx for all others."""

import itertools
import math
from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ...communication.square_sides import square_sides

Place = tuple[float, float]
Floats = NDArray[np.float64]
_ROUND = ("ring", "path", "complete", "exponential", "expander", "one-peer", "hypercube")
_SPRINGS_TO = 128  # workers up to which springs between all pairs are fast enough


@dataclass(frozen=True)
class Places:
    """The dots of workers, within [-1, 1] both ways, and the lines between them."""

    dots: list[Place]  # of each worker
    columns: int | None = None  # of a torus, whose borders meet

    @property
    def least_distance(self) -> float:
        """The distance of the two dots that are nearest to each other."""
        return min(math.dist(a, b) for a, b in itertools.combinations(self.dots, 2))

    def line(self, a: int, b: int) -> list[tuple[Place, Place]]:
        """Return the line between two workers, or its two ends where it leaves a torus's grid."""
        (ax, ay), (bx, by) = self.dots[a], self.dots[b]
        columns = self.columns or 0
        right = columns > 0 and abs(a % columns - b % columns) > 1
        down = columns > 0 and abs(a // columns - b // columns) > 1
        if not (right or down):
            return [((ax, ay), (bx, by))]
        out = 0.62 * self.least_distance
        aside = (math.copysign(out, ax) if right else 0.0, math.copysign(out, ay) if down else 0.0)
        return [
            ((ax, ay), (ax + aside[0], ay + aside[1])),
            ((bx, by), (bx - aside[0], by - aside[1])),
        ]


def places_of(name: str, graph: "nx.Graph") -> Places:
    """Return where the workers of a topology of this name are drawn.

    A hypercube lies on a circle in the order of a Gray code, so that neighbors on the circle
    are neighbors in the graph; a torus is a grid from which lines lead out where borders meet.
    """
    workers = len(graph)
    kind = name.partition(":")[0]
    if kind == "torus":
        return _grid(*square_sides(workers))
    if kind == "star" and workers > 2:
        return Places([(0.0, 0.0), *_circle(workers - 1)])
    if kind in _ROUND:
        order = [i ^ (i >> 1) for i in range(workers)] if kind == "hypercube" else range(workers)
        at = dict(zip(order, _circle(workers), strict=True))
        return Places([at[worker] for worker in range(workers)])
    return Places(_springs(graph))


def _circle(number: int) -> list[Place]:
    """Return places on a circle, from the top on, clockwise."""
    turns = [2 * math.pi * i / number for i in range(number)]
    return [(math.sin(turn), math.cos(turn)) for turn in turns]


def _grid(rows: int, columns: int) -> Places:
    step = 2 / max(rows, columns)  # half a step is left at each side
    across = [step * (i - (columns - 1) / 2) for i in range(columns)]
    down = [-step * (i - (rows - 1) / 2) for i in range(rows)]
    return Places([(x, y) for y in down for x in across], columns)


def _springs(graph: "nx.Graph") -> list[Place]:
    """Return places at distances like those in the graph, or those of springs if it is large."""
    workers = len(graph)
    near = workers <= _SPRINGS_TO
    laid = nx.kamada_kawai_layout(graph) if near else nx.spring_layout(graph, seed=0)
    places = _scaled(np.array([laid[worker] for worker in range(workers)]))
    places = _scaled(_apart(places, 1.5 / math.sqrt(workers)))
    return [(float(x), float(y)) for x, y in places]


def _scaled(places: Floats) -> Floats:
    """Return places [W, 2] moved and scaled into [-1, 1] both ways."""
    low, high = places.min(0), places.max(0)
    scaled: Floats = (places - (low + high) / 2) / (float((high - low).max()) / 2 or 1.0)
    return scaled


def _apart(places: Floats, least: float, rounds: int = 200) -> Floats:
    """Return places [W, 2] pushed apart until none are nearer than `least`, as far as that goes."""
    for _ in range(rounds):
        away = places[:, None] - places[None]  # [W, W, 2]
        far = np.sqrt((away**2).sum(2)) + np.eye(len(places))
        push = np.clip(least - far, 0, None) / 2
        if push.max() < 0.01 * least:
            break
        places = places + (away * (push / np.maximum(far, 1e-9))[:, :, None]).sum(1) * 0.5
    return places
