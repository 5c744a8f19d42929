"""Measured seconds of collectives behind links of a known rate, beside their prices.

Letters: W workers, which is W ranks.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch

from ..communication.ledger import NEIGHBORS
from ..communication.messages import Dense
from ..communication.topology import topology
from ..communication.transport import Distributed, Measured, all_gather_object, of_all_ranks
from ..results.network import TCP_FRAMING, Network, way_of
from ..results.network_prices import milliseconds
from ..results.pricing import Pricing, seconds_along
from ..results.tables import TransferRow, columns_of, replace_table, table_of
from ..results.text_table import TextTable

LIMIT = 0.1  # of the price, that the median over steps may differ by
LARGE = 100_000  # bytes of a message from which on the limit holds
_WHOLE = "all-reduce"  # of segments that go whole
_DONE_BY = {"all-to-all": "all-gather"}  # where ranks do another collective in its place
_ROUNDS, _SMALL = 31, 256  # small messages of each kind, and their float32 numbers


class LinkRow(TypedDict):
    """A row of links.csv: one collective of one step."""

    step: int
    message: int  # counted from 1
    collective: str  # that the ranks did, who may all-gather what is a gather or an all-to-all
    num_bytes: int  # of a worker's buffer
    degree: int  # neighbors of the busiest worker, else 0
    measured_seconds: float
    priced_seconds: float


@dataclass(frozen=True)
class LinkStep:
    """What the ranks measured in a step, and what its ledger has."""

    step: int
    measured: Sequence[Measured]
    transfers: Sequence[TransferRow]
    latency: Mapping[str, float]  # seconds of a hop, by collective


@dataclass(frozen=True)
class Line:
    """The messages of one kind in a step: medians over steps."""

    collective: str
    messages: int
    num_bytes: float  # of one message, the mean
    measured: float  # seconds of all of them
    priced: float

    @property
    def difference(self) -> float:
        """How much more was measured than priced, as a fraction of the price."""
        return self.measured / self.priced - 1

    @property
    def is_judged(self) -> bool:
        """Whether the messages are large enough for the limit."""
        return self.num_bytes >= LARGE

    @property
    def holds(self) -> bool:
        """Whether the limit is kept, where there is one."""
        return not self.is_judged or abs(self.difference) <= LIMIT


@dataclass
class LinkTimes:
    """The collectives of all steps, measured and priced."""

    link: str  # as the user gave it
    rate: float  # bits a second, each way
    workers: int
    latency: dict[str, float] = field(default_factory=dict)
    rows: list[LinkRow] = field(default_factory=list)
    by_ledger: list[float] = field(default_factory=list)  # seconds of each step that sends
    fused: list[int] = field(default_factory=list)  # messages of each such step, were segments' one

    def add(self, step: LinkStep) -> None:
        """Take what was measured in a step; where nothing was sent it has no part in medians."""
        self.latency = dict(step.latency)
        if not step.measured:
            return
        for place, one in enumerate(step.measured, 1):
            price = priced(one, self.network(one.collective), self.workers)
            self.rows.append(
                {
                    "step": step.step,
                    "message": place,
                    "collective": one.collective,
                    "num_bytes": round(one.num_bytes),
                    "degree": one.degree,
                    "measured_seconds": one.seconds,
                    "priced_seconds": price,
                }
            )
        counted = Counter(one.collective for one in step.measured)
        for row in step.transfers:
            if row["collective"] in _DONE_BY:
                counted[_DONE_BY[row["collective"]]] -= row["rounds"]
        rounds = sum(row["rounds"] for row in step.transfers)
        rode = not counted[_WHOLE] and len(step.measured) < rounds  # what is all-reduced else
        own = [row for row in step.transfers if not rode or row["collective"] != _WHOLE]
        along = [row for row in step.transfers if row not in own]
        carriers = [row["collective"] for row in own]
        seconds = [self._price_of(row, counted) for row in own]
        self.by_ledger.append(sum([*seconds, *(self._along(row, carriers) for row in along)]))
        self.fused.append(sum(row["rounds"] for row in own))

    def network(self, collective: str) -> Network:
        """Return the network that prices a collective: the link, and the latency of its hops."""
        latency = self.latency.get(collective, 0.0)
        return Network(self.link, self.rate, latency, TCP_FRAMING)

    @property
    def lines(self) -> list[Line]:
        """A line for each collective, for its large messages and its small ones."""
        found = []
        for collective in dict.fromkeys(row["collective"] for row in self.rows):
            own = [row for row in self.rows if row["collective"] == collective]
            for large in (True, False):
                some = [row for row in own if (row["num_bytes"] >= LARGE) is large]
                if some:
                    found.append(_line(collective, some))
        return found

    @property
    def failed(self) -> list[str]:
        """What keeps the limit not, in words."""
        return [f"seconds of {spelled(line.collective)}" for line in self.lines if not line.holds]

    @property
    def only_slower(self) -> bool:
        """Whether what keeps the limit not took longer than its price, as beside other work."""
        return all(line.difference > 0 for line in self.lines if not line.holds)

    @property
    def rate_in_words(self) -> str:
        """The link as it was given, of bytes a second in bits too."""
        return self.link if "bit" in self.link else f"{self.link} ({self.rate / 1e6:g} Mbit/s)"

    def summary(self) -> str:
        """Return the table."""
        words = [f"{spelled(name)} {milliseconds(1000 * s)}" for name, s in self.latency.items()]
        head = f"behind links of {self.rate_in_words}, a hop of a small message: {', '.join(words)}"
        if not self.rows:
            return f"{head}\nnothing was sent"
        cells = [_cells(line) for line in self.lines]
        total = statistics.median(self._by_step())
        ledger = statistics.median(self.by_ledger)
        names = ["a step's", "messages", "bytes each", "measured", "priced", "difference"]
        sent, fused = (statistics.median(own) for own in (self._messages(), self.fused))
        closing = f"a step's communication: {milliseconds(1000 * total)} measured, "
        closing += f"{milliseconds(1000 * ledger)} by the ledger's collectives; "
        closing += "1 message" if sent == 1 else f"{sent:g} messages"
        if sent > fused:
            closing += f", which are {fused:g} if all segments' go as one"
        elif sent < fused:
            closing += f", {fused:g} where one rank is the server and not all"
        return f"{head}\n{TextTable(names, cells)}\n{closing}"

    def write(self, folder: Path) -> None:
        """Write links.csv."""
        replace_table(folder / "links.csv", table_of(self.rows, columns_of(LinkRow)))

    def _by_step(self) -> Iterator[float]:
        for step in dict.fromkeys(row["step"] for row in self.rows):
            yield sum(row["measured_seconds"] for row in self.rows if row["step"] == step)

    def _messages(self) -> list[int]:
        """Return how many messages each step sent."""
        return list(Counter(row["step"] for row in self.rows).values())

    def _along(self, row: TransferRow, carriers: Sequence[str]) -> float:
        """Return the seconds by which carriers took longer with what is all-reduced else."""
        network = self.network(_WHOLE)
        seconds: float = seconds_along(network, self.workers, carriers, row["slowest_bytes"])
        return seconds

    def _price_of(self, row: TransferRow, counted: Mapping[str, int]) -> float:
        """Return the seconds of a step's collectives of one kind, as many as were `counted`.

        A hop of what ranks do in another way takes the latency of that.
        """
        way = way_of(row["collective"], self.workers, row["degree"], "gloo")
        messages = min(row["messages"], counted.get(row["collective"], row["rounds"]))
        summed = row["payload_bytes"] if row["collective"] == "gather" else row["slowest_bytes"]
        network = self.network(_DONE_BY.get(row["collective"], row["collective"]))
        seconds: float = way.seconds(network, messages, summed)
        return seconds


def spelled(collective: str) -> str:
    """Return the name of a collective in words."""
    return "neighbor exchange" if collective == NEIGHBORS else collective


def priced(one: Measured, network: Network, workers: int) -> float:
    """Return the seconds that a collective should take."""
    way = way_of(one.collective, workers, one.degree, "gloo")
    seconds: float = way.seconds(network, 1, one.num_bytes)
    return seconds


def measured(transport: Distributed) -> list[Measured]:
    """Return the collectives of all ranks since this was last called, on each of them."""
    assert transport.stopwatch is not None
    return of_all_ranks(all_gather_object(transport.stopwatch.take()))


def timed_on_links(transport: Distributed, rate: float) -> dict[str, float]:
    """Time every message from now on, and return the seconds of a hop in each collective.

    Whole segments then ride along with others' messages where their price says so, on links of
    `rate` bits a second. All ranks, of one worker each, must call this.
    """
    transport.start_stopwatch()
    latency = fitted_latency(transport, rate)
    network = Network("links", rate, latency["all-reduce"], TCP_FRAMING)
    transport.rides = partial(Pricing(all_reduce="gloo").rides, network, transport.workers)
    return latency


def fitted_latency(transport: Distributed, rate: float) -> dict[str, float]:
    """Return the seconds of a hop in each collective, from small messages: the lower quartile.

    That is with little other work on the machine. All ranks, of one worker each, must call this.
    """
    sent = transport.sent.clone()
    small, workers = Dense.of(torch.zeros(1, _SMALL)), transport.workers
    free = Network("free", rate, 0.0, TCP_FRAMING)
    for _ in range(_ROUNDS):
        transport.all_reduce_mean(small)
        transport.all_gather(small)
        transport.weighted_mean(small, torch.full((workers,), 1 / workers))
        transport.neighbor_mean(small, topology("ring", workers).at(0))
    hops: dict[str, list[float]] = {}
    for one in measured(transport):
        way = way_of(one.collective, workers, one.degree)
        if way.hops:
            rest = one.seconds - priced(one, free, workers)
            hops.setdefault(one.collective, []).append(max(0.0, rest) / way.hops)
    transport.sent.copy_(sent)
    return {name: statistics.quantiles(seconds, n=4)[0] for name, seconds in hops.items()}


def _line(collective: str, rows: Sequence[LinkRow]) -> Line:
    """Return the medians over steps of messages of one kind."""
    by_step: dict[int, list[LinkRow]] = {}
    for row in rows:
        by_step.setdefault(row["step"], []).append(row)
    steps = list(by_step.values())
    return Line(
        collective,
        round(statistics.median(len(step) for step in steps)),
        statistics.mean(row["num_bytes"] for row in rows),
        statistics.median(sum(row["measured_seconds"] for row in step) for step in steps),
        statistics.median(sum(row["priced_seconds"] for row in step) for step in steps),
    )


def _cells(line: Line) -> list[str]:
    times = [milliseconds(1000 * seconds) for seconds in (line.measured, line.priced)]
    judged = "" if line.is_judged else " (not judged: small)"
    judged = judged if line.holds else f" (over {100 * LIMIT:.0f} %)"
    difference = f"{100 * line.difference:+.1f} %{judged}"
    return [
        spelled(line.collective),
        str(line.messages),
        f"{line.num_bytes:,.0f}",
        *times,
        difference,
    ]
