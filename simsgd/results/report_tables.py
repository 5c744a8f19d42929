"""The tables of `simsgd report` that only some runs have data for: networks, and real processes."""

import contextlib
import re
from collections.abc import Iterator, Sequence

from ..settings import SettingError
from . import html as page
from .network import networks_of
from .network_prices import milliseconds, prices
from .run import Run
from .tables import read_table
from .text_table import TextTable

_NETWORKS = ("wan", "1gbe", "10gbe", "100g-ib")
_COMPARED = {
    "parameter_difference": "float64",
    "loss_difference": "float64",
    "bytes_agree": "int64",
}


def network_section(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a section with what a mean step of each run takes on some networks."""
    rows = [row for run in runs for row in _priced(run)]
    if not rows:
        return
    head = ["run", *(link.name for link in networks_of(_NETWORKS))]
    words = (
        "Time of a mean step, computed from the bytes that each step sent and the compute time "
        "measured on this machine; in brackets how many times as fast as dense all-reduce."
    )
    yield page.section("On a network", page.table(TextTable(head, rows)), page.note(words))


def _priced(run: Run) -> Iterator[list[str]]:
    with contextlib.suppress(SettingError):  # an older run, or one without a step, has no price
        each = prices([run], networks_of(_NETWORKS))
        yield [run.name, *(f"{milliseconds(p['total_ms'])} ({p['speed_up']:.2f})" for p in each)]


def verified_section(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a section with what `simsgd verify` found, of the runs that it made."""
    rows = [row for run in runs for row in _verified(run)]
    if not rows:
        return
    head = ["run", "verdict", "steps", "parameters differ by", "losses differ by", "bytes equal in"]
    words = "Largest relative differences between the simulation and real processes."
    table = page.table(TextTable(head, rows, names=2))
    yield page.section("Compared with real processes", table, page.note(words))


def _verified(run: Run) -> Iterator[list[str]]:
    table = read_table(run.folder / "verify.csv", _COMPARED)
    if table.empty:
        return
    verdicts = re.findall(r"^\S+ \S+ +verdict +(.+)$", run.log, re.MULTILINE)
    agree = int(table["bytes_agree"].sum())
    yield [
        run.name,
        verdicts[-1] if verdicts else "not known",
        str(len(table)),
        f"{table['parameter_difference'].max():.1e}",
        f"{table['loss_difference'].max():.1e}",
        f"{agree} of {len(table)} steps",
    ]
