"""PowerGossip."""

from dataclasses import dataclass
from typing import ClassVar

from ...registry import register
from .contract import Preset


@register("preset", "powergossip")
@dataclass(frozen=True)
class PowerGossip(Preset):
    """Gossip on a ring of what neighbors differ by, in one direction a step.

    Neighbors i and j send theta p; theta_i = theta_i + w_ij q p^T, q = (theta_j - theta_i) p; the
    next step begins from q, with transposed matrices.
    Vogels, Karimireddy, Jaggi, "Practical Low-Rank Communication Compression in Decentralized Deep
    Learning", NeurIPS 2020, https://arxiv.org/abs/2008.01425.

    Differs from the paper: mixing weights are Metropolis-Hastings ones. One multiplication a step;
    the paper takes up to 16, `--algorithm powergossip:iterations=16`.
    """

    settings: ClassVar = {"algorithm": "powergossip:rank=1,iterations=1", "topology": "ring"}
