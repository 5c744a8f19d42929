"""Networks, and the time that messages take on them by the alpha-beta model.

A message of m bytes takes latency + 8 m / bandwidth seconds. A worker sends one message and
receives one at a time, both at once (Hockney's model; Thakur, Rabenseifner, Gropp, "Optimization
of Collective Communication Operations in MPICH", IJHPCA 2005). Adding numbers up takes no time.

Letters: W workers, m bytes of one worker's buffer, d neighbors.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from ..settings import SettingError, require, require_kind, unknown
from ..units import quantity

ALL_REDUCES = ("ring", "tree", "gloo")
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "gather", "broadcast", "neighbours")
_BANDWIDTHS = (1e3, 1e18)  # bits a second
_LONGEST = 1e6  # seconds of a latency
_LARGEST_FRAMING = 1000.0
TCP_FRAMING = 1514 / 1448  # of 1514 bytes of an Ethernet frame 1448 are TCP's, with time stamps


@dataclass(frozen=True)
class Network:
    """Links between workers: each has the full bandwidth in both directions at once."""

    name: str
    bandwidth: float  # bits a second, in each direction, greater than 0
    latency: float  # seconds until an empty message has arrived, at least 0
    framing: float = 1.0  # bytes on a link for a byte of a message: what headers add, at least 1
    within: "Network | None" = None  # that joins the devices of a node, if nodes are the workers

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            rule = "must have a bandwidth greater than 0"
            raise SettingError("network", self.name, rule, "such as bandwidth=10Gbit")
        if not 0 <= self.latency < math.inf:
            rule = "must have a latency of at least 0"
            raise SettingError("network", self.name, rule, "such as 50us")
        if not 1 <= self.framing < math.inf:
            rule = "must have a framing of at least 1"
            raise SettingError("network", self.name, rule, "such as 1.0456")
        for value, least, most, rule in (
            (self.bandwidth, *_BANDWIDTHS, "must have a bandwidth from 1 kbit/s to 1e9 Gbit/s"),
            (self.latency, 0.0, _LONGEST, f"must have a latency of at most {_LONGEST:,.0f} s"),
            (
                self.framing,
                1.0,
                _LARGEST_FRAMING,
                f"must have a framing of at most {_LARGEST_FRAMING:g}",
            ),
        ):
            require(least <= value <= most, "network", self.name, rule)

    @classmethod
    def of(cls, spec: str) -> "Network":
        """Return the network of a spec: a name, `bandwidth=...,latency=...`, or a name changed.

        Two of them are the one within nodes and the one between.

        >>> Network.of("10gbe").bandwidth
        10000000000.0
        >>> Network.of("bandwidth=25Gbit,latency=5us").latency
        5e-06
        >>> Network.of("10gbe,latency=1ms").latency
        0.001
        >>> Network.of("nvlink,10gbe").within.bandwidth
        2400000000000.0

        Raises `SettingError` for an unknown name or unit.
        """
        require_kind("network", spec, str)
        inner, outer = _levels(spec)
        if outer:
            require(not _levels(outer)[1], "network", spec, "names more than two networks")
            return replace(cls.of(outer), name=spec, within=cls.of(inner))
        first, *rest = (part.strip() for part in spec.split(","))
        base = None
        if "=" in first:
            rest = [first, *rest]
        elif first in NETWORKS:
            base = NETWORKS[first]
        else:
            raise unknown("network", first, NETWORKS, "; or bandwidth=10Gbit,latency=50us")
        pairs = [_assigned(part, spec) for part in rest]
        given: dict[str, Any] = dict(pairs)
        for name in given:
            twice = sum(first == name for first, _ in pairs) > 1
            require(not twice, "network", spec, f"sets {name} twice")
        if base is not None:
            return replace(base, name=spec, **given)
        for name in ("bandwidth", "latency"):
            fix = "as in bandwidth=10Gbit,latency=50us"
            if name not in given:
                raise SettingError("network", spec, f"lacks its {name}", fix)
        return cls(spec, **given)

    def seconds(self, hops: Any, num_bytes: Any) -> Any:
        """Return the seconds of `hops` messages in sequence, `num_bytes` in all; or arrays."""
        return hops * self.latency + 8 * num_bytes * self.framing / self.bandwidth


NETWORKS = {
    network.name: network
    for network in (
        Network("wan", 100e6, 50e-3),
        Network("1gbe", 1e9, 50e-6),
        Network("10gbe", 10e9, 50e-6),
        Network("25gbe", 25e9, 50e-6),
        Network("100g-ib", 100e9, 2e-6),
        Network("nvlink", 2400e9, 2e-6),
    )
}


@dataclass(frozen=True)
class Way:
    """How a collective carries buffers: `hops` messages one after the other, `share` * m bytes.

    Bytes are those that pass the busiest link in one direction.
    """

    hops: float
    share: float
    chunks: int = 1  # in which each message goes, one under way while the last one arrives

    def seconds(self, network: Network, messages: Any, num_bytes: Any) -> Any:
        """Return the seconds of `messages` collectives in sequence, of `num_bytes` in all.

        Numbers, or arrays. Of two chunks the links are full all the time, unless half a message
        takes less than the latency.
        """
        sending = network.seconds(0, self.share * num_bytes)
        waiting = network.seconds(self.hops * messages, self.share * num_bytes / self.chunks)
        if self.chunks == 1:
            return waiting
        return (sending + waiting + abs(sending - waiting)) / 2  # the larger of the two


def ring_all_reduce(workers: int) -> Way:
    """Return 2 (W - 1) messages of m / W bytes: a reduce-scatter and an all-gather.

    Patarasu, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    JPDC 2009.
    """
    return Way(2 * (workers - 1), 2 * (workers - 1) / workers)


def tree_all_reduce(workers: int) -> Way:
    """Return 2 ceil(log2 W) messages of m bytes: a reduction along a binomial tree, and back.

    Thakur, Rabenseifner, Gropp, IJHPCA 2005.
    """
    depth = (workers - 1).bit_length()
    return Way(2 * depth, 2 * depth)


def gloo_all_reduce(workers: int) -> Way:
    """Return the ring all-reduce of gloo: two chunks of each share are under way at a time.

    So the latency of one hides behind the bytes of the other: gloo/allreduce.cc,
    https://github.com/pytorch/gloo. Measured in docs/network.md.
    """
    return dataclasses.replace(ring_all_reduce(workers), chunks=2)


def reduce_and_broadcast(workers: int) -> Way:
    """Return 2 W messages and 4 (W - 1)/W m bytes: a sum at one worker, and as much back to all.

    A reduce-scatter and a gather, then a scatter and an all-gather: for long messages as in
    Thakur, Rabenseifner, Gropp, IJHPCA 2005.
    """
    return Way(2 * workers, 4 * (workers - 1) / workers) if workers > 1 else Way(0, 0)


def ring_all_gather(workers: int) -> Way:
    """Return W - 1 messages of m bytes, m the largest buffer: each forwards what it received last.

    Thakur, Rabenseifner, Gropp, IJHPCA 2005.
    """
    return Way(workers - 1, workers - 1)


def pairwise_all_to_all(workers: int) -> Way:
    """Return W - 1 messages of m / W bytes: to each other worker its part, while one arrives.

    The pairwise exchange of Thakur, Rabenseifner, Gropp, IJHPCA 2005, for long messages.
    """
    return Way(workers - 1, (workers - 1) / workers)


def parameter_server(workers: int) -> Way:
    """Return W - 1 messages of m bytes on the link of the one that gathers, or answers.

    They are under way together, so that the latency counts once. One of the workers is the server,
    as in the ledger.
    """
    return Way(1, workers - 1)


def neighbor_exchange(degree: float) -> Way:
    """Return d messages of m bytes: one to each neighbor, while theirs arrive.

    Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NIPS 2017: the
    busiest worker counts.
    """
    return Way(degree, degree)


def way_of(collective: str, workers: int, degree: float = 0, all_reduce: str = "ring") -> Way:
    """Return how a collective of the ledger carries its buffers; alone, a worker sends nothing.

    `degree` is that of the busiest worker, for an exchange between neighbors.
    """
    reduces = {"ring": ring_all_reduce, "tree": tree_all_reduce, "gloo": gloo_all_reduce}
    ways = {
        "all-reduce": reduces[all_reduce],
        "all-gather": ring_all_gather,
        "all-to-all": pairwise_all_to_all,
        "gather": parameter_server,
        "broadcast": parameter_server,
    }
    if workers == 1:
        return Way(0, 0)
    if collective == "neighbours":
        return neighbor_exchange(degree)
    return ways[collective](workers)


def networks_of(specs: str | Iterable[str]) -> list[Network]:
    """Return the networks of several specs, each once, or of one. Raises as `Network.of`."""
    if isinstance(specs, str) or not isinstance(specs, Iterable):
        return [Network.of(specs)]
    return list({spec: Network.of(spec) for spec in specs}.values())


def bits_a_second(rate: str) -> float:
    """Return the bits a second of a rate such as 100Mbit.

    >>> bits_a_second("100Mbit"), bits_a_second("1.5MB")
    (100000000.0, 12000000.0)

    Raises `SettingError` for an unknown unit, and for nothing a second.
    """
    require_kind("link", rate, str)
    found = _in_unit(rate, _UNITS["bandwidth"])
    if found is None or not 0 < found < math.inf:
        rule = f"must be a number greater than 0 and one of {', '.join(_UNITS['bandwidth'])}"
        raise SettingError("link", rate, rule, "as in 100Mbit")
    return found


def _levels(spec: str) -> tuple[str, str]:
    """Return the spec of the network within nodes and that between; "" for the latter if it is one.

    The second begins with a name, or where a bandwidth is given again.
    """
    parts = [part.strip() for part in spec.split(",")]
    words = [part.partition("=")[0].strip() for part in parts]
    for place in range(1, len(parts)):
        named = "=" not in parts[place] and words[place] in NETWORKS
        again = (
            words[place] == "bandwidth"
            and "latency" in words[:place]
            and "bandwidth" in words[:place]
        )
        if named or again:
            return ",".join(parts[:place]), ",".join(parts[place:])
    return spec, ""


def _assigned(part: str, spec: str) -> tuple[str, float]:
    require(part != "", "network", spec, "has a comma with nothing beside it", "take it out")
    name, _, value = (word.strip() for word in part.partition("="))
    if name not in _UNITS:
        rule, fix = f"has no setting {name}", "give bandwidth=10Gbit,latency=50us"
        raise SettingError("network", spec, rule, fix)
    number = _in_unit(value, _UNITS[name])
    if number is None:
        units = ", ".join(filter(None, _UNITS[name]))
        rule = f"must have its {name} as a number" + (f" and one of {units}" if units else "")
        raise SettingError("network", spec, rule, "as in bandwidth=10Gbit,latency=50us")
    rule = f"has {name} {value}, which must be a finite number of at least 0"
    require(0 <= number < math.inf, "network", spec, rule)
    return name, number


def _in_unit(text: str, units: dict[str, str]) -> float | None:
    """Return a number with one of the units; None for anything else."""
    number, unit = quantity(text.removesuffix("/s")) or (Decimal(0), "?")
    return float(number * Decimal(units[unit])) if unit in units else None


_UNITS = {
    "bandwidth": {"Gbit": "1e9", "Mbit": "1e6", "kbit": "1e3", "GB": "8e9", "MB": "8e6"},
    "latency": {"s": "1", "ms": "1e-3", "us": "1e-6", "ns": "1e-9"},
    "framing": {"": "1"},
}
