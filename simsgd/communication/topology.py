"""Graphs of workers who exchange models.

networkx builds the graphs; the weights are Metropolis-Hastings, w_ij = 1 / (1 + max(d_i, d_j)) for
neighbors of degrees d_i and d_j, and w_ii what is left to 1 (Xiao, Boyd, "Fast linear iterations
for distributed averaging", Systems and Control Letters 2004). On a ring they are the customary 1/3.

Letters: W workers.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from ..given_object import plain_arguments
from ..keyed_random import derived
from ..recipe_rules import names_file
from ..settings import SettingError, one_line, require, require_file, require_kind, unknown
from ..units import home_path, literal
from .mixing import Mixing
from .square_sides import square_sides

_LARGEST_FILE = 1 << 26  # bytes
_MOST = 2048  # workers: their weights are a matrix
ONE_WAY = "has links that go one way, which only sgp allows"
_ROUNDS = 16  # of random peers


@dataclass(frozen=True, eq=False)
class Topology:
    """The rounds of gossip that are repeated: one, or several where neighbors change."""

    name: str
    rounds: tuple[Mixing, ...]

    def at(self, step: int) -> Mixing:
        """Return the weights of a step."""
        return self.rounds[step % len(self.rounds)]

    @property
    def one_way(self) -> bool:
        """Whether some receive from workers to whom they do not send, or by other weights."""
        return any(mixing.pushes for mixing in self.rounds)

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
        "random-peer": "One other worker a step, drawn at random, one way: for sgp; 16 rounds.",
        "FILE": "A .txt or .csv: edges (two numbers a line; 0 > 1 is one way) or W x W weights.",
    }


@plain_arguments
@functools.cache
def topology(spec: str, workers: int, one_way: bool = False) -> Topology:
    """Return the topology of a spec, `ring` or `erdos-renyi:0.3` or a file, for W workers.

    Raises `SettingError` for an unknown name, a W that it has no graph for, a graph that is not
    connected, or links that go one way, unless they may.
    """
    require_kind("topology", spec, str)
    require(workers >= 2, "workers", workers, "must be at least 2 for gossip")
    require(workers <= _MOST, "workers", workers, f"must be at most {_MOST:,} for gossip")
    if spec == "one-peer":
        return Topology(spec, tuple(_one_peer(workers)))
    if spec == "random-peer":
        require(one_way, "topology", spec, ONE_WAY)
        return _fixed(spec, *_random_peer(workers))
    name, colon, arguments = spec.partition(":")
    if name in _GRAPHS:
        given = [literal(a) for a in arguments.split(",")] if colon else []
        return _fixed(spec, Mixing(spec, metropolis(spec, _graph(spec, name, workers, given))))
    if names_file(spec):
        return _fixed(spec, _from_file(spec, workers, one_way))
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


def _fixed(name: str, *rounds: Mixing) -> Topology:
    whole = Topology(name, rounds)
    pieces = nx.number_connected_components(whole.graph())
    rule = f"falls into {pieces} parts without an edge between them"
    require(pieces == 1, "topology", name, rule)
    if whole.one_way:
        receives = sum(mixing.weights for mixing in rounds).T.numpy()  # type: ignore[union-attr]
        reached = nx.is_strongly_connected(nx.from_numpy_array(receives, create_using=nx.DiGraph))
        require(reached, "topology", name, "does not lead from every worker to every other")
    return whole


def _one_peer(workers: int) -> Iterable[Mixing]:
    """Yield the rounds of the one-peer exponential graph.

    Ying, Yuan, Chen, Hu, Pan, Yin, "Exponential Graph is Provably Efficient for Decentralized Deep
    Training", NeurIPS 2021, https://arxiv.org/abs/2110.13363.
    """
    one = torch.eye(workers, dtype=torch.float64)
    for hop in range(math.ceil(math.log2(workers))):
        yield Mixing("one-peer", (one + one.roll(2**hop, dims=1)) / 2, symmetric=False)


def _random_peer(workers: int) -> Iterable[Mixing]:
    """Yield rounds in which each worker sends half of what it has to another one.

    Kempe, Dobra, Gehrke, "Gossip-Based Computation of Aggregate Information", FOCS 2003.
    """
    one = torch.eye(workers, dtype=torch.float64)
    for number in range(_ROUNDS):
        generator = torch.Generator().manual_seed(derived("random-peer", number) % 2**32)
        ahead = torch.randint(1, workers, (workers,), generator=generator)
        peers = (torch.arange(workers) + ahead) % workers  # [W]
        yield Mixing("random-peer", (one + one[peers].T) / 2, symmetric=False, pushes=True)


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
    require(isinstance(seed, int), "topology", f"erdos-renyi:{p},{seed}", "needs a whole SEED")
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


def _from_file(path: str, workers: int, one_way: bool) -> Mixing:
    """Return the weights that a file holds, or those of the edges that it lists."""
    lines = _lines(path)
    arrows = {">" in line for line in lines}
    rule = "has edges with > and without"
    require(len(arrows) < 2, "topology", path, rule, "0 > 1 is one way; give the other way too")
    fix = f"give two numbers a line, or {workers} lines of {workers} weights"
    require(len(lines) > 0, "topology", path, "names a file without an edge", fix)
    rows = _numbers([line.replace(">", " ") for line in lines], path)
    if arrows != {True} and len(rows) == workers and all(len(row) == workers for row in rows):
        _check_not_edges(path, lines, rows)
        weights = torch.tensor(rows, dtype=torch.float64)
        return Mixing(path, weights, symmetric=not one_way, pushes=one_way)
    graph = nx.empty_graph(workers, create_using=nx.DiGraph if arrows == {True} else nx.Graph)
    for number, row in enumerate(rows, 1):
        ids = all(end.is_integer() and 0 <= end < workers for end in row)
        rule = f"has no edge between two of the workers 0 to {workers - 1} in entry {number}"
        require(len(row) == 2 and ids and row[0] != row[1], "topology", path, rule, fix)
        graph.add_edge(int(row[0]), int(row[1]))
    if arrows != {True}:
        return Mixing(path, metropolis(path, graph))
    require(one_way, "topology", path, ONE_WAY)
    links = torch.from_numpy(nx.to_numpy_array(graph)).T + torch.eye(workers, dtype=torch.float64)
    return Mixing(path, links / links.sum(0), symmetric=False, pushes=True)


def _check_not_edges(path: str, lines: Sequence[str], rows: list[list[float]]) -> None:
    """Raise `SettingError` for weights of two workers that are as well the edge between them."""
    if sorted(rows[0]) == [0, 1] and sorted(rows[-1]) == [0, 1] and "." not in "".join(lines):
        rule = "is the edge between 2 workers as well as their weights"
        fix = "for the edge write one line, 0 1; for weights write 0.0 and 1.0"
        raise SettingError("topology", path, rule, fix)


def _lines(path: str) -> list[str]:
    """Return the lines of a file that are neither empty nor a comment."""
    file = home_path(path)
    require_file("topology", file)
    require(file.stat().st_size < _LARGEST_FILE, "topology", path, "is too large a file")
    try:
        lines = [line.partition("#")[0] for line in file.read_text().splitlines()]
    except (OSError, ValueError) as wrong:
        rule = f"cannot be read as numbers ({one_line(wrong)})"
        raise SettingError("topology", path, rule) from wrong
    return [line for line in lines if line.strip()]


def _numbers(lines: Sequence[str], path: str) -> list[list[float]]:
    """Return the numbers of each line."""
    try:
        return [[float(word) for word in line.replace(",", " ").split()] for line in lines]
    except ValueError as wrong:
        rule = f"cannot be read as numbers ({one_line(wrong)})"
        raise SettingError("topology", path, rule) from wrong
