"""The mixing weights on the edges of a graph of workers.

Letters: W workers.
"""

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..settings import SettingError, require, require_kind

_SPARSE = 64  # workers from which on few neighbors are worth a sparse matrix
_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class Mixing:
    """The weights of one round of gossip.

    Raises `SettingError` unless they are doubly stochastic, and symmetric if they must be. Of those
    that only push, columns alone add up to 1: each divides what it has, and may receive more.
    """

    name: str  # of the topology
    weights: Tensor  # [W, W] float64: row i is what worker i takes of each model
    symmetric: bool = True  # must be
    pushes: bool = False  # rows need not add up to 1
    _cast: dict[tuple[torch.dtype, torch.device, int | None], Tensor] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        w, name = self.weights, self.name
        require_kind("weights", w, Tensor)
        square = w.dim() == 2 and w.shape[0] == w.shape[1] > 0
        require(square, "weights", [*w.shape], "must be square, [W, W]")
        if not bool((w >= 0).all()) or not bool(w.isfinite().all()):
            raise SettingError("topology", name, "has weights below 0 or not finite")
        sums_of = {"row": w.sum(1), "column": w.sum(0)}
        if self.pushes:
            del sums_of["row"]
        for what, sums in sums_of.items():
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

    @functools.cached_property
    def neighbors(self) -> Tensor:
        """From whom each worker receives, in order, [W, D] int64 for at most D; -1 behind them."""
        rows, columns = self.links.nonzero(as_tuple=True)
        found = torch.full((len(self.links), int(self.links.sum(1).max())), -1)
        found[rows, self._place[rows, columns]] = columns
        return found

    @functools.cached_property
    def places_back(self) -> Tensor:
        """At which place among those of its neighbor each worker is, [W, D] int64, for both ways.

        -1 behind the neighbors.
        """
        workers = torch.arange(len(self.links)).unsqueeze(1)
        return self._place[self.neighbors, workers].where(self.neighbors >= 0, -1)

    @property
    def _place(self) -> Tensor:
        """Which of its neighbors, from 0, the column is to the row, [W, W] int64."""
        return self.links.cumsum(1) - 1

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
