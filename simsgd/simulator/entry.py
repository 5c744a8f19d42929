"""What calls of a simulator pass: one thread at a time, and the model that it was made of."""

import copy
import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from torch import nn

from ..settings import SettingError
from .model_form import ModelForm

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


_turn = threading.RLock()  # of all simulators: torch's and numpy's generators are the process's


class Entry:
    """Lets in one thread at a time, which may come again while it is in.

    Threads with a simulator each take turns.
    """

    def __init__(self, model: nn.Module) -> None:
        self._form, self._lock = ModelForm(model), threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            rule, fix = "is in use in another thread", "make one for each thread"
            raise SettingError("simulator", None, rule, fix)
        _turn.acquire()
        try:
            self._form.check()
        except SettingError:
            self._leave()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, Exception):  # of a model that its forward changed, perhaps
                self._form.check()
        finally:
            self._leave()

    def _leave(self) -> None:
        _turn.release()
        self._lock.release()

    def __deepcopy__(self, memo: dict[int, object]) -> "Entry":
        copied = Entry.__new__(Entry)
        copied._form, copied._lock = copy.deepcopy(self._form, memo), threading.RLock()
        return copied

    def __reduce__(self) -> NoReturn:
        fix = "save its state_dict(), and load that into one made of the same settings"
        raise SettingError("simulator", None, "cannot be pickled", fix)


class _HasEntry(Protocol):
    _entry: Entry


_Self = TypeVar("_Self", bound=_HasEntry)


def guarded_entry(
    method: Callable[Concatenate[_Self, _P], _Result],
) -> Callable[Concatenate[_Self, _P], _Result]:
    """Return a method that raises `SettingError` where the entry is refused."""

    @wraps(method)
    def entered(self: _Self, /, *args: _P.args, **named: _P.kwargs) -> _Result:
        with self._entry:
            return method(self, *args, **named)

    return entered
