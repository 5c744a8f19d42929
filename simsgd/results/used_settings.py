"""The settings as a run really used them, those included that model or regime decided.

config.json keeps them under "used": a value for each setting, or where a regime changes it a list
of phases. Folders of earlier versions have no such key; their settings are those that were given.
"""

from collections.abc import Mapping
from typing import TypedDict, TypeGuard, cast

from .config_values import RECORDS, in_short

Plain = str | int | float | None  # a value as JSON has it; bool is an int
Phase = TypedDict("Phase", {"from": str, "value": Plain})  # such as {"from": "epoch 30", ...}
Used = Plain | list[Phase]
_MOST_PHASES = 5  # that are written out
_GRAPHS = {  # of algorithms whose workers have neighbors, unless a setting names another
    **dict.fromkeys(
        ("dpsgd", "choco", "dcd", "ecd", "deepsqueeze", "qg_dsgdm", "powergossip"), "ring"
    ),
    "sgp": "one-peer",
}


def used_settings(config: Mapping[str, object]) -> dict[str, Used]:
    """Return every setting as the run used it; as it was given where config.json lacks that."""
    given = {name: cast(Used, value) for name, value in config.items() if name not in RECORDS}
    name = str(given.get("algorithm")).partition(":")[0]
    if given.get("topology") is None and name in _GRAPHS:
        given["topology"] = _GRAPHS[name]
    used = config.get("used")
    return {**given, **(used if isinstance(used, dict) else {})}


def value_in_words(value: Used) -> str:
    """Return a value as text, phases one after the other.

    >>> value_in_words(0.1)
    '0.1'
    >>> value_in_words([{"from": "start", "value": 0.1}, {"from": "epoch 30", "value": 0.01}])
    '0.1, from epoch 30: 0.01'
    """
    if not isinstance(value, list):
        return in_short(value)
    first, *later = value
    if len(later) > _MOST_PHASES:
        ends = in_short(_rounded(first["value"])), in_short(_rounded(later[-1]["value"]))
        return f"{ends[0]} at first, {ends[1]} at the end, {len(value)} values"
    changes = (f"from {phase['from']}: {in_short(_rounded(phase['value']))}" for phase in later)
    return ", ".join([in_short(_rounded(first["value"])), *changes])


def _rounded(value: Plain) -> Plain:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def is_plain(value: object) -> TypeGuard[Plain]:
    """Return whether config.json may hold this as the value of a setting."""
    return value is None or isinstance(value, str | int | float)


def is_used(value: object) -> bool:
    """Return whether config.json may hold this as a setting as it was used."""
    if not isinstance(value, list):
        return is_plain(value)
    return bool(value) and all(
        isinstance(phase, dict)
        and isinstance(phase.get("from"), str)
        and is_plain(phase.get("value"))
        for phase in value
    )
