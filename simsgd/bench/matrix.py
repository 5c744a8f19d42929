"""The shape in which a bench compresses a vector.

Letters: n elements of the vector.
"""

import math


def near_square(n: int) -> tuple[int, int]:
    """Return the sides of the most nearly square matrix of n elements.

    >>> near_square(1000)
    (25, 40)
    """
    rows = next(side for side in range(math.isqrt(n), 0, -1) if n % side == 0)
    return rows, n // rows
