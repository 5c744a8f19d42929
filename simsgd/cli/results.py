"""`simsgd results`: print a table of runs."""

from pathlib import Path

import click

from .group import main


@main.command(short_help="Print a table of runs.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--sort", metavar="COLUMN", help="name, error, best, bytes, ratio, or a setting.")
@click.option("--reverse", is_flag=True, help="Print the last row first.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV, with numbers in full.")
@click.option("--json", "form", flag_value="json", help="Print JSON, with numbers in full.")
def results(runs: tuple[Path, ...], sort: str | None, reverse: bool, form: str | None) -> None:
    """Print a table of runs: the settings that differ, error, bytes, ratio, time.

    RUNS are run folders, or folders that hold some, such as a sweep's; default: runs.
    """
    from ..results.results_table import as_csv, as_json, result_rows, result_table

    rows = result_rows(runs or "runs", sort=sort, reverse=reverse)
    text = {"csv": as_csv, "json": as_json, None: result_table}[form](rows)
    click.echo(text, nl=form != "csv")
