"""What becomes of gradients before anybody speaks of them: clipping, and pulls added locally.

Letters: L workers hosted here, n elements of one segment.
"""

from torch import Tensor

from .exchange import Exchange, GradientExchange
from .gradients.clipping import clip_
from .gradients.contract import Tensors
from .holding import Holding
from .layout import Layout
from .method import Method
from .recipe import Recipe
from .regularizers import Regularized


def prepared(
    values: Tensors,
    layout: Layout,
    recipe: Recipe,
    method: Method,
    exchange: Exchange,
    regularized: Regularized,
    held: Holding,
) -> list[Tensor]:
    """Return gradients {name: [L, *shape]} by segment, [L, n] each, clipped and regularised."""
    pieces = layout.split(values)
    if recipe.clip is not None:
        averaged = isinstance(exchange, GradientExchange)
        clip_(pieces, recipe.clip, recipe.workers if averaged else 1, recipe.clip_by)
    if method.locally and (method.local_decay or method.regularizers):
        read, rows = held.read(), held.per_worker
        pulls = regularized.rows(method.regularizers, method.local_decay, read, rows)
        for piece, pull in zip(pieces, layout.split(pulls), strict=True):
            piece.add_(pull)
    return pieces
