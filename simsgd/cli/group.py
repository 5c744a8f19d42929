"""The program: a group of commands that tells a user's error in one line."""

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from .. import __version__
from ..settings import SettingError
from .options import spelled

_EXIT_CODES = {  # by name: some are of rooms with torch
    "Diverged": 3, "RankLost": 4, "Unwritten": 5, "NotWritten": 5, "OutOfMemory": 6,
    "Interrupted": 130,
}  # fmt: skip

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class OneLine(click.Group):
    """A group that tells a user's error in one line on stderr."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line and leave with an exit code.

        2 user's error, 3 diverged, 4 lost rank, 5 disk or folder cannot be written, 6 out of
        memory, 130 Ctrl-C.
        """
        kwargs["standalone_mode"] = False
        code = _code(lambda: super(OneLine, self).main(*args, **kwargs))
        if code == _EXIT_CODES["RankLost"]:
            os._exit(code)  # what is left of a broken process group may abort when it is torn down
        sys.exit(code)


@click.group(cls=OneLine, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="simsgd")
def main() -> None:
    """Simulate data-parallel SGD with compressed gradients on one device, and count the bytes.

    Begin with: simsgd train --workers 16 --prune 0.999
    """


def _code(work: Callable[[], Any]) -> int:
    try:
        result = work()
    except SettingError as error:
        return _told(spelled(error, main.commands.values()), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _told(" ".join(error.format_message().split()), 2)
    except click.exceptions.Abort:
        return _told("stopped at once", 130)
    except (RuntimeError, OSError) as error:
        if type(error).__name__ not in _EXIT_CODES:
            raise
        return _told(str(error), _EXIT_CODES[type(error).__name__])
    return result if isinstance(result, int) else 0


def _told(text: str, code: int) -> int:
    click.echo(f"simsgd: {text}", err=True)
    return code
