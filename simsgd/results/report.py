"""The page of `simsgd report`: results, figures, settings and tables of runs."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ..config import Config
from ..settings import SettingError, require_kind
from . import html as page
from .atomic_files import replace
from .config_values import OF_ONE_RUN, OF_THE_MACHINE, RECORDS, in_short, varying
from .metric import Metric
from .outcome import metrics_of
from .report_figures import figure_sections
from .report_tables import network_section, verified_section
from .results_table import Row, result_rows, result_table
from .run import Run
from .run_command import command_of
from .run_folders import RunPath, RunPaths, by_name, find_runs, is_verification, several
from .run_tables import RunTables
from .sweep import Sweep
from .text_table import TextTable
from .used_settings import Used, value_in_words

_LAST_LINES = 30  # of the log
_NOT_SHOWN = OF_ONE_RUN | OF_THE_MACHINE | RECORDS


def report(
    runs: RunPaths,
    output: Path | str = "report.html",
) -> Path:
    """Write one self-contained page about runs: settings, figures, tables. Returns its path.

    Args:
        runs: run folders, or folders that hold some at any depth, such as a sweep's.
        output: the page to write, a .html.

    Raises `SettingError` for a place without runs, or an output that cannot be written.
    """
    require_kind("output", output, str, Path)
    path = Path(output)
    if path.suffix.lower() not in (".html", ".htm"):
        raise SettingError("output", str(path), "must end in .html")
    text = report_page(runs).encode("utf-8", "replace")
    try:
        replace(path, lambda file: file.write(text))
    except OSError as wrong:
        rule = f"cannot be written ({wrong.strerror})"
        raise SettingError("output", str(path), rule) from wrong
    return path


def report_page(runs: RunPaths) -> str:
    """Return the page's text; it needs no other file and no network."""
    places = several(runs)
    found = {n: Run.of(run) for n, run in by_name(find_runs(places, with_steps=True)).items()}
    title = next(iter(found)) if len(found) == 1 else f"{len(found)} runs"
    differing = _differing(list(found.values()))
    trained = [run for run in found.values() if not is_verification(run)] or [*found.values()]
    return page.page(
        f"simsgd: {title}",
        _subtitle(places),
        [
            *_sweeps(places),
            _results(result_rows(trained), metrics_of(trained)),
            *figure_sections(list(found.values())),
            *network_section(list(found.values())),
            *verified_section(list(found.values())),
            _settings(found),
            page.section("Runs", *(_run(name, run, differing) for name, run in found.items())),
        ],
    )


def _subtitle(places: Sequence[RunPath]) -> str:
    """Return where the runs lie, and the time."""
    folders = [str(p.folder if isinstance(p, RunTables) else p) for p in places]
    more = f" and {len(folders) - 3} more" if len(folders) > 3 else ""
    return f"{', '.join(dict.fromkeys(folders[:3]))}{more}; {datetime.now():%d %B %Y, %H:%M}"


def _results(rows: Sequence[Row], metrics: Sequence[Metric]) -> str:
    """Return the table of runs: those of one metric together, the best first."""
    words = "Metrics are those of the last epoch; best: of all epochs. Bytes are of one worker."
    if "peak" in rows[0]:
        words += " In a step: the most that one sent, if more than twice the mean."
    if len(rows) == 1:
        return page.section("Results", _outcomes_first(rows), page.note(words))

    def rank(row: Row) -> tuple[int, float]:
        for place, metric in enumerate(metrics):
            value = row[metric.key]
            number = math.nan if value is None else float(value)
            if not math.isnan(number):
                return place, -number if metric.higher_is_better else number
        return len(metrics), 0.0

    order = sorted(rows, key=rank)
    best = 0 if len(metrics) == 1 and rank(order[0])[0] == 0 else -1
    titles = ", then ".join(metric.title for metric in metrics)
    note = page.note(f"{words} Sorted by {titles}, the best first; a click on a head sorts by it.")
    return page.section("Results", _outcomes_first(order, best), note)


def _outcomes_first(rows: Sequence[Row], best: int = -1) -> str:
    """Return the table of results with the settings behind what came of them, all in view."""
    table = result_table(rows)
    settings, measures = range(1, table.names), range(table.names, len(table.head))
    order = [0, *measures, *settings]
    cells = [[row[place] for place in order] for row in [table.head, *table.rows]]
    return page.table(TextTable(cells[0], cells[1:]), best, words=len(settings))


def _settings(runs: Mapping[str, Run]) -> str:
    """Return the settings that all runs have in common, as they were used: defaults folded."""
    differ = {*_differing(list(runs.values())), *_NOT_SHOWN}
    used = next(iter(runs.values())).used
    common = {name: value for name, value in used.items() if name not in differ}
    changed, usual = _changed_and_usual(common)
    words = "Above: not the default, or decided by model, regime or algorithm." if changed else ""
    if len(runs) > 1:
        words += " Those that differ are listed with each run."
    return page.section(
        "Settings of all runs" if len(runs) > 1 else "Settings",
        page.groups(_by_stage(changed)),
        page.folded("Defaults", f"{len(usual)} settings", page.groups(_by_stage(usual))),
        page.note(words.strip()),
    )


def _differing(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which the runs differ, as they were given or used."""
    given, used = varying(run.config for run in runs), varying(run.used for run in runs)
    return [name for name in dict.fromkeys([*given, *used]) if name not in _NOT_SHOWN]


def _by_stage(settings: Mapping[str, Used]) -> Iterator[tuple[str, str]]:
    """Yield the stages of a step, and the settings of each."""
    stages: dict[str, dict[str, Used]] = {}
    for name, value in settings.items():
        known = Config.__dataclass_fields__.get(name)
        stage = known.metadata["group"] if known else "other"
        stages.setdefault(stage, {})[name] = value
    for stage, own in stages.items():
        yield stage.capitalize(), page.facts(_pairs(own))


def _sweeps(places: Iterable[RunPath]) -> Iterator[str]:
    """Yield a section for each place that is a sweep's folder, or that holds some."""
    folders = [Path(p) for p in places if not isinstance(p, RunTables)]
    for path in sorted({found for folder in folders for found in folder.rglob("sweep.json")}):
        note = page.note("+- is the standard deviation over seeds, of the sample.")
        title = f"Means over seeds: {path.parent.resolve().name}"
        yield page.section(title, page.table(Sweep(path.parent).text_table()), note)


def _run(name: str, run: Run, differing: Sequence[str]) -> str:
    own = {setting: run.used.get(setting) for setting in differing}
    parts = [page.verbatim(run.summary())]
    command = command_of(run)
    if command is not None:
        parts += [page.heading("Made by"), page.command(command)]
    if own:
        changed, usual = _changed_and_usual(own)
        parts += [page.heading("Settings of this run"), page.facts(_pairs(changed))]
        if usual:
            defaults = page.facts(_pairs(usual))
            parts += [page.folded("Defaults", f"{len(usual)} settings", defaults)]
    if len(run.evaluations) > 0:
        title = "Epochs" if len(run.evaluations) == len(run.epochs) else "Evaluations"
        parts += [page.heading(title), page.table(_epochs(run))]
    machine = run.config.get("environment") or {}
    if machine:
        parts += [page.heading("Environment"), page.facts(_environment(machine))]
    log = run.log.splitlines()
    title = "Log" if len(log) <= _LAST_LINES else f"Log, its last {_LAST_LINES} lines"
    if log:
        parts += [page.heading(title), page.verbatim("\n".join(log[-_LAST_LINES:]))]
    return page.folded(name, _length(run), *parts)


def _length(run: Run) -> str:
    if is_verification(run):
        return f"{run.config['verified_steps']} steps compared with real processes"
    done = run.done.replace("/", " of ")
    return done if done.endswith("steps") else f"{done} epochs"


def _epochs(run: Run) -> TextTable:
    table = run.evaluations
    if len(table) == len(run.epochs):
        table = table.drop(columns="epochs")  # one more than epoch
    rows = table.astype(object).to_numpy()  # bytes stay integers
    return TextTable(list(table.columns), [list(map(_short, row)) for row in rows], names=0)


def _short(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _pairs(settings: Mapping[str, Used]) -> list[tuple[str, str]]:
    return [(name, value_in_words(value) or "none") for name, value in settings.items()]


def _environment(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    return [
        (name, " ".join(map(str, fact)) if isinstance(fact, list) else in_short(fact))
        for name, fact in facts.items()
    ]


def _changed_and_usual(
    settings: Mapping[str, Used],
) -> tuple[dict[str, Used], dict[str, Used]]:
    """Return the settings that are not the default, and those that are."""
    changed = {name: value for name, value in settings.items() if not _is_default(name, value)}
    return changed, {name: v for name, v in settings.items() if name not in changed}


def _is_default(name: str, value: Used) -> bool:
    known = Config.__dataclass_fields__.get(name)
    return known is not None and in_short(known.default) == value_in_words(value)
