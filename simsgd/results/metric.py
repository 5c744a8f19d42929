"""The metric of a run: what its tables and figures show of how well its model does.

It is error@1 where the data have classes and perplexity where they are text, unless a run's
`metric` names another. Errors and losses stand in epochs.csv under names that never change;
accuracy, perplexity and the like follow from them, and a function of one's own has columns named
as it is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from .perplexity import bits, loss_in_words, perplexity

if TYPE_CHECKING:
    import pandas as pd

ERROR, ACCURACY, PERPLEXITY, PIXEL_ERROR, NONE = NAMES = (
    "error", "accuracy", "perplexity", "pixel-error", "none",
)  # fmt: skip
MODES = ("min", "max")


Numbers: TypeAlias = "Mapping[str, float] | pd.Series[Any]"  # a row of epochs.csv


@dataclass(frozen=True)
class Metric:
    """What is shown, and which way is better."""

    name: str  # of `NAMES`, or that of a function
    column: str  # behind train_ and val_
    title: str  # in lines and headings
    unit: str = ""
    higher_is_better: bool = False
    is_own: bool = False  # a function of the user's own, whose columns the tables hold
    tokens: str | None = None  # word, char or byte, of a text

    @property
    def key(self) -> str:
        """The name of its column in `simsgd results`, which has always been `error` of error@1."""
        return "error" if self.name == ERROR else self.column

    @property
    def heading(self) -> str:
        """Its title and unit, as the heads of tables have them."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def own_columns(self) -> tuple[str, ...]:
        """The columns of epochs.csv for a function of one's own; () for what follows from others.

        >>> metric_of({"metric": "./mine.py:iou", "metric_mode": "max"}).own_columns
        ('train_iou', 'val_iou')
        """
        return (f"train_{self.column}", f"val_{self.column}") if self.is_own else ()

    @property
    def score_column(self) -> str:
        """The column of a validation that decides which epoch is the best: of texts the loss."""
        return "val_loss" if self.name == PERPLEXITY else f"val_{self.column}"

    def number(self, value: float) -> str:
        """Return a value as tables show it."""
        digits = ".4g" if self.is_own else ".4f" if self.name == NONE else ".2f"
        return f"{value:{digits}}"

    def value(self, row: Numbers, part: str = "val") -> float:
        """Return the value in a row of epochs.csv, of the part `val` or `train`."""
        named = f"{part}_{self.column}"
        if named in row:
            return row[named]
        source = row[f"{part}_{_SOURCES[self.name]}"]
        return _FUNCTIONS[self.name](source)

    def in_words(self, value: float) -> str:
        """Return a value with its name, as lines of progress have it.

        >>> metric_of({}).in_words(3.14159), metric_of({"metric": "accuracy"}).in_words(96.5)
        ('error@1 3.14 %', 'accuracy 96.50 %')
        """
        return f"{self.title} {self.number(value)}" + (f" {self.unit}" if self.unit else "")

    def row_in_words(self, row: Numbers, part: str = "val") -> str:
        """Return its value in a row of epochs.csv in words; of characters with their bits."""
        if self.tokens is not None and self.name == PERPLEXITY:
            return loss_in_words(row[f"{part}_loss"], self.tokens)
        return self.in_words(self.value(row, part))


_SOURCES = {ERROR: "error1", ACCURACY: "error1", PIXEL_ERROR: "error1", PERPLEXITY: "loss"}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    ERROR: lambda error: error,
    ACCURACY: lambda error: 100 - error,
    PIXEL_ERROR: lambda error: error,
    PERPLEXITY: perplexity,
}
_LOWER_IS_BETTER = ("error1", "error5", "pixel_error", "loss", "perplexity", "bits")
_KNOWN = {
    ERROR: Metric(ERROR, "error1", "error@1", "%"),
    ACCURACY: Metric(ACCURACY, "accuracy", "accuracy", "%", higher_is_better=True),
    PERPLEXITY: Metric(PERPLEXITY, "perplexity", "perplexity"),
    PIXEL_ERROR: Metric(PIXEL_ERROR, "pixel_error", "pixel error", "%"),
    NONE: Metric(NONE, "loss", "loss"),
}


_SOURCE_OF_COLUMN = {_KNOWN[name].column: name for name in _SOURCES}


def metric_of(config: Mapping[str, object]) -> Metric:
    """Return the metric of a run, from its config.json; of earlier versions' runs too."""
    tokens, spec = config.get("tokens"), config.get("metric")
    if not isinstance(spec, str):
        spec = ERROR if tokens is None else PERPLEXITY
    known = _KNOWN.get(spec) or _own(spec, config.get("metric_mode") == "max")
    words = tokens if isinstance(tokens, str) else None
    return Metric(**{**vars(known), "tokens": words})


def metric_of_key(key: str) -> Metric:
    """Return the metric that a column of `simsgd results` shows."""
    return next((known for known in _KNOWN.values() if known.key == key), _own(key, False))


def higher_is_better(column: str, metrics: Iterable[Metric]) -> bool | None:
    """Return whether more is better of a column of epochs.csv; None where neither is.

    >>> higher_is_better("val_loss", []), higher_is_better("lr", [])
    (False, None)
    """
    for metric in metrics:
        if column.removeprefix("train_").removeprefix("val_") == metric.column:
            return metric.higher_is_better
    if column.endswith("accuracy"):
        return True
    return False if column.endswith(_LOWER_IS_BETTER) else None


def column_named(name: str, table: "pd.DataFrame") -> str | None:
    """Return the column of evaluations that a name stands for: its own, or a metric's; or None.

    `error` is val_error1, `loss` val_loss, `perplexity` val_perplexity, though no column has it.
    """
    short = _KNOWN[name].column if name in _SOURCES else name
    for column in (short, f"val_{short}"):
        if column in table or column.partition("_")[2] in _SOURCE_OF_COLUMN:
            return column
    return None


def values_of_column(table: "pd.DataFrame", column: str) -> "pd.Series[float]":
    """Return a column of evaluations, computed from another where the table lacks it."""
    if column in table:
        return table[column].astype(float)
    part, _, short = column.partition("_")
    name = _SOURCE_OF_COLUMN[short]
    return table[f"{part}_{_SOURCES[name]}"].astype(float).map(_FUNCTIONS[name])


def own_name(spec: str) -> str:
    """Return the name of a function of one's own.

    >>> own_name("/home/me/mine.py:iou"), own_name("./dice.py"), own_name("object:iou")
    ('iou', 'dice', 'iou')
    """
    path, _, function = spec.rpartition(":")
    return function if path else PurePath(spec).stem


def with_metric(
    table: "pd.DataFrame", metric: Metric, parts: Sequence[str] = ("train", "val")
) -> "pd.DataFrame":
    """Return a table of epochs, or of workers, with the columns that follow from others."""
    names = dict.fromkeys([metric.name, *([PERPLEXITY] if metric.tokens else [])])
    derived = {
        f"{part}_{_KNOWN[name].column}": table[f"{part}_{_SOURCES[name]}"].map(_FUNCTIONS[name])
        for name in names
        if name in _SOURCES and name != ERROR
        for part in parts
    }
    if metric.tokens not in (None, "word"):
        derived["val_bits"] = table["val_loss"].map(bits)
    return table.assign(**derived)


DERIVED = (
    *(
        f"{part}_{_KNOWN[name].column}"
        for name in (ACCURACY, PERPLEXITY, PIXEL_ERROR)
        for part in ("train", "val")
    ),
    "val_bits",
)  # all that `with_metric` may add


def _own(spec: str, higher_is_better: bool) -> Metric:
    name = own_name(spec)
    return Metric(name, name, name.replace("_", " "), "", higher_is_better, is_own=True)
