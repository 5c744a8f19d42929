"""Advises whether compression pays on a network: every compressor's step beside dense all-reduce.

Bytes are those of `simsgd bytes`; the time to compress is measured here, on one worker's gradient,
or was measured on another machine.

Letters: W workers, n elements of one segment.
"""

import dataclasses
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import Config
from ..given_object import plain_arguments
from ..methods.compressors import composed
from ..recipe import Recipe
from ..registry import names
from ..results.cluster import Cluster
from ..results.config_values import refuse_idle
from ..results.network import Network
from ..results.network_prices import largest_part, milliseconds
from ..results.pricing import Pricing
from ..results.text_table import TextPage, TextTable
from ..settings import SettingError, require, require_kind
from ..simulator.model_shapes import order_of, shapes_of
from ..simulator.step_bytes import Sizes, sizes
from ..training.devices import device_of
from ..units import in_units
from .compression_source import CompressionSource
from .step_price import StepPrice, pieces_of, step_price

_SETTINGS = (  # that a price depends on, or that are refused for another reason
    "model", "model_config", "dtype", "workers", "accumulate", "granularity", "compress_if",
    "compress_layers", "prune_1d", "value_dtype", "index_dtype", "method", "algorithm", "aggregate",
    "downlink", "collective", "topology", "local_steps", "participation", "seed",
)  # fmt: skip
_ALONE = "one sends nothing"
USUAL = {  # settings for those that have no defaults, as their papers use them
    "topk": ("topk:0.01", "topk:0.001"),
    "sampled_topk": ("sampled_topk:0.001",),
    "randomk": ("randomk:0.01", "randomk:0.01,shared=true"),
    "block": ("block:0.01",),
    "turns": ("turns:0.01",),
    "threshold": ("threshold:3",),
    "tiled_topk": ("tiled_topk:64", "tiled_topk:64+bins:2"),
    "bins": ("bins:2", "bins:8"),
    "qsgd": ("qsgd:15,bucket=512", "qsgd:255"),
    "powersgd": ("powersgd:2", "powersgd:4"),
    "dion": ("dion:32",),
}


@dataclass(frozen=True)
class Offer:
    """What one compressor's step would cost on one network."""

    compressor: str
    payload_bytes: int  # that one worker sends
    ratio: float  # dense bytes over payload bytes
    compression: float  # seconds of one worker
    communication: float  # seconds that a step waits for
    total: float  # seconds of a step, compute included
    dense: float  # seconds of a step that sends its whole gradient by an all-reduce
    varies: str  # what changes its bytes: gradient, step or nothing
    stragglers: float = 0.0  # seconds that a step takes longer because workers' compute differs
    latency: float = 0.0  # seconds of communication, whatever is in the messages
    messages: float = 0.0  # that wait for each other

    @property
    def speed_up(self) -> float:
        """How many times as fast as dense all-reduce a step is."""
        return self.dense / self.total if self.total else 1.0

    def plain(self) -> dict[str, object]:
        """Return all of it as JSON takes it."""
        return {**dataclasses.asdict(self), "speed_up": self.speed_up}


@dataclass(frozen=True)
class Advice:
    """An offer of each compressor on each network, the fastest first."""

    offers: dict[str, list[Offer]]  # by the network's name
    networks: tuple[Network, ...]
    pricing: Pricing
    title: str  # what is trained by how many
    timed: str = ""  # the machine on which compression was timed; "": it was given
    is_here: bool = False  # whether that is this machine

    def plain(self) -> dict[str, list[dict[str, object]]]:
        """Return all of it as JSON takes it."""
        return {name: [offer.plain() for offer in rows] for name, rows in self.offers.items()}

    def page(self) -> TextPage:
        """Return a table for each network, with the verdict last, for a terminal."""
        parts = [
            part
            for network in self.networks
            for part in parts_of(
                self.offers[network.name],
                network,
                self.pricing,
                self.title,
                self.timed,
                self.is_here,
            )
        ]
        return TextPage(parts, ("sends", "ratio", "stragglers"))

    def summary(self) -> str:
        """Return the tables and verdicts as text."""
        return str(self.page())


@plain_arguments
def advise(
    network: Network | str | Sequence[Network | str] = "10gbe",
    compressor: str | Sequence[str] = (),
    *,
    compute_ms: float | str | None = None,
    compress_ms: float | str | Path | None = None,
    all_reduce: str = "ring",
    fusion: bool = True,
    overlap: str | bool = "none",
    cluster: str | None = None,
    measure: bool = True,
    device: str = "cpu",
    num_classes: int | None = None,
    input_shape: str | None = None,
    **settings: object,
) -> Advice:
    """Return what each compressor's step would take on each network, the fastest first.

    `network` is one spec or several, such as "10gbe" or "bandwidth=10Gbit,latency=50us". So is
    `compressor`; none: every registered one that needs no setting of the user. `settings` are those
    of `train` that concern a message. Compression takes `compress_ms`, or as long as a file says
    that `bench compressors` wrote, of whose compressors then all are tried; else it is timed on
    `device`; without `measure` it takes no time. Compute takes none unless `compute_ms` is given.
    The other settings are those of `network`. Raises `SettingError` for settings that do not go
    together.
    """
    if cluster is not None:
        settings = {"workers": Cluster.of(cluster).nodes, **settings}
    config = Config.of(settings)
    refuse_idle(settings, _SETTINGS, "advice")
    alone = config.workers == 1
    require(not alone or cluster is not None, "workers", 1, "must be at least 2", _ALONE)
    require(not alone, "cluster", cluster, "must have at least 2 nodes", _ALONE)
    source = CompressionSource.of(compress_ms, measure, device_of(device))
    pricing = Pricing(compute_ms, source.milliseconds, all_reduce, fusion, overlap, cluster)
    links = _networks([network] if isinstance(network, Network | str) else network)
    for link in links:
        pricing.check(link, config.workers)
    require_kind("compressor", compressor, str, list, tuple)
    specs = [compressor] if isinstance(compressor, str) else list(compressor)
    model = config.model or "lenet", config.model_config, num_classes, input_shape
    shapes = shapes_of(*model)
    order = order_of(*model) if pricing.way.kind == "buckets" else {}
    offers: dict[str, list[Offer]] = {link.name: [] for link in links}
    usual = [own for own in usual_specs() if cluster is None or not composed(own).needs_squares]
    for spec in dict.fromkeys(specs or source.specs(usual)):
        recipe = dataclasses.replace(config.recipe(), compressor=spec, prune=None, cluster=cluster)
        _check_exchange(recipe)
        counted = sizes(shapes, config.dtype, **vars(recipe))
        pieces = pieces_of(shapes, config.dtype, recipe, order)
        seconds = source.seconds(counted, shapes, recipe, config.dtype)
        for link in links:
            price = step_price(counted, seconds, link, pricing, pieces, recipe)
            offers[link.name].append(_offer(counted, price))
    crew = f"{config.workers} workers"
    if pricing.nodes is not None:
        crew = f"{config.workers} nodes of {pricing.nodes.devices} devices"
    title = f"{config.model or 'lenet'}, {crew}"
    ranked = {name: sorted(rows, key=lambda row: row.total) for name, rows in offers.items()}
    return Advice(ranked, tuple(links), pricing, title, source.machine, source.is_here)


def _check_exchange(recipe: Recipe) -> None:
    if recipe.algorithm != "allreduce":
        rule = "is not priced: advice is on compressors of gradients that an all-reduce exchanges"
        fix = "train with it, and price the run by simsgd network"
        raise SettingError("algorithm", recipe.algorithm, rule, fix)


def _networks(specs: Sequence[Network | str]) -> list[Network]:
    """Return the networks of specs, each once."""
    if not isinstance(specs, Sequence):
        require_kind("network", specs, str)
    require(len(specs) > 0, "network", None, "must be given", "such as 10gbe")
    links = [spec if isinstance(spec, Network) else Network.of(spec) for spec in specs]
    return list(dict.fromkeys(links))


def _offer(counted: Sizes, price: StepPrice) -> Offer:
    return Offer(
        compressor=counted.compressor,
        payload_bytes=counted.payload_bytes,
        ratio=counted.ratio,
        compression=price.compression,
        communication=price.communication,
        total=price.total,
        dense=price.dense,
        varies=counted.varies,
        stragglers=price.stragglers,
        latency=price.latency,
        messages=price.messages,
    )


def usual_specs() -> list[str]:
    """Return a spec or two for every registered compressor that needs no setting of the user.

    >>> "none" in usual_specs(), "grace" in usual_specs()
    (True, False)
    """
    found: list[str] = []
    for name in names("compressor"):
        if name in USUAL:
            found.extend(USUAL[name])
        elif not _lacking(name):
            found.append(name)
    return found


def parts_of(
    rows: Sequence[Offer],
    network: Network,
    pricing: Pricing,
    title: str,
    timed: str = "",
    is_here: bool = False,
) -> list[str | TextTable]:
    """Return the offers on one network in words, with the verdict last.

    `timed` is where compression was timed, and `is_here` whether that is this machine.
    """
    extent = "all segments' messages fused" if pricing.fusion else "a message a segment"
    extent = "messages sent in buckets" if pricing.way.kind == "buckets" else extent
    head = f"{title} on {network.name}: {_link(network)}, {pricing.all_reduce} all-reduce, {extent}"
    differs = any(row.stragglers for row in rows)
    parts = [*(["stragglers"] if differs else []), "compression", "communication", "a step"]
    head_of_table, cells = ["compressor", "sends", "ratio", *parts, "speed-up"], []
    for row in rows:
        seconds = [row.compression, row.communication, row.total]
        times = [milliseconds(1000 * s) for s in ([row.stragglers] if differs else []) + seconds]
        sent = [in_units(row.payload_bytes), f"{row.ratio:.1f}"]
        name = row.compressor + (" *" if row.varies else "")
        cells.append([name, *sent, *times, f"{row.speed_up:.2f}"])
    note = ["* of one normal draw: sizes vary"] if any(row.varies for row in rows) else []
    last = verdict(rows) + _largest_part(rows, network)
    last += _share_of_here(rows, timed) if is_here else ""
    above = [head, *_assumed(pricing, "" if is_here else timed)]
    return ["\n".join(above), TextTable(head_of_table, cells), *note, last]


def _assumed(pricing: Pricing, timed: str) -> list[str]:
    """Return the lines on what the prices rest on; `timed` is another machine."""
    lines = []
    if pricing.compute is None:
        lines.append("compute is not counted (--compute-ms does): speed-ups are at their most")
    elif pricing.compute.sigma:
        law = f"{1000 * pricing.compute.median:g} ms, sigma {pricing.compute.sigma:g}"
        lines.append(f"compute log-normal, median {law}, for each worker and step")
    else:
        whose = "worker" if pricing.nodes is None else "device"
        lines.append(f"compute {1000 * pricing.compute.median:g} ms a {whose}")
    if pricing.way.kind == "perfect":
        lines[0] += "; as much of communication overlaps with backward as at best"
    if timed:
        lines.append(f"compression as measured on {timed}")
    return lines


def _best(rows: Sequence[Offer]) -> Offer | None:
    others = [row for row in rows if row.compressor != "none"]
    return min(others, key=lambda row: row.total, default=None)


def _largest_part(rows: Sequence[Offer], network: Network) -> str:
    """Return what the best compressor's step is mostly."""
    best = _best(rows)
    if best is None or not best.total:
        return ""
    parts = {
        "compute": best.total - best.stragglers - best.compression - best.communication,
        "stragglers": best.stragglers,
        "compression": best.compression,
        "latency": best.latency,
        "bytes": best.communication - best.latency,
    }
    return f"; its step is mostly {largest_part(parts, best.messages, network)}"


def _share_of_here(rows: Sequence[Offer], device: str) -> str:
    """Return what part of the best compressor's step is this machine's compression."""
    best = _best(rows)
    if best is None or not best.compression:
        return ""
    name = platform.machine() if device == "cpu" else device
    return (
        f"; {100 * best.compression / best.total:.0f} % of the step of {best.compressor} is "
        f"compression as timed on this machine ({name}): --compress-ms takes another's"
    )


def verdict(rows: Sequence[Offer]) -> str:
    """Return who wins, in a sentence; a tenth of a step is no win."""
    others, best = [row for row in rows if row.compressor != "none"], _best(rows)
    if best is None:
        return "no compressor to compare with dense all-reduce"
    if best.speed_up <= 1:
        lost = (
            f"the best compressor, {best.compressor}, takes {1 / best.speed_up:.2f} times as long"
        )
        return f"dense all-reduce wins: {lost}"
    if best.speed_up < 1.1:
        gain = f"{best.compressor} saves {100 * (1 - 1 / best.speed_up):.0f} % of a step"
        return f"dense all-reduce will do: {gain}, and accuracy is not counted"
    faster = sum(row.speed_up > 1 for row in others)
    return (
        f"{best.compressor} wins: {best.speed_up:.2f} times as fast as dense all-reduce "
        f"({faster} of {len(others)} compressors are faster at all); accuracy is not counted"
    )


def _link(network: Network) -> str:
    fast, microseconds = network.bandwidth >= 1e9, network.latency * 1e6
    rate = f"{network.bandwidth / (1e9 if fast else 1e6):g} {'G' if fast else 'M'}bit/s"
    inside = "" if network.within is None else f"{_link(network.within)} within nodes, "
    return f"{inside}{rate}, {microseconds:g} us"


def _lacking(name: str) -> bool:
    """Return whether a compressor has a setting without a default."""
    try:
        composed(name)
    except SettingError:
        return True
    return False
