"""A note at the end of a loop of the user's own, whose last step the simulator cannot know."""

from ..simulator.record import StepRecord
from ..simulator.simulator import Simulator


def lacks_final_exchange(simulator: Simulator, record: StepRecord, last: bool) -> bool:
    """Return whether a loop would end here without the exchange that `final_exchange` asks for.

    `record` is that of the step that was done, and `last` what that step was told.
    """
    algorithm = simulator.components.algorithm
    if last or not getattr(algorithm, "final_exchange", False):
        return False
    done, recipe = record.step, simulator.recipe
    return algorithm.round_of(recipe.seed, recipe.workers, done - 1, record.epoch).end != done


def final_exchange_line() -> str:
    """Return a note for the end of a loop whose last exchange never came."""
    why = "no step was said to be the last"
    return f"note: final_exchange did nothing, for {why}; call step(x, y, epoch, last=True) there"
