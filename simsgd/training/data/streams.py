"""Batches of a text: streams side by side, of which each step takes the next stretch.

Letters: N tokens, W workers, b streams each, M passes, B = W * b * M, T tokens of a stretch.

The text is cut into W * b streams of equal length, and worker w has those from w b to (w + 1) b.
As stretches of a stream follow each other, a model can carry its state from one to the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config import Config
from ...keyed_random import RandomKey
from ...settings import require

Batch = tuple[Tensor, Tensor]  # x and y, [B, T] each: y is what follows each of x
_COLUMNS = 10  # streams of an evaluation, as is usual in papers


@dataclass(frozen=True)
class Streams:
    """The training batches of a text. Raises `SettingError` if an epoch would have none."""

    tokens: Tensor  # int64 [N]
    workers: int  # W
    batch: int  # b
    bptt: int  # T, on average if it varies
    passes: int = 1  # M, stretches of a step that follow each other
    seed: int = 0
    vary: bool = False  # draw the length of each stretch, from T / 2 to 3 T / 2

    def __post_init__(self) -> None:
        needed = self.workers * self.batch * self.passes * self.bptt + 1
        also = f" and {self.passes} passes" if self.passes > 1 else ""
        need = f"needs {needed:,} tokens, and the training text has {len(self.tokens):,}"
        rule = f"times {self.workers} workers{also} and {self.bptt} tokens {need}"
        fix = "use fewer streams, or a smaller bptt"
        require(needed <= len(self.tokens), "batch_size", self.batch, rule, fix)
        rule = f"needs a bptt of at least 4, not {self.bptt}"
        require(not self.vary or self.bptt >= 4, "vary_bptt", None, rule)

    @classmethod
    def of(cls, tokens: Tensor, config: Config) -> "Streams":
        """Return the batches that a run with these settings takes of its training text."""
        assert config.bptt is not None
        return cls(
            tokens,
            workers=config.workers * config.devices,
            batch=config.pass_batch,
            bptt=config.bptt,
            passes=config.accumulate,
            seed=config.seed,
            vary=config.vary_bptt,
        )

    @property
    def batches(self) -> int:
        """Steps of an epoch; what is left at the ends of the streams is not used."""
        return self._length // (self.passes * self.bptt)

    @property
    def longest(self) -> int:
        """The most tokens that a stretch may have."""
        return self.bptt + 2 * self._sway

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch from number `start` on.

        Rows are worker by worker and pass by pass, b streams each, as a simulator divides them. A
        pass is the stretch that follows the pass before it.
        """
        length = self._length
        whole = length * self.workers * self.batch
        shape = self.workers, self.batch, length
        x, y = (self.tokens[at : at + whole].view(shape) for at in (0, 1))  # [W, b, length] each
        ends = self._ends(epoch)
        for number in range(start, self.batches):
            now = slice(ends[number], ends[number + 1])
            yield self._rows(x[:, :, now]), self._rows(y[:, :, now])

    @property
    def _length(self) -> int:
        return (len(self.tokens) - 1) // (self.workers * self.batch)

    @property
    def _sway(self) -> int:
        """How far the end of a pass may move either way, in tokens."""
        return self.bptt // 4 if self.vary else 0

    def _ends(self, epoch: int) -> list[int]:
        """Return where in a stream the steps begin and end, a function of (seed, epoch).

        Their number is always the same.
        """
        place = RandomKey(self.seed, torch.zeros(1, dtype=torch.int64)).fold_in("bptt", epoch)
        moved = (place.uniform(self.batches + 1)[0] * (2 * self._sway + 1)).long() - self._sway
        moved[0] = moved[-1] = 0
        steps = torch.arange(self.batches + 1) * self.bptt
        ends: list[int] = ((steps + moved) * self.passes).tolist()
        return ends

    def _rows(self, part: Tensor) -> Tensor:
        """Return [W * M * b, T] of `part` [W, b, M * T]."""
        rows: Tensor = part.unflatten(2, (self.passes, -1)).transpose(1, 2).flatten(0, 2)
        return rows


def in_order(tokens: Tensor, bptt: int) -> tuple[int, list[Batch]]:
    """Return how many streams an evaluation reads side by side, and its batches in order.

    All tokens but the first are told apart once, but for at most nine at the end.
    """
    columns = min(_COLUMNS, len(tokens) - 1)
    require(columns > 0, "dataset", None, "has an evaluation text of less than 2 tokens")
    whole = (len(tokens) - 1) // columns * columns
    x, y = (tokens[at : at + whole].view(columns, -1) for at in (0, 1))
    return columns, list(zip(x.split(bptt, dim=1), y.split(bptt, dim=1), strict=True))
