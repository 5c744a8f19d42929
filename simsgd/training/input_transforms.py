"""What a model does to samples before it takes them: checked, fitted to the data, and tried.

Letters: B samples, C channels.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..given_object import WITHOUT_ASYNC, is_async
from ..gradients.trees import Tree, leaves
from ..settings import SettingError, require, shown
from ..simulator.regime_form import accepts
from .data import Dataset, Text

Transform = Callable[..., Tensor]  # images [B, C, H, W], and perhaps numbers [B, draws] -> images

_FORM = 'write {"train": f, "eval": f}, each a function of images'


def fitted(transforms: object, dataset: Dataset | Text, model: str) -> dict[str, Transform]:
    """Return the transforms that suit a data set's statistics and what it does itself.

    Raises `SettingError` for an `input_transform` of a `model` that is no dictionary of functions.
    """
    suited = _checked(transforms, model)
    if isinstance(dataset, Text):
        return suited
    for part, transform in suited.items():
        if dataset.mean and hasattr(transform, "fitted"):
            transform = _fitted(part, transform, dataset, model)
        suited[part] = getattr(transform, "after_crop", transform) if dataset.cropped else transform
    return suited


def require_as_many(before: Tree, after: Tree, part: str, model: str) -> None:
    """Raise `SettingError` unless a transform returns samples, as many as it was given."""
    given, returned = len(leaves(before)[0]), leaves(after)
    if not returned or not all(isinstance(each, Tensor) and each.dim() for each in returned):
        kind = type(after).__name__
        rule = f"has an input_transform whose {part} returns {kind} and no tensor of samples"
        raise SettingError("model", model, rule)
    number = len(returned[0])
    if number != given:
        rule = f"has an input_transform whose {part} makes {number} samples of {given}"
        raise SettingError("model", model, rule, "return as many as it is given")


def _fitted(part: str, transform: Any, dataset: Dataset, model: str) -> Transform:
    """Return what a transform's own `fitted` makes of a data set's statistics."""
    given, rule = (
        (dataset.mean, dataset.std, dataset.mirrors),
        f"has an input_transform whose {part}",
    )
    if not callable(transform.fitted) or not accepts(transform.fitted, *given):
        fix = "take (mean, std, mirrors)"
        raise SettingError("model", model, f"{rule} has a fitted that takes other arguments", fix)
    made: Transform = transform.fitted(*given)
    kind = type(made).__name__
    fix = "return a function of images"
    require(callable(made), "model", model, f"{rule} has a fitted that returns {kind}", fix)
    return made


def _checked(transforms: object, model: str) -> dict[str, Transform]:
    if transforms is None:
        return {}
    if not isinstance(transforms, Mapping):
        rule = f"has an input_transform of type {type(transforms).__name__}"
        raise SettingError("model", model, rule, _FORM)
    for part, transform in transforms.items():
        if part not in ("train", "eval"):
            raise SettingError("model", model, f"has an input_transform for {shown(part)}", _FORM)
        if not callable(transform):
            rule = f"has an input_transform whose {part} is no function but {shown(transform)}"
            raise SettingError("model", model, rule, _FORM)
        rule = f"has an input_transform whose {part} is an async function"
        require(not is_async(transform), "model", model, rule, WITHOUT_ASYNC)
        draws = getattr(transform, "draws", 0)
        rule = f"has an input_transform whose {part} declares draws = {shown(draws)}"
        whole = isinstance(draws, int) and draws >= 0
        require(whole, "model", model, rule, "name how many numbers it takes for an image")
        fix = "leave it out: nothing is drawn in an evaluation"
        require(part == "train" or draws == 0, "model", model, rule, fix)
    return dict(transforms)
