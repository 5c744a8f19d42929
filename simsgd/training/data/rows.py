"""Data sets whose samples are mappings, as those of Hugging Face's `datasets` are.

The target is the column `label`, `labels`, `target` or `targets`; x is the other one, or a dict of
the others, as models of several inputs take it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...gradients.trees import Tree
from ...settings import SettingError, require

_TARGETS = ("label", "labels", "target", "targets")


@dataclass(frozen=True)
class Rows:
    """Samples (x, y) of a data set whose samples are mappings."""

    source: Any  # has len() and returns a mapping for a number
    target: str
    inputs: Sequence[str]
    labels: Any = None  # the column of targets, where it can be read at once

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tree, Tree]:
        row = self.source[index]
        values = {name: row[name] for name in self.inputs}
        return next(iter(values.values())) if len(values) == 1 else values, row[self.target]


def paired(name: str, part: Any) -> Any:
    """Return a data set as one of pairs (x, y).

    Raises `SettingError` for samples that are mappings without a target, or with text in them.
    """
    if hasattr(part, "with_format") and getattr(part, "format", {}).get("type") is None:
        part = part.with_format("torch")  # of Hugging Face, whose rows are else lists and images
    first = part[0]
    if not isinstance(first, Mapping):
        return part
    target = next((column for column in _TARGETS if column in first), None)
    columns = ", ".join(map(str, first))
    if target is None:
        rule = f"has the columns {columns}, and of these none is a target"
        raise SettingError("dataset", name, rule, f"name it {_TARGETS[0]}")
    require(len(first) > 1, "dataset", name, f"has but one column, {target}", "give inputs too")
    for column, value in first.items():
        if isinstance(value, str | bytes):
            rule = f"has a column {column} of text"
            fix = "turn it into numbers, or leave it out, as by .remove_columns"
            raise SettingError("dataset", name, rule, fix)
    whole = part[target][:] if getattr(part, "format", {}).get("type") == "torch" else None
    return Rows(part, target, [column for column in first if column != target], whole)
