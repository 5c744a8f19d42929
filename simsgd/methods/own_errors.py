"""Tells in one line what simsgd cannot use of what methods of a user's own return."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from ..settings import SettingError, one_line

OfKind = tuple[str, object]  # a kind, as compressor, and a method of it

_RAISED = (AttributeError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
_NEEDED = ("gradient", "squares", "global_max")  # of a step, if a compressor says so


@contextmanager
def explained(found: Sequence[OfKind]) -> Iterator[None]:
    """Raise `SettingError` for an error in simsgd, with one of the methods and a line of its file.

    An error in a method's own lines stays as it is, and so does one that has an exit code.
    """
    try:
        yield
    except _RAISED as wrong:
        kept = hasattr(wrong, "exit_code") or isinstance(wrong, torch.OutOfMemoryError)
        told = None if kept or not found else _told(found, wrong)
        if told is None:
            raise
        raise told from wrong


def require_dtype(kind: str, method: object, call: str, value: Tensor, wanted: torch.dtype) -> None:
    """Raise `SettingError` for numbers of another dtype."""
    if value.dtype != wanted:
        rule = f"has {_with_article(call)} that gives {value.dtype} in place of {wanted}"
        raise SettingError(kind, type(method).__name__, rule)


def refuse_shape(
    kind: str, method: object, call: str, value: object, wanted: tuple[int, ...]
) -> NoReturn:
    """Raise `SettingError` for what is no tensor, or one of another shape."""
    shape = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
    rule = f"has {_with_article(call)} that gives {shape} in place of {list(wanted)}"
    raise SettingError(kind, type(method).__name__, rule)


def _with_article(call: str) -> str:
    return f"{'an' if call[0] in 'aeiou' else 'a'} {call}"


def _told(found: Sequence[OfKind], wrong: BaseException) -> SettingError | None:
    """Return an error in one line; None: the user's own line raised it, which it shows."""
    frames = list(traceback.walk_tb(wrong.__traceback__))
    owners = [_owner(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    last = next(owner for owner in reversed(owners) if owner)
    lines = [at for at, owner in zip(frames, owners, strict=True) if owner == "user"]
    error = f"{type(wrong).__name__}: {one_line(wrong)}"
    if not lines:
        named = " and ".join(dict.fromkeys(type(own).__name__ for _, own in found))
        rule = f"gives what cannot be exchanged: {error}"
        fix = "return what its class in simsgd.methods says"
        return SettingError(found[0][0], named, rule, fix)
    frame, at = lines[-1]
    objects = [frame.f_locals.get("self") for frame, _ in reversed(lines)]
    known = (each for own in objects for each in found if type(own) is type(each[1]))
    kind, method = next(known, found[0])
    if last == "user":
        return _lacking(kind, method, frame.f_code.co_names, wrong)
    place = f"line {at} of {Path(frame.f_code.co_filename).name}"
    return SettingError(kind, type(method).__name__, f"fails at {place}: {error}")


def _lacking(
    kind: str, method: object, names: Sequence[str], wrong: BaseException
) -> SettingError | None:
    """Return an error that comes of what a compressor reads of a step without saying so."""
    lacking = [own for own in _NEEDED if own in names and not getattr(method, f"needs_{own}", True)]
    if kind != "compressor" or "NoneType" not in str(wrong) or not lacking:
        return None
    needs = f"needs_{lacking[0]}"
    rule = f"reads step.{lacking[0]}, which is None without {needs}"
    return SettingError(kind, type(method).__name__, rule, f"write {needs} = True in the class")


def _owner(module: str) -> str:
    """Return whose a module is: ours, the user's, or of a library that both call."""
    top = module.partition(".")[0]
    if top == (__package__ or "").partition(".")[0]:
        return "ours"
    library = top in ("torch", "numpy") or (top in sys.stdlib_module_names and top != "__main__")
    return "" if library else "user"
