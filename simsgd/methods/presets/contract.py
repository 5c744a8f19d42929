"""The contract of a preset: the settings that a published method comes to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...registry import build, contract
from ..method_class import MethodClass


@contract("preset")
@dataclass(frozen=True)
class Preset(metaclass=MethodClass):
    """A published method, `--method NAME`: settings of a step, by the names of `Recipe`.

    They hold where a user gives none. What belongs to the training and not to the method, such as
    lr, is left to the model's regime. `regime` is laid over that where the method steps groups of
    parameters by optimizers of their own, unless an optimizer is given. The docstring has the
    paper, and what differs from it.
    """

    settings: ClassVar[Mapping[str, object]] = {}
    regime: ClassVar[Mapping[float, Mapping[str, object]] | None] = None


def preset_of(spec: str) -> Preset:
    """Return the published method of a name. Raises `SettingError` for an unknown one."""
    preset: Preset = build("preset", spec)[0]
    return preset
