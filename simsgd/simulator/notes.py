"""Notes on settings that are allowed together and seldom wanted."""

from ..communication.messages import Places, Sparse
from ..given_object import plainly
from ..methods.compressors import composed
from ..recipe import Recipe
from .components import Components
from .layer_compressors import by_segment
from .method_choice import algorithm_named, compressor_specs, memory_name, needs_memory
from .regime import Regime
from .regularizers import SPARING, regularizers


def notes_of(parts: Components) -> list[str]:
    """Return what a user should know of the settings of a simulator, a line each."""
    return [*notes(parts.recipe, parts.regime), *_on_layers(parts), *_on_filters(parts)]


def notes(recipe: Recipe, regime: Regime) -> list[str]:
    """Return what a user should know of a combination that is allowed and seldom wanted."""
    memory = memory_name(recipe, regime)
    specs = dict.fromkeys(compressor_specs(regime.at(0, 0)))
    found = [note for spec in specs for note in _notes_on(spec, recipe, memory)]
    found = [*_on_idle_memory(recipe, regime, memory), *found, *_on_noise(recipe)]
    found += _on_indices(recipe, regime)
    return list(dict.fromkeys(found))


def _on_idle_memory(recipe: Recipe, regime: Regime, memory: str) -> list[str]:
    """Return a note on a memory that has nothing to keep, for all is sent as it is."""
    if not regime.starts and (regime.follows_epochs or regime.may_set()):
        return []  # what functions come to is not known yet
    phases = [regime.at(epoch, step) for epoch, step in ((0, 0), *regime.starts)]
    whole = {spec for phase in phases for spec in compressor_specs(phase)} == {"none"}
    plain = (recipe.value_dtype, recipe.downlink, recipe.aggregate) == (None, None, "mean")
    if memory not in ("residual", "dgc") or not (whole and plain) or recipe.lr_in_memory:
        return []
    return [f"note: memory {memory} keeps nothing, since nothing is compressed; set --compressor"]


def _notes_on(spec: str, recipe: Recipe, memory: str) -> list[str]:
    compressor, algorithm = composed(spec), algorithm_named(recipe.algorithm)
    spec, memory = plainly(spec), plainly(memory)
    if algorithm.only_unbiased and compressor.biased:
        return [
            f"note: {plainly(recipe.algorithm)} with {spec}, which is biased, has no theory: "
            f"{algorithm.only_unbiased} asks for an unbiased compressor, and few entries make it "
            "diverge; choco takes any"
        ]
    if algorithm.has_own_memory:
        return []
    if memory == "none" and compressor.moves_zeros:
        return [
            f"note: {spec} sends a zero as +, and memory is none: entries without a gradient "
            "move at every step; memory residual brings them back, sign:zero=keep leaves them"
        ]
    if memory == "none" and needs_memory(compressor):
        return ["note: what is not sent is lost, since memory is none; residual would keep it"]
    if memory.startswith(("residual", "dgc")) and spec != "none" and not compressor.biased:
        return [f"note: {spec} is unbiased without a memory, and {memory} adds to its variance"]
    return []


def _on_noise(recipe: Recipe) -> list[str]:
    if not recipe.noise_scale or recipe.workers > 1:
        return []
    return ["note: noise_scale compares workers, and is nan with one"]


def _on_indices(recipe: Recipe, regime: Regime) -> list[str]:
    """Return a note on an encoding of indices where no message has any."""
    usual = Recipe.__dataclass_fields__["index_dtype"].default
    if recipe.index_dtype == usual or recipe.downlink is not None or recipe.aggregate != "mean":
        return []
    if not regime.starts and (regime.follows_epochs or regime.may_set()):
        return []  # what functions come to is not known yet
    phases = [regime.at(epoch, step) for epoch, step in ((0, 0), *regime.starts)]
    methods = [composed(spec) for phase in phases for spec in compressor_specs(phase)]
    if any(own.selects and isinstance(own.probe(), Sparse | Places) for own in methods):
        return []
    return [f"note: index_dtype {recipe.index_dtype} changes nothing: no index is sent"]


def _on_layers(parts: Components) -> list[str]:
    """Return a note if rules of layers leave nothing to the compressor beside them."""
    recipe, rules = parts.recipe, parts.regime.at(0, 0).get("compress_layers", ())
    given = "prune" if recipe.prune else "compressor" if recipe.compressor else ""
    if not rules or not given:
        return []
    of_rules = zip(parts.layout.segments, by_segment(parts.layout, rules, rules, None), strict=True)
    if any(rule is None and not segment.dense for segment, rule in of_rules):
        return []
    what = f"{given} {plainly(str(getattr(recipe, given)))}"
    return [f"note: {what} compresses nothing: compress_layers takes all that is compressed"]


def _on_filters(parts: Components) -> list[str]:
    """Return a note on each regularizer whose own filter takes no parameter of the model."""
    phases = [parts.regime.at(epoch, step) for epoch, step in ((0, 0), *parts.regime.starts)]
    own = [each for phase in phases for each in regularizers(phase.get("regularizer"))]
    idle = [
        each for each in own if each.filter is not SPARING and not parts.regularized.taken(each)
    ]
    return [
        f"note: the filter of {name} takes no parameter of the model, so that it does nothing"
        for name in dict.fromkeys(type(each).__name__ for each in idle)
    ]
