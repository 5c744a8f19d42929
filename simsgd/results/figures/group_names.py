"""Names of lines and points: what differs between the runs that a figure shows."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from ..config_values import OF_ONE_RUN, OF_THE_MACHINE, RECORDS, default_of, in_short, varying
from ..run_tables import RunTables

_NOT_IN_NAMES = OF_ONE_RUN | OF_THE_MACHINE | RECORDS | {"seed"}
_BY_VALUE = ("model", "dataset", "compressor", "compress_layers", "memory", "algorithm", "regime",
             "partition")  # fmt: skip
_AUTOMATIC = r"\d{8}-\d{6}\b.*|[\d\W_]*"  # names that say nothing but when a run began


def group_names(groups: Sequence[Sequence[RunTables]]) -> list[str]:
    """Return a name for each group of runs.

    It is what the names of its runs have in common, without their seeds and what all groups have
    in common; the settings that differ, if the names are automatic (a date, or a sweep's) or the
    same; or the folder.
    """
    stems, by_settings = [_stem(runs) for runs in groups], _by_settings(groups)
    for names in (
        _without_common_words(_filled(stems, groups)),
        by_settings,
        [runs[0].name for runs in groups],
    ):
        if len(set(names)) == len(names) and all(names):
            return names
    return _with_folders(by_settings, [runs[0].folder for runs in groups])


def _filled(stems: Sequence[str], groups: Sequence[Sequence[RunTables]]) -> list[str]:
    """Return stems, and for groups that have none the settings in which these differ."""
    nameless = [place for place, stem in enumerate(stems) if not stem]
    among = range(len(groups)) if len(nameless) == 1 else nameless
    own = dict(zip(among, _by_settings([groups[place] for place in among]), strict=True))
    return [stem or own[place] for place, stem in enumerate(stems)]


def _with_folders(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return names, behind those that are not alone the folder, from where folders part."""
    wholes = [folder.resolve() for folder in folders]
    common = Path(os.path.commonpath(wholes))
    places = [str(whole.relative_to(common)) for whole in wholes]
    return [
        (name if names.count(name) == 1 else f"{name} ({place})") if name else place
        for name, place in zip(names, places, strict=True)
    ]


def _stem(runs: Sequence[RunTables]) -> str:
    """Return what the names have in common before their seeds; nothing of automatic names."""
    if all((run.folder.resolve().parent / "sweep.json").is_file() for run in runs):
        return ""
    letters = zip(*(run.name for run in runs), strict=False)
    shared = itertools.takewhile(lambda column: len(set(column)) == 1, letters)
    common = "".join(letter for letter, *_ in shared)
    seed = r"[-_. ]*seed[-_. =]*\d*$" if len(runs) == 1 else r"[-_. ]*(seed|s)?[-_. =]*\d*$"
    stem = re.sub(seed, "", common) or (common if len(runs) == 1 else "")
    return "" if re.fullmatch(_AUTOMATIC, stem) else stem


def _without_common_words(names: Sequence[str]) -> list[str]:
    """Return names without the words with which all begin, if letters are left of each.

    >>> _without_common_words(["lenet-topk", "lenet-sign"]), _without_common_words(["k-1", "k-2"])
    (['topk', 'sign'], ['k-1', 'k-2'])
    """
    words = [re.split(r"(?<=[-_ ])", name) for name in names]
    columns = zip(*words, strict=False)
    same = len(list(itertools.takewhile(lambda column: len(set(column)) == 1, columns)))
    short = ["".join(parts[same:]) for parts in words]
    return short if all(re.match(r"[A-Za-z]", name) for name in short) else list(names)


def _by_settings(groups: Sequence[Sequence[RunTables]]) -> list[str]:
    """Return the settings that differ and are not the default, in words."""
    configs = [runs[0].config for runs in groups]
    if len(groups) == 1:
        return [_recipe(configs[0])]
    names = [name for name in varying(configs) if name not in _NOT_IN_NAMES]
    without = [name for name in names if name != "memory"]  # which follows from the compressor
    short = [_settings_in_words(config, without) for config in configs]
    if len({*short}) == len(short):
        return short
    return [_settings_in_words(config, names) for config in configs]


def _settings_in_words(config: Mapping[str, object], names: Sequence[str]) -> str:
    given = {name: config.get(name) for name in names}
    words = [
        in_short(value) if name in _BY_VALUE else f"{name.replace('_', ' ')} {in_short(value)}"
        for name, value in given.items()
        if value not in (None, "none", default_of(name))
    ]
    if words or not names:
        return ", ".join(words)
    return "dense" if {"compressor", "compress_layers", "prune"} & set(names) else "default"


def _recipe(config: Mapping[str, object]) -> str:
    prune = config.get("prune")
    named = config.get("compressor") or config.get("compress_layers") or "dense"
    method = f"prune {prune:g}" if isinstance(prune, float) else named
    return f"{PurePath(str(config.get('model'))).stem} {method}, {config.get('workers')} workers"
