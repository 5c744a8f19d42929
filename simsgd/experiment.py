"""A configuration made real: its data, its model, its simulator.

Letters: W workers, b samples each, B = W * b, C channels.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .catalog import attribute, build_model, load, parse_config
from .config import Config
from .data import Dataset, epoch_order, worker_batches
from .data import load as load_data
from .draw import Draw
from .gradients.contract import Criterion
from .schedule import schedule_of
from .settings import SettingError, require
from .simulator import Simulator
from .transport import Transport

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Experiment:
    """Everything that one run needs, short of its folder."""

    config: Config  # resolved: model, epochs and device have values
    dataset: Dataset
    model: nn.Module
    criterion: Criterion
    transforms: dict[str, Callable[..., Tensor]]  # train and eval: [B, C, H, W] -> the same
    simulator: Simulator

    @classmethod
    def of(cls, config: Config, transport: Transport | None = None) -> "Experiment":
        """Return the experiment; nothing is written. `transport` as for a `Simulator`.

        Raises `SettingError` for whatever does not exist or does not go together.
        """
        config = dataclasses.replace(
            config, model=config.model or "lenet", device=device_of(config.device)
        )
        assert config.model is not None
        dataset = load_data(config.dataset, config.data_dir, config.download)
        _check_batch(config, len(dataset.train))
        module = load("models", config.model)
        model = _model(config, dataset)
        criterion = attribute(module, model, "criterion", F.cross_entropy)
        schedule = schedule_of(config, module, model, _batches(config, dataset))
        simulator = Simulator(
            model,
            criterion,
            regime=schedule.regime,
            transport=transport,
            **_recipe(config),
        )
        memory = simulator.recipe.memory
        experiment = cls(
            config=dataclasses.replace(config, epochs=schedule.epochs, memory=memory),
            dataset=_on_device(dataset, config.device),
            model=model,
            criterion=criterion,
            transforms=fitted(attribute(module, model, "input_transform") or {}, dataset),
            simulator=simulator,
        )
        experiment._try()
        return experiment._settled()

    @property
    def batch(self) -> int:
        """Samples of a global batch, B."""
        return self.config.workers * self.config.worker_batch

    @property
    def batches(self) -> int:
        """Global batches in an epoch."""
        return _batches(self.config, self.dataset)

    def epoch_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the global batches of an epoch from number `start` on: x [B, ...] and y [B].

        They depend on the seed, the epoch and B alone. An incomplete last batch is dropped.
        """
        order = epoch_order(len(self.dataset.train), self.config.seed, epoch)
        order = order[: self.batches * self.batch].to(self.config.device)
        indices = order.split(self.batch)[start:]
        drawn = self.dataset.train.batches(indices, lambda index: self._draw(index, epoch, 4))
        for index, (images, labels) in zip(indices, drawn, strict=True):
            yield self.prepared(images, "train", index, epoch), labels

    def _try(self) -> None:
        """Raise `SettingError` if the model cannot learn from the data."""
        name = str(self.config.model)
        try:
            output = self.simulator.tried(*next(self.epoch_batches(0)))
        except Exception as wrong:  # whatever the user's own model raises
            told = f"{type(wrong).__name__}: {' '.join(str(wrong).split())}"
            rule = f"cannot learn from {self.config.dataset}: {told}"
            raise SettingError("model", name, rule) from wrong
        classes = self.dataset.num_classes
        enough = output.dim() == 2 and output.shape[1] >= classes
        rule = f"gives an output of shape {tuple(output.shape)} for {classes} classes"
        require(enough, "model", name, rule, f"it must be [samples, {classes}]")

    def _settled(self) -> "Experiment":
        """Return the experiment with the name of its engine, chosen on the first batch if need be.

        A resumed run has it in its config.json, and so makes no other choice.
        """
        if self.config.engine != "auto":
            return self
        engine = self.simulator.engine_for(*next(self.epoch_batches(0)))
        return dataclasses.replace(self, config=dataclasses.replace(self.config, engine=engine))

    def prepared(
        self, images: Tensor, part: str, index: Tensor | None = None, epoch: int = 0
    ) -> Tensor:
        """Return images [B, C, H, W] as the model takes them in `part`, "train" or "eval".

        A transform with random numbers gets those of (seed, epoch, sample).
        """
        transform: Any = self.transforms.get(part)
        draws = getattr(transform, "draws", 0)
        if draws:
            assert index is not None
            images = transform(images, self._draw(index, epoch, draws))
        elif transform is not None:
            images = transform(images)
        return images.to(DTYPES[self.config.dtype])

    def _draw(self, index: Tensor, epoch: int, n: int) -> Tensor:
        """Return `n` numbers in [0, 1) of each sample of `index` [B] in an epoch, [B, n]."""
        return Draw(self.config.seed, index).at("augment", epoch).uniform(n)


def _batches(config: Config, dataset: Dataset) -> int:
    return worker_batches(len(dataset.train), config.workers, config.worker_batch)


def fitted(transforms: Any, dataset: Dataset) -> dict[str, Callable[..., Tensor]]:
    """Return the transforms that suit a data set's statistics and what it does itself."""
    suited = dict(transforms)
    for part, transform in suited.items():
        if dataset.mean and hasattr(transform, "fitted"):
            transform = transform.fitted(dataset.mean, dataset.std, dataset.mirrors)
        suited[part] = getattr(transform, "after_crop", transform) if dataset.cropped else transform
    return suited


def _check_batch(config: Config, samples: int) -> None:
    if config.global_batch_size is None:
        worker_batches(samples, config.workers, config.worker_batch)
        return
    size = config.global_batch_size
    rule = f"must not exceed the {samples} training samples"
    require(size <= samples, "global_batch_size", size, rule)


def device_of(name: str) -> str:
    """Return a device's name, "auto" resolved. Raises `SettingError` if it is not here."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as wrong:
        raise SettingError("device", name, "must be auto, cpu, cuda or cuda:N") from wrong
    require(device.type in ("cpu", "cuda"), "device", name, "must be auto, cpu, cuda or cuda:N")
    here = device.type == "cpu" or (device.index or 0) < torch.cuda.device_count()
    require(here, "device", name, "is not on this machine", "use cpu")
    return name


def _model(config: Config, dataset: Dataset) -> nn.Module:
    assert config.model is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: nn.Module = build_model(
            config.model,
            parse_config(config.model_config),
            num_classes=dataset.num_classes,
            input_shape=dataset.input_shape,
        )
    return model.to(config.device, DTYPES[config.dtype])


def _recipe(config: Config) -> dict[str, Any]:
    recipe = config.recipe()
    return {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}


def _on_device(dataset: Dataset, device: str) -> Dataset:
    train, val = dataset.train.to(device), dataset.val.to(device)
    return dataclasses.replace(dataset, train=train, val=val)
