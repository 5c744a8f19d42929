"""The figures of `simsgd report`: of all runs, and those that only some have data for."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from . import html as page
from .figures.appearance import Appearance
from .figures.request import Request
from .figures.run_groups import Group, grouped
from .figures.style import THEMES
from .metric import Metric
from .pricing import Pricing
from .run import Run
from .run_tables import RunTables

_LESS = "How many times less is sent than dense gradients take, since the start."
_OVER_SEEDS = "Lines of several seeds are their mean, in a band from the least to the most."
_MOST = 12  # panels of a figure, one for each run or its seeds
_THEME = replace(THEMES["screen"], panel=(4.6, 3.0), fixed=True)  # for a telephone, names below
_NARROW = replace(_THEME, panel=(3.4, 3.0))  # for a single graph


def figure_sections(runs: Sequence[Run]) -> list[str]:
    """Return the sections with figures of the runs that were evaluated.

    A method has the same name and color in all of them.
    """
    drawn = [run for run in runs if len(run.evaluations) > 0]
    if not drawn:
        return []
    groups = grouped(drawn)
    several = any(len(group.runs) > 1 for group in groups)
    notes = [page.note(_OVER_SEEDS)] if several else []
    sections = [page.section("Figures", page.figures(_curves(groups)), *notes)]
    workers = [*_consensus(groups), *_panels(groups)]
    if workers:
        sections.append(page.section("Workers and layers", page.figures(workers)))
    return sections


def _curves(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the figures of each metric that the runs have, and of their bytes.

    Images and texts share no panel, nor do texts of words and of characters.
    """
    for metric in dict.fromkeys(run.metric for group in groups for run in group.runs):
        yield from _metric(_having(groups, lambda run: run.metric == metric), metric)  # noqa: B023
    if sending := _having(groups, lambda run: _evaluated(run, "ratio", sent=True)):
        yield page.figure(_svg(sending, y="ratio"), _LESS)


def _metric(groups: Sequence[Group], metric: Metric) -> Iterator[str]:
    """Yield the figures of runs that have a metric."""
    column = f"val_{metric.column}"
    per = f" per {metric.tokens}" if metric.tokens else ""
    title = f"Validation {metric.title}{per}"
    own = _having(groups, lambda run: _evaluated(run, column))
    if own:  # loops of one's own need not be evaluated
        yield page.figure(_svg(own, y=column), f"{title} after each epoch; a dot marks the best.")
    sent = _having(own, lambda run: _evaluated(run, column, sent=True))
    if sent:  # an exchange may come later than an evaluation
        caption = f"{title} against the bytes that each worker has sent."
        yield page.figure(_svg(sent, x="bytes", y=column), caption)
    if len(sent) > 1 and _all_ended_finite(sent, column):
        caption = f"{title} at the end against bytes, and the frontier of the best."
        yield page.figure(_svg(sent, x="bytes", y=column, kind="pareto"), caption)
    caption = f"Training loss{per}, mean over each epoch."
    yield page.figure(_svg(groups, y="train_loss"), caption)


def _having(groups: Sequence[Group], has: Callable[[RunTables], bool]) -> list[Group]:
    """Return groups with the runs alone that have something, without those that have none."""
    some = [replace(group, runs=[*filter(has, group.runs)]) for group in groups]
    return [group for group in some if group.runs]


def _evaluated(run: RunTables, column: str, sent: bool = False) -> bool:
    """Return whether a run has a value of a column, once anything was `sent` if asked so."""
    table = run.evaluations
    rows = table[table["payload_bytes"] > 0] if sent else table
    return bool(rows[column].notna().any())


def _all_ended_finite(groups: Sequence[Group], column: str) -> bool:
    runs = [run for group in groups for run in group.runs]
    return all(run.evaluations[column].notna().iloc[-1] for run in runs)


def _consensus(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the figure of how far the models of workers lie apart, of runs where they do."""
    apart = _having(groups, lambda run: run.evaluations["consensus_distance"].iloc[-1] > 0)
    if apart:
        caption = "Consensus distance: how far the workers' models lie from their mean."
        yield page.figure(_svg(apart, y="consensus_distance"), caption)


def _panels(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the figures that have a panel for each run, of those runs that have the data."""
    for kind, has, caption in (
        ("topology", _has_topology, "Neighbors of each worker, and the metric of its own model."),
        ("partition", _has_partition, "Samples of each worker by class."),
        ("layers", _has_layers, "Bytes and compression error of each layer."),
    ):
        having = [group for group in groups if all(map(has, group.runs))]
        left = f" {len(having) - _MOST} more runs are left out." if len(having) > _MOST else ""
        if having:
            yield page.figure(_svg(having[:_MOST], kind=kind), caption + left)


def _knows_epochs(run: RunTables) -> bool:
    """Return whether a run counts epochs, as a loop of one's own need not."""
    return bool(run.evaluations["epochs"].notna().any())


def _has_topology(run: RunTables) -> bool:
    return isinstance(run.used.get("topology"), str)


def _has_partition(run: RunTables) -> bool:
    return not run.partition.empty


def _has_layers(run: RunTables) -> bool:
    return not run.layers.empty


def _svg(groups: Sequence[Group], x: str = "epoch", y: str = "", kind: str = "curves") -> bytes:
    """Return a figure with its letters as outlines, which look alike wherever it is opened."""
    from .figures.plot import KINDS

    runs = [run for group in groups for run in group.runs]
    if x == "epoch" and not all(map(_knows_epochs, runs)):
        x = "step"
    theme = _NARROW if kind == "topology" and len(groups) == 1 else _THEME
    request = Request(
        groups=groups,
        x=x,
        y=[y],
        networks=(),
        pricing=Pricing(),
        smooth=1,
        theme=theme,
        appearance=Appearance(),
    )
    buffer = io.BytesIO()
    with request.theme.drawing():
        import matplotlib as mpl

        figure = KINDS[kind](request)
        with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "simsgd"}):
            figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
