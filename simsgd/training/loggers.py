"""Logs the rows of steps.csv and epochs.csv to TensorBoard and Weights & Biases.

Both are asked for (`--tensorboard`, `--wandb`), come as extras, and are imported only then. Columns
go by their own names under step/ and epoch/, against the number of steps done.
"""

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..config import Config
from ..results.atomic_files import replace
from ..results.tables import StepRow, numbers_of
from ..settings import SettingError

_NAMES = ("tensorboard", "wandb")  # settings, extras and packages are all called so
_PLACES = {"step", "epoch"}  # columns that say the place of a row


class Dashboard(Protocol):
    """Takes the numbers of a run while it trains."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Take numbers by name, with `step` steps done."""

    def flush(self) -> None:
        """Write to disk what was logged."""

    def close(self) -> None:
        """End the session."""


def require_installed(config: Config) -> None:
    """Raise `SettingError`, naming the extra, if a dashboard is asked for and not installed."""
    for name in _NAMES:
        if getattr(config, name):
            try:
                importlib.import_module(name)
            except ImportError as missing:
                rule = f"needs {name}, which is not installed"
                fix = f"it comes with: pip install 'simsgd[{name}]'"
                raise SettingError(name, None, rule, fix) from missing


class Dashboards:
    """Those that a run's settings ask for; none by default."""

    def __init__(self, dashboards: Sequence[Dashboard] = ()) -> None:
        self.dashboards = dashboards

    @classmethod
    def of(cls, config: Config, folder: Path, steps: int) -> "Dashboards":
        """Return the dashboards of a run that has done so many steps."""
        asked: list[Dashboard] = []
        if config.tensorboard:
            asked.append(TensorBoard(folder, steps))
        if config.wandb:
            asked.append(WandB(config, folder))
        return cls(asked)

    def step(self, row: StepRow) -> None:
        """Log a row of steps.csv."""
        self._log("step", row)

    def epoch(self, row: Mapping[str, float]) -> None:
        """Log the numbers of a row of epochs.csv."""
        self._log("epoch", row)

    def flush(self) -> None:
        """Write to disk what was logged."""
        for dashboard in self.dashboards:
            dashboard.flush()

    def close(self) -> None:
        """End all sessions."""
        for dashboard in self.dashboards:
            dashboard.close()

    def _log(self, kind: str, row: Mapping[str, object]) -> None:
        if not self.dashboards:
            return
        named = numbers_of(row)
        numbers = {f"{kind}/{n}": number for n, number in named.items() if n not in _PLACES}
        for dashboard in self.dashboards:
            dashboard.log(numbers, int(named["step"]))


class TensorBoard:
    """Event files in the run's folder, under tensorboard/; a resumed run hides what it repeats."""

    def __init__(self, folder: Path, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=steps + 1)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Take numbers by name, with `step` steps done."""
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)

    def flush(self) -> None:
        """Write to disk what was logged."""
        self.writer.flush()

    def close(self) -> None:
        """End the session."""
        self.writer.close()


class WandB:
    """A session of Weights & Biases, kept in the run's folder under wandb/.

    It is offline, to be sent later by `wandb sync`, unless WANDB_MODE names another mode.
    A resumed run keeps its id.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        wandb = importlib.import_module("wandb")
        place = folder / "wandb" / "simsgd.json"
        known = json.loads(place.read_text("utf-8"))["id"] if place.exists() else None
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "simsgd"),
            name=folder.name,
            id=known,
            resume="allow" if known else None,
            dir=str(folder),
            config=config.plain(),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings={"silent": config.quiet},
        )
        if known is None:
            place.parent.mkdir(exist_ok=True)
            text = json.dumps({"id": self.run.id}).encode()
            replace(place, lambda file: file.write(text))
        self.run.define_metric("*", step_metric="steps")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Take numbers by name, with `step` steps done."""
        self.run.log({**numbers, "steps": step})

    def flush(self) -> None:
        """Do nothing: wandb writes on its own."""

    def close(self) -> None:
        """End the session."""
        self.run.finish()
