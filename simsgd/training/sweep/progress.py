"""Shows the progress of a sweep: one bar over all runs, and a line for each that ends."""

from collections.abc import Mapping
from pathlib import Path

from ...results.run import Run
from ...units import in_units
from ..progress import is_printed, is_seen, tqdm
from .process_pool import Ending

_BAR = "{l_bar}{bar}| {n:.1f}/{total} runs [{elapsed}<{remaining}]"


class SweepProgress:
    """One bar on a terminal or in a notebook, and lines."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.off = quiet or not is_seen()
        self.parts: dict[str, float] = {}
        self.ended = 0
        self.bar = tqdm(total=0, disable=self.off, dynamic_ncols=True, leave=False)

    def close(self) -> None:
        """Take the bar away."""
        self.bar.close()

    def check(self, number: int, total: int) -> None:
        """Show that so many combinations were found to be sound or not."""
        self._draw("checking", number, total)

    def begin(self, folder: Path, parts: Mapping[str, float]) -> None:
        """Say what there is to do; `parts` are how much of each run is done."""
        self.parts = dict(parts)
        done = sum(part == 1 for part in parts.values())
        self.ended = done
        begun = sum(0 < part < 1 for part in parts.values())
        told = [f"{done} done before"] * (done > 0) + [f"{begun} to continue"] * (begun > 0)
        runs = f"{len(parts)} run{'s' * (len(parts) != 1)} in {folder}"
        self.write(runs + (f": {', '.join(told)}" if told else ""))

    def show(self, name: str, part: float) -> None:
        """Show how much of a run is done."""
        self.parts[name] = part
        if self.off:
            return
        self.bar.bar_format = _BAR
        self._draw("sweep", sum(self.parts.values()), len(self.parts))

    def end(self, folder: Path, ending: Ending) -> None:
        """Say how a run ended."""
        self.ended += 1
        count = f"[{self.ended}/{len(self.parts)}] {folder.name}"
        if ending.code:
            self.write(f"{count}: failed: {ending.reason}")
            return
        self.show(folder.name, 1.0)
        run = Run(folder)
        last, seconds = run.last, run.seconds
        self.write(
            f"{count}: {run.metric.row_in_words(last)}, sent {in_units(last.payload_bytes)}, "
            f"ratio {last.ratio:.1f}, {seconds:.1f} s"
        )

    def write(self, text: str) -> None:
        """Print a text."""
        self.quiet = self.quiet or not is_printed(text)

    def _draw(self, what: str, number: float, total: int) -> None:
        self.bar.set_description_str(what, refresh=False)
        self.bar.total, self.bar.n = total, number
        self.bar.refresh()
