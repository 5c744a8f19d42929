"""`simsgd results`: print a table of runs."""

from pathlib import Path

import click

from ..settings import require
from .group import main
from .terminal import echo_table, show


@main.command(short_help="Print a table of runs.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--sort", metavar="COLUMN", help="name, error, best, bytes, ratio, or a setting.")
@click.option("--reverse", is_flag=True, help="Print the last row first.")
@click.option(
    "--at-bytes",
    metavar="SIZE",
    help="Also print the metric once each worker had sent this many bytes, such as 10MB.",
)
@click.option("--csv", "form", flag_value="csv", help="Print CSV, with numbers in full.")
@click.option("--json", "form", flag_value="json", help="Print JSON, with numbers in full.")
@click.option(
    "--columns", metavar="NAME,NAME", help="Print these columns of the table, in this order."
)
@click.option("--wide", is_flag=True, help="Print all columns, however narrow the terminal is.")
def results(
    runs: tuple[Path, ...],
    sort: str | None,
    reverse: bool,
    at_bytes: str | None,
    form: str | None,
    columns: str | None,
    wide: bool,
) -> None:
    """Print a table of runs: the settings that differ, error, bytes, ratio, time.

    RUNS are run folders, or folders that hold some, such as a sweep's; default: runs. A terminal
    shows the columns that fit.
    """
    from ..results.results_table import (
        as_csv,
        as_json,
        chosen_columns,
        dispensable,
        result_rows,
        result_table,
    )

    require(form is None or not (columns or wide), "columns", columns, f"has no effect on --{form}")
    rows = result_rows(runs or "runs", sort=sort, reverse=reverse, at_bytes=at_bytes)
    if form is not None:
        show({"csv": as_csv, "json": as_json}[form](rows), nl=form != "csv")
        return
    table = result_table(rows, at_bytes)
    if columns is not None:
        show(chosen_columns(table, [name.strip() for name in columns.split(",")]))
    elif wide:
        show(table)
    else:
        echo_table(table, dispensable(table), "--wide shows all columns, --columns some")
