"""Compressors by layer: which parameters are sent by a compressor of their own.

A regime has them under `compress_layers`, and the command line as

    features.*=topk:0.01,classifier.*=none

or as a dict, in Python or in JSON: patterns of parameters' names with * and ?, of which the first
that matches wins. What none matches follows `compressor` or `prune`. A comma begins the next
pattern unless what follows it is a setting of the compressor before it, as in `qsgd:15,bucket=64`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..communication.segments import Layout
from ..given_object import GivenObject, is_lost, refuse_lost
from ..methods.compressors import composed
from ..registry import build, settings_of
from ..settings import SettingError, require
from .parameter_groups import check_pattern, matches

_Value = TypeVar("_Value")
_NAME, _FORM = "compress_layers", "as features.*=topk:0.01,classifier.*=none"


@dataclass(frozen=True)
class LayerRule:
    """The compressor of the parameters that a pattern matches."""

    pattern: str
    compressor: str  # its spec, or the text of an object

    def __str__(self) -> str:
        return f"{self.pattern}={self.compressor}"


LayerRules = tuple[LayerRule, ...]


def layer_rules(form: object) -> LayerRules:
    """Return the rules that a text or a dict {pattern: compressor} means; None and "none" are none.

    Raises `SettingError` for another form, and for a compressor that does not exist.
    """
    if form is None or form == "none":
        return ()
    if isinstance(form, GivenObject):
        return layer_rules(form.value)
    if isinstance(form, str):
        if is_lost(form):
            refuse_lost(_NAME, form)
        form = _parsed(form)
    if isinstance(form, tuple) and all(isinstance(rule, LayerRule) for rule in form):
        return form
    if not isinstance(form, Mapping):
        raise SettingError(_NAME, form, "must be PATTERN=SPEC, or a dict of these", _FORM)
    rules = tuple(_rule(pattern, given) for pattern, given in form.items())
    for made in rules:
        try:
            composed(made.compressor)
        except SettingError as wrong:
            reason = f"has a compressor for {made.pattern} that {wrong.rule}"
            raise SettingError(_NAME, wrong.value, reason, wrong.fix) from wrong
    return rules


def by_segment(
    layout: Layout, rules: LayerRules, values: Sequence[_Value], other: _Value
) -> list[_Value]:
    """Return for each segment that one of `values` whose rule is its first; `other` for none."""
    return [
        next(
            (
                value
                for rule, value in zip(rules, values, strict=True)
                if matches(segment.name, rule.pattern)
            ),
            other,
        )
        for segment in layout.segments
    ]


def specs_of(layout: Layout, rules: LayerRules, other: str) -> list[str]:
    """Return the compressor of each segment, `other` for those without a rule."""
    return by_segment(layout, rules, [rule.compressor for rule in rules], other)


def check_layers(layout: Layout, rules: LayerRules, granularity: str) -> None:
    """Raise `SettingError` for a rule that no segment follows."""
    if not rules:
        return
    if granularity != "layer":
        reason = f"needs each tensor compressed by itself, and granularity is {granularity}"
        raise SettingError(_NAME, None, reason, "leave out one of the two")
    names = [segment.name for segment in layout.segments]
    first = by_segment(layout, rules, rules, None)
    for rule in rules:
        check_pattern(_NAME, rule.pattern, names)
        own = [s for s, taken in zip(layout.segments, first, strict=True) if taken is rule]
        if not own:
            reason = "matches only parameters that an earlier pattern matches"
            raise SettingError(_NAME, rule.pattern, reason, "put it before that one")
        if rule.compressor != "none" and all(segment.dense for segment in own):
            reason = "matches only parameters that are exempt from compression"
            raise SettingError(_NAME, rule.pattern, reason, "set compress_if all")


def in_words(rules: LayerRules) -> str:
    """Return the rules as the command line has them."""
    return ",".join(map(str, rules))


def _rule(pattern: object, given: object) -> LayerRule:
    no_spec = given in (None, "") or isinstance(given, int | float | list | Mapping)
    if not isinstance(pattern, str) or not pattern or no_spec:
        text = isinstance(pattern, str) and isinstance(given, str)
        shown = f"{pattern}={given}" if text else {pattern: given}
        raise SettingError(_NAME, shown, "must have a compressor by pattern", _FORM)
    return LayerRule(pattern, given if isinstance(given, str) else GivenObject.of(given))


def _parsed(text: str) -> object:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as wrong:
            raise SettingError(_NAME, text, f"is no JSON: {wrong}", _FORM) from wrong
    rules: dict[str, str] = {}
    last = ""
    for part in text.split(","):
        rule = "has a comma with nothing beside it"
        require(part.strip() != "" or "," not in text, _NAME, text, rule, "take it out")
        pattern, equals, spec = (piece.strip() for piece in part.partition("="))
        if last and (not equals or pattern in _arguments(rules[last])):
            rules[last] += f",{part}"
            continue
        require(bool(equals), _NAME, text, "must be PATTERN=SPEC", _FORM)
        require(pattern not in rules, _NAME, text, f"has the pattern {pattern} twice")
        rules[last := pattern] = spec
    return rules


def _arguments(spec: str) -> set[str]:
    """Return the settings that may follow a spec; none of a compressor that does not exist."""
    try:
        *_, last = build("compressor", spec)
    except SettingError:
        return set()
    has_values = ":" in spec.rpartition("+")[2]
    return {f.name for f in settings_of(type(last))} if has_values else set()
