"""Fills in settings: a published method's, and files by their whole paths; refuses what clashes."""

import os
import re
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from .given_object import PREFIX, with_objects
from .registry import build, settings_of
from .settings import SettingError, require, require_kind
from .units import home_path, joined_by_plus

if TYPE_CHECKING:
    from .recipe import Recipe

_MOST_DIGITS = 6  # of the nodes of a cluster, and of the devices of a node
_OF_FILES = ("text", "libsvm", "imagefolder")  # data sets
_IN_PLACE_OF = {"clients": "participation", "local_epochs": "local_steps"}


def with_preset(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with those of the published method that they name, where they lack them.

    A number of clients takes the place of the method's participation, local epochs that of its
    local steps. Another algorithm than the method's has none of the settings that it does not know,
    and with `prune` the method's compressor and memory are left out. Raises `SettingError` for an
    unknown method.
    """
    if given.get("method") is None:
        return given
    try:
        [preset] = build("preset", str(given["method"]))
        preset.check()
    except (SettingError, ValueError) as wrong:
        if not isinstance(wrong, SettingError):
            raise SettingError("method", given["method"], "must be one method") from wrong
        raise SettingError("method", wrong.value, wrong.rule, wrong.fix) from wrong
    usual: dict[str, Any] = with_objects(preset.settings)
    for name, other in _IN_PLACE_OF.items():
        if given.get(name) is not None:
            usual.pop(other, None)
    if given.get("prune") is not None:
        usual.pop("compressor", None)
        usual.pop("memory", None)
    of_method = usual.get("algorithm", "allreduce")
    if (chosen := given.get("algorithm", of_method)) != of_method:
        known, own = (
            {f.name for f in settings_of(type(build("algorithm", spec)[0]))}
            for spec in (chosen, of_method)
        )
        usual = {name: value for name, value in usual.items() if name not in own - known}
    return {**usual, **given}


def with_nodes(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with as many workers as the `cluster` has nodes, where they lack them."""
    if given.get("cluster") is None or "workers" in given:
        return given
    return {**given, "workers": nodes_and_devices(given["cluster"])[0]}


def nodes_and_devices(spec: object) -> tuple[int, int]:
    """Return how many nodes a cluster has, and how many devices each.

    >>> nodes_and_devices("4x8")
    (4, 8)

    Raises `SettingError` for anything else than such a spec.
    """
    require_kind("cluster", spec, str)
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(spec).strip(), re.ASCII)
    if found is None:
        rule = "must be how many nodes and how many devices of each"
        raise SettingError("cluster", spec, rule, "such as 4x8")
    most = max(len(found[1]), len(found[2])) <= _MOST_DIGITS
    require(most, "cluster", spec, "has too many nodes or devices", "give at most 999999 of each")
    return int(found[1]), int(found[2])


def spell_out(recipe: "Recipe") -> None:
    """Put a number for its digits, and a file's whole path, to resume from another folder."""
    chunk, topology = recipe.worker_chunk, recipe.topology
    if isinstance(chunk, str) and chunk.isascii() and chunk.isdecimal():
        object.__setattr__(recipe, "worker_chunk", int(chunk))
    if topology is not None and names_file(topology):
        object.__setattr__(recipe, "topology", str(home_path(topology).absolute()))


def check_values(recipe: "Recipe") -> None:
    """Raise `SettingError` for a value that is out of range."""
    require(recipe.workers >= 1, "workers", recipe.workers, "must be at least 1")
    _check_cluster(recipe)
    _check_prune(recipe.prune)
    _check_chunk(recipe)
    epochs = recipe.warmup_epochs
    require(epochs >= 0, "warmup_epochs", epochs, "must be at least 0")
    for name in ("clip", "lr"):
        value = getattr(recipe, name)
        require(value is None or value > 0, name, value, "must be greater than 0")
    if recipe.momentum is not None and not 0 <= recipe.momentum < 1:
        raise SettingError("momentum", recipe.momentum, "must lie in [0, 1)")
    decay = recipe.weight_decay
    require(decay is None or decay >= 0, "weight_decay", decay, "must be at least 0")
    for name in ("lr", "weight_decay"):
        value = getattr(recipe, name)
        require(value is None or isfinite(value), name, value, "must be finite")
    require(0 <= recipe.seed < 2**63, "seed", recipe.seed, "must lie in [0, 2**63)")
    require(recipe.flush_every >= 0, "flush_every", recipe.flush_every, "must be at least 0")
    require(recipe.accumulate >= 1, "accumulate", recipe.accumulate, "must be at least 1")


def _check_prune(prune: float | None) -> None:
    if prune is None:
        return
    fix = "for 99.9 % use 0.999"
    if prune == 1:
        fix = "at 1 nothing would be sent; " + fix
    require(0 <= prune < 1, "prune", prune, "must lie in [0, 1)", fix)


def _check_cluster(recipe: "Recipe") -> None:
    if recipe.cluster is None:
        return
    nodes, devices = nodes_and_devices(recipe.cluster)
    rule = f"has {nodes} nodes, each a worker, and here are {recipe.workers} workers"
    require(recipe.workers == nodes, "cluster", recipe.cluster, rule, "leave workers out")
    rule, fix = "has one device a node, which is a worker without a cluster", "leave it out"
    require(devices > 1, "cluster", recipe.cluster, rule, fix)
    if recipe.clients is not None or recipe.client_buffers not in (None, "local"):
        name = "clients" if recipe.clients is not None else "client_buffers"
        rule = "does not go together with cluster: a client is one device, and no node"
        raise SettingError(name, getattr(recipe, name), rule, "leave one out")


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
    epochs = recipe.warmup_epochs
    for name, changed in (("warmup", not recipe.warmup), ("warmup_epochs", epochs != 4)):
        if recipe.prune is None and changed:
            raise SettingError(name, getattr(recipe, name), "has no effect without prune")
    if not recipe.warmup and epochs != 4:
        rule = "has no effect without warmup"
        raise SettingError("warmup_epochs", epochs, rule, "give one of the two")


def _check_chunk(recipe: "Recipe") -> None:
    chunk = recipe.worker_chunk
    if chunk == "auto":
        return
    if not isinstance(chunk, int) or chunk < 1:
        raise SettingError("worker_chunk", chunk, "must be a number of at least 1, or auto")
    if recipe.engine in ("loop", "threads"):
        rule = f"has no effect with engine {recipe.engine}"
        fix = "leave it out, or use engine onepass or vmap"
        raise SettingError("worker_chunk", chunk, rule, fix)


def names_file(spec: str) -> bool:
    """Return whether a spec is the path of a file of numbers.

    >>> names_file("ring.txt"), names_file("./mine.csv"), names_file("erdos-renyi:0.3")
    (True, True, False)
    """
    return "/" in spec or spec.endswith((".txt", ".csv", ".edges"))


def names_own_file(spec: str) -> bool:
    """Return whether a spec names a function in a user's own file.

    >>> names_own_file("./mine.py"), names_own_file("mine.py:small"), names_own_file("digits")
    (True, True, False)
    """
    return not spec.startswith("text:") and re.search(r"\.py(:[^:/]*)?$", spec) is not None


def whole_spec(spec: str | None) -> str | None:
    """Return a spec with the whole path of each file that it names; an object's as it is.

    It may be one of a method, of several joined by +, of compressors by layer, or of a data set. A
    data set's file is left as it is if it is not here, but in the folder of data.
    """
    if spec is None or spec.startswith(PREFIX):
        return spec
    kind, colon, path = spec.partition(":")
    if colon and kind in _OF_FILES:
        file = home_path(path)
        return f"{kind}:{file.absolute()}" if path and os.path.exists(file) else spec
    before = re.match(r"""[^/=",]*(?<!\.py)[=",]""", spec)
    if before:  # layers, or settings of a method that + joins with another
        return "".join(_whole(piece) for piece in re.split(r"""([=",])""", spec))
    return _whole(spec)


def _whole(spec: str) -> str:
    if ".py" not in spec:
        return spec
    return "+".join(map(_whole_part, joined_by_plus(spec)))


def _whole_part(part: str) -> str:
    found = re.fullmatch(r"((?:[^/:]*:)?)((?:.*/)?[^/:]*\.py)((?::.*)?)", part)
    return f"{found[1]}{home_path(found[2]).absolute()}{found[3]}" if found else part
