"""Finds the loss of a run, and refuses what torch would take and mean something else by."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch.nn.functional as F
from torch import nn

from ..catalog import attribute
from ..config import Config
from ..given_object import plainly
from ..gradients.contract import Criterion
from ..recipe_rules import names_own_file
from ..settings import SettingError, shown, unknown
from .given import Given, refuse_object
from .own_functions import own_function

NAMES = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss",
    "l1_loss", "mse_loss", "multilabel_soft_margin_loss", "nll_loss", "smooth_l1_loss",
    "soft_margin_loss",
)  # fmt: skip
_BROADCAST = "Using a target size"  # begins torch's warning of shapes that do not fit
_SIZE = re.compile(r"[Tt]arget size \(torch\.Size\((\[[\d, ]*\])\)\)")
_INPUT_SIZE = re.compile(r"input size \(torch\.Size\((\[[\d, ]*\])\)\)")


def criterion_of(
    config: Config, given: Given, module: ModuleType, model: nn.Module, classes: bool
) -> Criterion:
    """Return the loss of a run: the one given, else the model's, else cross-entropy of `classes`.

    Raises `SettingError` for an unknown name, and where targets are no classes and no loss is
    given.
    """
    if given.criterion is not None:
        return given.criterion
    if config.criterion is not None:
        return _named(config.criterion)
    own: Criterion | None = attribute(module, model, "criterion")
    if own is None and not classes:
        rule = f"must be given: the targets of {plainly(config.dataset)} are no class numbers"
        raise SettingError("criterion", None, rule, "such as mse_loss, or a function of your own")
    if own is not None and not callable(own):
        rule = f"declares a criterion that is no function but {shown(own)}"
        raise SettingError("model", config.model, rule, "such as torch.nn.functional.mse_loss")
    return own or F.cross_entropy


def takes_tensors(criterion: Criterion) -> bool:
    """Return whether a loss is one of torch's, of an output that is one tensor."""
    return criterion in [getattr(F, name) for name in NAMES]


@contextmanager
def shapes_that_fit() -> Iterator[None]:
    """Raise where a loss broadcasts output and target to a shape that neither has."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=_BROADCAST)
        yield


def shapes_in_words(wrong: BaseException) -> str:
    """Return what an error of torch says of the shapes of output and target; or ""."""
    target, output = (_SIZE.search(str(wrong)), _INPUT_SIZE.search(str(wrong)))
    if target is None or output is None:
        return ""
    return f"needs targets of the output's shape, {output[1]}, and they are {target[1]}"


def _named(spec: str) -> Criterion:
    if names_own_file(spec):
        return own_function("criterion", spec)
    refuse_object("criterion", spec)
    if spec not in NAMES:
        raise unknown("criterion", spec, NAMES, "; or a file of your own, ./criterion.py")
    function: Callable[..., object] = getattr(F, spec)
    return function  # type: ignore[return-value]
