"""The contract of a preset: the settings that a published method comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from ...recipe import Recipe
from ...registry import build, contract
from ...settings import SettingError, nearest, shown
from ..method_class import MethodClass

_OF_TRAINING = ("lr", "method")


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

    def check(self) -> None:
        """Raise `SettingError` for settings that are no mapping, or not those of a method."""
        name, given = type(self).__name__, self.settings
        if not isinstance(given, Mapping):
            rule = f"has settings of type {type(given).__name__}"
            raise SettingError("method", name, rule, 'write settings = {"algorithm": "local"}')
        for key in given:
            if key not in (known := [f.name for f in fields(Recipe)]):
                near = nearest(str(key), known, 1, 0.5)
                fix = f"did you mean {near[0]}?" if near else "`simsgd train --help` shows all"
                raise SettingError("method", name, f"sets {shown(key)}, which is no setting", fix)
            group = Recipe.__dataclass_fields__[key].metadata["group"]
            if key in _OF_TRAINING or group in ("workers", "run"):
                rule = f"sets {key}, which belongs to the training and not to a method"
                raise SettingError(
                    "method", name, rule, "leave it out, and give it beside --method"
                )


def preset_of(spec: str) -> Preset:
    """Return the published method of a name. Raises `SettingError` for an unknown one."""
    preset: Preset = build("preset", spec)[0]
    return preset
