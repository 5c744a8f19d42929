"""What one step did.

Letters: L workers hosted here, B global batch.
"""

from dataclasses import dataclass

from torch import Tensor

from .ledger import StepBytes


@dataclass(frozen=True, repr=False)
class StepRecord:
    """What one step did. Reading a number waits for the device; holding the record does not."""

    step: int  # steps done, this one included
    epoch: int
    lr: float
    kept: float  # fraction of each compressed segment that was sent
    losses: Tensor  # each worker's mean loss, [L]
    output: Tensor  # the model's output, [B, ...]
    bytes: StepBytes

    @property
    def loss(self) -> float:
        """Mean loss over the global batch."""
        return float(self.losses.mean())

    @property
    def payload_bytes(self) -> list[int]:
        """Bytes of each worker's messages."""
        payload: list[int] = self.bytes.payload.tolist()
        return payload

    @property
    def network_bytes(self) -> int:
        """Bytes that all workers together put on the network."""
        return int(self.bytes.network)

    @property
    def dense_bytes(self) -> int:
        """Bytes of one worker's uncompressed gradient."""
        return self.bytes.dense

    @property
    def ratio(self) -> float:
        """Dense bytes over payload bytes, mean over workers."""
        payload = self.payload_bytes
        return self.dense_bytes * len(payload) / sum(payload)

    def __repr__(self) -> str:
        return (
            f"StepRecord(step={self.step}, epoch={self.epoch}, loss={self.loss:.4f}, "
            f"lr={self.lr:g}, kept={self.kept:g}, ratio={self.ratio:.1f})"
        )
