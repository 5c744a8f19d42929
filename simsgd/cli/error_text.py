"""A user's error with settings spelled as options of the command line."""

import re
from collections.abc import Iterable, Iterator, Mapping

import click

from ..settings import SettingError

_QUOTED = re.compile(
    r"(did you mean [^?]*\?|\b(?:known|nearest of \d+): [^;`]*|\b\w*(?:Error|Warning)\b.*)"
)


def with_options(error: SettingError, command: click.Command) -> str:
    """Return a user's error with the names of settings as the command's options have them.

    Lists of what could have been given, as of columns, and errors of others stay as they are.
    """
    found = [p for own in _all([command]) for p in own.params if isinstance(p, click.Option)]
    flags = {max(option.opts, key=len): str(option.name) for option in found}
    options = {flag.lstrip("-").replace("-", "_"): flag for flag in flags} | {
        name: flag for flag, name in flags.items()
    }
    words = {name: flag for name, flag in options.items() if flag.startswith("--")}
    rule, fix = (
        "".join(
            part if _QUOTED.match(part) else _spelled(part, words) for part in _QUOTED.split(text)
        )
        for text in (error.rule, error.fix)
    )
    off = {str(option.name): option.secondary_opts[0] for option in found if option.secondary_opts}
    if error.value is False and error.name in off:
        return SettingError(error.name, None, rule, fix).sentence(off[error.name])
    named = SettingError(error.name, error.value, rule, fix)
    return named.sentence(options.get(error.name, error.name))


def _spelled(text: str, options: Mapping[str, str]) -> str:
    """Return a text with the names of settings as options, but what a file has or declares."""
    compound = "|".join(name for name in options if "_" in name) or "(?!)"  # which nothing is
    unquoted = rf"(?<![\"',:])(?<!\bhas )(?<!\bdeclares )\b({compound})\b"  # nor within a spec
    text = re.sub(unquoted, lambda word: options[word[0]], text)
    names = "|".join(options) or "(?!)"
    text = re.sub(rf"(?<![-:,\w])({names})=(?=\w)", lambda word: f"{options[word[1]]} ", text)
    also = rf"\b(and|without|set|give|smaller) ({names})(?= were both| or |[,;]|$)"
    text = re.sub(also, lambda word: f"{word[1]} {options[word[2]]}", text)
    return re.sub(rf"(--\S+ or) ({names})\b", lambda word: f"{word[1]} {options[word[2]]}", text)


def _all(commands: Iterable[click.Command]) -> Iterator[click.Command]:
    """Yield commands, and those of groups among them."""
    for command in commands:
        yield command
        if isinstance(command, click.Group):
            yield from _all(command.commands.values())
