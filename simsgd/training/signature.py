"""Gives a function of all settings their names, types, defaults and texts."""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Union

from torch import Tensor, nn

from ..config import Config

Function = TypeVar("Function", bound=Callable[..., object])


_OBJECTS: dict[str, object] = {  # what may stand in place of a name
    "model": nn.Module | Callable[..., nn.Module],
    "dataset": Sequence[object] | Mapping[str, object],
    "criterion": Callable[..., Tensor],
    "metric": Callable[..., Tensor | float],
}


def takes_settings(function: Function) -> Function:
    """Let `help` and completion show the settings of `Config`, and what may be given beside."""
    fields = dataclasses.fields(Config)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(f.name, keyword, default=f.default, annotation=_annotation(f))
        for f in fields
    ]
    returned = inspect.signature(function).return_annotation
    signature = inspect.Signature(parameters, return_annotation=returned)
    vars(function)["__signature__"] = signature
    texts = "\n".join(f"{f.name}: {f.metadata['help']}" for f in fields)
    own = inspect.getdoc(function) or ""
    function.__doc__ = f"{own}\n\nSettings:\n\n{textwrap.indent(texts, '    ')}\n"
    return function


def _annotation(f: "dataclasses.Field[Any]") -> object:
    """Return the type of a setting, with the objects that may stand in place of a name."""
    return Union[f.type, _OBJECTS[f.name]] if f.name in _OBJECTS else f.type  # noqa: UP007
