"""Finds the two sides of the most nearly square grid of a number of places. Needs no torch."""

import math


def square_sides(n: int) -> tuple[int, int]:
    """Return the rows and columns of the most nearly square grid of n places, rows <= columns.

    >>> square_sides(12), square_sides(7)
    ((3, 4), (1, 7))
    """
    rows = next(side for side in range(math.isqrt(n), 0, -1) if n % side == 0)
    return rows, n // rows
