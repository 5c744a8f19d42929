"""The contract of a preset: the settings that a published method comes to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...registry import contract


@contract("preset")
@dataclass(frozen=True)
class Preset:
    """A published method, `--method NAME`: settings of a step, by the names of `Recipe`.

    They hold where a user gives none. What belongs to the training and not to the method, such as
    lr, is left to the model's regime. The docstring has the paper, and what differs from it.
    """

    settings: ClassVar[Mapping[str, object]] = {}
