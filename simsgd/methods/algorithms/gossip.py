"""Gossip: workers have models of their own and exchange them with neighbors after each step.

Letters: W workers, L hosted here, n elements of one segment, x their parameters [L, n], w the
mixing weights, q and c what is sent, C the compressor, d the local optimizer's direction.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...communication.messages import State
from ...communication.segments import Segment
from ...communication.topology import Mixing, Topology, topology
from ...recipe import Recipe
from ...registry import register
from ...settings import SettingError, require
from .contract import ExchangeContext, Exchanged, ParameterAlgorithm


@dataclass(frozen=True)
class Gossip(ParameterAlgorithm):
    """What all gossip has: neighbors, and weights that do not change."""

    topology: str = "ring"  # who sends to whom
    has_own_memory = True
    neighbors_may_vary: ClassVar[bool] = False

    def check(self, recipe: Recipe) -> None:
        """Raise `SettingError` for a graph that does not fit the workers or the algorithm."""
        super().check(recipe)
        self.graph(recipe.workers)

    def graph(self, workers: int) -> Topology:
        """Return who sends to whom. Raises `SettingError` for neighbors that may not change."""
        graph = topology(self.topology, workers)
        if graph.varies and not self.neighbors_may_vary:
            rule = "has neighbors that change from step to step, which only dpsgd allows"
            raise SettingError("topology", self.topology, rule)
        return graph

    def mixing(self, context: ExchangeContext) -> Mixing:
        """Return the weights of this step."""
        return self.graph(context.workers).at(context.step.number)

    def describe(self, workers: int) -> str:
        """Return the settings in words, with the graph's degree and spectral gap."""
        mixing = self.graph(workers).at(0)
        gap = f"spectral gap {mixing.spectral_gap:.4f}"
        return f"{super().describe(workers)} ({mixing.degree_text} neighbors, {gap})"


@register("algorithm", "dpsgd")
@dataclass(frozen=True)
class DPSGD(Gossip):
    """Each worker steps, and then takes the weighted mean of its neighbors' models and its own.

    x_i = w_ii x_i + sum_j w_ij C(x_j), where x is after the local step; without compression this
    is x_i = sum_j w_ij (x_j - lr d_j). A lossy compressor is the naive form: its error stays.
    Lian, Zhang, Zhang, Hsieh, Zhang, Liu, "Can Decentralized Algorithms Outperform Centralized
    Algorithms?", NeurIPS 2017, https://arxiv.org/abs/1705.09056.
    """

    neighbors_may_vary = True

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Mix the models."""
        mixing = self.mixing(context)
        model = x.clone()
        sent, mixed = context.channel.neighbor_mean(
            context.compress(model), context.segment, mixing
        )
        kept = mixing.own[context.channel.hosted].to(x).unsqueeze(1)  # [L, 1]
        x.sub_(sent.to_dense()).mul_(kept).add_(mixed)
        return Exchanged.of(model, sent)


@register("algorithm", "choco")
@dataclass(frozen=True)
class Choco(Gossip):
    """CHOCO-SGD: each worker sends the compressed change to a public copy of its model.

    x = x - lr d; x += gamma (s - xhat); q = C(x - xhat); xhat += q; s += sum_j w_ij q_j. Public
    copies xhat and their weighted sums s start at 0, so that the first step has no gossip. The
    mean of all models is not changed by gossip, whatever is lost in C; gamma must be smaller the
    more is lost.
    Koloskova, Stich, Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with
    Compressed Communication", ICML 2019, https://arxiv.org/abs/1902.00340; Koloskova, Lin, Stich,
    Jaggi, "Decentralized Deep Learning with Arbitrary Communication Compression", ICLR 2020,
    https://arxiv.org/abs/1907.09356.
    """

    consensus_stepsize: float = 0.5  # gamma in (0, 1]

    def __post_init__(self) -> None:
        _check_stepsize(self.consensus_stepsize)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the public copies and their weighted sums: zeros, [L, n]."""
        return {"public": torch.zeros_like(x), "sum": torch.zeros_like(x)}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Gossip by what was known before, and send the change."""
        x.add_(state["sum"] - state["public"], alpha=self.consensus_stepsize)
        difference = x - state["public"]
        message = context.compress(difference)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, self.mixing(context))
        state["public"].add_(sent.to_dense())
        state["sum"].add_(mixed)
        return Exchanged.of(difference, sent)


@register("algorithm", "dcd")
@dataclass(frozen=True)
class DCD(Gossip):
    """DCD-PSGD: each worker sends the compressed difference to its last model, and follows it.

    x_half = sum_j w_ij xhat_j - lr d; q = C(x_half - x); x = xhat += q. All replicas start at the
    first model, and x is its own replica. The theory asks for an unbiased compressor that loses
    little.
    Tang, Gan, Zhang, Zhang, Liu, "Communication Compression for Decentralized Training", NeurIPS
    2018, https://arxiv.org/abs/1803.06443.
    """

    only_unbiased = "Tang et al., NeurIPS 2018"

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the replicas and their weighted sums, [L, n]; all start at one model."""
        return {"replica": x.clone(), "sum": x.clone()}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Send the difference, and add it to the replicas."""
        difference = x - state["replica"]  # -lr d
        difference.add_(state["sum"]).sub_(state["replica"])  # x_half - x
        message = context.compress(difference)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, self.mixing(context))
        state["replica"].add_(sent.to_dense())
        state["sum"].add_(mixed)
        x.copy_(state["replica"])
        return Exchanged.of(difference, sent)


@register("algorithm", "ecd")
@dataclass(frozen=True)
class ECD(Gossip):
    """ECD-PSGD: each worker sends an extrapolation of its model, which neighbors average.

    In step t = 1, 2 ...: x_new = sum_j w_ij xhat_j - lr d; z = (1 - t/2) x + (t/2) x_new;
    xhat = (1 - 2/t) xhat + (2/t) C(z), on every coordinate. Replicas start at the first model. The
    theory asks for an unbiased compressor; with few entries sent it diverges.
    Tang, Gan, Zhang, Zhang, Liu, "Communication Compression for Decentralized Training", NeurIPS
    2018, https://arxiv.org/abs/1803.06443.
    """

    only_unbiased = "Tang et al., NeurIPS 2018"

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return the last models, the replicas and the replicas' weighted sums, [L, n]."""
        return {"before": x.clone(), "replica": x.clone(), "sum": x.clone()}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Send the extrapolation, and bring the replicas up to it."""
        t = context.step.number + 1
        x.sub_(state["before"]).add_(state["sum"])  # x_new
        extrapolation = torch.add(state["before"] * (1 - t / 2), x, alpha=t / 2)  # z
        message = context.compress(extrapolation)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, self.mixing(context))
        state["replica"].mul_(1 - 2 / t).add_(sent.to_dense(), alpha=2 / t)
        state["sum"].mul_(1 - 2 / t).add_(mixed, alpha=2 / t)
        state["before"].copy_(x)
        return Exchanged.of(extrapolation, sent)


@register("algorithm", "deepsqueeze")
@dataclass(frozen=True)
class DeepSqueeze(Gossip):
    """DeepSqueeze: each worker sends its model with what was lost before, compressed.

    x -= lr d; e += x; c = C(e); e -= c; x += gamma sum_j (w_ij - [i = j]) c_j.
    Tang, Lian, Qiu, Yuan, Zhang, Zhang, Liu, "DeepSqueeze: Decentralization Meets
    Error-Compensated Compression", 2019, https://arxiv.org/abs/1907.07346.
    """

    consensus_stepsize: float = 0.5  # gamma in (0, 1]

    def __post_init__(self) -> None:
        _check_stepsize(self.consensus_stepsize)

    def init(self, x: Tensor, segment: Segment) -> State:
        """Return what was lost: zeros, [L, n]."""
        return {"residual": torch.zeros_like(x)}

    def parameters(self, x: Tensor, context: ExchangeContext, state: State) -> Exchanged:
        """Send the model and the residual, and move towards the neighbors."""
        compensated = state["residual"].add_(x)
        message = context.compress(compensated)
        sent, mixed = context.channel.neighbor_mean(message, context.segment, self.mixing(context))
        exchanged = Exchanged.of(compensated, sent, state)
        x.add_(mixed.sub_(sent.to_dense()), alpha=self.consensus_stepsize)
        sent.subtract_from_(state["residual"])
        return exchanged


def _check_stepsize(gamma: float) -> None:
    require(0 < gamma <= 1, "consensus_stepsize", gamma, "must lie in (0, 1]")
