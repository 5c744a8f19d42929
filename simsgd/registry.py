"""Finds methods by name: one registration each, and one grammar for their settings.

A file in a folder of `simsgd/methods`, as `compressors` and `algorithms` are, is found by itself.

`SPEC = part ("+" part)*`, `part = name [":" arg ("," arg)*]`, `arg = value | key=value`.
Positional values fill the fields of the method's dataclass in order: `topk:0.01`.
A method of a user's own is a file and a class, `./mine.py:Mine`, or an entry point of an installed
package in the group `simsgd.compressors`, `simsgd.memories`, `simsgd.algorithms`,
`simsgd.aggregations` or `simsgd.outer_optimizers`.
"""

import ast
import dataclasses
import importlib.metadata
import importlib.util
import pkgutil
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args, get_type_hints

from .settings import SettingError, fits, kinds_in_words, one_line, require, unknown

NOT_A_SETTING = {"setting": False}  # metadata of a field that `for_shape` fills, not a spec

_methods: dict[str, dict[str, type]] = {}
_Method = TypeVar("_Method", bound=type)


def register(kind: str, name: str) -> Callable[[_Method], _Method]:
    """Return a decorator that makes a class available as `name` among the methods of `kind`."""

    def add(method: _Method) -> _Method:
        assert name not in _methods.setdefault(kind, {}), f"{kind} {name} is registered twice"
        _methods[kind][name] = method
        return method

    return add


def names(kind: str) -> list[str]:
    """Return the names of all methods of a kind, those of installed packages included."""
    _import_folder(kind)
    return sorted({*_methods.get(kind, {}), *(point.name for point in _entry_points(kind))})


def find(kind: str, name: str) -> type:
    """Return the class behind a name, or behind `FILE.py:Name`.

    Raises `SettingError` for an unknown name, the nearest ones first.
    """
    if name not in _methods.get(kind, {}):
        _import_folder(kind)
    if name in _methods.get(kind, {}):
        return _methods[kind][name]
    for point in _entry_points(kind):
        if point.name == name:
            loaded: type = point.load()
            return loaded
    raise unknown(kind, name, names(kind))


def build(kind: str, spec: str) -> list[Any]:
    """Return one instance for each part of a spec.

    Raises `SettingError` for an unknown name or argument, or a value the method refuses.
    """
    return [_part(kind, part, spec) for part in re.split(r"\+(?=[A-Za-z_./])", spec)]


def load_file(path: Path, name: str) -> ModuleType:
    """Run a user's Python file and return it as a module.

    Raises `SettingError` if there is no such file, or if it raises.
    """
    require(path.is_file(), name, str(path), "names a file that does not exist")
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except Exception as wrong:  # whatever the user's own code raises
        raise SettingError(name, str(path), f"cannot be run: {_with_place(wrong)}") from wrong
    return module


def literal(text: str) -> Any:
    """Return the Python literal a text stands for, or the text itself; nothing is evaluated."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two of deep nesting
        return text


def settings_of(method: Any) -> "list[dataclasses.Field[Any]]":
    """Return the fields of a method that a spec may set, in order."""
    return [f for f in dataclasses.fields(method) if f.init and f.metadata.get("setting", True)]


def _part(kind: str, part: str, spec: str) -> Any:
    own = re.fullmatch(r"(.+\.py):(\w+)(?::(.*))?", part)
    if own and part.partition(":")[0] not in _methods.get(kind, {}):
        method = getattr(load_file(Path(own[1]), kind), own[2], None)
        require(isinstance(method, type), kind, part, f"names no class {own[2]} in {own[1]}")
        arguments = own[3]
    else:
        name, _, arguments = part.partition(":")
        method = find(kind, name)
    return _instance(kind, method, arguments or "", spec)


def _instance(kind: str, method: Any, arguments: str, spec: str) -> Any:
    fields = [f.name for f in settings_of(method)]
    given: dict[str, Any] = {}
    for place, argument in enumerate(filter(None, arguments.split(","))):
        key, equals, value = argument.partition("=")
        if not equals:
            require(place < len(fields), kind, spec, f"takes at most {len(fields)} values")
            key, value = fields[place], argument
        key = key.strip()
        require(key in fields, kind, spec, f"has no setting {key}", f"it has {', '.join(fields)}")
        given[key] = literal(value.strip())
    missing = [
        f.name
        for f in settings_of(method)
        if f.name not in given
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    fix = f"as in {spec}:{missing[0]}=VALUE" if missing else ""
    require(not missing, kind, spec, f"lacks a value for {', '.join(missing)}", fix)
    hints = get_type_hints(method)
    for key, value in given.items():
        kinds = get_args(hints[key]) or (hints[key],)
        if not fits(value, kinds):
            shown = value if value != "" else repr(value)
            rule = f"has {key} {shown}, which must be {kinds_in_words(kinds)}"
            raise SettingError(kind, spec, rule)
    try:
        return method(**given)
    except SettingError as wrong:
        if wrong.name not in given:
            raise
        rule = f"has {wrong.name} {given[wrong.name]}, which {wrong.rule}"
        raise SettingError(kind, spec, rule, wrong.fix) from wrong
    except TypeError as wrong:
        raise SettingError(kind, spec, f"does not fit: {wrong}") from wrong


def _with_place(wrong: Exception) -> str:
    """Return an error of somebody's code in one line, with the line that it came from."""
    last = traceback.extract_tb(wrong.__traceback__)[-1]
    line = wrong.lineno if isinstance(wrong, SyntaxError) else last.lineno
    return f"{type(wrong).__name__} at line {line}: {one_line(wrong)}"


def _import_folder(kind: str) -> None:
    """Import the files of the folder that holds a kind's methods, which registers them.

    Names that begin with an underscore and kernels, which load a compiler, wait for their users.
    """
    folder = f"{__package__}.methods.{_plural(kind)}"
    if importlib.util.find_spec(folder) is None:
        return
    for module in pkgutil.iter_modules(importlib.import_module(folder).__path__):
        if not module.ispkg and not re.match(r"_|\w*kernels$", module.name):
            importlib.import_module(f"{folder}.{module.name}")


def _entry_points(kind: str) -> importlib.metadata.EntryPoints:
    return importlib.metadata.entry_points(group=f"simsgd.{_plural(kind)}")


def _plural(kind: str) -> str:
    return {"memory": "memories"}.get(kind, kind + "s")
