"""Declares settings, reports wrong values, and counts fractions exactly."""

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from .units import home_path, num_bytes, plain_numbers, with_names
from .units import quoted as quoted
from .units import shown as shown

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
_SMALLEST = 1.4e-45
_MOST_LISTED = 12  # names in a message; of more, the nearest
_NEAREST = 5

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

_OTHER_NAMES = {  # what other tools call a setting, in small letters and without - and _
    "accumulate": "gradaccum gradientaccumulation gradientaccumulationsteps accumulationsteps",
    "amp": "fp16 bf16 mixedprecision autocast",
    "batch_size": "batch bs trainbatchsize localbatchsize perdevicetrainbatchsize",
    "clip": "gradclip gradientclip clipgrad clipnorm clipgradnorm maxgradnorm gradientclipval",
    "compressor": "compress compression compressionratio density quantization quantize ratio topk",
    "criterion": "loss lossfn lossfunction",
    "dataset": "data",
    "device": "cuda gpu gpus",
    "dtype": "precision",
    "epochs": "numepochs nepochs maxepochs trainepochs numtrainepochs",
    "local_steps": "syncevery localiterations innersteps communicationperiod",
    "lr": "learningrate learnrate baselr initiallr eta stepsize",
    "memory": "errorfeedback feedback ef residual",
    "model": "arch architecture net",
    "name": "runname expname experiment experimentname",
    "optimizer": "optim opt",
    "prune": "sparsity pruning prunerate",
    "resume": "resumefrom resumefromcheckpoint continue",
    "runs_dir": "outputdir outdir output logdir logdirectory savedir",
    "scheduler": "lrscheduler lrschedule schedule",
    "seed": "randomseed manualseed randomstate",
    "steps": "numsteps maxsteps trainsteps iterations iters maxiters",
    "topology": "graph mixing",
    "weight_decay": "wd l2 decay",
    "workers": "numworkers nworkers worldsize nprocpernode nodes ranks nproc numprocesses",
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
        rule, fix = with_names(self.rule), with_names(self.fix)
        return f"{name} {rule}{got}" + (f"; {fix}" if fix else "")


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
    return dataclasses.field(
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
        return super().__call__(**cls.completed({n: plain_numbers(v) for n, v in given.items()}))

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
    require(Path not in kinds or value != "", name, value, "must not be empty")


def require_file(name: str, path: Path) -> None:
    """Raise `SettingError` unless a path is that of a file."""
    what = "folder, not a file" if path.is_dir() else "file that does not exist"
    require(path.is_file(), name, str(path), f"names a {what}")


def unknown(name: str, value: object, known: Iterable[str], fix: str = "") -> SettingError:
    """Return the error for a name that is not among `known`: the nearest first, then all.

    Of more than twelve only the nearest are shown, and the command that lists all.
    """
    choices = sorted(known)
    near = known_by_another_name(str(value), choices) or nearest(str(value), choices, 3, 0.5)
    path, rule = os.path.expanduser(str(value)) if "/" in str(value) else "", "is not known"
    if os.path.exists(path):
        file = "is a file without .py" if name in _LISTS else "is a file"
        rule, near = "is a folder" if os.path.isdir(path) else file, []
    hint = [f"did you mean {' or '.join(near)}?"] if near else []
    if len(choices) <= _MOST_LISTED:
        hint += [f"known: {', '.join(choices)}"]
    else:
        ranked = [] if near or path else nearest(str(value), choices, _NEAREST, 0.0)
        hint += [f"nearest of {len(choices)}: {', '.join(ranked)};"] if ranked else []
        hint += [f"`{_LISTS[name]}` shows all"] if name in _LISTS else []
    return SettingError(name, value, rule, f"{' '.join(hint).rstrip(';')}{fix}")


def known_by_another_name(name: str, known: Iterable[str]) -> list[str]:
    """Return the setting among `known`, if it is, that other tools call so.

    >>> known_by_another_name("learning-rate", ["lr", "epochs"])
    ['lr']
    """
    bare = re.sub("[-_ ]", "", name).lower()
    return [own for own, others in _OTHER_NAMES.items() if own in known and bare in others.split()]


def nearest(name: str, known: Iterable[str], most: int, cutoff: float) -> list[str]:
    """Return the names most like one, whether letters are small or large."""
    small: dict[str, list[str]] = {}
    for own in known:
        small.setdefault(own.lower(), []).append(own)
    found = difflib.get_close_matches(name.lower(), small, most, cutoff)
    return [own for each in found for own in small[each]][:most]


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
        rule, fix = "is 0 in float32", f"give at least {_SMALLEST:.2g}"
        require(value == 0 or abs(value) >= _SMALLEST, name, value, rule, fix)


def size_in_bytes(name: str, value: object, before: str = "") -> int:
    """Return a size as a number of bytes: such as 10MB or 10MiB, or the number itself.

    >>> size_in_bytes("until_bytes", "10MB"), size_in_bytes("granularity", "bucket:1KB", "bucket:")
    (10000000, 1000)

    Raises `SettingError` for anything else, and for less than a byte. The text `before` is skipped.
    """
    found = value if type(value) is int else num_bytes(str(value).removeprefix(before))
    if not found or found < 0:
        rule = f"must be {before and before + 'SIZE, '}a number of bytes greater than 0"
        raise SettingError(name, value, rule, f"such as {before}10MB")
    require(found < 2**63, name, value, "must be below 2**63 bytes")
    return found


def kept(prune: float) -> float:
    """Return the fraction kept when the fraction `prune` is dropped, exact in decimal.

    >>> kept(0.999)
    0.001
    """
    return float(1 - Decimal(str(prune)))


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
            object.__setattr__(settings, f.name, home_path(value))
        elif not fits(value, kinds):
            raise SettingError(f.name, quoted(value), f"must be {kinds_in_words(kinds)}")
        require(value != "" or f.default == "", f.name, value, "must not be empty")
        choices = f.metadata["choices"]
        if choices and value is not None:
            require(value in choices, f.name, value, f"must be one of {', '.join(choices)}")
        check_size(f.name, getattr(settings, f.name))


def fits(value: object, kinds: Iterable[type]) -> bool:
    """Return whether a value is of one of the types; a whole number is a float, True no number."""
    known = {*kinds}
    if Any in known:
        return True
    if isinstance(value, bool):
        return bool in known
    if isinstance(value, int) and float in known:
        return True
    if isinstance(value, str | bytes):  # sequences too, of letters
        known -= {Sequence}
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
