"""The time that compressors take on another machine, as `bench compressors --json` measured it.

Letters: W workers, n elements of one segment.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..methods.compressors import composed
from ..settings import SettingError, require
from .compressors import FLOOR
from .tables import heading

_FIX = "give what simsgd bench compressors --json FILE wrote"


@dataclass(frozen=True)
class MeasuredCompression:
    """Seconds of each compressor by the numbers that it compressed at a time."""

    path: Path
    machine: str  # in words
    points: Mapping[str, list[tuple[float, float]]]  # (elements, seconds) by spec, rising

    @classmethod
    def read(cls, path: Path) -> "MeasuredCompression":
        """Return what a file holds. Raises `SettingError` for any other file."""
        odd = path.exists() and not (path.is_file() or path.is_dir())
        require(not odd, "compress_ms", str(path), "is no file", "give a number, or a file")
        try:
            found = json.loads(path.read_text("utf-8"))
        except OSError as wrong:
            rule = f"cannot be read ({wrong.strerror})"
            raise SettingError(
                "compress_ms", str(path), rule, "give a number, or a file"
            ) from wrong
        except (ValueError, RecursionError) as wrong:
            raise SettingError("compress_ms", str(path), "is not JSON", _FIX) from wrong
        try:
            points: dict[str, dict[float, float]] = {}
            for row in found["rows"]:
                if isinstance(row["ms"], bool) or not isinstance(row["compressor"], str):
                    raise TypeError
                size, seconds = float(row["workers"]) * float(row["n"]), float(row["ms"]) / 1000
                if not (0 < size < math.inf and 0 < seconds < math.inf):
                    raise ValueError
                points.setdefault(row["compressor"], {})[size] = seconds
            machine = heading(found["machine"])
            return cls(path, machine, {spec: sorted(own.items()) for spec, own in points.items()})
        except (LookupError, TypeError, ValueError) as wrong:
            rule = "does not hold the times of compressors"
            raise SettingError("compress_ms", str(path), rule, _FIX) from wrong

    @property
    def specs(self) -> list[str]:
        """The compressors that were timed; not those of a file of code, which have to be named."""
        return [s for s in self.points if s != FLOOR and ".py" not in s]

    def seconds(self, spec: str, sizes: Iterable[int]) -> float:
        """Return the seconds in which a worker compresses segments of these `sizes`, n each.

        Times go along the lines between measured points, and on along the last. Raises
        `SettingError` for a compressor that was not timed.
        """
        points = self.points.get(spec) or next(
            (self.points[own] for own in self.specs if composed(own) == composed(spec)), None
        )
        if points is None:
            fix = f"time it there: simsgd bench compressors --compressor {spec}"
            raise SettingError("compress_ms", str(self.path), f"has no times of {spec}", fix)
        return sum(_along(points, n) for n in sizes)


def _along(points: list[tuple[float, float]], n: int) -> float:
    """Return the seconds of n elements, by points (elements, seconds) that rise."""
    if len(points) == 1:
        return points[0][1] * n / points[0][0]
    above = next((place for place, (size, _) in enumerate(points) if size >= n), len(points) - 1)
    (low, fast), (high, slow) = points[max(0, above - 1)], points[max(1, above)]
    seconds = fast + (slow - fast) * (n - low) / (high - low)
    least = points[0][1] * n / points[0][0]  # in proportion, where a line would fall below it
    return max(seconds, least) if n < points[0][0] else seconds
