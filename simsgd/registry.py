"""Finds methods by name: one registration each, and one grammar for their settings.

A file in a folder of `simsgd/methods`, as `compressors` and `algorithms` are, is found by itself.

`SPEC = part ("+" part)*`, `part = name [":" arg ("," arg)*]`, `arg = value | key=value`.
Positional values fill the fields of the method's dataclass in order: `topk:0.01`.
A method of a user's own is a file and a class, `./mine.py:Mine`, or an entry point of an installed
package in the group `simsgd.compressors`, `simsgd.memories`, `simsgd.algorithms`,
`simsgd.aggregations`, `simsgd.outer_optimizers` or `simsgd.presets`.
"""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .given_object import GivenObject, check_class, is_lost, refuse_lost
from .settings import (
    SettingError,
    one_line,
    require,
    require_file,
    require_kind,
    unknown,
)
from .units import joined_by_plus, literal

NOT_A_SETTING = {"setting": False}  # metadata of a field that `for_shape` fills, not a spec

_KINDS = (
    "aggregation", "algorithm", "attack", "compressor", "engine", "memory", "outer_optimizer",
    "preset",
)  # fmt: skip
_methods: dict[str, dict[str, type]] = {}
_contracts: dict[str, type] = {}
_added: list[str] = []  # to Python's path, the folder of the last user's file first
_own_files: set[str] = set()  # that were loaded, by their whole paths
_Method = TypeVar("_Method", bound=type)


def register(kind: str, name: str) -> Callable[[_Method], _Method]:
    """Return a decorator that makes a class available as `name` among the methods of `kind`.

    Raises `SettingError` for a kind that does not exist, and a name that another file has taken.
    """
    require_kind("name", name, str)
    if kind not in _KINDS:
        raise unknown("kind", kind, _KINDS)
    usable = re.fullmatch(r"\w[\w.-]*", name) is not None
    require(usable, kind, name, "must be named by letters, digits, _, - and .", "as mine_2")

    def add(method: _Method) -> _Method:
        taken = _methods.setdefault(kind, {}).setdefault(name, method)
        if _file_of(taken) != _file_of(method) or taken.__qualname__ != method.__qualname__:
            where = f"by {taken.__qualname__} in {_file_of(taken)} and {method.__qualname__}"
            rule = f"is registered twice, {where} in {_file_of(method)}"
            raise SettingError(kind, name, rule, "choose another name")
        _methods[kind][name] = method
        return method

    return add


def contract(kind: str) -> Callable[[_Method], _Method]:
    """Return a decorator that makes a class what every method of `kind` must inherit from."""

    def declare(base: _Method) -> _Method:
        _contracts[kind] = base
        return base

    return declare


def names(kind: str) -> list[str]:
    """Return the names of all methods of a kind, those of installed packages included."""
    _import_folder(kind)
    return sorted({*_methods.get(kind, {}), *(point.name for point in _entry_points(kind))})


def methods_of(module: str) -> list[str]:
    """Return the names of the methods that a module has registered."""
    return [n for kind in _methods.values() for n, m in kind.items() if m.__module__ == module]


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
    if isinstance(spec, GivenObject):
        return [_given(kind, spec)]
    require_kind(kind, spec, str)
    if is_lost(spec):
        refuse_lost(kind, spec)
    return [_instance(kind, *found, spec) for found in _parts(kind, spec)]


def settings_given(kind: str, spec: str) -> set[str]:
    """Return the names of the settings that a spec gives a value; of an object, not its default."""
    if isinstance(spec, GivenObject):
        fields = settings_of(type(spec.value))
        return {f.name for f in fields if getattr(spec.value, f.name) != f.default}
    return {name for found in _parts(kind, spec) for name in _arguments(kind, *found, spec)}


def load_file(path: Path, name: str) -> ModuleType:
    """Run a user's Python file and return it as a module; it may import the files beside it.

    Raises `SettingError` if there is no such file, or if it raises.
    """
    require_file(name, path)
    whole = str(path.absolute())
    _own_files.add(whole)
    _let_import(path.absolute(), name)
    module_name = f"simsgd_file_{derived_name(whole)}_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # dataclasses look it up there
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as wrong:  # whatever the user's own code raises
        del sys.modules[module_name]
        place = own_line(wrong) or f"{type(wrong).__name__}: {one_line(wrong)}"
        raise SettingError(name, str(path), f"cannot be run: {place}") from wrong
    return module


def _let_import(path: Path, name: str) -> None:
    """Let a file import those beside it, unless another folder's file of such a name is in use."""
    folders = {Path(file).parent for file in _own_files}
    for module in re.findall(r"^\s*(?:import|from)\s+(\w+)", path.read_text("latin-1"), re.M):
        other = Path(getattr(sys.modules.get(module), "__file__", None) or path).parent
        rule, fix = f"imports {module}, and that of {other} is in use", "rename one of them"
        clashes = other in folders - {path.parent} and (path.parent / f"{module}.py").exists()
        require(not clashes, name, str(path), rule, fix)
    if (place := str(path.parent)) in _added or place not in sys.path:
        _added[:] = [place, *(other for other in _added if other != place)]
        sys.path[:] = [*(other for other in sys.path if other not in _added), *_added]


def derived_name(text: str) -> str:
    """Return a short name that stands for a text."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def own_line(wrong: BaseException) -> str:
    """Return an error in one line, with the last line of a user's file that it passed; or ""."""
    if isinstance(wrong, SyntaxError) and wrong.filename in _own_files:
        return f"SyntaxError at line {wrong.lineno}: {wrong.msg}"
    for frame in reversed(traceback.extract_tb(wrong.__traceback__)):
        if frame.filename in _own_files:
            return f"{type(wrong).__name__} at line {frame.lineno}: {one_line(wrong)}"
    return ""


def own_file(wrong: BaseException) -> str:
    """Return the user's file that an error passed last, or ""."""
    files = [frame.filename for frame in traceback.extract_tb(wrong.__traceback__)]
    return next((file for file in reversed(files) if file in _own_files), "")


def own_path(module: ModuleType) -> str:
    """Return the whole path of a module of a user's own; or ""."""
    file = str(module.__spec__ and module.__file__)
    return file if str(Path(file).absolute()) in _own_files else ""


def is_own(method: object) -> bool:
    """Return whether a method was written by the user, not for this package."""
    return not is_ours(type(method))


def is_ours(defined: type | Callable[..., object]) -> bool:
    """Return whether a class or a function is defined in this package."""
    return defined.__module__.startswith(f"{__package__}.")


def settings_of(method: type) -> "list[dataclasses.Field[object]]":
    """Return the fields of a method that a spec may set, in order."""
    every = [f for f in dataclasses.fields(method) if f.init and f.metadata.get("setting", True)]
    return sorted(every, key=lambda f: bool(f.kw_only))  # which have no place, and come last


def _given(kind: str, spec: GivenObject) -> object:
    """Return the object of a spec. Raises `SettingError` if it is no method of the kind."""
    _import_folder(kind)
    base, name = _contracts.get(kind, object), type(spec.value).__name__
    if isinstance(spec.value, type):
        rule = f"is the class {spec.value.__name__}"
        raise SettingError(kind, spec.value.__name__, rule, "give an object of it")
    if isinstance(spec.value, list | tuple):
        rule, fix = f"is a {name} of {len(spec.value)}, and one is needed", "sweep takes several"
        raise SettingError(kind, None, rule, fix)
    if not isinstance(spec.value, base):
        fix = f"let its class inherit from simsgd.methods.{base.__name__}"
        raise SettingError(kind, name, f"is no {base.__name__}", fix)
    if not dataclasses.is_dataclass(spec.value):
        fix = f"write @dataclass(frozen=True) above class {name}"
        raise SettingError(kind, name, "is of a class that is no dataclass", fix)
    check_class(kind, name, type(spec.value))
    return spec.value


def _parts(kind: str, spec: str) -> Iterator[tuple[type, str]]:
    """Yield the class of each part of a spec, and the text of its arguments."""
    parts = joined_by_plus(spec)
    fix = "as in topk:0.01+sign" if kind == "compressor" else "leave the + out"
    named = len(parts) == 1 or all(parts)
    require(named, kind, spec, "must have a name before and behind each +", fix)
    for part in parts:
        own = re.fullmatch(r"(.+\.py)(?::([^:]*)(?::(.*))?)?", part)
        if own:
            _import_folder(kind)  # grace:FILE.py:Name is one of its methods
        name, _, arguments = part.partition(":")
        require(name != "" or not part, kind, spec, "must have a name before the colon")
        if own and name not in _methods.get(kind, {}):
            yield _own_class(kind, part, own[1], own[2] or ""), own[3] or ""
        else:
            found = find(kind, name)
            yield found if is_ours(found) else _checked(kind, part, found), arguments


def _own_class(kind: str, part: str, file: str, name: str) -> type:
    """Return a class of a user's file. Raises `SettingError` if it is no method of the kind."""
    _import_folder(kind)
    module, base = load_file(Path(file), kind), _contracts.get(kind, object)
    classes = {key: value for key, value in vars(module).items() if isinstance(value, type)}
    there = [
        key
        for key, value in classes.items()
        if issubclass(value, base) and value.__module__ == module.__name__
    ]
    fix = f"write {file}:NAME; it has {', '.join(there)}" if there else ""
    method = getattr(module, name, None)
    if not isinstance(method, type):
        what = f"no class {name}" if name else "no class"
        raise SettingError(kind, part, f"names {what} in {file}", fix)
    return _checked(kind, part, method)


def _checked(kind: str, part: str, method: type) -> type:
    """Return a class of a user's own. Raises `SettingError` if it is no method of the kind."""
    base, name = _contracts.get(kind, object), method.__name__
    if not issubclass(method, base):
        fix = f"write @dataclass(frozen=True) above class {name}({base.__name__})"
        raise SettingError(kind, part, f"names a class that is no {base.__name__}", fix)
    if "__dataclass_fields__" not in vars(method):
        fix = f"write @dataclass(frozen=True) above class {name}"
        raise SettingError(kind, part, "names a class that is no dataclass", fix)
    if inspect.isabstract(method):
        lacking = ", ".join(sorted(getattr(method, "__abstractmethods__", ())))
        raise SettingError(kind, part, f"names a class that lacks {lacking}", "define it there")
    check_class(kind, part, method)
    return method


def _arguments(kind: str, method: type, arguments: str, spec: str) -> dict[str, object]:
    """Return the values that a part of a spec gives, by the names of settings."""
    fields = [f.name for f in settings_of(method)]
    given: dict[str, object] = {}
    for place, argument in enumerate(arguments.split(",") if arguments else ()):
        require(argument.strip() != "", kind, spec, "has a comma with no value beside it")
        key, equals, value = argument.partition("=")
        if not equals:
            if place >= len(fields):
                most = f"at most {len(fields)} value{'s' * (len(fields) > 1)}"
                raise SettingError(kind, spec, f"takes {most}" if fields else "takes no values")
            key, value = fields[place], argument
        key = key.strip()
        fix = f"it has {', '.join(fields)}" if fields else "it has none"
        require(key in fields, kind, spec, f"has no setting {key}", fix)
        require(key not in given, kind, spec, f"sets {key} twice")
        given[key] = literal(value.strip())
    return given


def _instance(kind: str, method: type, arguments: str, spec: str) -> object:
    given = _arguments(kind, method, arguments, spec)
    none = {dataclasses.MISSING}
    needed = [f.name for f in settings_of(method) if {f.default, f.default_factory} == none]
    missing = [name for name in needed if name not in given]
    fix = f"as in {spec.rstrip(':')}:{missing[0]}=VALUE" if missing else ""
    require(not missing, kind, spec, f"lacks a value for {', '.join(missing)}", fix)
    try:
        return method(**given)
    except SettingError as wrong:
        values = {**{f.name: f.default for f in settings_of(method)}, **given}
        if wrong.name not in values:
            raise
        value = values[wrong.name] if values[wrong.name] != "" else "''"
        rule = f"has {wrong.name} {value}, which {wrong.rule}"
        fix = "separate values by commas" if isinstance(value, str) and ":" in value else wrong.fix
        raise SettingError(kind, spec, rule, fix) from wrong
    except Exception as wrong:  # whatever the user's own code raises
        if not own_line(wrong) and not isinstance(wrong, TypeError):
            raise
        reason = own_line(wrong) or one_line(wrong)
        raise SettingError(kind, spec, f"cannot be made: {reason}") from wrong


def _file_of(method: type) -> str:
    return str(getattr(sys.modules.get(method.__module__), "__file__", method.__module__))


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
