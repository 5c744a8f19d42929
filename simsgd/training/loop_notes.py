"""Notes at the end of a loop of the user's own, which the simulator sees from within alone."""

from dataclasses import dataclass

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


@dataclass
class StepsOfBatches:
    """Counts the steps of each batch, to tell of a stop at which a batch is in hand."""

    now: int | None = None  # number of the batch in hand, counted from 1
    began: int = 0  # steps that were done when the batch came
    usual: int = 0  # steps of the batch before
    idle: int = 0  # batches of the epoch after which the next came before a step was done

    def begin(self, number: int, steps: int) -> None:
        """Take note of a batch that comes with so many steps done."""
        self.now, self.began = number, steps

    def end(self, steps: int) -> None:
        """Take note that the next batch is asked for."""
        self.usual = steps - self.began
        self.idle += not self.usual

    def notes(self, steps: int) -> list[str]:
        """Return a note for a stop in the middle, of steps that are lacking or batches kept."""
        done = steps - self.began
        if 0 < done < self.usual:
            what = f"{done} of {self.usual} steps of a batch were done"
            return [f"note: {what}; a resumed run goes on with the next batch"]
        if self.idle:
            what = f"{self.idle} batch{'es' * (self.idle > 1)} came without a step before the next"
            return [f"note: {what}; a resumed run passes over batches that were kept for later"]
        return []
