"""Lists the exit codes of the program and what they mean, for the documentation."""

from ..communication.transport import RankLost
from ..settings import SettingError
from .errors import Diverged, OutOfMemory, Unwritten
from .signals import Interrupted

_WITHOUT_ERROR = {
    0: "All is well",
    1: "`verify`: the two differ, or it is inconclusive; `sweep`: something was left out or "
    "failed; or an unexpected error",
}


def exit_codes() -> dict[int, str]:
    """Return what each exit code means: the first line of the exception that has it."""
    errors = (SettingError, Diverged, RankLost, Unwritten, OutOfMemory, Interrupted)
    meanings = {e.exit_code: (e.__doc__ or "").partition("\n")[0].rstrip(".") for e in errors}
    return {**_WITHOUT_ERROR, **meanings}


def exit_code_table() -> str:
    """Return the table that docs/command-line.md and docs/survival.md hold."""
    rows = [f"| {code} | {meaning} |" for code, meaning in exit_codes().items()]
    return "\n".join(["| exit code | what happened |", "|---|---|", *rows])
