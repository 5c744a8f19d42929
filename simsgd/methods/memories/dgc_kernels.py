# mypy: disallow-untyped-defs=False, check-untyped-defs=False, disallow-untyped-calls=False
"""What the memory of DGC does to momentum and residual, compiled: one pass for three.

Letters: L workers hosted here, n elements of one segment.
"""

from torch import Tensor

from ...compiled_loops import flat, jit, share


def accumulated_(v: Tensor, u: Tensor, grad: Tensor, m: float, nesterov: bool) -> Tensor:
    """Return v after u = m u + g, v = v + u, in place; Nesterov: u = m (u + g), v = v + u + g."""
    momentum = grad.new_full((1,), m).numpy()
    rows, n = v.shape
    share(_accumulated, n, rows, rows, *flat(v), *flat(u), *flat(grad), momentum, nesterov)
    return v


@jit
def _accumulated(first, last, rows, v, a, u, b, grad, c, momentum, nesterov):
    m = momentum[0]
    for w in range(rows):
        residual, moved = v[w * a + first : w * a + last], u[w * b + first : w * b + last]
        own = grad[w * c + first : w * c + last]
        if nesterov:
            for i in range(len(own)):
                moved[i] = (moved[i] + own[i]) * m
                residual[i] += moved[i] + own[i]
        else:
            for i in range(len(own)):
                moved[i] = moved[i] * m + own[i]
                residual[i] += moved[i]
