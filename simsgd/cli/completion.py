"""What a shell completes: names of models, methods and data sets, read without importing torch.

A name that stands in a file of the package is found there; tests hold all of them to `simsgd list`.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

import simsgd

_METHODS = {  # settings whose names are registered, the folder of their files, and their kind
    "algorithm": ("methods/algorithms", "algorithm"),
    "aggregate": ("methods/aggregations", "aggregation"),
    "attack": ("methods/attacks", "attack"),
    "compressor": ("methods/compressors", "compressor"),
    "downlink": ("methods/compressors", "compressor"),
    "engine": ("gradients", "engine"),
    "memory": ("methods/memories", "memory"),
    "method": ("methods/presets", "preset"),
    "outer_optimizer": ("methods/outer_optimizers", "outer_optimizer"),
}
_FILES = {"model": "models", "regime": "regimes"}
_OTHERS = {
    "dataset": (
        "cifar10", "cifar100", "digits", "fashion-mnist", "imagefolder:", "imagenet", "libsvm:",
        "mnist", "mnist5k", "ptb", "pydoc", "stl10", "svhn", "text:", "wikitext2",
    ),
    "kind": ("curves", "pareto", "layers", "time", "timeline", "topology", "partition"),
    "listed": (
        "models", "regimes", "datasets", "compressors", "memories", "algorithms", "methods",
        "aggregations", "attacks", "outer-optimizers", "topologies", "engines",
    ),
    "network": ("wan", "1gbe", "10gbe", "25gbe", "100g-ib", "nvlink", "bandwidth="),
    "overlap": ("none", "buckets", "buckets:", "perfect"),
    "partition": (
        "iid-reshuffled", "iid-fixed", "sorted", "dirichlet:", "shards:", "quantity:",
        "label-dirichlet:",
    ),
    "topology": (
        "complete", "erdos-renyi:", "expander", "exponential", "hypercube", "margulis", "one-peer",
        "path", "random-peer", "ring", "social", "star", "torus",
    ),
}  # fmt: skip
_ALSO = {"engine": ("auto", "tune"), "regime": ("model",)}
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def known_names(setting: str) -> list[str]:
    """Return the names that a setting takes; () for one that takes none.

    >>> "topk" in known_names("compressor"), "lenet" in known_names("model")
    (True, True)
    """
    return sorted({*_found(setting), *_OTHERS.get(setting, ()), *_ALSO.get(setting, ())})


def completes(setting: str) -> Complete | None:
    """Return what completes the names of a setting; None if it has none."""
    names = known_names(setting)
    return complete_from(names) if names else None


def complete_from(names: Iterable[str]) -> Complete:
    """Return what completes names, and files where a path has begun."""
    known = list(names)

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        if begun.startswith((".", "/", "~")):
            return [CompletionItem(begun, type="file")]
        return [CompletionItem(name) for name in known if name.startswith(begun)]

    return complete


def complete_runs(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete run folders and folders that hold some, those of `runs` where nothing has begun."""
    folder, slash, name = (begun or "runs/").rpartition("/")
    with contextlib.suppress(OSError):
        inside = sorted(Path(folder + slash).expanduser().iterdir(), key=lambda path: path.name)
        found = [path.name for path in inside if path.name.startswith(name) and _holds_run(path)]
        if found:
            return [CompletionItem(f"{folder}{slash}{each}") for each in found]
    return [CompletionItem(begun, type="file")]


def _holds_run(folder: Path) -> bool:
    return any(next(folder.glob(f"{depth}config.json"), None) for depth in ("", "*/", "*/*/"))


def _found(setting: str) -> Iterator[str]:
    if setting in _FILES:
        folders = [Path(place) / _FILES[setting] for place in simsgd.__path__]
        files = (file for folder in folders for file in folder.glob("*.py"))
        yield from (file.stem for file in files if not file.stem.startswith("_"))
    if setting in _METHODS:
        folder, kind = _METHODS[setting]
        for file in (Path(simsgd.__path__[0]) / folder).rglob("*.py"):
            text = file.read_text("utf-8")
            yield from re.findall(rf'^@register\("{kind}", "([\w-]+)"\)', text, re.MULTILINE)
