"""Tries model, loss and metric on first batches, before anything of a run is written.

Letters: B samples of a batch.
"""

import copy
import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..catalog import begin_texts
from ..given_object import plainly
from ..gradients.attributes import attributes_kept
from ..gradients.generators import put_back
from ..gradients.trees import Tree, cloned, leaves, mapped, row
from ..registry import own_line
from ..settings import SettingError, one_line, require
from .criteria import shapes_in_words, shapes_that_fit, takes_tensors
from .data import Text
from .declared import found_in_file
from .evaluation import chunk_size, evaluation_batches
from .metrics import class_scores

if TYPE_CHECKING:
    from .experiment import Experiment

_FEW = (2, 3)  # samples that a model is tried on: one that takes any number takes both


class _CriterionFailed(Exception):
    """A criterion raised what is the cause of this."""


def trained_once(experiment: "Experiment") -> tuple[Tree, Tree]:
    """Return the output and the targets of a worker's share of the first batch.

    Raises `SettingError` for a model or a loss that cannot be trained on it.
    """
    rule, fix = "is trained within torch.no_grad() or inference_mode()", "train outside of it"
    require(torch.is_grad_enabled(), "model", str(experiment.config.model), rule, fix)
    with _told(experiment, "trained on"):
        x, y = next(experiment.epoch_batches(0))
        try:
            with shapes_that_fit():
                output = experiment.simulator.forward_once(x, y)
        except SettingError:
            raise
        except Exception as wrong:
            _require_usual(x, y, str(wrong))
            if isinstance(wrong, RuntimeError | TypeError | AttributeError):
                _require_scores(experiment, x)
            if experiment.config.criterion is not None:
                _require_loss(experiment, x, y)
            raise
        _require_trained(experiment, x, y)
        _require_finite(experiment, x)
        recipe = experiment.simulator.recipe
        few = recipe.workers * recipe.devices * recipe.accumulate
        return output, mapped(lambda part: part[: len(part) // few], y)


def evaluated_once(experiment: "Experiment") -> None:
    """Raise `SettingError` for a model that cannot be evaluated, which comes after an epoch.

    Of samples it gets few, and where it fails on those, as many as an evaluation would give it.
    """
    if isinstance(experiment.dataset, Text):
        with _told(experiment, "evaluated on"):
            model = experiment.simulator.evaluation_model()
            _evaluate(experiment, itertools.islice(evaluation_batches(experiment, model, "val"), 1))
            begin_texts(experiment.model, experiment.config.pass_batch)  # as training begins them
        return
    samples = len(experiment.dataset.val)
    chunk = chunk_size(experiment.dataset.input_shape, experiment.config.device)
    last = (samples - 1) % chunk + 1
    few = [1] * (last == 1) + [n for n in _FEW if n <= samples]
    whole = dict.fromkeys((min(chunk, samples), last))
    try:
        _evaluate(experiment, map(experiment.first_samples, few))
    except SettingError as wrong:
        with _told(experiment, "evaluated on"):
            raise wrong
    except Exception:  # whatever the user's own model raises on so few
        for number in whole:
            with _told(experiment, f"evaluated on {number} samples of"):
                _evaluate(experiment, [experiment.first_samples(number)])


def require_class_scores(experiment: "Experiment", output: Tree, y: Tensor) -> None:
    """Raise `SettingError` for an output that has not a score for each class of `y` [B, ...]."""
    classes = experiment.dataset.num_classes
    assert classes is not None
    scores = class_scores(output, y)
    what = f"an output of shape {tuple(output.shape)}" if isinstance(output, Tensor) else ""
    rule = f"gives {what or f'a {type(output).__name__}'} for {classes} classes"
    wanted = ", ".join(map(str, ("samples", *y.shape[1:], classes)))
    enough = scores is not None and scores.shape[-1] >= classes
    require(enough, "model", str(experiment.config.model), rule, f"it must be [{wanted}]")


@contextmanager
def _told(experiment: "Experiment", what: str) -> Iterator[None]:
    """Raise what a user's code or data raise as `SettingError`: the model cannot be `what`."""
    config = experiment.config
    try:
        yield
    except _CriterionFailed as failed:
        wrong = failed.__cause__
        assert wrong is not None
        rule = shapes_in_words(wrong) or f"cannot be computed: {_place(wrong)}"
        raise SettingError("criterion", config.criterion, rule) from wrong
    except SettingError as wrong:
        if wrong.value is not None:
            raise
        if wrong.name == "criterion" and config.criterion is None:
            declared = experiment.criterion is not F.cross_entropy
            told = found_in_file(wrong, "model", config.model)
            raise told if declared else SettingError("model", config.model, wrong.rule) from wrong
        own = {"criterion": config.criterion, "dataset": config.dataset}.get(wrong.name)
        raise SettingError(wrong.name, own or config.model, wrong.rule, wrong.fix) from wrong
    except Exception as wrong:
        why = shapes_in_words(wrong) and f"its criterion {shapes_in_words(wrong)}"
        rule = f"cannot be {what} {plainly(config.dataset)}: {why or _place(wrong)}"
        if isinstance(wrong, IndexError) and str(wrong).startswith("Target "):
            rule = f"gives scores for too few classes: {wrong}"
        raise SettingError("model", str(config.model), rule) from wrong


def _place(wrong: BaseException) -> str:
    return own_line(wrong) or f"{type(wrong).__name__}: {one_line(wrong)}"


@contextmanager
def _criterion_of_its_own(experiment: "Experiment") -> Iterator[None]:
    """Tell what a given criterion raises from what the model does, but for too few classes."""
    try:
        yield
    except Exception as wrong:  # whatever the user's own code raises
        few_classes = isinstance(wrong, IndexError) and str(wrong).startswith("Target ")
        if experiment.config.criterion is None or few_classes:
            raise
        raise _CriterionFailed from wrong


def _require_loss(experiment: "Experiment", x: Tree, y: Tree) -> None:
    """Raise for a criterion that fails on what the model makes of a worker's share of x."""
    x, y = _share(experiment, x), _share(experiment, y)
    with torch.no_grad(), put_back(torch.device(experiment.config.device)), shapes_that_fit():
        try:
            output = experiment.model(x)
        except Exception:  # which the step has raised too
            return
        with _criterion_of_its_own(experiment):
            experiment.criterion(output, y)


def _share(experiment: "Experiment", batch: Tree) -> Tree:
    """Return a copy of the first worker's share of a batch."""
    return cloned(row(batch, slice(len(leaves(batch)[0]) // experiment.simulator.recipe.workers)))


def _require_usual(x: Tree, y: Tree, told: str) -> None:
    """Raise `SettingError` for samples of a form that few models take, if that is what was told."""
    rule = fix = ""
    of_numbers = isinstance(x, list) and all(leaf.dim() == 1 for leaf in leaves(x))
    if of_numbers and re.search(r"\blist\b", told):
        rule = "gives lists of numbers as inputs, and the model takes a tensor"
        fix = "give torch.tensor(x)"
    elif "dtype" in told and isinstance(x, Tensor) and not x.is_floating_point():
        kind = str(x.dtype).removeprefix("torch.")
        rule, fix = f"gives inputs of {kind}, and the model takes floating point", "give x.float()"
    elif "multi-target" in told and isinstance(y, Tensor) and y.dim() == 2:
        rule = f"gives targets of shape [samples, {y.shape[1]}], and the loss takes [samples]"
        fix = "give each sample one class, as with y.squeeze(1)"
    require(not rule, "dataset", None, rule, fix)


def _require_trained(experiment: "Experiment", x: Tree, y: Tree) -> None:
    """Raise `SettingError` for a loss from which no parameter gets a gradient."""
    trained = experiment.simulator.components.params
    if len(experiment.simulator.unused_parameters(x, y)) == len(trained):
        rule, fix = "returns a loss from which no parameter gets a gradient", "compute it of output"
        raise SettingError("criterion", None, rule, fix)


def _require_finite(experiment: "Experiment", x: Tree) -> None:
    """Raise `SettingError` for numbers of the model that no checkpoint can hold: nan or infinite.

    Those that its forward sets are finite once it was called.
    """
    if not _nonfinite(experiment.model):
        return
    model = copy.deepcopy(experiment.model).train()
    few = _share(experiment, x)
    with torch.no_grad(), put_back(torch.device(experiment.config.device)):
        model(few)
    for name in _nonfinite(model):
        rule = f"has {name}, which is not finite before the first step"
        fix = "begin with numbers, or make a buffer with persistent=False, which is not saved"
        raise SettingError("model", None, rule, fix)


def _nonfinite(model: nn.Module) -> list[str]:
    """Return the names of what a model's state holds and is not finite."""
    state = model.state_dict().items()
    return [name for name, own in state if isinstance(own, Tensor) and not own.isfinite().all()]


def _require_scores(experiment: "Experiment", x: Tree) -> None:
    """Raise `SettingError` for a model whose output is no tensor, or whole numbers, as of argmax.

    A loss that is not torch's may take several tensors.
    """
    few = _share(experiment, x)
    with torch.no_grad(), put_back(torch.device(experiment.config.device)):
        output = experiment.model(few)
    if not isinstance(output, Tensor) and takes_tensors(experiment.criterion):
        what = "nothing" if output is None else f"a {type(output).__name__}"
        fix = "return scores, or give criterion, a function of what the model gives"
        rule = f"gives {what}, and the loss takes one tensor"
        raise SettingError("model", None, rule, fix)
    if isinstance(output, Tensor) and not (output.is_floating_point() or output.is_complex()):
        rule = f"gives {str(output.dtype).removeprefix('torch.')}, which has no gradient"
        fix = "give scores of classes, without argmax or rounding"
        raise SettingError("model", None, rule, fix)


@torch.no_grad()
def _evaluate(experiment: "Experiment", batches: Iterable[tuple[Tree, Tree]]) -> None:
    """Do with batches what an evaluation does, and leave everything as it was."""
    model = experiment.simulator.evaluation_model()
    kept = attributes_kept(model, experiment.criterion)
    with kept, put_back(torch.device(experiment.config.device)):
        for x, y in batches:
            output = model(x)
            with _criterion_of_its_own(experiment):
                experiment.criterion(output, y)
            experiment.metric.sums(output, y)
