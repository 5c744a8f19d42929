"""Small models, batches and loops that tests of several rooms share.

Letters: W workers, b samples each, n elements.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simsgd import Simulator
from simsgd.gradients import Gradients
from simsgd.gradients.contract import EngineConfig
from simsgd.keyed_random import RandomKey
from simsgd.registry import find

TINY = {
    "model": "mlp",
    "model_config": "hidden=8",
    "dataset": "digits",
    "batch_size": 60,
}  # a run of a second
OF_TEXT = {"gpt", "lstm_lm", "transformer_lm"}  # models of text; all others take images


def mlp(seed: int = 0) -> nn.Sequential:
    """Return a smooth model from 6 features to 3 classes, in float64."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch_norm_mlp(seed: int = 0, *more: nn.Module) -> nn.Sequential:
    """Return a model from 6 features to 3 classes with BatchNorm, in float64.

    `more` are modules before its last layer.
    """
    torch.manual_seed(seed)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), *more, nn.Linear(8, 3)
    return nn.Sequential(*layers).double()


def batches(steps: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of 6 features in float64, [size, 6], and of 3 classes, [size]."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
        yield x, torch.randint(3, (size,), generator=generator)


def batch(
    *lead: int,
    shape: Sequence[int] = (1, 8, 8),
    classes: int = 5,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return samples, [*lead, *shape], and their classes, [*lead]; `lead` is W, b or all."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*lead, *shape, generator=generator, dtype=dtype)
    return x, torch.randint(classes, lead, generator=generator)


def normal(workers: int, n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normally distributed numbers, [W, n]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(workers, n, generator=generator, dtype=dtype)


def simulated(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], epoch: int, **settings: Any
) -> tuple[Simulator, list[Any]]:
    """Train a model in simulation; return the simulator and the record of each step."""
    simulator = Simulator(model, **{"lr": 0.1, **settings})
    return simulator, [simulator.step(x, y, epoch) for x, y in batches]


def trained_by_torch(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], **settings: Any
) -> nn.Module:
    """Train a model as one would without simsgd, with SGD at a rate of 0.1; return it."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, **settings)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def gradients(
    engine: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    criterion: Any = F.cross_entropy,
    buffers: dict[str, Tensor] | None = None,
    workers: Iterable[int] | None = None,
    step: int = 0,
    **options: Any,
) -> Gradients:
    """Return what an engine makes of batches [W, b, ...] of `workers`, by default the first W."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if buffers is None:
        buffers = {name: torch.stack([b] * len(x)) for name, b in model.named_buffers()}
    ids = torch.tensor([*(range(len(x)) if workers is None else workers)])
    keys = RandomKey(0, ids).fold_in(step, "dropout").keys()
    run = find("engine", engine)(model, criterion, EngineConfig(**options))
    result: Gradients = run(params, buffers, x, y, keys)
    return result


def relative_distance(values: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return |values - wanted| / |wanted| of all tensors, taken as one vector."""
    one, other = (
        torch.cat([tensors[name].detach().double().flatten() for name in wanted])
        for tensors in (values, wanted)
    )
    return float((one - other).norm() / other.norm())
