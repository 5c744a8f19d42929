"""The settings of `Config` as options of the command line."""

import dataclasses
import re
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import click

from .config import Config
from .settings import SettingError

_Command = TypeVar("_Command", bound=Callable[..., Any])
_STAGES = (
    "model and data", "text", "workers", "compression", "memory", "algorithm", "optimizer", "run",
)  # fmt: skip


class StagedOption(click.Option):
    """An option that knows to which stage of a step it belongs."""

    def __init__(self, *args: Any, stage: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stage = stage


class StagedCommand(click.Command):
    """A command whose help lists the options by stage."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their stages' headings."""
        stages: dict[str, list[tuple[str, str]]] = {stage: [] for stage in (*_STAGES, "other")}
        for parameter in self.get_params(ctx):
            told = parameter.get_help_record(ctx)
            if told is not None:
                stages[getattr(parameter, "stage", "other")].append(told)
        for stage, options in stages.items():
            if not options:
                continue
            with formatter.section(stage.capitalize()):
                formatter.write_dl(options)


def settings(command: _Command) -> _Command:
    """Add an option for each setting of `Config`."""
    return chosen(*(f.name for f in dataclasses.fields(Config)))(command)


def chosen(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds an option for each of these settings of `Config`."""

    def add(command: _Command) -> _Command:
        hints, fields = get_type_hints(Config), Config.__dataclass_fields__
        for name in reversed(names):
            command = _option(fields[name], hints[name])(command)
        return command

    return add


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that stood on the command line."""
    source = click.get_current_context().get_parameter_source
    return {
        name: value
        for name, value in options.items()
        if source(name) == click.core.ParameterSource.COMMANDLINE
    }


def spelled(error: SettingError, commands: Iterable[click.Command]) -> str:
    """Return a user's error with the names of settings as the commands' options have them."""
    found = [p for command in commands for p in command.params if isinstance(p, click.Option)]
    options = {str(option.name): max(option.opts, key=len) for option in found}
    compound = "|".join(name for name in options if "_" in name)
    told = error.told(options.get(error.name, error.name))
    return re.sub(rf"\b({compound})\b", lambda word: options[word[0]], told)


def _option(f: "dataclasses.Field[Any]", hint: Any) -> Callable[[_Command], _Command]:
    kind = next(k for k in get_args(hint) or (hint,) if k is not types.NoneType)
    flag = f"--{f.name.replace('_', '-')}"
    about = {
        "default": f.default,
        "help": f.metadata["help"],
        "cls": StagedOption,
        "stage": f.metadata["group"],
        "show_default": f.default not in (None, "", False),
    }
    if kind is bool:
        name = flag if f.default is False else f"{flag}/--no-{flag[2:]}"
        return click.option(name, is_flag=True, **about)
    choices = f.metadata["choices"]
    special = {Path: click.Path(path_type=Path)}
    value = click.Choice(choices) if choices else special.get(kind, kind)
    return click.option(flag, type=value, metavar=f.metadata["unit"] or None, **about)
