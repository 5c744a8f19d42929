"""Measures the model in a checkpoint."""

from dataclasses import dataclass
from math import isnan
from pathlib import Path

from ..config import Config
from ..results.metric import ERROR, NONE, Metric
from ..settings import SettingError, require_kind
from .checkpoint import load_checkpoint, require_vocabulary
from .evaluation import evaluate as measured
from .experiment import Experiment


@dataclass(frozen=True)
class Evaluation:
    """How well the model in a checkpoint does on a part of its data."""

    loss: float
    error1: float  # percent; nan where targets are no classes
    error5: float  # percent; nan too where there are no more than five classes
    metric: float  # nan where it follows from loss or errors, as of perplexity
    shown: Metric
    part: str  # val or test
    tokens: str | None  # what a text is made of; None: no text
    files_of_code: tuple[str, ...]  # that were run

    def summary(self) -> str:
        """Return the numbers, a line each."""
        part = {"val": "validation"}.get(self.part, self.part)
        facts = [(f"{part} loss", f"{self.loss:.4f}")]
        row = {"val_loss": self.loss, "val_error1": self.error1}
        row |= dict.fromkeys(self.shown.own_columns[1:], self.metric)
        if self.shown.name not in (ERROR, NONE):
            title = self.shown.title
            words = self.shown.row_in_words(row).removeprefix(f"{title} ")
            facts.append((f"{part} {title}", words))
        errors = {1: self.error1, 5: self.error5}
        facts += [
            (f"{part} error@{n}", f"{error:.2f} %")
            for n, error in errors.items()
            if not isnan(error)
        ]
        facts += [("code that was run", file) for file in self.files_of_code]
        width = max(len(name) for name, _ in facts)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in facts)


def evaluate(
    checkpoint: Path | str,
    *,
    part: str = "val",
    data_dir: Path | str | None = None,
    device: str | None = None,
) -> Evaluation:
    """Return how well the model in a checkpoint, or in a run's last one, does.

    `checkpoint` is a file or a run's folder; `part` is val, or test of a text; `data_dir` and
    `device` are those of the run unless given. Raises `SettingError` for a file that is no
    checkpoint or no longer fits its model, and for a part that the data lack.
    """
    experiment = restored(checkpoint, data_dir, device)
    return Evaluation(
        **measured(experiment, experiment.model.eval(), part),
        part=part,
        tokens=experiment.config.tokens,
        shown=experiment.metric.shown,
        files_of_code=tuple(experiment.config.files_of_code),
    )


def restored(
    checkpoint: Path | str, data_dir: Path | str | None = None, device: str | None = None
) -> Experiment:
    """Return the experiment of a checkpoint, whose model has the parameters in it.

    `data_dir` and `device` are those of the run unless given. Raises `SettingError` for a file that
    is no checkpoint or no longer fits its model.
    """
    require_kind("data_dir", data_dir, str, Path, type(None))
    given = {"data_dir": data_dir, "device": device}
    changed = {name: str(value) for name, value in given.items() if value is not None}
    state = load_checkpoint(checkpoint, "checkpoint")
    if "loop" in state:
        rule = "holds a loop of one's own, whose model and data simsgd cannot make"
        raise SettingError("checkpoint", str(checkpoint), rule, 'its "model" is a state_dict')
    try:
        config = Config.from_plain({**state["config"], **changed, "resume": None})
        experiment = Experiment.of(config)
        experiment.model.load_state_dict(state["model"])
    except (KeyError, RuntimeError, TypeError, AttributeError) as cause:
        rule = "no longer fits its model"
        raise SettingError("checkpoint", str(checkpoint), rule) from cause
    require_vocabulary("checkpoint", checkpoint, state, experiment.vocabulary)
    return experiment
