"""The command that makes a run again, from its settings."""

import shlex
from collections.abc import Mapping

from ..config import Config, default
from .config_values import OF_ONE_RUN, OF_THE_MACHINE, RECORDS, in_full
from .run_tables import RunTables

_OBJECT = "object:"  # begins the value of what was given as an object in Python
_LEFT_OUT = OF_THE_MACHINE | OF_ONE_RUN | RECORDS | {"quiet"}


def command_of(run: RunTables) -> str | None:
    """Return the command that makes a run again; None where it was given objects in Python.

    Settings at their default are left out, and so are those that change no number, such as
    `device` and the run's folder.
    """
    config = run.config
    if any(isinstance(v, str) and v.startswith(_OBJECT) for v in config.values()):
        return None
    verified = config.get("verified_steps")
    words = ["simsgd", "train"] if verified is None else ["simsgd", "verify", f"--steps={verified}"]
    return shlex.join([*words, *_options(config)])


def _options(config: Mapping[str, object]) -> list[str]:
    return [
        _option(name, value)
        for name, value in config.items()
        if name in Config.__dataclass_fields__  # not one of another version
        and name not in _LEFT_OUT
        and in_full(value) != in_full(default(name))
    ]


def _option(name: str, value: object) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={in_full(value)}"
