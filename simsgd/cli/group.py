"""The program: a group of commands that prints a user's error in one line."""

import os
import sys
from collections.abc import Callable
from typing import Any, Never

import click

from .. import __version__
from ..settings import SettingError
from .error_text import with_options

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class OneLine(click.Group):
    """A group that prints a user's error in one line on stderr."""

    def main(self, *args: Any, **kwargs: Any) -> Never:
        """Run the command line and leave with an exit code, the `exit_code` of an exception."""
        kwargs["standalone_mode"] = False
        sys.exit(_code(lambda: super(OneLine, self).main(*args, **kwargs)))


@click.group(cls=OneLine, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="simsgd")
def main() -> None:
    """Simulate data-parallel SGD with compressed gradients on one device, and count the bytes.

    Begin with: simsgd train --workers 16 --prune 0.999
    """


def _code(work: Callable[[], object]) -> int:
    try:
        result = work()
    except SettingError as error:
        return _print_error(with_options(error, main.commands.values()), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _print_error(" ".join(error.format_message().split()), 2)
    except click.exceptions.Abort:
        return _print_error("stopped at once", 130)
    except (RuntimeError, OSError) as error:
        exit_code = getattr(error, "exit_code", None)
        if exit_code is None:
            raise
        code = _print_error(str(error), exit_code)
        if getattr(error, "exits_at_once", False):
            os._exit(code)
        return code
    return result if isinstance(result, int) else 0


def _print_error(text: str, code: int) -> int:
    click.echo(f"simsgd: {text}", err=True)
    return code
