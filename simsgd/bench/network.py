"""Times every collective between real ranks behind links of a known rate, beside its price.

The messages go through the transport that real ranks of a training use, each by itself.

Letters: W workers, which is W ranks.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..communication.messages import Dense
from ..communication.topology import topology
from ..communication.transport import Distributed, Measured, is_rank_zero
from ..results.network_prices import milliseconds
from ..results.text_table import TextTable
from ..settings import require
from ..training.environment import environment
from ..verify.launch import Put, launch
from ..verify.link_times import LinkTimes, fitted_latency, measured, priced, spelled
from ..verify.shaped_links import checked_rate

_LINKS = ("20Mbit", "100Mbit", "500Mbit")
_WORKERS = (4, 8)
_SIZES = (200_000, 1_000_000)  # bytes of a worker's buffer
_ROUNDS = 7


def measure(
    quick: bool = False, workers: Sequence[int] = (), link: Sequence[str] = ()
) -> dict[str, Any]:
    """Return {"machine": ..., "rows": [...]}, one row a link, W, size and collective.

    `link` are rates and `workers` W, instead of 20, 100 and 500 Mbit/s and 4 and 8. A row has the
    median, least and most of the milliseconds, and their price: of the link, with what headers add,
    and the latency that small messages show. Raises `SettingError` where no links can be made.
    """
    links, some = link or _LINKS, workers or _WORKERS
    for count in some:
        require(count >= 2, "workers", count, "must be at least 2: one alone sends nothing")
    rates = {name: checked_rate(name) for name in links}
    sizes, rounds = (_SIZES[:1], 3) if quick else (_SIZES, _ROUNDS)
    rows = [
        row
        for name, rate in rates.items()
        for count in some
        for row in _rows(name, rate, count, sizes, rounds)
    ]
    return {"machine": environment("cpu"), "rows": rows}


def tables(found: dict[str, Any]) -> list[TextTable]:
    """Return the rows in words."""
    head = ["link", "collective", "W", "bytes", "measured", "least", "most", "priced", "difference"]
    cells = [_cells(row) for row in found["rows"]]
    return [TextTable(head, cells, names=2)]


def _rows(
    link: str, rate: float, workers: int, sizes: Sequence[int], rounds: int
) -> Iterator[dict[str, Any]]:
    [(latency, found)] = launch(_timed, workers, workers, rate, sizes, rounds, link=link)
    times = LinkTimes(link, rate, workers, latency)
    for size in sizes:
        for name in dict.fromkeys(one.collective for one in found[size]):
            own = [one for one in found[size] if one.collective == name]
            seconds = [one.seconds for one in own]
            price = priced(own[0], times.network(name), workers)
            median = statistics.median(seconds)
            yield {
                "link": link,
                "workers": workers,
                "bytes": size,
                "collective": spelled(name),
                "median_ms": 1000 * median,
                "least_ms": 1000 * min(seconds),
                "most_ms": 1000 * max(seconds),
                "priced_ms": 1000 * price,
                "latency_ms": 1000 * latency[name],
                "difference": median / price - 1,
            }


def _timed(put: Put, workers: int, rate: float, sizes: Sequence[int], rounds: int) -> None:
    """Put the latencies, and what was measured for each size, of every collective in turn."""
    transport = Distributed(workers)
    transport.start_stopwatch()
    latency = fitted_latency(transport, rate)
    found: dict[int, list[Measured]] = {}
    for size in sizes:
        message = Dense.of(torch.zeros(1, size // 4))
        for _ in range(rounds):
            transport.all_reduce_mean(message)
            transport.all_gather(message)
            transport.weighted_mean(message, torch.full((workers,), 1 / workers))
            transport.neighbor_mean(message, topology("ring", workers).at(0))
        found[size] = measured(transport)
    if is_rank_zero():
        put((latency, found))


def _cells(row: dict[str, Any]) -> list[str]:
    times = [milliseconds(row[name]) for name in ("median_ms", "least_ms", "most_ms", "priced_ms")]
    difference = f"{100 * row['difference']:+.1f} %"
    names = [row["link"], row["collective"], str(row["workers"]), f"{row['bytes']:,}"]
    return [*names, *times, difference]
