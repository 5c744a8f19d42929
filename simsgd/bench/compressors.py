"""Times compressors beside one read and one write of the same memory.

Timed is what a step does with a gradient: compress it, count the message's bytes, send it and form
the mean. All compressors take turns, round after round in one process, so that what
else the machine does falls on all of them.

Letters: W workers, n elements of one segment.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..communication.ledger import Ledger
from ..communication.segments import Segment
from ..communication.square_sides import square_sides
from ..communication.transport import Channel, InProcess
from ..communication.wire import Wire
from ..keyed_random import RandomKey
from ..methods.algorithms import AllReduce, ExchangeContext
from ..methods.compressors import StepInfo, composed
from ..results.text_table import TextTable
from ..training.devices import device_of
from ..training.environment import environment
from .tables import Measured, Row, noted
from .timing import Work, in_time, milliseconds, taking_turns

SPECS = (
    "none",
    "fp16",
    "bf16",
    "int8",
    "topk:0.001",
    "sampled_topk:0.001",
    "randomk:0.001",
    "randomk:0.001,shared=true",
    "block:0.001",
    "turns:0.001",
    "tiled_topk:64",
    "tiled_topk:64,basis=dct",
    "threshold:3",
    "adaptive_threshold",
    "adacomp",
    "variance",
    "sign",
    "onebit",
    "terngrad",
    "qsgd:255",
    "qsgd:4,bucket=512",
    "qsgd:4,code=elias",
    "natural",
    "bins:2",
    "e3m0",
    "powersgd:2",
    "dion:2",
    "dion2",
    "topk:0.001+sign",
)
FLOOR = "one read and one write"
_FULL = ((16, 11_000_000), (16, 270_000))  # W, n
_QUICK = ((4, 100_000), (4, 10_000))
_MOST_BYTES = 4e9  # of memory at a time, beside gradients and states
_BYTES_AN_ELEMENT = 64  # of memory, at the peak of the hungriest compressor
_SQUARES = 72.0  # of samples, with which about one entry in a thousand is certain at the end
_ROUNDS = 5


def measure(quick: bool = False, device: str = "cpu", compressors: Sequence[str] = ()) -> Measured:
    """Return {"machine": ..., "rows": [...]}, one row a compressor and size.

    `compressors` are the specs to time, by default those of `SPECS`. `gb_per_s` is the gradients'
    bytes over the time, of the floor as well; `rows_at_once` is less than `workers` where all of
    them together would not fit into memory.
    """
    device = device_of(device)
    specs = list(dict.fromkeys(compressors)) or list(SPECS)
    for spec in specs:
        composed(spec)  # a wrong one is refused before the first is timed
    notes: list[str] = []
    sizes = in_time(_QUICK if quick else _FULL, notes, lambda size: f"[{size[0]}, {size[1]:,}]")
    rows = [row for size in sizes for row in _measured(*size, device, specs)]
    return noted({"machine": environment(device), "rows": rows}, notes)


def tables(measured: Measured) -> list[TextTable]:
    """Return the rows in words, a table for each W and n."""
    found = []
    for workers, n in dict.fromkeys((row["workers"], row["n"]) for row in measured["rows"]):
        rows = [row for row in measured["rows"] if (row["workers"], row["n"]) == (workers, n)]
        title = f"W = {workers}, n = {n:,}, median of {rows[0]['rounds']} rounds{_chunked(rows[0])}"
        found.append(_table(rows, title))
    return found


def _chunked(row: Row) -> str:
    at_once: int = row["rows_at_once"]
    return "" if at_once == row["workers"] else f", {at_once} workers at a time"


def _table(rows: Sequence[Row], title: str) -> TextTable:
    floor, cells = rows[0]["ms"], []
    for row in rows:
        times = [f"{row[key]:,.3f}" for key in ("ms", "ms_min", "ms_max", "gb_per_s")]
        cells.append([row["compressor"], *times, f"{row['ms'] / floor:.1f}"])
    head = ["compressor", "ms", "least", "most", "GB/s", "times the floor"]
    return TextTable(head, cells, title=title)


def _measured(workers: int, n: int, device: str, specs: Sequence[str]) -> list[Row]:
    at_once = max(1, min(workers, int(_MOST_BYTES / (n * _BYTES_AN_ELEMENT))))
    generator = torch.Generator(device).manual_seed(0)
    gradients = torch.randn(workers, n, generator=generator, device=device)
    works = {FLOOR: _copying(gradients, at_once)}
    works |= {spec: _compressing(spec, gradients, at_once) for spec in specs}
    seconds = taking_turns(works, device, _ROUNDS)
    known = {"workers": workers, "n": n, "rows_at_once": at_once, "rounds": _ROUNDS}
    moved = gradients.numel() * gradients.element_size()
    return [{"compressor": name, **known, **_row(s, moved)} for name, s in seconds.items()]


def _row(seconds: Sequence[float], moved: int) -> dict[str, float]:
    row = milliseconds(seconds)
    return row | {"gb_per_s": moved / row["ms"] / 1e6}


def _copying(gradients: Tensor, at_once: int) -> Work:
    target = torch.empty_like(gradients[:at_once])

    def copy() -> None:
        for part in gradients.split(at_once):
            target[: len(part)].copy_(part)

    return copy


def _compressing(spec: str, gradients: Tensor, at_once: int) -> Work:
    workers, n = gradients.shape
    segment = Segment("segment", ("segment",), (torch.Size(square_sides(n)),), dense=False)
    compressor = composed(spec).for_shape(segment.shape)
    channel, exchange = Channel(InProcess(), Ledger(workers), Wire()), AllReduce()
    ids = torch.arange(workers, device=gradients.device)
    parts = list(zip(gradients.split(at_once), ids.split(at_once), strict=True))
    states = [compressor.init(part) for part, _ in parts]

    def compress() -> None:
        for (part, own), state in zip(parts, states, strict=True):
            key = RandomKey(0, own).fold_in(0, segment.name)
            squares = (
                part.new_full((1,), _SQUARES).expand_as(part) if compressor.needs_squares else None
            )
            info = StepInfo(key, segment=segment.name, gradient=part, squares=squares)
            exchange.gradients(part, ExchangeContext(compressor, state, info, segment, channel))
        channel.ledger.transfers.clear()

    return compress
