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
    from ..results import results_table as of

    rows = of.results(runs or (Path("runs"),), sort)
    rows = rows[::-1] if reverse else rows
    text = {"csv": of.as_csv, "json": of.as_json, None: of.as_table}[form](rows)
    click.echo(text, nl=form != "csv")


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
    from ..results.report import write_report

    write_report(runs, output)
    click.echo(output)
