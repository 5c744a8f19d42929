"""One page about some runs: how they ended, their figures, their settings, their tables."""

import io
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ..config import Config
from ..config_values import OF_ONE_RUN, OF_THE_MACHINE, in_short, varying
from ..settings import SettingError, require
from . import html as page
from .atomic_files import replace
from .figures.run_groups import grouped
from .results_table import Row, cells, results
from .run import Run
from .run_folders import by_name, find_runs
from .sweep import Sweep

_FIGURES = (  # x, y, caption
    ("epoch", "val_error1", "Validation error after each epoch; a dot marks the least."),
    ("bytes", "val_error1", "Validation error against the bytes that each worker has sent."),
    ("epoch", "train_loss", "Training loss, mean over each epoch."),
    ("epoch", "ratio", "How many times less is sent than dense gradients take, since the start."),
)
_OVER_SEEDS = "Lines of several seeds are their mean, in a band from the least to the most."
_LAST_LINES = 30  # of the log
_APART = OF_ONE_RUN | OF_THE_MACHINE | {"environment", "used"}


def write_report(places: Iterable[Path | str], output: Path | str) -> None:
    """Write a page about the runs in `places`, run folders or folders that hold some.

    Raises `SettingError` for a place without runs, or an output that cannot be written.
    """
    path = Path(output)
    require(path.suffix.lower() in (".html", ".htm"), "output", str(path), "must end in .html")
    text = report(places).encode()
    try:
        replace(path, lambda file: file.write(text))
    except OSError as wrong:
        told = f"cannot be written ({wrong.strerror})"
        raise SettingError("output", str(path), told) from wrong


def report(places: Iterable[Path | str]) -> str:
    """Return the page's text; it needs no script, no other file and no network."""
    paths = [Path(place) for place in places]
    rows = results(paths)
    runs = {name: Run(run.folder) for name, run in by_name(find_runs(paths)).items()}
    title = next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs"
    folders = ", ".join(dict.fromkeys(str(path) for path in paths[:3]))
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    today = f"{datetime.now():%d %B %Y, %H:%M}"
    return page.page(
        f"simsgd: {title}",
        f"{folders}{more}; {today}",
        [
            *_sweeps(paths),
            _results(rows),
            *_figures(runs),
            _settings(runs),
            page.section("Runs", *(_run(name, run) for name, run in runs.items())),
        ],
    )


def _results(rows: list[Row]) -> str:
    head, *body = cells(rows)
    errors = [row["error"] for row in rows]
    finite = [error for error in errors if error == error]
    best = errors.index(min(finite)) if len(finite) > 1 else -1
    words = "Errors in percent, of the last epoch; best: of all epochs. Bytes are of one worker."
    return page.section(
        "Results",
        page.table([head, *body], range(len(head) - 7, len(head)), best),
        page.note(words + (" The least error is set off." if best >= 0 else "")),
    )


def _figures(runs: Mapping[str, Run]) -> list[str]:
    drawn = [run for run in runs.values() if len(run.epochs) > 0]
    if not drawn:
        return []
    parts = [page.figure(_svg(drawn, x, y), caption) for x, y, caption in _FIGURES]
    several = any(len(group.runs) > 1 for group in grouped(drawn))
    told = [page.note(_OVER_SEEDS)] if several else []
    return [page.section("Figures", page.figures(parts), *told)]


def _svg(runs: list[Run], x: str, y: str) -> bytes:
    """Return a figure with its letters as outlines, which look alike wherever it is opened."""
    import matplotlib as mpl

    from .figures.plot import plot_results

    buffer = io.BytesIO()
    figure = plot_results(runs, x=x, y=y)
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "simsgd"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _settings(runs: Mapping[str, Run]) -> str:
    """Return what all runs have in common, what is not the default in bold."""
    configs = [run.config for run in runs.values()]
    differ = {*varying(configs), *_APART}
    common = {name: value for name, value in configs[0].items() if name not in differ}
    several = len(runs) > 1
    words = "Those that vary stand with the results. " if several else ""
    return page.section(
        "Settings of all runs" if several else "Settings",
        page.groups(_by_stage(common)),
        page.note(words + "Bold: not the default, or settled by the model."),
    )


def _by_stage(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the stages of a step, and the settings of each, what is not the default in bold."""
    stages: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        known = Config.__dataclass_fields__.get(name)
        stage = known.metadata["group"] if known else "other"
        stages.setdefault(stage, {})[name] = value
    for stage, own in stages.items():
        marked = [name for name, value in own.items() if not _usual(name, value)]
        yield stage.capitalize(), page.facts(_pairs(own), marked)


def _sweeps(places: Iterable[Path]) -> Iterator[str]:
    """Yield a section for each place that is a sweep's, or that holds some."""
    for path in sorted({found for place in places for found in place.rglob("sweep.json")}):
        sweep = Sweep(path.parent)
        rows = sweep.cells()
        numbers = range(len(rows[0]) - 6, len(rows[0]))
        note = page.note("+- is the standard deviation over seeds, of the sample.")
        told = f"Means over seeds: {path.parent.resolve().name}"
        yield page.section(told, page.table(rows, numbers), note)


def _run(name: str, run: Run) -> str:
    config = run.config
    place = config.get("environment") or {}
    parts = [page.verbatim(run.summary())]
    if len(run.epochs) > 0:
        rows = [list(run.epochs.columns), *([_short(v) for v in row] for row in _rows(run))]
        parts += [page.heading("Epochs"), page.table(rows, range(len(rows[0])))]
    if place:
        parts += [page.heading("Where it ran"), page.facts(_pairs(place))]
    log = run.log.splitlines()
    told = "Log" if len(log) <= _LAST_LINES else f"Log, its last {_LAST_LINES} lines"
    if log:
        parts += [page.heading(told), page.verbatim("\n".join(log[-_LAST_LINES:]))]
    return page.folded(name, f"{len(run.epochs)} of {config.get('epochs')} epochs", *parts)


def _rows(run: Run) -> list[list[Any]]:
    table = run.epochs.astype(object)  # bytes stay integers
    return [list(row) for row in table.to_numpy()]


def _short(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _pairs(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, " ".join(map(str, value)) if isinstance(value, list) else in_short(value))
        for name, value in settings.items()
    ]


def _usual(name: str, value: Any) -> bool:
    known = Config.__dataclass_fields__.get(name)
    return known is not None and in_short(known.default) == in_short(value)
