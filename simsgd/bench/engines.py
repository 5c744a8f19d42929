"""How long engines take for all workers' gradients, beside one plain large batch.

The plain batch is what nobody has to pay more than: one forward and one backward of all samples,
one gradient. As a large batch may outgrow a processor's cache, it is also timed in W parts whose
gradients are added up, and ratios are to the better of both. All take turns in one process.

Letters: W workers, b samples each, B = W * b.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..catalog import build_model, parse_config
from ..columns import columns
from ..draw import Draw
from ..environment import environment
from ..experiment import device_of
from ..gradients.auto import Auto
from ..registry import find, names
from ..settings import require, unknown
from .turns import Work, milliseconds, taking_turns

FLOORS = ("plain", "plain in W parts")
_ROUNDS, _ENOUGH = 21, 15.0  # rounds at most, and seconds after which they are enough


@dataclass(frozen=True)
class Case:
    """A model and the batch of one worker."""

    model: str
    config: str
    input_shape: tuple[int, ...]
    batch: int  # b
    workers: int = 4  # W

    @property
    def name(self) -> str:
        """The model and its settings."""
        return f"{self.model} {self.config}".strip()


_CASES = (
    Case("mlp", "", (1, 28, 28), 32),
    Case("lenet", "", (1, 28, 28), 8),
    Case("lenet", "", (1, 28, 28), 32),
    Case("resnet", "depth=20", (3, 32, 32), 8),
    Case("resnet", "depth=20", (3, 32, 32), 32),
)
_WORKERS = (4, 16, 64)
_QUICK = (Case("mlp", "", (1, 28, 28), 4), Case("resnet", "depth=8", (3, 8, 8), 2))
MODELS = tuple(dict.fromkeys(case.model for case in _CASES))


def measure(
    quick: bool = False,
    device: str = "cpu",
    models: Sequence[str] = (),
    workers: Sequence[int] = (),
    batches: Sequence[int] = (),
) -> dict[str, Any]:
    """Return {"machine": ..., "rows": [...]}, one row a model, W, b and engine.

    `models`, `workers` W and `batches` b leave out all others. A row has the median, least and
    most of its milliseconds, and the median over rounds of its ratio to the better floor.
    """
    for model in models:
        if model not in MODELS:
            raise unknown("model", model, MODELS)
    require(all(w >= 1 for w in workers), "workers", list(workers), "must be at least 1")
    device = device_of(device)
    cases = [
        replace(case, workers=w)
        for case in (_QUICK if quick else _CASES)
        for w in workers or ((4,) if quick else _WORKERS)
        if (not models or case.model in models) and (not batches or case.batch in batches)
    ]
    rows = [row for case in cases for row in _measured(case, device, 3 if quick else _ROUNDS)]
    return {"machine": environment(device), "rows": rows}


def told(measured: dict[str, Any]) -> str:
    """Return the rows as a text."""
    machine = measured["machine"]
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    parts = [f"{machine['machine']}, {threads}, torch {machine['torch']}"]
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in measured["rows"]:
        case = row["model"], row["workers"], row["batch"], row["rounds"]
        cases.setdefault(case, []).append(row)
    for (model, workers, batch, rounds), rows in cases.items():
        head = f"{model}, W = {workers}, b = {batch}, median of {rounds} rounds"
        parts.append(f"{head}\n{_table(rows)}")
    return "\n\n".join(parts)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [["engine", "ms", "least", "most", "times plain"]]
    for row in rows:
        times = [f"{row[key]:,.2f}" for key in ("ms", "ms_min", "ms_max", "ratio")]
        cells.append([row["engine"], *times])
    return columns(cells)


def _measured(case: Case, device: str, rounds: int) -> list[dict[str, Any]]:
    seconds = taking_turns(_works(case, device), device, rounds, _ENOUGH)
    floor = min((seconds[name] for name in FLOORS), key=statistics.median)
    return [
        {
            "model": case.name,
            "workers": case.workers,
            "batch": case.batch,
            "engine": name,
            "ratio": statistics.median(s / f for s, f in zip(spent, floor, strict=True)),
            **milliseconds(spent),
            "rounds": len(spent),
        }
        for name, spent in seconds.items()
    ]


def _works(case: Case, device: str) -> dict[str, Work]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(case.model, parse_config(case.config), 10, case.input_shape)
    model = model.to(device).train()
    shape = case.workers, case.batch
    x = torch.randn(*shape, *case.input_shape, generator=generator).to(device)
    y = torch.randint(10, shape, generator=generator).to(device)
    works: dict[str, Work] = {
        FLOORS[0]: lambda: _plain(model, x.flatten(0, 1).unsqueeze(0), y.view(1, -1)),
        FLOORS[1]: lambda: _plain(model, x, y),
    }
    return works | {name: _engine(name, model, x, y) for name in _names()}


def _names() -> list[str]:
    """Return the engines by name, what is chosen by itself first."""
    return sorted(names("engine"), key=lambda name: (find("engine", name) is not Auto, name))


def _plain(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the gradient of the mean loss, the sum of those of the parts of `x` [parts, ...]."""
    parameters = list(model.parameters())
    total: list[Tensor] = []
    for part, target in zip(x, y, strict=True):
        loss = F.cross_entropy(model(part), target) / len(x)
        found = torch.autograd.grad(loss, parameters)
        total = [a.add_(b) for a, b in zip(total, found, strict=True)] if total else list(found)
    return total


def _engine(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Work:
    params = dict(model.named_parameters())
    buffers = {n: torch.stack([b] * len(x)) for n, b in model.named_buffers()}
    keys = Draw(0, torch.arange(len(x), device=x.device)).keys()
    engine = find("engine", name)(model, F.cross_entropy)
    return lambda: engine(params, buffers, x, y, keys)
