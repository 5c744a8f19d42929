"""The settings of `Config` as options of the command line."""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import click
from click.shell_completion import CompletionItem

from ..config import Config
from ..results.config_values import OF_ONE_RUN
from ..training.sweep.value_list import values_of
from .completion import Complete, complete_runs, completes
from .numbers import REAL, WHOLE
from .paths import PATH
from .terminal import show

_Command = TypeVar("_Command", bound=Callable[..., object])
Options = dict[str, Any]  # by name, each of the type that its option says
_WIDEST = 28  # characters of an option beside its help; a longer one stands above it
_STAGES = (
    "model and data", "text", "workers", "compression", "memory", "algorithm", "optimizer", "run",
)  # fmt: skip


USUAL = (  # the options of `simsgd train` that its help shows; --help-all shows the others too
    "model", "model_config", "dataset", "batch_size", "epochs", "steps", "regime", "partition",
    "seed", "workers", "engine", "prune", "compressor", "method", "memory", "granularity", "clip",
    "algorithm", "topology", "local_steps", "participation", "optimizer", "lr", "momentum",
    "weight_decay", "device", "runs_dir", "name", "resume", "dry_run",
)  # fmt: skip


class StagedOption(click.Option):
    """An option that knows to which stage of a step it belongs."""

    def __init__(self, names: Sequence[str], *, stage: str, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.stage = stage


class StagedCommand(click.Command):
    """A command whose help lists the options by stage."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their stages' headings."""
        stages: dict[str, list[tuple[str, str]]] = {stage: [] for stage in (*_STAGES, "other")}
        for parameter in self.shown(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                stages[getattr(parameter, "stage", "other")].append(record)
        names = [name for options in stages.values() for name, _ in options]
        width = min(_WIDEST, max(map(len, names)))
        for stage, options in stages.items():
            if not options:
                continue
            with formatter.section(stage.capitalize()):
                aligned = [(name.ljust(width), text) for name, text in options]
                formatter.write_dl(aligned, col_max=_WIDEST)

    def shown(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options that the help lists."""
        return self.get_params(ctx)


class ShortHelpCommand(StagedCommand):
    """A command whose help lists the options most used, and --help-all every one."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all options, --help-all after --help."""
        return [*super().get_params(ctx), _HELP_ALL]

    def shown(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options most used, or all after --help-all."""
        options = self.get_params(ctx)
        if ctx.meta.get(_ALL):
            return options
        return [o for o in options if o.name in (*USUAL, "help", _ALL)]


_ALL = "help_all"


def _print_all(ctx: click.Context, option: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        show(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="Show every option and exit; --help shows the thirty most used.",
)


def settings(command: _Command) -> _Command:
    """Add an option for each setting of `Config`."""
    return chosen(*(f.name for f in dataclasses.fields(Config)))(command)


def settings_without(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds an option for each setting of `Config` but these."""
    return chosen(*(f.name for f in dataclasses.fields(Config) if f.name not in names))


def chosen(*names: str) -> Callable[[_Command], _Command]:
    """Return a decorator that adds an option for each of these settings of `Config`."""

    def add(command: _Command) -> _Command:
        hints, fields = get_type_hints(Config), Config.__dataclass_fields__
        for name in reversed(names):
            command = _option(fields[name], hints[name])(command)
        return command

    return add


def shape_options(command: _Command) -> _Command:
    """Add the options for the shapes of a model's parameters."""
    shape = click.option(
        "--input-shape", metavar="CxHxW", help="Shape of one sample; default: the model's own."
    )
    classes = click.option(
        "--num-classes", type=WHOLE, help="Classes of the model; default: the model's own."
    )
    return classes(shape(command))


def given(options: Mapping[str, object]) -> Options:
    """Return the options that were given on the command line."""
    source = click.get_current_context().get_parameter_source
    return {
        name: value
        for name, value in options.items()
        if source(name) == click.core.ParameterSource.COMMANDLINE
    }


def swept_settings(command: _Command) -> _Command:
    """Add an option for each setting that a sweep takes, with several values."""
    hints = get_type_hints(Config)
    for f in reversed(dataclasses.fields(Config)):
        if f.name not in (*OF_ONE_RUN, "quiet"):
            command = _option(f, hints[f.name], several=True)(command)
    return command


def several(options: Options) -> dict[str, list[object]]:
    """Return the values of each setting, those of a repeated option one after the other."""
    return {
        name: [one for part in parts for one in (part if isinstance(part, list) else [part])]
        for name, parts in options.items()
    }


def _names(setting: str) -> Complete:
    """Return what completes a setting, whose names are read when a shell asks."""

    def complete(
        ctx: click.Context, parameter: click.Parameter, begun: str
    ) -> list[CompletionItem]:
        if setting == "resume":
            return complete_runs(ctx, parameter, begun)
        names = completes(setting)
        if names is not None:
            return names(ctx, parameter, begun)
        return parameter.type.shell_complete(ctx, parameter, begun)

    return complete


def _several(one: click.ParamType[object], empty: bool) -> Callable[[str], list[object]]:
    """Return what reads one value or more; "none" is one where the setting may be `empty`."""

    def values(text: str) -> list[object]:
        return [
            None if empty and part == "none" else one.convert(part, None, None)
            for part in values_of(text)
        ]

    return values


def _option(
    f: "dataclasses.Field[object]", hint: type, several: bool = False
) -> Callable[[_Command], _Command]:
    kind = next(k for k in get_args(hint) or (hint,) if k is not types.NoneType)
    flag = f"--{f.name.replace('_', '-')}"
    about: Options = {
        "help": f.metadata["help"],
        "cls": StagedOption,
        "stage": f.metadata["group"],
    }
    if several:
        about["multiple"] = True
    else:
        shown = f.default not in (None, "", False)
        about.update(default=f.default, show_default=shown)
    if kind is bool:
        name = flag if f.default is False and not several else f"{flag}/--no-{flag[2:]}"
        return click.option(name, is_flag=True, **about)
    choices = f.metadata["choices"]
    special = {Path: PATH, int: WHOLE, float: REAL}
    one = click.types.convert_type(click.Choice(choices) if choices else special.get(kind, kind))
    value: click.ParamType[object] | Callable[[str], object] = one
    metavar = f.metadata["unit"] or None
    if several:
        metavar = metavar or "|".join(choices) or one.name.upper()
        value = _several(one, empty=f.default is None and kind is not str)
    return click.option(flag, type=value, metavar=metavar, shell_complete=_names(f.name), **about)
