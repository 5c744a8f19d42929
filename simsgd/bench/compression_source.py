"""Where the time to compress comes from: a number, another machine's file, or this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..recipe import Recipe
from ..settings import require, require_kind
from ..simulator.step_bytes import Sizes
from ..units import is_plain_number
from .compressor_time import seconds_to_compress
from .measured_compression import MeasuredCompression


@dataclass(frozen=True)
class CompressionSource:
    """What says how long a worker compresses."""

    milliseconds: float | None  # that were given
    measured: MeasuredCompression | None  # what a file holds
    device: str  # on which it is timed, where neither is there; "": it takes no time

    @classmethod
    def of(
        cls, given: float | str | Path | None, measure: bool, device: str
    ) -> "CompressionSource":
        """Return the source of a number of milliseconds or a file, or else this machine.

        Raises `SettingError` for any other file, and for one beside `measure` false.
        """
        require_kind("compress_ms", given, float, str, Path, type(None))
        if given is None:
            return cls(None, None, device if measure else "")
        if isinstance(given, int | float):
            return cls(given, None, "")
        if isinstance(given, str) and is_plain_number(given):
            return cls(float(given), None, "")
        measured = MeasuredCompression.read(Path(given))
        rule = "gives times that without a measurement have no effect"
        require(measure, "compress_ms", str(given), rule, "leave one of the two out")
        return cls(None, measured, "")

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        return self.device != ""

    @property
    def machine(self) -> str:
        """The machine that was timed; "" for a number."""
        return self.device if self.measured is None else self.measured.machine

    def specs(self, usual: Sequence[str]) -> Sequence[str]:
        """Return the compressors to try: the usual ones, or those that a file has."""
        return usual if self.measured is None else self.measured.specs

    def seconds(
        self, counted: Sizes, shapes: Mapping[str, Sequence[int]], recipe: Recipe, dtype: str
    ) -> float:
        """Return the seconds in which a worker compresses its segments, 0 if all go whole.

        `shapes` are those of the parameters, {name: shape}, and `counted` their messages.
        """
        sizes = [segment.elements for segment in counted.segments if segment.compressed]
        if counted.compressor == "none" or not sizes:
            return 0.0
        if self.measured is not None:
            return self.measured.seconds(counted.compressor, sizes)
        if self.is_here:
            return seconds_to_compress(shapes, recipe, dtype, self.device)
        return (self.milliseconds or 0.0) / 1000
