"""The data of a run: loaded, checked against the batch, and divided among workers."""

import dataclasses

import torch
from torch import Tensor

from ..config import Config, default
from ..registry import settings_of
from ..settings import SettingError, require
from ..simulator.method_choice import algorithm_named
from .data import Dataset, Streams, Text, load_text, parted, worker_batches
from .data import load as load_data
from .given import Given, refuse_object


def dataset_of(config: Config, given: Given) -> Dataset | Text:
    """Return the data set. Raises `SettingError` if no batch can be made of it."""
    if config.tokens is None:
        if given.dataset is None:
            refuse_object("dataset", config.dataset)
        dataset = given.dataset or load_data(config.dataset, config.data_dir, config.download)
        _check_batch(config, len(dataset.train))
        return dataset
    text = load_text(config.dataset, config.data_dir, config.tokens, config.min_count)
    Streams.of(text.train, config)  # raises if it has too few tokens
    return text


def _check_batch(config: Config, samples: int) -> None:
    if config.global_batch_size is None:
        whole = config.workers * config.worker_batch
        own = config.pass_batch
        rule = (
            f"times {config.workers} workers and {config.accumulate} passes must not exceed the "
            f"{samples} training samples"
        )
        fits = config.accumulate == 1 or whole <= samples
        require(fits, "batch_size", own, rule, "use fewer workers or passes")
        worker_batches(samples, config.workers, own * config.accumulate, config.devices)
        return
    size = config.global_batch_size
    rule = f"must not exceed the {samples} training samples"
    require(size <= samples, "global_batch_size", size, rule)


def parts_of(config: Config, dataset: Dataset | Text) -> list[Tensor] | None:
    """Return each worker's samples, [m], or each client's; None if each epoch deals them out.

    Raises `SettingError` for samples that are not fixed to clients.
    """
    clients = _clients(config)
    if clients is not None and config.partition == default("partition"):
        rule = "needs samples that are fixed to clients"
        fix = "set partition to iid-fixed or another"
        if isinstance(dataset, Text):
            fix = "use a data set of samples: workers read streams of a text"
        raise SettingError("clients", clients, rule, fix)
    if isinstance(dataset, Text):
        usual = config.partition == default("partition")
        rule = f"has no effect with {dataset.name}: each worker has its own streams"
        require(usual, "partition", config.partition, rule, "leave it out")
        return None
    labels = dataset.train.labels
    classes = len(dataset.train) if labels is None else labels
    return parted(config.partition, classes, clients or config.workers, config.seed)


def _clients(config: Config) -> int | None:
    """Return how many clients there are beyond the workers, if the algorithm knows such."""
    algorithm = algorithm_named(config.algorithm)
    known = {own.name for own in settings_of(type(algorithm))}
    return (config.clients or algorithm.clients) if "clients" in known else None


def has_classes(dataset: Dataset | Text) -> bool:
    """Return whether targets are numbers of classes or words."""
    return isinstance(dataset, Text) or dataset.train.labels is not None


def tells_classes(dataset: Dataset | Text) -> bool:
    """Return whether targets are whole numbers, one a sample, word or pixel."""
    if has_classes(dataset) or isinstance(dataset, Text):
        return True
    (_, y) = next(iter(dataset.train.batches([torch.arange(1)])))
    return isinstance(y, Tensor) and y.dtype == torch.int64


def batches_of(config: Config, dataset: Dataset | Text) -> int:
    """Return the global batches in an epoch."""
    if isinstance(dataset, Text):
        return Streams.of(dataset.train, config).batches
    return worker_batches(len(dataset.train), config.workers, config.worker_batch)


def on_device(dataset: Dataset | Text, device: str) -> Dataset | Text:
    """Return the data set on a device."""
    if isinstance(dataset, Text):
        return dataset.to(device)
    train, val = dataset.train.to(device), dataset.val.to(device)
    return dataclasses.replace(dataset, train=train, val=val)


def refuse_text_settings(config: Config, dataset: str) -> None:
    """Raise `SettingError` for a setting of texts where the data are none."""
    for name in ("tokens", "min_count", "bptt", "vary_bptt"):
        value = getattr(config, name)
        if value is not None and value is not False:
            rule = f"has no effect with {dataset}, which is not a text"
            raise SettingError(name, value, rule, "leave it out")
