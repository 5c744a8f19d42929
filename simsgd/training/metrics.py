"""Measures how well a model does: misses, and the metric of a run.

Letters: B samples of a batch, V classes or words.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import SupportsFloat

import torch
from torch import Tensor

from ..config import Config
from ..gradients.trees import Tree, leaves
from ..recipe_rules import names_own_file
from ..results.metric import ACCURACY, ERROR, NAMES, NONE, PERPLEXITY, PIXEL_ERROR, own_name
from ..results.metric import Metric as Shown
from ..results.metric import metric_of as shown_metric
from ..results.tables import EPOCH_COLUMNS, WORKER_COLUMNS
from ..settings import SettingError, one_line, require, unknown
from .given import Given, refuse_object
from .own_functions import own_function

Function = Callable[[Tree, Tree], Tensor | float]  # (output, target) -> mean over the samples
_TAKEN = {*EPOCH_COLUMNS, *WORKER_COLUMNS, "best", "bytes", "bits", "done", "epochs", "network"}
_MEAN = "return the mean over the samples"
_GUESSES = 5
IGNORED = -100  # which torch's losses leave out, unless told another number
_PERCENT = ("val_error1", "val_error5")
_OF_CLASSES = (ERROR, ACCURACY, PIXEL_ERROR)


@dataclass(frozen=True)
class Metric:
    """What is measured on batches in training and evaluation."""

    shown: Shown
    function: Function | None = None  # of the user's own
    counts_misses: bool = True  # whether targets are classes, and the output tells them
    ignored: int = IGNORED  # the class that is none: its targets do not count

    def sums(self, output: Tree, target: Tree) -> Tensor:
        """Return targets missed with 1 and 5 guesses, metric times targets, and targets, [4].

        Of an output and a target of B samples, in float64; nan for what is not measured. Five
        guesses miss nothing, and so measure nothing, where there are at most five classes.
        """
        device = leaves(target)[0].device
        sums = torch.full((4,), torch.nan, dtype=torch.float64, device=device)
        sums[3] = num_targets(target)
        ranked = class_scores(output, target) if self.counts_misses else None
        if ranked is not None:
            few = max(2, ranked.shape[-1]) <= _GUESSES
            missed = num_missed(ranked, target, self.ignored)
            sums[: 1 if few else 2] = missed.double()[: 1 if few else 2]
            sums[3] = (target != self.ignored).sum()
        if self.function is not None:
            sums[2] = torch.as_tensor(self.function(output, target)).double() * sums[3]
        return sums


def one_number(name: str, value: SupportsFloat) -> float:
    """Return what was measured as a number. Raises `SettingError` for what is none."""
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError("no number")
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as wrong:
        raise SettingError(name, type(value).__name__, "must be one number") from wrong
    beyond = name in _PERCENT and (number < 0 or number > 100)
    require(not beyond, name, number, "is in percent, from 0 to 100")
    return number


def num_targets(target: Tree) -> int:
    """Return how many targets there are: samples, tokens or pixels."""
    return leaves(target)[0].numel()


def num_missed(output: Tensor, target: Tensor, ignored: int = IGNORED) -> Tensor:
    """Return how many of `target` [B, ...] are missed with 1 and with 5 guesses, [2].

    Those of class `ignored` are not counted. The guesses are the largest of `output` [B, ..., V];
    of a single number, V = 1, that is class 1 if it is positive and else class 0.
    """
    output, target = output.flatten(0, -2), target.flatten()
    if output.shape[1] == 1:
        output = torch.cat([-output, output], dim=1)
    ranked = output.topk(min(_GUESSES, output.shape[1]), dim=1).indices  # [samples, 5]
    counts = target != ignored
    hit = (ranked == target.unsqueeze(1)) & counts.unsqueeze(1)
    return counts.sum() - torch.stack([hit[:, :1].sum(), hit.sum()])


def class_scores(output: Tree, target: Tree) -> Tensor | None:
    """Return the scores of classes [B, ..., V] for class numbers `target` [B, ...], or None.

    An output [B, V, ...], as of pixels, is turned round; one that tells no classes gives None.
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor) or output.dim() < 2:
        return None
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        return None
    if output.shape[:-1] == target.shape:
        return output
    turned = output.movedim(1, -1)
    return turned if turned.shape[:-1] == target.shape else None


def metric_of(
    config: Config, given: Given, output: Tree, target: Tree, ignored: int = IGNORED
) -> Metric:
    """Return the metric of a run, of which `output` and `target` are those of a first batch.

    Targets of class `ignored`, as the criterion ignores them, do not count.

    By itself it is the error where the targets are classes (per pixel where they are pictures),
    perplexity of text, and none for anything else. Raises `SettingError`
    for a name that is not known or does not fit the data, and for a function that cannot be called.
    """
    scores = class_scores(output, target)
    counts = scores is not None
    if config.metric in (None, *NAMES):
        _refuse_mode(config)
        name = config.metric or _by_itself(config, counts, output, target)
        if name in _OF_CLASSES and not counts:
            rule = "needs class numbers as targets, and an output with a score for each class"
            raise SettingError("metric", name, rule, "give another, or a function of your own")
        return Metric(
            shown_metric({"metric": name, "tokens": config.tokens}), None, counts, ignored
        )
    assert config.metric is not None
    function = given.metric or _loaded(config.metric)
    name = own_name(config.metric)
    check_name(config.metric, name)
    mode = config.metric_mode or _mode_of(config.metric, function)
    shown = shown_metric({"metric": config.metric, "metric_mode": mode, "tokens": config.tokens})
    _try_out(config.metric, function, output, target)
    return Metric(shown, function, counts, ignored)


def _by_itself(config: Config, counts: bool, output: Tree, target: Tree) -> str:
    if config.tokens is not None:
        return PERPLEXITY
    if not counts:
        return NONE
    return ERROR if output.shape[:-1] == target.shape else PIXEL_ERROR


def _refuse_mode(config: Config) -> None:
    if config.metric_mode is not None:
        rule = f"has no effect with metric {config.metric or 'of the data'}, which has its own"
        raise SettingError("metric_mode", config.metric_mode, rule, "leave it out")


def _loaded(spec: str) -> Function:
    if names_own_file(spec):
        return own_function("metric", spec)
    refuse_object("metric", spec)
    raise unknown("metric", spec, NAMES, "; or a file of your own, ./metric.py")


def check_name(spec: str, name: str) -> None:
    """Raise `SettingError` for the name of a metric that columns have, or that is none."""
    taken = {column.removeprefix("train_").removeprefix("val_") for column in _TAKEN}
    taken |= {*Config.__dataclass_fields__, *NAMES, "pixel_error"}
    if not name.isidentifier() or name in taken:
        rule = f"gives its columns the name {name}, which is taken or no name"
        raise SettingError("metric", spec, rule, "let the function have another name")


def _mode_of(spec: str, function: Function) -> str:
    higher = getattr(function, "higher_is_better", None)
    if not isinstance(higher, bool):
        rule = "does not say whether more is better"
        fix = "set metric_mode to min or max, or the function's attribute higher_is_better"
        raise SettingError("metric", spec, rule, fix)
    return "max" if higher else "min"


def _try_out(spec: str, function: Function, output: Tree, target: Tree) -> None:
    """Raise `SettingError` if the function does not give a number of a batch."""
    try:
        made = function(output, target)
        if inspect.iscoroutine(made):
            made.close()
            raise SettingError("metric", spec, "returns a coroutine and not a number", _MEAN)
        rule = f"returns {'nothing' if made is None else 'text'} and not a number"
        require(not isinstance(made, str | None), "metric", spec, rule, _MEAN)
        value = torch.as_tensor(made)
    except SettingError:
        raise
    except Exception as wrong:  # whatever the user's own code raises
        rule = f"cannot be computed: {type(wrong).__name__}: {one_line(wrong)}"
        raise SettingError("metric", spec, rule) from wrong
    if value.is_complex():
        raise SettingError("metric", spec, "returns a complex number", f"{_MEAN}, a real one")
    if value.numel() != 1:
        rule = f"returns a tensor of shape {tuple(value.shape)} and not a number"
        raise SettingError("metric", spec, rule, _MEAN)
