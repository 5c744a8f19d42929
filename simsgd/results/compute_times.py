"""Times of forward and backward that differ from worker to worker and from step to step.

Letters: W workers.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..settings import SettingError, require
from ..units import is_plain_number

Floats = NDArray[np.float64]
_LAW = re.compile(r"lognormal:([^,]+),([^,]+)(?:,seed=(\d+))?", re.ASCII)
_LARGEST_SIGMA = 10.0  # exp(10) = 22,026 times as long, at one standard deviation
_LONGEST = 1e9  # milliseconds, twelve days


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds of a worker's forward and backward: always the same, or drawn anew in each step.

    Drawn ones are log-normal, median * exp(sigma z) with z normal, each worker's and each step's by
    itself. Their mean is median * exp(sigma^2 / 2).
    """

    median: float  # seconds
    sigma: float = 0.0  # standard deviation of the logarithm
    seed: int = 0

    @classmethod
    def of(cls, value: float | str) -> "ComputeTimes":
        """Return the times of a number of milliseconds, or of lognormal:MEDIAN,SIGMA[,seed=N].

        >>> ComputeTimes.of(100), ComputeTimes.of("lognormal:100,0.3").sigma
        (ComputeTimes(median=0.1, sigma=0.0, seed=0), 0.3)

        Raises `SettingError` for anything else.
        """
        if isinstance(value, str) and ":" in value:
            read = _LAW.fullmatch(value.replace(" ", ""))
            if read is None or not all(map(is_plain_number, read.groups()[:2])):
                rule = "must be a number, or lognormal:MEDIAN,SIGMA[,seed=N]"
                raise SettingError("compute_ms", value, rule, "such as lognormal:100,0.3")
            for part, what in ((read[1], "MEDIAN"), (read[2], "SIGMA")):
                rule = f"has {what} {part}, which must be a finite number of at least 0"
                require(_number(part) is not None, "compute_ms", value, rule)
            median, sigma = float(read[1]), float(read[2])
            rule = f"must have a SIGMA of at most {_LARGEST_SIGMA:g}"
            require(sigma <= _LARGEST_SIGMA, "compute_ms", value, rule)
            check_milliseconds("compute_ms", median)
            return cls(median / 1000, sigma, int(read[3] or 0))
        number = _number(str(value))
        if number is None:
            raise SettingError("compute_ms", value, "must be a finite number of at least 0")
        check_milliseconds("compute_ms", number)
        return cls(number / 1000)

    def drawn(self, steps: int, workers: int) -> Floats:
        """Return the seconds of each step and worker, [steps, W]; [steps, 1] of equal workers."""
        if not self.sigma:
            return np.full((steps, 1), self.median)
        z = np.random.default_rng(self.seed).standard_normal((steps, workers))
        return self.median * np.exp(self.sigma * z)


def check_milliseconds(name: str, value: float) -> None:
    """Raise `SettingError` for a time of a step that is negative, not finite or twelve days."""
    require(0 <= value < math.inf, name, value, "must be a finite number of at least 0")
    require(value <= _LONGEST, name, value, f"must be at most {_LONGEST:,.0f}, twelve days")


def _number(text: str) -> float | None:
    """Return a finite number of at least 0; None for anything else."""
    value = float(text) if is_plain_number(text) else math.nan
    return value if 0 <= value < math.inf else None
