"""`simsgd results`: print a table of runs."""

from pathlib import Path

import click

from ..settings import require
from .completion import complete_runs
from .group import main
from .paths import PATH
from .terminal import echo_table, show


@main.command(short_help="Print a table of runs.")
@click.argument("runs", nargs=-1, type=PATH, shell_complete=complete_runs)
@click.option("--sort", metavar="COLUMN", help="name, error, best, bytes, ratio, or a setting.")
@click.option("--reverse", is_flag=True, help="Print the last row first.")
@click.option(
    "--at-bytes",
    metavar="SIZE",
    help="Also print the metric once each worker had sent this many bytes, such as 10MB.",
)
@click.option("--csv", "in_csv", is_flag=True, help="Print CSV, with numbers in full.")
@click.option("--json", "in_json", is_flag=True, help="Print JSON, with numbers in full.")
@click.option(
    "--columns", metavar="NAME,NAME", help="Print these columns of the table, in this order."
)
@click.option("--wide", is_flag=True, help="Print all columns, however narrow the terminal is.")
def results(
    runs: tuple[Path, ...],
    sort: str | None,
    reverse: bool,
    at_bytes: str | None,
    in_csv: bool,
    in_json: bool,
    columns: str | None,
    wide: bool,
) -> None:
    """Print a table of runs: settings that differ, validation error, bytes, ratio, time.

    RUNS are run folders, or folders that hold some, such as a sweep's; default: runs. A terminal
    shows the columns that fit; --columns also knows "received" and "busiest link".
    """
    from ..results.results_table import (
        as_csv,
        as_json,
        chosen_columns,
        dispensable,
        result_rows,
        result_table,
    )

    require(not (in_csv and in_json), "--csv", None, "and --json were both given", "give one")
    form = "csv" if in_csv else "json" if in_json else None
    for name, value in (("columns", columns), ("wide", wide or None)):
        require(form is None or value is None, name, value, f"has no effect on --{form}")
    rows = result_rows(runs or "runs", sort=sort, reverse=reverse, at_bytes=at_bytes)
    if form is not None:
        show({"csv": as_csv, "json": as_json}[form](rows), nl=form != "csv")
        return
    table = result_table(rows, at_bytes, every=columns is not None)
    if columns is not None:
        show(chosen_columns(table, [name.strip() for name in columns.split(",")]))
    elif wide:
        show(table)
    else:
        echo_table(table, dispensable(table), "--wide shows all columns, --columns some")
