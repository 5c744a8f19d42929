"""Notes at the end of a loop of the user's own, which the simulator sees from within alone."""

import torch

from ..simulator.simulator import Simulator
from .loop_state import Kept


def final_exchange_notes(simulator: Simulator, epoch: int | None) -> list[str]:
    """Return a note for a loop that ends without the exchange that `final_exchange` asks for.

    `epoch` is that of its last step; None: no step was done, or it was said to be the last.
    """
    algorithm, recipe = simulator.components.algorithm, simulator.recipe
    if epoch is None or not getattr(algorithm, "final_exchange", False):
        return []
    done = simulator.steps
    if algorithm.round_of(recipe.seed, recipe.workers, done - 1, epoch).end == done:
        return []
    why = "no step was said to be the last"
    how = "call step(x, y, epoch, last=True) there"
    return [f"note: final_exchange did nothing, for {why}; {how}"]


def loader_notes(loader: object, kept: Kept) -> list[str]:
    """Return a note for a loader that draws from a generator of its own, which nobody keeps."""
    own = (getattr(part, "generator", None) for part in (loader, getattr(loader, "sampler", None)))
    drawn = [one for one in own if isinstance(one, torch.Generator)]
    if all(any(one is held for held in kept.values()) for one in drawn):
        return []
    what = "the loader's generator is not kept, so that a resumed run sees another order"
    return [f'note: {what}; give recording(..., state={{"loader": generator}})']


def unfinished_batch_notes(done: int, usual: int) -> list[str]:
    """Return a note for a loop that stops with `done` steps of a batch, where `usual` are done."""
    if not 0 < done < usual:
        return []
    what = f"{done} of {usual} steps of a batch were done"
    return [f"note: {what}; a resumed run goes on with the next batch"]
