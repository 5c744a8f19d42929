"""Describes a compressor from its class: settings, bias, all-reducibility, paper."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args, get_type_hints

from torch import Tensor

from ..registry import settings_of
from .compressors import Compressor, MultiRound
from .presets import Preset


def details(method: type) -> str:
    """Return lines that say what a compressor does, its settings, its nature and its paper.

    >>> from simsgd.methods.compressors.sign import OneBit
    >>> print(details(OneBit))  # doctest: +ELLIPSIS
    Each worker sends whether each entry is negative, and the means of the two kinds.
    settings: none
    biased; not all-reducible
    paper: "1-Bit Stochastic Gradient Descent and its ...", Interspeech 2014
    """
    text = " ".join((inspect.getdoc(method) or "").split())
    lines = [
        (inspect.getdoc(method) or "").partition("\n")[0],
        f"settings: {settings_text(method)}",
    ]
    nature = [_when(method, _biased, "biased", "unbiased")]
    nature.append(_when(method, _summable, "all-reducible", "not all-reducible"))
    papers = [f"paper: {paper}" for paper in _papers(text)]
    return "\n".join([*lines, "; ".join(filter(None, nature)), *papers])


def recipe_text(preset: type[Preset]) -> str:
    """Return lines that say what a published method does, what it is made of, and its paper."""
    first, *rest = (inspect.getdoc(preset) or "").split("\n\n")
    made_of = " ".join(_as_option(name, value) for name, value in preset.settings.items())
    papers = [f"paper: {paper}" for paper in _papers(" ".join(" ".join(rest).split()))]
    optimizers = [_optimizers(preset.regime[0])] if preset.regime else []
    differs = [" ".join(part.split()) for part in rest if part.startswith("Differs")]
    return "\n".join([first, made_of, *optimizers, *papers, *differs])


def _optimizers(settings: Mapping[str, Any]) -> str:
    """Return the optimizers of a regime in words, the usual one last."""
    usual = settings["optimizer"]
    parts = [_group(own, usual) for own in settings["param_groups"]]
    return f"optimizers: {', '.join(parts)}, {usual} for all else"


def _group(own: Mapping[str, Any], usual: str) -> str:
    """Return a group's optimizer, for which parameters, and what multiplies its lr."""
    chosen = own["params"] if isinstance(own["params"], list) else [own["params"]]
    names = " and ".join(str(getattr(one, "__name__", one)).replace("_", " ") for one in chosen)
    times = f" with {own['lr_mult']:g} times the lr" if "lr_mult" in own else ""
    return f"{own.get('optimizer', usual)} for {names}{times}"


def _as_option(name: str, value: object) -> str:
    """Return a setting as the command line takes it; a default that is named says nothing."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {value}"


class _Echo:
    """An object of the kind that `grace` takes."""

    def compress(self, tensor: Tensor, name: str) -> tuple[list[Tensor], None]:
        return [tensor], None

    def decompress(self, tensors: list[Tensor], context: None) -> Tensor:
        return tensors[0]


_EXAMPLES: dict[object, object] = {float: 0.5, int: 2, Any: _Echo}  # of settings without a default


def settings_text(method: type) -> str:
    """Return the settings of a method in one line, with their defaults."""
    shown = [
        f.name if f.default is dataclasses.MISSING else f"{f.name}={_shown(f.default)}"
        for f in settings_of(method)
    ]
    return ", ".join(shown) or "none"


def _shown(value: object) -> str:
    if value == "":
        return '""'
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _when(method: type, holds: Callable[[Compressor], bool], yes: str, no: str) -> str:
    """Return `yes` or `no`, and the settings that turn it round; nothing if it cannot be tried."""
    example = _example(method)
    if example is None:
        return ""
    usual = holds(example)
    other = [words for words, changed in _changed(example) if holds(changed) != usual]
    first, second = (yes, no) if usual else (no, yes)
    return first + (f" ({second} with {' or '.join(other)})" if other else "")


def _example(method: type) -> Compressor | None:
    hints = get_type_hints(method)
    needed = [f for f in settings_of(method) if _required(f)]
    if any(hints[f.name] not in _EXAMPLES for f in needed):
        return None
    made: Compressor = method(**{f.name: _EXAMPLES[hints[f.name]] for f in needed})
    return made


def _required(f: "dataclasses.Field[object]") -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _changed(example: Compressor) -> Iterator[tuple[str, Compressor]]:
    """Return the example with one setting turned round, and how that is written."""
    hints = get_type_hints(type(example))
    for f in settings_of(type(example)):
        value = getattr(example, f.name)
        if isinstance(value, bool):
            yield (
                f"{f.name}={_shown(not value)}",
                dataclasses.replace(example, **{f.name: not value}),
            )
        elif value is not None and type(None) in get_args(hints[f.name]):
            yield f"{f.name}=none", dataclasses.replace(example, **{f.name: None})


def _biased(compressor: Compressor) -> bool:
    return compressor.biased


def _summable(compressor: Compressor) -> bool:
    """Return whether what is sent of a small matrix rides an all-reduce."""
    if isinstance(compressor, MultiRound):
        return True
    return compressor.probe().summable


def _papers(text: str) -> Iterator[str]:
    """Return the papers that a docstring cites: title, venue, year, and a link if it has one."""
    for title, after in re.findall(r'"([^"]+)"([^"]*)', text):
        venue = re.match(r",\s*([^.]*?\d{4}(?: workshop)?)", after)
        if venue is None:
            continue
        link = re.search(r"https?://[^\s;,]+", after)
        address = f", {link[0].rstrip('.')}" if link else ""
        yield f'"{title}", {venue[1]}{address}'
