"""When the segments of a step can be sent: how far the backward pass is then."""

from collections.abc import Mapping

from ..communication.segments import Segment
from ..gradients.layer_work import backward_order
from ..gradients.trees import Tree
from ..methods.algorithms import Algorithm, ParameterAlgorithm
from ..recipe import Recipe
from .simulator import Simulator


def ready_segments(simulator: Simulator, x: Tree, y: Tree) -> dict[str, tuple[float, float]]:
    """Return after which part of backward, in (0, 1], each segment is there, and can be sent.

    `x` [B, ...] and `y` [B, ...] are a batch as for `Simulator.step`, which this leaves as it is.
    """
    parts = simulator.components
    order = backward_order(parts.model, lambda: simulator.forward_once(x, y))
    ready = {segment.name: ready_segment(segment, order) for segment in parts.layout.segments}
    waits = waits_for_all(parts.recipe, parts.algorithm)
    return {name: (part, 1.0 if waits else part) for name, part in ready.items()}


def waits_for_all(recipe: Recipe, algorithm: Algorithm) -> bool:
    """Return whether nothing can be sent before the whole gradient is there.

    Models are exchanged after the optimizer's step, and a norm over all of a worker's gradient is
    known at its end.
    """
    clips = recipe.clip is not None and recipe.clip_by == "global-norm"
    return clips or isinstance(algorithm, ParameterAlgorithm)


def ready_segment(segment: Segment, order: Mapping[str, float]) -> float:
    """Return when the gradient of a segment is there whose parameters' are in this `order`."""
    return max(order.get(name, 1.0) for name in segment.parameters)
