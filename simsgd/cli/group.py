"""The program: a group of commands that prints a user's error in one line."""

import os
import sys
from collections.abc import Callable
from typing import Any, Never

import click

from .. import __version__
from ..registry import own_file, own_line
from ..settings import SettingError, known_by_another_name
from .error_text import with_options

_COMPLETION = "_SIMSGD_COMPLETE"  # set where a shell asks for its script, or for words
_NO_COMPLETION = (
    f"{_COMPLETION} must be bash_source, zsh_source or fish_source, which print what your shell is "
    "to load; what that asks for needs COMP_WORDS and COMP_CWORD too"
)
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Refused(Exception):
    """A user's error in the words of the command line."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class OneLine(click.Group):
    """A group that prints a user's error in one line on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Raises `Refused` for a wrong setting, by the command's options."""
        try:
            return super().invoke(ctx)
        except SettingError as error:
            command = self.commands[str(ctx.invoked_subcommand)]
            raise Refused(with_options(error, command), error.exit_code) from error

    def main(self, *args: Any, **kwargs: Any) -> Never:
        """Run the command line and leave with an exit code, the `exit_code` of an exception."""
        words = kwargs.get("args") or (args[0] if args else None) or sys.argv
        kwargs["standalone_mode"] = False
        if not _has_place():
            sys.exit(
                _print_error("the current folder does not exist any more; change to another", 2)
            )
        sys.exit(_code(lambda: super(OneLine, self).main(*args, **kwargs), "--traceback" in words))


@click.group(cls=OneLine, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="simsgd")
@click.option(
    "--traceback",
    is_flag=True,
    expose_value=False,
    help="Show the traceback of an error in your own file.",
)
def main() -> None:
    """Simulate data-parallel SGD with compressed gradients on one device, and count the bytes.

    Begin with: simsgd train --workers 16 --prune 0.999
    """


def _code(work: Callable[[], object], with_traceback: bool) -> int:
    try:
        result = work()
    except click.exceptions.NoArgsIsHelpError as error:
        return _told(error.show, 2)
    except click.NoSuchOption as error:
        return _print_error(_no_such_option(error), 2)
    except click.ClickException as error:
        return _print_error(" ".join(error.format_message().split()), 2)
    except click.exceptions.Abort:
        return _print_error("stopped at once", 130)
    except SystemExit as error:
        if error.code and _COMPLETION in os.environ:
            return _print_error(_NO_COMPLETION, 2)
        if not own_file(error):
            raise
        return _code_of(error, with_traceback)
    except Exception as error:
        if _COMPLETION in os.environ:
            return _print_error(_NO_COMPLETION, 2)
        return _code_of(error, with_traceback)
    return result if isinstance(result, int) else 0


def _code_of(error: BaseException, with_traceback: bool) -> int:
    """Print an error that says how to leave, or one of a user's own file; raise any other."""
    exit_code = getattr(error, "exit_code", None)
    if exit_code is not None:
        code = _print_error(str(error), exit_code)
        if getattr(error, "exits_at_once", False):
            os._exit(code)
        return code
    if with_traceback or not own_line(error):
        raise error
    rest = "simsgd --traceback COMMAND shows all of it"
    return _print_error(f"{own_file(error)} raised {own_line(error)}; {rest}", 2)


def _has_place() -> bool:
    """Return whether the current folder is still there, which libraries ask for."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _no_such_option(error: click.NoSuchOption) -> str:
    """Return click's text, with the option that other tools call so where there is one."""
    known = error.ctx.command.params if error.ctx else []
    names = known_by_another_name(error.option_name, [own.name or "" for own in known])
    if not names:
        return error.format_message()
    flags = " or ".join(f"'--{own.replace('_', '-')}'" for own in names)
    return f"{error.message} Did you mean {flags}?"


def _print_error(text: str, code: int) -> int:
    return _told(lambda: click.echo(f"simsgd: {text}", err=True), code)


def _told(tell: Callable[[], object], code: int) -> int:
    """Print on stderr, and return the exit code."""
    try:
        tell()
    except OSError:  # nobody can read it: the code alone tells
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, where the rest is flushed at the end
    return code
