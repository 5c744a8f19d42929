"""Gives a function of all settings their names, types, defaults and texts."""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from typing import TypeVar

from ..config import Config
from ..gradients.contract import Criterion

Function = TypeVar("Function", bound=Callable[..., object])


def takes_settings(function: Function) -> Function:
    """Let `help` and completion show the settings of `Config`, and what may be given beside."""
    fields = dataclasses.fields(Config)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(f.name, keyword, default=f.default, annotation=f.type) for f in fields
    ]
    objects = inspect.Parameter("criterion", keyword, default=None, annotation=Criterion | None)
    returned = inspect.signature(function).return_annotation
    signature = inspect.Signature([*parameters, objects], return_annotation=returned)
    vars(function)["__signature__"] = signature
    texts = "\n".join(f"{f.name}: {f.metadata['help']}" for f in fields)
    own = inspect.getdoc(function) or ""
    function.__doc__ = f"{own}\n\nSettings:\n\n{textwrap.indent(texts, '    ')}\n"
    return function
