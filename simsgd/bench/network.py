"""Times every collective between real ranks behind links of a known rate, beside its price.

The messages go through the transport that real ranks of a training use, each by itself.

Letters: W workers, which is W ranks.
"""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..communication.ledger import Ledger
from ..communication.messages import Dense, Sparse
from ..communication.segments import Segment
from ..communication.topology import topology
from ..communication.transport import Channel, Distributed, Measured, is_rank_zero
from ..communication.wire import Wire
from ..methods.collectives import exchange_sparse
from ..results.network import bits_a_second
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
_SPARSE = ("gtopk", "oktopk", "cltk")  # of entries that take so many bytes
_ROUNDS = 7
_SLOWEST = 1e6  # bits a second


def measure(
    quick: bool = False, workers: Sequence[int] = (), link: Sequence[str] = ()
) -> dict[str, Any]:
    """Return {"machine": ..., "rows": [...]}, one row a link, W, size and collective.

    Those of sparse messages are several messages, of which the seconds are added up. `link` are
    rates and `workers` W, instead of 20, 100 and 500 Mbit/s and 4 and 8. A row has the
    median, least and most of the milliseconds, and their price: of the link, with what headers add,
    and the latency that small messages show. Raises `SettingError` where no links can be made.
    """
    links, some = link or _LINKS, workers or _WORKERS
    for count in some:
        require(count >= 2, "workers", count, "must be at least 2: one alone sends nothing")
    for name in links:
        rule = "must be at least 1Mbit: slower ones take hours"
        require(bits_a_second(name) >= _SLOWEST, "link", name, rule)
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
    for (size, name), own in found.items():
        seconds = [sum(one.seconds for one in messages) for messages in own]
        prices = [priced(one, times.network(one.collective), workers) for one in own[0]]
        price, median = sum(prices), statistics.median(seconds)
        yield {
            "link": link,
            "workers": workers,
            "bytes": size,
            "collective": spelled(name),
            "messages": len(own[0]),
            "median_ms": 1000 * median,
            "least_ms": 1000 * min(seconds),
            "most_ms": 1000 * max(seconds),
            "priced_ms": 1000 * price,
            "latency_ms": 1000 * latency[own[0][0].collective],
            "difference": median / price - 1,
        }


def _timed(put: Put, workers: int, rate: float, sizes: Sequence[int], rounds: int) -> None:
    """Put the latencies, and what was measured for each size, of every collective in turn.

    The latter is {(size, name): messages of each round}.
    """
    transport = Distributed(workers)
    transport.start_stopwatch()
    latency = fitted_latency(transport, rate)
    found: dict[tuple[int, str], list[list[Measured]]] = {}
    for size in sizes:
        message = Dense.of(torch.zeros(1, size // 4))
        for _ in range(rounds):
            transport.all_reduce_mean(message)
            transport.all_gather(message)
            transport.weighted_mean(message, torch.full((workers,), 1 / workers))
            transport.neighbor_mean(message, topology("ring", workers).at(0))
        for one in measured(transport):
            found.setdefault((size, one.collective), []).append([one])
        for name in _SPARSE:
            found[size, name] = [_of_sparse(transport, name, size, n) for n in range(rounds)]
    if is_rank_zero():
        put((latency, found))


def _of_sparse(transport: Distributed, name: str, size: int, step: int) -> list[Measured]:
    """Return the messages of a collective of sparse ones, of `size` bytes of a worker's entries."""
    k = size // 8  # a float32 and an int32 each
    n = 4 * k
    generator = torch.Generator().manual_seed(1000 * step + transport.rank)
    x = torch.randn(1, n, generator=generator)
    index = x.abs().topk(k).indices
    segment = Segment("bench", ("bench",), (torch.Size([n]),), dense=False)
    channel = Channel(transport, Ledger(transport.workers), Wire())
    exchange_sparse(name, Sparse.of(x.gather(1, index), index, n), x, step, segment, channel)
    return measured(transport)


def _cells(row: dict[str, Any]) -> list[str]:
    times = [milliseconds(row[name]) for name in ("median_ms", "least_ms", "most_ms", "priced_ms")]
    difference = f"{100 * row['difference']:+.1f} %"
    names = [row["link"], row["collective"], str(row["workers"]), f"{row['bytes']:,}"]
    return [*names, *times, difference]
