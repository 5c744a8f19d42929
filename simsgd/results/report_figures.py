"""The figures of `simsgd report`: of all runs, and those that only some have data for."""

import io
from collections.abc import Iterator, Sequence

from . import html as page
from .figures.run_groups import Group, grouped
from .outcome import metrics_of
from .run import Run
from .run_tables import RunTables

_OF_ALL = (  # y, caption
    ("train_loss", "Training loss, mean over each epoch."),
    ("ratio", "How many times less is sent than dense gradients take, since the start."),
)
_OVER_SEEDS = "Lines of several seeds are their mean, in a band from the least to the most."
_MOST = 12  # panels of a figure, one for each run or its seeds


def figure_sections(runs: Sequence[Run]) -> list[str]:
    """Return the sections with figures of the runs that were evaluated."""
    drawn = [run for run in runs if len(run.evaluations) > 0]
    if not drawn:
        return []
    groups = grouped(drawn)
    several = any(len(group.runs) > 1 for group in groups)
    notes = [page.note(_OVER_SEEDS)] if several else []
    parts = [*_metrics(drawn), *_curves(drawn)]
    sections = [page.section("Figures", page.figures(parts), *notes)]
    workers = [*_consensus(drawn), *_panels(groups)]
    if workers:
        sections.append(page.section("Workers and layers", page.figures(workers)))
    return sections


def _metrics(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the figures of each metric that the runs have."""
    for metric in metrics_of(runs):
        own = [run for run in runs if run.metric.column == metric.column]
        column, title = f"val_{metric.column}", f"Validation {metric.title}"
        own = [run for run in own if run.evaluations[column].notna().any()]
        if not own:  # loops of one's own that were not evaluated
            continue
        dot = "a dot marks the best"
        yield page.figure(_svg(own, y=column), f"{title} after each epoch; {dot}.")
        sent = "against the bytes that each worker has sent"
        yield page.figure(_svg(own, x="bytes", y=column), f"{title} {sent}.")
        if len(grouped(own)) > 1 and _all_ended_finite(own, column):
            caption = f"{title} at the end against bytes, and the frontier of the best."
            yield page.figure(_svg(own, y=column, kind="pareto"), caption)


def _all_ended_finite(runs: Sequence[Run], column: str) -> bool:
    return all(run.evaluations[column].notna().iloc[-1] for run in runs)


def _curves(runs: Sequence[Run]) -> Iterator[str]:
    for column, caption in _OF_ALL:
        yield page.figure(_svg(runs, y=column), caption)


def _consensus(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the figure of how far the models of workers lie apart, of runs where they do."""
    apart = [run for run in runs if run.evaluations["consensus_distance"].iloc[-1] > 0]
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
        shown = [run for group in having[:_MOST] for run in group.runs]
        left = f" {len(having) - _MOST} more runs are left out." if len(having) > _MOST else ""
        if shown:
            yield page.figure(_svg(shown, kind=kind), caption + left)


def _knows_epochs(run: RunTables) -> bool:
    """Return whether a run counts epochs, as a loop of one's own need not."""
    return bool(run.evaluations["epochs"].notna().any())


def _has_topology(run: RunTables) -> bool:
    return isinstance(run.used.get("topology"), str)


def _has_partition(run: RunTables) -> bool:
    return not run.partition.empty


def _has_layers(run: RunTables) -> bool:
    return not run.layers.empty


def _svg(
    runs: Sequence[RunTables], x: str | None = None, y: str | None = None, kind: str = "curves"
) -> bytes:
    """Return a figure with its letters as outlines, which look alike wherever it is opened."""
    import matplotlib as mpl

    from .figures.plot import plot_results

    if kind == "curves" and x is None and not all(map(_knows_epochs, runs)):
        x = "step"
    buffer = io.BytesIO()
    figure = plot_results(list(runs), x=x, y=y, kind=kind)
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "simsgd"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
