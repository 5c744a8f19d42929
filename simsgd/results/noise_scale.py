"""The gradient noise scale of a run: a ratio of means, as one step's estimate is very noisy."""

import math

from .run_tables import RunTables


def noise_scale_of(run: RunTables) -> float:
    """Return mean tr(Sigma) over mean |G|^2 of the steps of a run's last epoch, in samples.

    nan where the run did not measure it, or where the mean of |G|^2 is not above 0. Means of the
    two are taken because both are unbiased and their ratio is not (McCandlish et al., "An Empirical
    Model of Large-Batch Training", 2018, appendix A.1).
    """
    if not run.config.get("noise_scale"):
        return math.nan
    steps = run.step_columns("epoch", "gradient_square", "gradient_variance")
    if steps.empty or "gradient_square" not in steps:
        return math.nan
    last = steps[steps["epoch"] == steps["epoch"].iloc[-1]].dropna()
    square, variance = last["gradient_square"].mean(), last["gradient_variance"].mean()
    return float(variance / square) if square > 0 else math.nan
