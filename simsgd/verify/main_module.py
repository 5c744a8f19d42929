"""Starts processes that do not run the user's script again.

A new process imports the main module, and with it whatever the script does outside of
`if __name__ == "__main__"`; from standard input there is nothing to import. What verify starts is
all its own, so that its processes need the script only for methods that are registered there.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from ..registry import methods_of
from ..settings import SettingError

_GUARD = re.compile(r"^if\s+__name__\s*==\s*['\"]__main__['\"]", re.MULTILINE)


@contextmanager
def without_main() -> Iterator[None]:
    """Hide the main module from processes that are started meanwhile, if they can do without it.

    Raises `SettingError` where they cannot, and it cannot be imported.
    """
    own = methods_of("__main__")
    if own:
        _require_importable(own[0])
        yield
        return
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _require_importable(name: str) -> None:
    """Raise `SettingError` unless a process can import the main module without running it."""
    main = sys.modules["__main__"]
    path = Path(getattr(main, "__file__", None) or "<stdin>")
    rule = "is registered in the script that calls verify, whose processes must import it"
    if not path.is_file():
        fix = "put the class in a file of its own and name it, as ./mine.py:Mine"
        raise SettingError(name, None, f"{rule}, but it comes from standard input", fix)
    if not (main.__spec__ or _GUARD.search(path.read_text("utf-8", errors="replace"))):
        fix = 'put the call of verify under if __name__ == "__main__":'
        raise SettingError(name, None, rule, fix)
