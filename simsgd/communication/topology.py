"""Graphs of workers who exchange models, and the mixing weights on their edges.

networkx builds the graphs; the weights are Metropolis-Hastings, w_ij = 1 / (1 + max(d_i, d_j)) for
neighbors of degrees d_i and d_j, and w_ii what is left to 1 (Xiao, Boyd, "Fast linear iterations
for distributed averaging", Systems and Control Letters 2004). On a ring they are the customary 1/3.

Letters: W workers.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from ..keyed_random import derived
from ..registry import literal
from ..settings import SettingError, names_file, one_line, require, unknown
from .square_sides import square_sides

_LARGEST_FILE = 1 << 26  # bytes
_SPARSE = 64  # workers from which on few neighbors are worth a sparse matrix
_TOLERANCE = 1e-12
_Form = tuple[torch.dtype, torch.device, int | None]  # of rows, and the first hosted worker


@dataclass(frozen=True, eq=False)
class Mixing:
    """The weights of one round of gossip.

    Raises `SettingError` unless they are doubly stochastic, and symmetric if they must be.
    """

    name: str  # of the topology
    weights: Tensor  # [W, W] float64: row i is what worker i takes of each model
    symmetric: bool = True  # must be
    _cast: dict[tuple[torch.dtype, torch.device, int | None], Tensor] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        w, name = self.weights, self.name
        if not bool((w >= 0).all()) or not bool(w.isfinite().all()):
            raise SettingError("topology", name, "has weights below 0 or not finite")
        for sums, what in ((w.sum(1), "row"), (w.sum(0), "column")):
            worst = float((sums - 1).abs().max())
            found = float(sums[(sums - 1).abs().argmax()])
            rule = f"has a {what} of weights that adds up to {found}"
            require(worst <= _TOLERANCE, "topology", name, rule, "each must add up to 1")
        if self.symmetric:
            apart = float((w - w.T).abs().max())
            rule = "has weights that are not symmetric"
            require(apart <= _TOLERANCE, "topology", name, rule)

    @functools.cached_property
    def links(self) -> Tensor:
        """Whether row receives from column, another worker, [W, W] bool."""
        return (self.weights != 0).fill_diagonal_(False)

    @property
    def degree(self) -> Tensor:
        """To how many others each worker sends, [W] int64."""
        return (self.weights != 0).sum(0) - (self.weights.diagonal() != 0).long()

    @property
    def degree_text(self) -> str:
        """The degree of all workers, "2", or the least and the most, "1 to 4"."""
        least, most = int(self.degree.min()), int(self.degree.max())
        return f"{least}" if least == most else f"{least} to {most}"

    @property
    def own(self) -> Tensor:
        """What each worker keeps of its own model, [W] float64."""
        return self.weights.diagonal()

    @property
    def spectral_gap(self) -> float:
        """1 less the second largest eigenvalue by magnitude, in [0, 1]."""
        if len(self.weights) == 1:
            return 1.0
        return 1.0 - float(torch.linalg.eigvals(self.weights).abs().sort().values[-2])

    def times(self, rows: Tensor, hosted: slice | None = None) -> Tensor:
        """Return sum_j w_ij rows_j, [W, n], for `rows` [W, n]; or those of the hosted, [L, n]."""
        key = (rows.dtype, rows.device, None if hosted is None else hosted.start)
        if key not in self._cast:
            own = self.weights if hosted is None else self.weights[hosted]
            few = len(own) >= _SPARSE and float((own != 0).double().mean()) < 0.25
            kept = own.to(rows.dtype)
            self._cast[key] = (kept.to_sparse() if few else kept).to(rows.device)
        return self._cast[key] @ rows


@dataclass(frozen=True, eq=False)
class Topology:
    """The rounds of gossip that are repeated: one, or several where neighbors change."""

    name: str
    rounds: tuple[Mixing, ...]

    def at(self, step: int) -> Mixing:
        """Return the weights of a step."""
        return self.rounds[step % len(self.rounds)]

    @property
    def varies(self) -> bool:
        """Whether neighbors change from step to step."""
        return len(self.rounds) > 1

    def graph(self) -> "nx.Graph":
        """Return the graph of all that ever exchange."""
        edges = sum(m.weights + m.weights.T for m in self.rounds).numpy()  # type: ignore[union-attr]
        return nx.from_numpy_array((edges - np.diag(np.diag(edges))) > 0)


def about() -> dict[str, str]:
    """Return what each topology is."""
    first = {name: (make.__doc__ or "").partition("\n")[0] for name, make in _GRAPHS.items()}
    return {
        **first,
        "one-peer": "One neighbor a step, 2^k ahead in step k: averages exactly if W = 2^m.",
        "FILE": "A .txt or .csv: edges (two numbers a line) or weights (W numbers a line).",
    }


@functools.cache
def topology(spec: str, workers: int) -> Topology:
    """Return the topology of a spec, `ring` or `erdos-renyi:0.3` or a file, for W workers.

    Raises `SettingError` for an unknown name, a W that it has no graph for, or a graph that is not
    connected.
    """
    require(workers >= 2, "workers", workers, "must be at least 2 for gossip")
    if spec == "one-peer":
        return Topology(spec, tuple(_one_peer(workers)))
    name, colon, arguments = spec.partition(":")
    if name in _GRAPHS:
        given = [literal(a) for a in arguments.split(",")] if colon else []
        return _fixed(spec, metropolis(spec, _graph(spec, name, workers, given)))
    if names_file(spec):
        return _fixed(spec, _from_file(spec, workers))
    raise unknown("topology", spec, about())


def metropolis(name: str, graph: "nx.Graph") -> Tensor:
    """Return the Metropolis-Hastings weights [W, W] of a graph without loops."""
    degree = dict(graph.degree())
    place = {node: row for row, node in enumerate(sorted(graph.nodes()))}
    weights = torch.zeros(len(place), len(place), dtype=torch.float64)
    for a, b in graph.edges():
        shared = 1 / (1 + max(degree[a], degree[b]))
        weights[place[a], place[b]] = weights[place[b], place[a]] = shared
    return weights + torch.diag(1 - weights.sum(1))


def _fixed(name: str, weights: Tensor) -> Topology:
    mixing = Mixing(name, weights)
    whole = Topology(name, (mixing,))
    pieces = nx.number_connected_components(whole.graph())
    rule = f"falls into {pieces} parts without an edge between them"
    require(pieces == 1, "topology", name, rule)
    return whole


def _one_peer(workers: int) -> Iterable[Mixing]:
    """Yield the rounds of the one-peer exponential graph.

    Ying, Yuan, Chen, Hu, Pan, Yin, "Exponential Graph is Provably Efficient for Decentralized Deep
    Training", NeurIPS 2021, https://arxiv.org/abs/2110.13363.
    """
    one = torch.eye(workers, dtype=torch.float64)
    for hop in range(math.ceil(math.log2(workers))):
        yield Mixing("one-peer", (one + one.roll(2**hop, dims=1)) / 2, symmetric=False)


def _graph(spec: str, name: str, workers: int, given: list[object]) -> "nx.Graph":
    try:
        graph = _GRAPHS[name](workers, *given)
    except TypeError:
        rule = "does not take these numbers" if given else "needs a number"
        raise SettingError("topology", spec, rule, "`simsgd list topologies` has each") from None
    plain = nx.Graph(nx.convert_node_labels_to_integers(graph, ordering="sorted"))
    plain.remove_edges_from(list(nx.selfloop_edges(plain)))
    return plain


def _complete(workers: int) -> "nx.Graph":
    """Each worker exchanges with all others: plain averaging."""
    return nx.complete_graph(workers)


def _ring(workers: int) -> "nx.Graph":
    """Each worker exchanges with the two beside it, with weights of 1/3."""
    return nx.cycle_graph(workers) if workers > 2 else nx.path_graph(workers)


def _torus(workers: int) -> "nx.Graph":
    """A grid whose borders meet, as square as W allows; both sides must be at least 3."""
    rows, columns = square_sides(workers)
    if rows < 3:
        rule = f"has sides {rows} x {columns} for {workers} workers; both must be at least 3"
        raise SettingError("topology", "torus", rule, "use 9, 12, 15, 16 ... workers, or a ring")
    return nx.grid_2d_graph(rows, columns, periodic=True)


def _star(workers: int) -> "nx.Graph":
    """Worker 0 exchanges with all the others."""
    return nx.star_graph(workers - 1)


def _path(workers: int) -> "nx.Graph":
    """A ring with one link cut."""
    return nx.path_graph(workers)


def _exponential(workers: int) -> "nx.Graph":
    """Each worker exchanges with those 1, 2, 4, 8 ... places away, on both sides."""
    hops = [2**k for k in range(workers.bit_length()) if 2**k <= workers // 2]
    return nx.circulant_graph(workers, hops)


def _hypercube(workers: int) -> "nx.Graph":
    """Workers exchange if their numbers differ in one bit; W must be a power of 2."""
    dimensions = workers.bit_length() - 1
    rule = f"needs a power of 2 as the number of workers, not {workers}"
    require(2**dimensions == workers, "topology", "hypercube", rule)
    return nx.hypercube_graph(dimensions)


def _expander(workers: int) -> "nx.Graph":
    """A ring where workers also exchange with their inverse modulo W, which must be prime."""
    prime = workers >= 3 and all(workers % d for d in range(2, math.isqrt(workers) + 1))
    rule = f"needs a prime number of workers of at least 3, not {workers}"
    require(prime, "topology", "expander", rule)
    return nx.chordal_cycle_graph(workers)


def _margulis(workers: int) -> "nx.Graph":
    """The expander of Margulis, Gabber and Galil on a square number of workers."""
    side = math.isqrt(workers)
    rule = f"needs a square number of workers of at least 4, not {workers}"
    require(side**2 == workers and side >= 2, "topology", "margulis", rule)
    return nx.margulis_gabber_galil_graph(side)


def _social(workers: int) -> "nx.Graph":
    """The 18 women and 14 events of Davis's Southern women: 32 workers."""
    rule = f"is a graph of 32 workers, not {workers}"
    require(workers == 32, "topology", "social", rule, "use --workers 32")
    return nx.davis_southern_women_graph()


def _erdos_renyi(workers: int, p: float, seed: int = 0) -> "nx.Graph":
    """Each pair exchanges with probability p: erdos-renyi:0.3, or erdos-renyi:0.3,SEED."""
    number = isinstance(p, int | float) and 0 < p <= 1
    require(number, "topology", f"erdos-renyi:{p}", "needs a probability in (0, 1]")
    return nx.gnp_random_graph(workers, p, seed=derived("erdos-renyi", seed) % 2**32)


_GRAPHS: dict[str, Callable[..., "nx.Graph"]] = {
    "complete": _complete,
    "ring": _ring,
    "torus": _torus,
    "star": _star,
    "path": _path,
    "exponential": _exponential,
    "hypercube": _hypercube,
    "expander": _expander,
    "margulis": _margulis,
    "social": _social,
    "erdos-renyi": _erdos_renyi,
}


def _from_file(path: str, workers: int) -> Tensor:
    """Return the weights that a file holds, or those of the edges that it lists."""
    file = Path(path).expanduser()
    require(file.is_file(), "topology", path, "names a file that does not exist")
    require(file.stat().st_size < _LARGEST_FILE, "topology", path, "is too large a file")
    rows = _numbers(file, path)
    if len(rows) == workers and all(len(row) == workers for row in rows):
        return torch.tensor(rows, dtype=torch.float64)
    graph = nx.empty_graph(workers)
    for number, row in enumerate(rows, 1):
        ids = all(end.is_integer() and 0 <= end < workers for end in row)
        rule = f"has no edge between two of the workers 0 to {workers - 1} in entry {number}"
        fix = f"give two numbers a line, or {workers} lines of {workers} weights"
        require(len(row) == 2 and ids and row[0] != row[1], "topology", path, rule, fix)
        graph.add_edge(int(row[0]), int(row[1]))
    return metropolis(path, graph)


def _numbers(file: Path, path: str) -> list[list[float]]:
    """Return the numbers of each line that is neither empty nor a comment."""
    try:
        lines = [line.partition("#")[0].replace(",", " ") for line in file.read_text().splitlines()]
        return [[float(word) for word in line.split()] for line in lines if line.strip()]
    except (OSError, ValueError) as wrong:
        rule = f"cannot be read as numbers ({one_line(wrong)})"
        raise SettingError("topology", path, rule) from wrong
