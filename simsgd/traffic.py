"""What the collectives of a step carried, small enough to be kept of every step.

Letters: W workers.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from .ledger import Transfer
from .record import StepRecord


def transfer_rows(record: StepRecord) -> list[dict[str, Any]]:
    """Return a step's rows of transfers.csv; this waits for the device."""
    by_collective: dict[str, list[Transfer]] = {}
    for transfer in record.bytes.transfers:
        by_collective.setdefault(transfer.collective, []).append(transfer)
    known = {"step": record.step, "segments": len(record.segments)}
    return [
        {**known, "collective": collective, **_row(transfers)}
        for collective, transfers in by_collective.items()
    ]


def _row(transfers: Sequence[Transfer]) -> dict[str, int]:
    payload = torch.stack([t.payload for t in transfers])  # [transfers, W]
    each = payload.sum(0)  # [W]
    sums = torch.stack([each.sum(), each.max(), payload.amax(1).sum()])
    total, most, slowest = sums.tolist()
    degrees = [int(t.degree.max()) for t in transfers if t.degree is not None]
    return {
        "messages": len(transfers),
        "rounds": max(Counter(t.segment for t in transfers).values()),
        "degree": max(degrees, default=0),
        "payload_bytes": round(total / payload.shape[1]),
        "payload_bytes_max": most,
        "slowest_bytes": slowest,
    }
