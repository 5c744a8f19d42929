"""A user's error with settings spelled as options of the command line."""

import re
from collections.abc import Iterable, Iterator, Mapping

import click

from ..settings import SettingError


def with_options(error: SettingError, commands: Iterable[click.Command]) -> str:
    """Return a user's error with the names of settings as the commands' options have them."""
    found = [p for command in _all(commands) for p in command.params if isinstance(p, click.Option)]
    flags = {max(option.opts, key=len): str(option.name) for option in found}
    options = {flag.lstrip("-").replace("-", "_"): flag for flag in flags} | {
        name: flag for flag, name in flags.items()
    }
    words = {name: flag for name, flag in options.items() if flag.startswith("--")}
    rule, fix = _spelled(error.rule, words), _spelled(error.fix, words)
    named = SettingError(error.name, error.value, rule, fix)
    return named.sentence(options.get(error.name, error.name))


def _spelled(text: str, options: Mapping[str, str]) -> str:
    """Return a text with the names of settings as options, but in quotes, as of JSON."""
    compound = "|".join(name for name in options if "_" in name)
    text = re.sub(rf"(?<!\")\b({compound})\b", lambda word: options[word[0]], text)
    names = "|".join(options)
    text = re.sub(rf"(?<![-:,\w])({names})=(?=\w)", lambda word: f"{options[word[1]]} ", text)
    also = rf"\b(and|without) ({names})(?= were both|[,;]|$)"
    return re.sub(also, lambda word: f"{word[1]} {options[word[2]]}", text)


def _all(commands: Iterable[click.Command]) -> Iterator[click.Command]:
    """Yield commands, and those of groups among them."""
    for command in commands:
        yield command
        if isinstance(command, click.Group):
            yield from _all(command.commands.values())
