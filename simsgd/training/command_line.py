"""Spells the settings of a run as the command that makes it."""

from collections.abc import Mapping

from ..config import default
from ..settings import SettingError

_FOR_PYTHON = {  # options that are no settings: what does the same in Python
    "dry_run": "simsgd.bytes_of counts the bytes of a step without training",
    "network": "price the run that is returned: simsgd.network(run, '10gbe')",
}


def refuse_of_command_line(settings: Mapping[str, object]) -> None:
    """Raise `SettingError` for what is an option of the command line alone."""
    for name in settings.keys() & _FOR_PYTHON:
        rule = "is an option of the command line alone"
        raise SettingError(name, settings[name], rule, _FOR_PYTHON[name])


def train_command(settings: Mapping[str, object]) -> list[str]:
    """Return the words of `simsgd train` with these settings, the program's name left out.

    >>> train_command({"workers": 4, "compressor": "topk:0.01", "warmup": False, "lr": None})
    ['train', '--workers=4', '--compressor=topk:0.01', '--no-warmup']
    """
    command = ["train"]
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            if value != (default(name) or False) or default(name) is None:
                command.append(flag if value else f"--no-{flag[2:]}")
        elif value is not None:
            command.append(f"{flag}={value}")
    return command
