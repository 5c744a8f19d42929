"""Gossip: workers have models of their own and exchange them with neighbors after each step.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], w the
mixing weights, q and c what is sent, C the compressor, d the local optimizer's direction.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...communication.mixing import Mixing
from ...communication.topology import Topology, topology
from ...recipe import Recipe
from ...settings import SettingError, require
from .contract import ExchangeContext, ParameterAlgorithm


@dataclass(frozen=True)
class Gossip(ParameterAlgorithm):
    """What all gossip has: neighbors, and the weights on the links to them."""

    topology: str = "ring"  # who sends to whom
    has_own_memory = True
    neighbors_may_vary: ClassVar[bool] = False
    one_way: ClassVar[bool] = False  # links may be

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for a graph that does not fit the workers or the algorithm."""
        super().check(recipe)
        self.graph(recipe.workers)

    def graph(self, workers: int) -> Topology:
        """Return who sends to whom. Raises `SettingError` for neighbors that may not change."""
        graph = topology(self.topology, workers, self.one_way)
        if graph.varies and not self.neighbors_may_vary:
            rule = "has neighbors that change, which only dpsgd, qg_dsgdm and sgp allow"
            raise SettingError("topology", self.topology, rule)
        return graph

    def mixing(self, context: ExchangeContext) -> Mixing:
        """Return the weights of this step."""
        return self.graph(context.workers).at(context.step.number)

    def links(self, seed: int, workers: int, step: int) -> Tensor:
        """Return whether row receives from column in a step, [W, W] bool."""
        return self.graph(workers).at(step).links

    def describe(self, workers: int) -> str:
        """Return the settings in words, with the graph's degree and spectral gap."""
        mixing = self.graph(workers).at(0)
        gap = f"spectral gap {mixing.spectral_gap:.4f}"
        return f"{super().describe(workers)} ({mixing.degree_text} neighbors, {gap})"


def _check_stepsize(gamma: float) -> None:
    require(0 < gamma <= 1, "consensus_stepsize", gamma, "must lie in (0, 1]")
