"""Finds settings of a step that exclude each other."""

from typing import TYPE_CHECKING

from .settings import SettingError

if TYPE_CHECKING:
    from .recipe import Recipe


def check_contradictions(recipe: "Recipe") -> None:
    """Raise `SettingError` for settings that exclude each other, or lack the one they change."""
    if recipe.clip is not None and recipe.clip == float("inf"):
        raise SettingError("clip", recipe.clip, "must be finite", "leave it out for no clipping")
    if recipe.prune is not None and recipe.compressor is not None:
        fix = "--prune R is short for --compressor topk:1-R with a warm-up and memory dgc"
        raise SettingError("compressor", None, "and prune were both given", fix)
    _check_warmup(recipe)
    if recipe.scheduler is None and recipe.scheduler_every != "epoch":
        rule = "has no effect without scheduler"
        raise SettingError("scheduler_every", recipe.scheduler_every, rule, "set scheduler too")
    if recipe.nesterov and recipe.momentum == 0:
        rule = "has no effect with momentum 0"
        raise SettingError("nesterov", None, rule, "give a momentum")
    if recipe.clip is None and recipe.clip_by != "global-norm":
        raise SettingError("clip_by", recipe.clip_by, "has no effect without clip", "set clip too")
    if recipe.prune_1d and recipe.compress_if != "dim>1":
        raise SettingError("prune_1d", None, "and compress_if were both given", "give one")


def _check_warmup(recipe: "Recipe") -> None:
    epochs, is_default = recipe.warmup_epochs, recipe.warmup and recipe.warmup_epochs == 4
    if recipe.prune is None and not is_default:
        rule = "and warmup have no effect without prune"
        raise SettingError("warmup_epochs", None, rule)
    if not recipe.warmup and epochs != 4:
        rule = "has no effect without warmup"
        raise SettingError("warmup_epochs", epochs, rule, "give one of the two")
