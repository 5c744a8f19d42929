"""Names the runs of a sweep by the settings that vary."""

import itertools
import re
from collections.abc import Iterable, Sequence

from ...results.config_values import OF_THE_MACHINE, default_of, in_short, varying
from .grid import Settings

_SELF_EXPLAINING = {  # settings whose values need no name beside them
    "compress_layers", "compressor", "dataset", "engine", "memory", "model", "model_config",
    "optimizer", "regime",
}  # fmt: skip
_LONGEST = 120  # characters of a name


def names_of(
    runs: Sequence[Settings], others: Sequence[Settings] = (), taken: Iterable[str] = ()
) -> list[str]:
    """Return a name for each run that tells what varies among these and others, the seed last.

    None of the names in `taken` is given.

    >>> names_of([{"workers": w, "compressor": "topk:0.01", "seed": 0} for w in (4, 16)])
    ['workers4-seed0', 'workers16-seed0']
    """
    varies = varying([*others, *runs])
    told = [name for name in varies if name not in {*OF_THE_MACHINE, "seed"}]
    used, found = set(taken), []
    for run in runs:
        words = [_word(n, run.get(n, default_of(n))) for n in told]
        name = "-".join([*words, f"seed{run['seed']}"])[-_LONGEST:].lstrip("-.")
        free = next(n for n in _numbered(name) if n not in used)
        used.add(free)
        found.append(free)
    return found


def _word(name: str, value: object) -> str:
    spelling = name.replace("_", "-")
    if value is None or value is False or value == "none":
        return f"no-{spelling}"
    if value is True:
        return spelling
    word = re.sub(r"[^A-Za-z0-9.+_]+", "-", in_short(value)).strip("-.")
    word = re.sub(r"\.{2,}", "-", word)
    return word if name in _SELF_EXPLAINING else f"{spelling}{word}"


def _numbered(name: str) -> Iterable[str]:
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))
