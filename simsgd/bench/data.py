"""Times the data of a batch (gather, augment, normalize) beside its training step.

Timed are, for one global batch, what an epoch's iterator does (gather uint8 images on the device,
draw each image's numbers, crop, mirror, normalize) and a whole training step. Images are random, of
the shape and number of CIFAR-10's; what they show does not change the time. All take turns.

Letters: W workers, b samples each, B = W * b.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, count

import torch
import torch.nn.functional as F
from torch import Tensor

from ..catalog import attribute, build_model, load, parse_config
from ..config import Config
from ..results.text_table import TextTable
from ..simulator.regime import Regime
from ..simulator.simulator import Simulator
from ..training.data import Dataset, Split
from ..training.data.statistics import described
from ..training.devices import device_of
from ..training.environment import environment
from ..training.experiment import Experiment
from ..training.input_transforms import fitted
from ..training.schedule import Schedule
from .tables import Measured, Row
from .timing import milliseconds, taking_turns

_ROUNDS, _ENOUGH = 21, 60.0  # rounds at most, and seconds after which they are enough


@dataclass(frozen=True)
class Case:
    """A model, what it is trained on, and by whom."""

    model: str
    config: str
    samples: int  # of an epoch
    workers: int = 16  # W
    batch: int = 8  # b
    input_shape: tuple[int, ...] = (3, 32, 32)

    @property
    def name(self) -> str:
        """The model and its settings."""
        return f"{self.model} {self.config}".strip()


_CASES = (Case("resnet", "depth=20", 50_000),)
_QUICK = (Case("resnet", "depth=8", 640, workers=2, batch=4, input_shape=(3, 16, 16)),)


def measure(quick: bool = False, device: str = "cpu") -> Measured:
    """Return {"machine": ..., "rows": [...]}, one row a model.

    A row has the milliseconds of the data and of the step of one batch, and the share of the data
    in both together, each the median over rounds.
    """
    device = device_of(device)
    rounds = 3 if quick else _ROUNDS
    rows = [_measured(case, device, rounds) for case in (_QUICK if quick else _CASES)]
    return {"machine": environment(device), "rows": rows}


def tables(measured: Measured) -> list[TextTable]:
    """Return the rows in words, in one table."""
    times = [(part, key) for part in ("data", "step") for key in ("ms", "ms_min", "ms_max")]
    head = ["data (ms)", "least", "most", "step (ms)", "least", "most", "data"]
    cells = []
    for row in measured["rows"]:
        own = [str(row[key]) for key in ("model", "workers", "batch", "rounds")]
        shown = [f"{row[part][key]:,.2f}" for part, key in times]
        cells.append([*own, *shown, f"{100 * row['share']:.2f} %"])
    return [TextTable(["model", "W", "b", "rounds", *head], cells)]


def _measured(case: Case, device: str, rounds: int) -> Row:
    experiment = _experiment(case, device)
    batches = _endless(experiment)
    x, y = next(batches)
    works = {"data": lambda: next(batches), "step": lambda: experiment.simulator.step(x, y, 0)}
    spent = taking_turns(works, device, rounds, _ENOUGH)
    shares = [d / (d + s) for d, s in zip(spent["data"], spent["step"], strict=True)]
    return {
        "model": case.name,
        "workers": case.workers,
        "batch": case.batch,
        "samples": case.samples,
        "rounds": len(shares),
        "share": statistics.median(shares),
        **{part: milliseconds(seconds) for part, seconds in spent.items()},
    }


def _endless(experiment: Experiment) -> Iterator[tuple[Tensor, Tensor]]:
    return chain.from_iterable(experiment.epoch_batches(epoch) for epoch in count())


def _experiment(case: Case, device: str) -> Experiment:
    """Return the case as a run has it, on images made up."""
    config = Config(
        workers=case.workers, batch_size=case.batch, model=case.model, device=device, lr=0.1
    )
    dataset = _images(case)
    dataset = replace(dataset, train=dataset.train.to(device))
    module = load("models", case.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(module, parse_config(case.config), 10, case.input_shape)
    model = model.to(device)
    simulator = Simulator(
        model, F.cross_entropy, workers=case.workers, lr=0.1, momentum=0.9, weight_decay=1e-4
    )
    transforms = fitted(attribute(module, model, "input_transform"), dataset, case.model)
    schedule = Schedule(Regime(), epochs=1, name="model", scale_lr="none", scale_epochs=False)
    return Experiment(config, dataset, model, F.cross_entropy, transforms, simulator, schedule)


def _images(case: Case) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    shape = case.samples, *case.input_shape
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (case.samples,), generator=generator)
    split = Split(images, labels)
    return described("cifar10", split, split, 10)
