"""`simsgd verify`: compare a simulation with real processes."""

import click

from ..verify.defaults import DEFAULTS, IDLE, STEPS
from .group import main
from .options import StagedCommand, given, settings_without
from .terminal import show


@main.command(
    cls=StagedCommand,
    context_settings={"default_map": DEFAULTS},
    short_help="Compare a simulation with real processes.",
)
@settings_without("steps", *IDLE)
@click.option("--steps", default=STEPS, show_default=True, help="Steps to compare.")
@click.option(
    "--link",
    metavar="RATE",
    help="Measure messages behind links of this rate, such as 100Mbit; as root on Linux.",
)
def verify(quiet: bool, **options: object) -> int:
    """Compare a simulation with real processes: parameters, losses, and the bytes that were sent.

    Exits with 0 if parameters agree and bytes are equal, else with 1. With --link, messages of 100
    kB and more must also take the time they are priced at, within 10 %.
    """
    from ..verify.verify import verify as run_both

    verdict = run_both(log=None if quiet else show, **given(options))
    if not quiet:
        show(verdict.summary())
    return 0 if verdict.holds else 1
