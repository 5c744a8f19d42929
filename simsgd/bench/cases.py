"""Models, batches and random samples for benches.

A model that is not in this installation is left out, and named.

Letters: W workers, b samples each, B = W * b, T tokens of a sample, V words of a vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..catalog import attribute, begin_texts, build_model, load, parse_config
from ..catalog import names as names_in
from ..gradients.contract import Criterion
from ..settings import require, unknown
from ..simulator.room import memory_of
from ..units import in_units


@dataclass(frozen=True)
class Case:
    """A model and the batch of one worker."""

    model: str
    config: str
    input_shape: tuple[int, ...]
    batch: int  # b
    workers: int = 4  # W
    vocabulary: int = 0  # V of a language model, whose samples are T tokens; 0: images

    @property
    def name(self) -> str:
        """The model and its settings."""
        return f"{self.model} {self.config}".strip()

    def __str__(self) -> str:
        return f"{self.name} with W = {self.workers}, b = {self.batch}"


@dataclass(frozen=True)
class Task:
    """A case made real."""

    model: nn.Module
    criterion: Criterion
    x: Tensor  # [W, b, ...]
    y: Tensor  # [W, b], of a language model [W, b, T]

    @property
    def whole(self) -> tuple[Tensor, Tensor]:
        """The global batch, [B, ...] each."""
        return self.x.flatten(0, 1), self.y.flatten(0, 1)


MLP = Case("mlp", "", (1, 28, 28), 32)
LENET = Case("lenet", "", (1, 28, 28), 8)
RESNET = Case("resnet", "depth=20", (3, 32, 32), 8)
CASES = (
    MLP,
    LENET,
    replace(LENET, batch=32),
    RESNET,
    replace(RESNET, batch=32),
    Case("resnet9", "", (3, 32, 32), 4),
    Case("lstm_lm", "", (32,), 8, vocabulary=1000),
)
MOST = 1 << 28  # numbers of a batch
_COPIES = 4  # of the parameters for each worker: gradients, two memories, and what passes
QUICK = (replace(MLP, batch=4), Case("resnet", "depth=8", (3, 8, 8), 2))


def selected(
    cases: Sequence[Case],
    workers: Sequence[int],
    models: Sequence[str] = (),
    batches: Sequence[int] = (),
) -> tuple[list[Case], list[str]]:
    """Return the cases for each number of workers, and a note on models that are not here.

    `models` and `batches`, unless empty, leave out all others. Raises `SettingError` for a model
    of no case and for a number below 1.
    """
    timed = dict.fromkeys(case.model for case in cases)
    for model in models:
        if model not in timed:
            raise unknown("model", model, timed)
    require_counts(workers=workers, batch=batches)
    known = dict.fromkeys(case.batch for case in cases if not models or case.model in models)
    for batch in batches:
        rule = f"must be one of {', '.join(map(str, sorted(known)))}"
        require(batch in known, "batch", batch, rule)
    chosen = [
        replace(case, workers=w)
        for case in cases
        for w in workers
        if (not models or case.model in models) and (not batches or case.batch in batches)
    ]
    for case in chosen:
        most = MOST // (case.batch * math.prod(case.input_shape))
        rule = f"must be at most {most:,} for {case.name} with b = {case.batch}"
        require(case.workers <= most, "workers", case.workers, rule)
    here = set(names_in("models"))
    missing = dict.fromkeys(case.model for case in chosen if case.model not in here)
    notes = [
        f"{model} is left out: this installation has no model of that name" for model in missing
    ]
    return [case for case in chosen if case.model in here], notes


def require_counts(**counts: Sequence[int]) -> None:
    """Raise `SettingError` for a number below 1 among those of a setting."""
    for name, numbers in counts.items():
        for number in numbers:
            require(number >= 1, name, number, "must be at least 1")


def require_room(model: nn.Module, name: str, workers: int, device: str) -> None:
    """Raise `SettingError` for more workers than have room for the least that a step keeps."""
    each = _COPIES * sum(p.numel() * p.element_size() for p in model.parameters())
    there = memory_of(torch.device(device))
    if there is not None:
        rule = f"must be at most {there // each:,} for {name} in {in_units(there)} of memory"
        require(workers * each <= there, "workers", workers, rule)


def task_of(case: Case, device: str) -> Task:
    """Return the model with its first weights, always the same, and W * b random samples.

    Raises `SettingError` for more workers than memory holds.
    """
    classes, shape = case.vocabulary or 10, (case.workers, case.batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(case.model, parse_config(case.config), classes, case.input_shape)
    require_room(model, case.name, case.workers, device)
    generator = torch.Generator().manual_seed(0)
    if case.vocabulary:
        x, y = torch.randint(classes, (2, *shape, *case.input_shape), generator=generator)
    else:
        x = torch.randn(*shape, *case.input_shape, generator=generator)
        y = torch.randint(classes, shape, generator=generator)
    criterion = attribute(load("models", case.model), model, "criterion", F.cross_entropy)
    return Task(begun(model, case.batch).to(device).train(), criterion, x.to(device), y.to(device))


def begun(model: nn.Module, samples: int) -> nn.Module:
    """Return the model; one that carries a state stands before the first of `samples` texts."""
    begin_texts(model, samples)
    return model
