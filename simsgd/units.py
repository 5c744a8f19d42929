"""Reads and writes numbers, bytes in units, counts with their nouns, names, paths, and values."""

import ast
import os
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

_MOST_DIGITS = 4  # of an exponent, its e and sign included: what is more takes a computer's memory
_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE)
_LONGEST = 100  # characters of a wrong value in a message
_OBJECT = "object:"  # begins the text of what Python gives in place of a name
_NAMES = (  # of what `repr` gives with an address, and what is shown of it
    (re.compile(r"<(?:[\w.]+\.|<locals>\.)*(\w+) object at 0x[0-9a-fA-F]+>"), r"\1"),
    (re.compile(r"<function (?:\S+\.)?(\S+) at 0x[0-9a-fA-F]+>"), r"function \1"),
    (re.compile(r"<bound method (\S+) of [^<>]*>"), r"method \1"),
    (re.compile(r" at 0x[0-9a-fA-F]+"), ""),
)


def in_units(num_bytes: float) -> str:
    """Return bytes in binary units.

    >>> in_units(1536), in_units(10 * 2**20), in_units(12)
    ('1.5 KiB', '10 MiB', '12 B')
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    power = 0
    while num_bytes / 1024**power >= 1024 and power < len(units) - 1:
        power += 1
    return f"{num_bytes / 1024**power:.4g} {units[power]}"


def in_round_units(num_bytes: int) -> str:
    """Return bytes in the unit, decimal or binary, in which they have the fewest digits.

    >>> in_round_units(10**7), in_round_units(3 * 2**20), in_round_units(2500), in_round_units(1536)
    ('10 MB', '3 MiB', '2.5 KB', '1.5 KiB')
    """
    units = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20, "KB": 1000, "KiB": 1024, "B": 1}
    fitting = {name: size for name, size in units.items() if size <= max(num_bytes, 1)}
    in_each = (f"{Decimal(num_bytes) / size:f} {name}" for name, size in fitting.items())
    return min(in_each, key=lambda text: len(text.split()[0]))


def num_bytes(text: str) -> int | None:
    """Return the bytes of a size in decimal or binary units; None for anything else.

    >>> num_bytes("10 MB"), num_bytes("1.5KiB"), num_bytes("12"), num_bytes("1.5"), num_bytes("x")
    (10000000, 1536, 12, None, None)
    """
    number, unit = quantity(text) or (Decimal("nan"), "")
    power = re.fullmatch(r"(?:([kmgt])(i?))?b?", unit, re.ASCII | re.IGNORECASE)
    if power is None or not number.is_finite() or number < 0:
        return None
    found = number * (1024 if power[2] else 1000) ** "-KMGT".index((power[1] or "-").upper())
    return int(found) if found == int(found) else None


def quantity(text: str) -> tuple[Decimal, str] | None:
    """Return the number that a text begins with, and the unit behind it; None for another text.

    >>> quantity("1.5 KiB"), quantity("-1us"), quantity("many")
    ((Decimal('1.5'), 'KiB'), (Decimal('-1'), 'us'), None)
    """
    read = _NUMBER.match(text.strip())
    if read is None or len(read[4] or "") > _MOST_DIGITS:
        return None
    return Decimal(read[0]), text.strip()[read.end() :].strip()


def is_plain_number(text: str) -> bool:
    """Return whether a text is a number in the one way in which options and specs have it.

    >>> is_plain_number("-1.5e-3"), is_plain_number("0x10"), is_plain_number("1_000")
    (True, False, False)
    """
    return _NUMBER.fullmatch(text.strip()) is not None


def literal(text: str) -> object:
    """Return the Python literal a text stands for, or the text itself; nothing is evaluated.

    >>> literal("0.1"), literal("(2, 3)"), literal("0x10"), literal("(1)")
    (0.1, (2, 3), '0x10', '(1)')
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two of deep nesting
        return text
    return text if isinstance(value, (int, float)) and not is_plain_number(text) else value


def counted(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "epoch"), counted(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def alternatives(names: Sequence[str]) -> str:
    """Return names in one phrase.

    >>> alternatives(["ring"]), alternatives(["ring", "torus", "star"])
    ('ring', 'ring, torus or star')
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def home_path(text: str) -> Path:
    """Return a path, with the user's own folder in place of a ~ at its beginning."""
    return Path(os.path.expanduser(text))  # Path's own raises for a user that does not exist


def joined_by_plus(text: str) -> list[str]:
    """Return what + joins in a text; one in a file's path, or in a number, joins nothing.

    >>> joined_by_plus("topk:0.01 + sign"), joined_by_plus("./a+b/mine.py:Mine:1e+3+sign")
    (['topk:0.01', 'sign'], ['./a+b/mine.py:Mine:1e+3', 'sign'])
    """
    first, *rest = re.split(r"(\s*\+\s*(?=[A-Za-z_./+:]|$))", text.strip())
    parts = [first]
    for plus, word in zip(rest[::2], rest[1::2], strict=True):
        if "/" in parts[-1] and ".py" not in parts[-1]:
            parts[-1] += plus + word
        else:
            parts.append(word)
    return parts


def module_name(path: str) -> str:
    """Return what a file of Python is called: by its name, or of a package by its folder's.

    >>> module_name("nets/small.py"), module_name("nets/__init__.py"), module_name("lenet")
    ('small', 'nets', 'lenet')
    """
    file = Path(path)
    return file.parent.name if file.name == "__init__.py" else file.stem


def plain_numbers(value: object) -> Any:
    """Return a value with Python's numbers and texts for numpy's, also within dicts and lists.

    One of fewer digits than Python's is taken as it is written.

    >>> import numpy as np
    >>> plain_numbers((np.float32(0.1), {"steps": np.int64(3)}))
    (0.1, {'steps': 3})
    """
    if type(value) is list or type(value) is tuple:
        return type(value)(map(plain_numbers, value))
    if type(value) is dict:
        return {plain_numbers(key): plain_numbers(own) for key, own in value.items()}
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return value
    plain = value.item()  # type: ignore[attr-defined]
    return float(str(value)) if isinstance(plain, float) else plain


def shown(value: object) -> str:
    """Return a value as a message has it, in one line: cut if long, escaped if it is no text."""
    plain = isinstance(value, str | Path) and str(value) and str(value).isprintable()
    text = str(value) if plain else " ".join(repr(value).split())
    if not plain or text.startswith(_OBJECT):
        text = with_names(text.removeprefix(_OBJECT))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def with_names(text: str) -> str:
    """Return what `repr` gives with the names of functions and objects in place of addresses.

    >>> with_names(repr({"lr": with_names, "make": object()})), with_names(repr([].append))
    ("{'lr': function with_names, 'make': object}", '<built-in method append of list object>')
    """
    for pattern, name in _NAMES:
        text = pattern.sub(name, text)
    return text


def quoted(value: object) -> object:
    """Return a text in quotes, for messages about its type, True and None in words, else the value.

    >>> quoted("4"), quoted(4), quoted(None)
    ("'4'", 4, 'None')
    """
    return repr(value) if isinstance(value, str | bool | None) else value
