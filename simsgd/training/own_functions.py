"""Finds a function in a file of a user's own, `./mine.py` or `./mine.py:function`."""

from collections.abc import Callable
from typing import Any

from ..given_object import WITHOUT_ASYNC, is_async
from ..registry import load_file
from ..settings import SettingError, require
from ..units import home_path, module_name


def own_function(setting: str, spec: str) -> Callable[..., Any]:
    """Return the function of a spec: the one it names, else the file's or the setting's namesake.

    Raises `SettingError` for a file or a function that does not exist.
    """
    path, _, name = spec.partition(".py")
    file = home_path(path + ".py")
    rule, fix = "names no function behind the colon", f"write {path}.py:NAME"
    require(name != ":", setting, spec, rule, fix)
    module = load_file(file, setting)
    wanted = [name.removeprefix(":")] if name else [module_name(str(file)), setting]
    function = next((vars(module)[own] for own in wanted if own in vars(module)), None)
    if not callable(function):
        raise SettingError(setting, spec, f"defines no function {' or '.join(wanted)}")
    require(not is_async(function), setting, spec, "names an async function", WITHOUT_ASYNC)
    found: Callable[..., Any] = function
    return found
