"""How the samples of several workers lie in one batch.

Letters: L workers of the pass, b samples each, B = L * b, m vectors of one worker, c channels.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Fold:
    """Worker after worker, or by turns: the first sample of each, then the second of each.

    By turns, channels of all workers, [b, L * c, ...], are a view of a batch [b * L, c, ...]: what
    keeps workers apart as groups of channels then needs no copies.
    """

    workers: int  # L
    each: int  # b
    by_turns: bool = False

    @property
    def samples(self) -> int:
        """B."""
        return self.workers * self.each

    def folded(self, x: Tensor) -> Tensor:
        """Return the batch [B, ...] of `x` [L, b, ...]."""
        whole: Tensor = (x.transpose(0, 1) if self.by_turns else x).flatten(0, 1)
        return whole

    def unfolded(self, t: Tensor) -> Tensor:
        """Return [L, b, ...] of a batch [B, ...], without a copy."""
        own: Tensor = t.unflatten(0, (-1, self.workers) if self.by_turns else (self.workers, -1))
        return own.transpose(0, 1) if self.by_turns else own

    def holds(self, t: Tensor) -> bool:
        """Return whether a tensor has one part for each sample, or several, along its first."""
        return t.dim() > 0 and len(t) > 0 and len(t) % self.samples == 0

    def apart(self, t: Tensor) -> Tensor:
        """Return [outer, L, inner, ...] of a tensor with parts of samples first, a view."""
        own: Tensor = t.unflatten(0, (self.each if self.by_turns else 1, self.workers, -1))
        return own

    def joined(self, t: Tensor) -> Tensor:
        """Return what was taken apart, once more with parts of samples first."""
        return t.flatten(0, 2)

    def rows(self, t: Tensor) -> Tensor:
        """Return [L, m, ...] of a tensor with parts of samples first; by turns it may be copied."""
        own = self.apart(t)
        return own.transpose(0, 1).flatten(1, 2) if self.by_turns else own.squeeze(0)

    def back(self, rows: Tensor) -> Tensor:
        """Return what `rows` came from, [L * m, ...] of [L, m, ...]."""
        if self.by_turns:
            return self.joined(rows.unflatten(1, (self.each, -1)).transpose(0, 1))
        return rows.flatten(0, 1)

    def wide(self, t: Tensor) -> Tensor:
        """Return [m, L * c, ...] of [L * m, c, ...]; by turns it is a view, else a copy."""
        return self.apart(t).transpose(1, 2).flatten(0, 1).flatten(1, 2)

    def narrow(self, t: Tensor) -> Tensor:
        """Return what was made wide, once more [L * m, c, ...]."""
        outer = self.each if self.by_turns else 1
        own = t.unflatten(1, (self.workers, -1)).unflatten(0, (outer, -1))  # [o, i, L, c, ...]
        return self.joined(own.transpose(1, 2))
