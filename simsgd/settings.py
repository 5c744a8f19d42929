"""Declares settings, reports wrong values, and counts fractions exactly."""

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from .units import num_bytes

VALUE_DTYPES = ("float64", "float32", "float16", "bfloat16")
AMPS = ("bf16", "fp16")
PLANS = ("auto", "cpu", "gpu")
STATE_DTYPES = ("float32", "bfloat16", "float16")
CLIPS = ("global-norm", "per-tensor", "value")
ON_NONFINITE = ("stop", "skip", "zero")
INDEX_CODINGS = ("int32", "int64", "packed", "gap16")
SPARSE_COLLECTIVES = ("allgather", "gtopk", "oktopk", "cltk", "dense", "auto")

MOST_THREADS = 1024
_LARGEST = 3.4028234663852886e38  # float32
_LONGEST_SHOWN = 100  # characters of a wrong value in a message
_MOST_LISTED = 12  # names in a message; of more, the nearest
_NEAREST = 5

_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)

_LISTS = {  # what shows all names of a kind
    **{
        name: f"simsgd list {name}s"
        for name in ("algorithm", "compressor", "dataset", "engine", "method", "model", "regime")
    },
    "memory": "simsgd list memories",
    "topology": "simsgd list topologies",
    "downlink": "simsgd list compressors",
    "setting": "simsgd train --help",
}

Scope = Literal["identity", "machine", "run"]  # what a setting is about, as `setting` explains


class SettingError(ValueError):
    """A setting, or what the command line asks for, is wrong: its name, value, rule and a way out.

    The command line prints it in one line, with the option's spelling.
    """

    exit_code = 2

    def __init__(self, name: str, value: object, rule: str, fix: str = "") -> None:
        self.name, self.value, self.rule, self.fix = name, value, rule, fix
        super().__init__(self.sentence(name))

    def sentence(self, name: str) -> str:
        """Return the sentence, with the setting called `name` (`--prune` on the command line)."""
        got = "" if self.value is None or self.value is True else f", got {shown(self.value)}"
        return f"{name} {self.rule}{got}" + (f"; {self.fix}" if self.fix else "")


def setting(
    default: object,
    group: str,
    help: str,
    choices: Iterable[str] = (),
    unit: str = "",
    *,
    scope: Scope = "identity",
    on_resume: bool = False,
    per_rank: bool = False,
) -> Any:
    """Return a dataclass field with what the command line's help says of it, and its scope.

    A setting of scope "identity" decides the numbers of a run: with another value it is another
    run. One of scope "machine" decides where and how fast they are computed, and what is written
    beside them; the numbers stay the same but for rounding. One of scope "run" says which folder
    is the run's. A resumed run may have another value of what may change `on_resume`, and each rank
    its own of what is `per_rank`.
    """
    return field(
        default=default,
        metadata={
            "group": group,
            "help": help,
            "choices": tuple(choices),
            "unit": unit,
            "scope": scope,
            "on_resume": on_resume,
            "per_rank": per_rank,
        },
    )


class SettingsClass(type):
    """The type of a class of settings, which are given by name and completed before they are set.

    Raises `SettingError` for an unknown name, the nearest ones first.
    """

    def __call__(cls, *unnamed: object, **given: object) -> Any:
        """Return settings: the given ones, those that they bring along, and defaults."""
        if unnamed:
            raise SettingError("setting", unnamed[0], "must be given by name", "write workers=4")
        known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in given:
            if name not in known:
                raise unknown("setting", name, known)
        return super().__call__(**cls.completed(given))

    def completed(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings with those that they bring along."""
        return given


def require(holds: bool, name: str, value: object, rule: str, fix: str = "") -> None:
    """Raise `SettingError` unless `holds`."""
    if not holds:
        raise SettingError(name, value, rule, fix)


def require_kind(name: str, value: object, *kinds: type) -> None:
    """Raise `SettingError` for an argument in Python of another type than its own.

    >>> require_kind("steps", 3, int)
    """
    if not fits(value, kinds):
        rule = f"must be {kinds_in_words(kinds)}, not {type(value).__name__}"
        raise SettingError(name, quoted(value), rule)


def unknown(name: str, value: object, known: Iterable[str], fix: str = "") -> SettingError:
    """Return the error for a name that is not among `known`: the nearest first, then all.

    Of more than twelve only the nearest are shown, and the command that lists all.
    """
    choices = sorted(known)
    near = difflib.get_close_matches(str(value), choices, n=3, cutoff=0.5)
    hint = [f"did you mean {' or '.join(near)}?"] if near else []
    if len(choices) <= _MOST_LISTED:
        hint += [f"known: {', '.join(choices)}"]
    else:
        nearest = difflib.get_close_matches(str(value), choices, n=_NEAREST, cutoff=0.0)
        hint += [] if near else [f"nearest of {len(choices)}: {', '.join(nearest)};"]
        hint += [f"`{_LISTS[name]}` shows all"] if name in _LISTS else []
    return SettingError(name, value, "is not known", f"{' '.join(hint).rstrip(';')}{fix}")


def one_line(error: BaseException) -> str:
    """Return an error's text in one line, or its class where it has none.

    >>> one_line(ValueError("too\\n  large")), one_line(KeyError())
    ('too large', 'KeyError')
    """
    return " ".join(str(error).split()) or type(error).__name__


def count(fraction: float, n: int) -> int:
    """Return how many of `n` entries a fraction keeps: `max(1, ceil(fraction * n))`.

    Counted in decimal, as the fraction is written: in binary floating point
    `ceil((1 - 0.999) * 1000)` is 2.

    >>> count(0.001, 1000), count(0.001, 10), count(1.0, 7)
    (1, 1, 7)

    Raises `SettingError` for what is no fraction in [0, 1] or no number of entries.
    """
    try:
        return _count(fraction, n)
    except SettingError:
        raise
    except (TypeError, ValueError, ArithmeticError) as wrong:
        require_kind("fraction", fraction, float)
        require_kind("n", n, int)
        raise SettingError("fraction", fraction, "must lie in [0, 1]") from wrong


@lru_cache(maxsize=4096)  # a step asks for every segment, and decimals are slow
def _count(fraction: float, n: int) -> int:
    require(0 <= fraction <= 1, "fraction", fraction, "must lie in [0, 1]")
    require(n >= 0, "n", n, "must be at least 0")
    return max(1, math.ceil(Decimal(str(fraction)) * n))


def check_size(name: str, value: object) -> None:
    """Raise `SettingError` for a number that no tensor can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if isinstance(value, int):
        require(abs(value) < 2**63, name, value, "must be below 2**63")
    elif math.isfinite(value):
        rule = f"must be at most {_LARGEST:.2g}, as float32 allows"
        require(abs(value) <= _LARGEST, name, value, rule)


def size_in_bytes(name: str, value: object) -> int:
    """Return a size as a number of bytes: such as 10MB or 10MiB, or the number itself.

    >>> size_in_bytes("until_bytes", "10MB")
    10000000

    Raises `SettingError` for anything else, and for less than a byte.
    """
    found = value if type(value) is int else num_bytes(str(value))
    rule = "must be a number of bytes greater than 0"
    require(found is not None and found > 0, name, value, rule, "such as 10MB")
    assert found is not None
    return found


def check_prune(prune: float | None) -> None:
    """Raise `SettingError` for a fraction that cannot be pruned."""
    if prune is None:
        return
    fix = "for 99.9 % use 0.999"
    if prune == 1:
        fix = "at 1 nothing would be sent; " + fix
    require(0 <= prune < 1, "prune", prune, "must lie in [0, 1)", fix)


def kept(prune: float) -> float:
    """Return the fraction kept when the fraction `prune` is dropped, exact in decimal.

    >>> kept(0.999)
    0.001
    """
    return float(1 - Decimal(str(prune)))


def is_plain_number(text: str) -> bool:
    """Return whether a text is a number in the one way in which options and specs have it.

    >>> is_plain_number("-1.5e-3"), is_plain_number("0x10"), is_plain_number("1_000")
    (True, False, False)
    """
    return _NUMBER.fullmatch(text.strip()) is not None


def names_file(spec: str) -> bool:
    """Return whether a spec is the path of a file of numbers.

    >>> names_file("ring.txt"), names_file("./mine.csv"), names_file("erdos-renyi:0.3")
    (True, True, False)
    """
    return "/" in spec or spec.endswith((".txt", ".csv", ".edges"))


def check_kinds(settings: Any) -> None:
    """Raise `SettingError` for a field of a dataclass of settings that has another kind of value.

    A whole float becomes an integer, and text a path, where the field is one.
    """
    hints = get_type_hints(type(settings))
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        kinds = get_args(hints[f.name]) or (hints[f.name],)
        if int in kinds and type(value) is float and value.is_integer():
            object.__setattr__(settings, f.name, int(value))
        elif Path in kinds and isinstance(value, str):
            object.__setattr__(settings, f.name, Path(value))
        elif not fits(value, kinds):
            raise SettingError(f.name, quoted(value), f"must be {kinds_in_words(kinds)}")
        choices = f.metadata["choices"]
        if choices and value is not None:
            require(value in choices, f.name, value, f"must be one of {', '.join(choices)}")
        check_size(f.name, getattr(settings, f.name))


def names_own_file(spec: str) -> bool:
    """Return whether a spec names a function in a user's own file.

    >>> names_own_file("./mine.py"), names_own_file("mine.py:small"), names_own_file("digits")
    (True, True, False)
    """
    return re.search(r"\.py(:\w+)?$", spec) is not None


def whole_paths(names: str | None) -> str | None:
    """Return names joined by +, those of files with their whole path."""
    if names is None:
        return None
    parts = [
        n if not n.endswith(".py") else str(Path(n).expanduser().absolute())
        for n in names.split("+")
    ]
    return "+".join(parts)


def whole_spec(spec: str | None) -> str | None:
    """Return the spec of a function in a file with the file's whole path; another as it is."""
    if spec is None or not names_own_file(spec):
        return spec
    path, _, name = spec.partition(".py")
    return f"{whole_paths(path + '.py')}{name}"


def fits(value: object, kinds: Iterable[type]) -> bool:
    """Return whether a value is of one of the types; a whole number is a float, True no number."""
    known = {*kinds}
    if Any in known:
        return True
    if isinstance(value, bool):
        return bool in known
    if isinstance(value, int) and float in known:
        return True
    return isinstance(value, tuple(known))


def kinds_in_words(kinds: Iterable[type]) -> str:
    """Return types as a user knows them.

    >>> kinds_in_words([int, type(None)]), kinds_in_words([float])
    ('a whole number', 'a number')
    """
    words = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        Path: "a path",
        Mapping: "a dict",
        dict: "a dict",
        Sequence: "a list",
    }
    return " or ".join(words.get(k, k.__name__) for k in kinds if k is not type(None))


def quoted(value: object) -> object:
    """Return a text in quotes, for messages about its type, and anything else as it is.

    >>> quoted("4"), quoted(4)
    ("'4'", 4)
    """
    return repr(value) if isinstance(value, str) else value


def shown(value: object) -> str:
    """Return a value as a message has it: cut where it is long, escaped where it is no text."""
    plain = isinstance(value, str) and value and value.isprintable()
    text = str(value) if plain else repr(value)
    whole = len(text) <= _LONGEST_SHOWN
    return text if whole else f"{text[:_LONGEST_SHOWN]}... ({len(text)} characters)"
