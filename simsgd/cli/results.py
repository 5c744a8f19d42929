"""Commands that tell what came of runs: a table, a page."""

from pathlib import Path

import click

from .group import main


@main.command(short_help="Print a table of runs.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--sort", metavar="COLUMN", help="name, error, best, bytes, ratio, or a setting.")
@click.option("--reverse", is_flag=True, help="The last first.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV, with numbers in full.")
@click.option("--json", "form", flag_value="json", help="Print JSON, with numbers in full.")
def results(runs: tuple[Path, ...], sort: str | None, reverse: bool, form: str | None) -> None:
    """Print a table of runs: what varies among them, error, bytes, ratio, time.

    RUNS are run folders, or folders that hold some, such as a sweep's; default: runs.
    """
    from ..results.results_table import as_csv, as_json, result_rows, result_table

    rows = result_rows(runs or "runs", sort=sort, reverse=reverse)
    if form == "csv":
        click.echo(as_csv(rows), nl=False)
    else:
        click.echo(as_json(rows) if form == "json" else result_table(rows))


@main.command(short_help="Write one self-contained page about runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    default=Path("report.html"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Page to write.",
)
def report(runs: tuple[Path, ...], output: Path) -> None:
    """Write one self-contained page about runs: settings, figures, tables.

    RUNS are run folders, or folders that hold some, such as a sweep's.
    """
    from ..results.report import report as write

    click.echo(write(runs, output))
