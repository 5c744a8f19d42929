"""Makes the data, the model and the simulator of a run from its settings.

Letters: W workers, b samples each, B = W * b, C channels.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..catalog import attribute, begin_texts, build_model, parse_config
from ..communication.transport import Observer, Transport
from ..config import BPTT, TOKENS, Config
from ..gradients.contract import Criterion, GradientEngine, carried
from ..gradients.generators import put_back
from ..gradients.trees import Tree, leaves, mapped
from ..keyed_random import RandomKey, derived
from ..results.metric import NONE, PIXEL_ERROR
from ..results.metric import metric_of as shown_metric
from ..settings import require
from ..simulator.model_form import check_tensors
from ..simulator.simulator import Simulator
from .criteria import criterion_of
from .data import (
    Dataset,
    RoundOrder,
    Streams,
    Text,
    epoch_index,
    epoch_order,
    is_text,
)
from .devices import device_of
from .first_batch import evaluated_once, require_class_scores, trained_once
from .given import NOTHING, Given, model_module
from .input_transforms import Transform, fitted, require_as_many
from .metrics import IGNORED, Metric, metric_of
from .run_data import (
    batches_of,
    dataset_of,
    has_classes,
    on_device,
    parts_of,
    refuse_text_settings,
    tells_classes,
)
from .run_names import places_from, working_folder
from .schedule import Schedule, schedule_of, told_of_files
from .thread_choice import ThreadChoice, thread_choice

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Experiment:
    """Everything that one run needs, short of its folder."""

    config: Config  # resolved: model, epochs and device have values
    dataset: Dataset | Text
    model: nn.Module
    criterion: Criterion
    transforms: dict[str, Transform]  # of train and eval
    simulator: Simulator
    schedule: Schedule
    metric: Metric = Metric(shown_metric({}))
    parts: list[Tensor] | None = None  # each worker's samples, [m]; None: dealt out in each epoch

    @classmethod
    def of(
        cls,
        config: Config,
        transport: Transport | None = None,
        wrap_engine: Callable[[GradientEngine], GradientEngine] | None = None,
        observers: Sequence[Observer] = (),
        given: Given = NOTHING,
    ) -> "Experiment":
        """Return the experiment; nothing is written.

        `transport`, `wrap_engine` and `observers` are those of `Simulator`; `given` are objects in
        place of what the settings name.

        Raises `SettingError` for whatever does not exist or does not go together.
        """
        config, began = _resolved(config), working_folder()
        assert config.model is not None
        dataset = dataset_of(config, given)
        module = model_module(config, given)
        model = _model(config, dataset, module)
        parts = parts_of(config, dataset)
        criterion = criterion_of(config, given, module, model, tells_classes(dataset))
        schedule = schedule_of(config, module, model, batches_of(config, dataset))
        own = config.criterion is None and attribute(module, model, "criterion") is not None
        with told_of_files(config, schedule, own):
            simulator = Simulator(
                model,
                criterion,
                regime=schedule.regime,
                transport=transport,
                wrap_engine=wrap_engine,
                observers=observers,
                samples=None if parts is None else torch.tensor([len(part) for part in parts]),
                worker_batch=config.worker_batch,
                **_recipe(config),
            )
        memory = simulator.recipe.memory
        places: Any = places_from(began, runs_dir=config.runs_dir, resume=config.resume)
        experiment = cls(
            config=dataclasses.replace(config, epochs=schedule.epochs, memory=memory, **places),
            dataset=on_device(dataset, config.device),
            model=model,
            criterion=criterion,
            transforms=fitted(attribute(module, model, "input_transform"), dataset, config.model),
            simulator=simulator,
            schedule=schedule,
            parts=parts,
        )
        experiment._check_evaluation()
        experiment._check_length()
        return experiment.with_metric(given).with_engine()

    @property
    def batch(self) -> int:
        """Samples of a global batch, B."""
        return self.config.workers * self.config.worker_batch

    @property
    def vocabulary(self) -> str | None:
        """The digest of a text's tokens; None: the data are no text."""
        return self.dataset.vocabulary.digest if isinstance(self.dataset, Text) else None

    @property
    def batches(self) -> int:
        """Global batches in an epoch."""
        return batches_of(self.config, self.dataset)

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        assert self.config.epochs is not None
        return self.config.steps or self.config.epochs * self.batches

    def epoch_batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tree, Tree]]:
        """Return the global batches of an epoch from number `start` on: x and y, [B, ...] each.

        They depend on the seed, the epoch, B and the partition alone, those of text also on how
        many passes share a stream. An incomplete last batch is dropped.
        """
        if isinstance(self.dataset, Text):
            yield from Streams.of(self.dataset.train, self.config).epoch(epoch, start)
            return
        order = self._order(epoch)[start:]
        indices = order.to(self.config.device).unbind()  # [B] each
        asked = order.unbind() if self.dataset.train.streamed else indices
        drawn = self.dataset.train.batches(asked, lambda index: self._draw(index, epoch, 4))
        for number, (index, (x, y)) in enumerate(zip(indices, drawn, strict=True), start):
            yield self.prepared(x, "train", index, epoch, number), self.typed(y)

    def _order(self, epoch: int) -> Tensor:
        """Return the samples of each global batch of an epoch, [batches, B]."""
        seed, own = self.config.seed, self.config.worker_batch
        if self.parts is None:
            order = epoch_order(len(self.dataset.train), seed, epoch)
            return order[: self.batches * self.batch].view(self.batches, self.batch)
        algorithm = self.simulator.components.algorithm
        if (algorithm.clients, algorithm.local_epochs) != (None, None):
            start, workers = epoch * self.batches, self.config.workers
            return self._by_rounds.batches(start, self.batches, epoch, workers)
        rows = epoch_index(self.parts, self.batches * own, seed, epoch)  # [W, batches * own]
        batches: Tensor = rows.unflatten(1, (self.batches, own))  # [W, batches, own]
        return batches.transpose(0, 1).flatten(1)

    @cached_property
    def _by_rounds(self) -> RoundOrder:
        assert self.parts is not None
        algorithm = self.simulator.components.algorithm
        return RoundOrder(self.parts, algorithm, self.config.seed, self.config.worker_batch)

    def _check_evaluation(self) -> None:
        """Raise `SettingError` for an evaluation that has no effect."""
        config, apart = self.config, self.simulator.components.algorithm.parameters_per_worker
        rule = f"has no effect with algorithm {config.algorithm}, whose workers share one model"
        require(config.evaluate == "average" or apart, "evaluate", config.evaluate, rule)
        norms = any(isinstance(module, _BatchNorm) for module in self.model.modules())
        rule = "has no effect on a model without BatchNorm"
        require(norms or not config.recalibrate_bn, "recalibrate_bn", None, rule)
        idle = not norms and config.evaluate_buffers != "mean"
        require(not idle, "evaluate_buffers", config.evaluate_buffers, rule, "leave it out")

    def _check_length(self) -> None:
        """Raise `SettingError` for an exchange after a last step that is not known before it.

        So it does for models that are kept for longer than the run, but not in one that goes on.
        """
        delay, steps = self.simulator.components.algorithm.longest_delay, max(1, self.steps)
        rule, fix = f"must be at most {steps}, the steps of the run", "no model is older"
        wasted = delay > steps and self.config.resume is None
        require(not wasted, "staleness", self.config.staleness or delay, rule, fix)
        last = getattr(self.simulator.components.algorithm, "final_exchange", False)
        rule = "does not go together with final_exchange"
        fix = "leave one out: which step is the last is not known before it"
        require(not (last and self.config.until_bytes), "until_bytes", None, rule, fix)

    def with_metric(self, given: Given = NOTHING) -> "Experiment":
        """Return the experiment with the metric that suits the first batch.

        Raises `SettingError` if the model cannot learn from the data, or be evaluated on them, or
        the metric does not suit.
        """
        output, target = trained_once(self)
        own_loss = given.criterion is not None or self.config.criterion is not None
        if has_classes(self.dataset) and not own_loss and self.config.metric is None:
            require_class_scores(self, output, target)
        ignored = getattr(self.criterion, "ignore_index", IGNORED)
        metric = metric_of(self.config, given, output, target, ignored)
        named = self.config.metric
        if named is None and metric.shown.name in (PIXEL_ERROR, NONE):
            named = metric.shown.name  # which the data decided
        mode = "max" if metric.shown.higher_is_better else "min"
        own_mode = mode if metric.shown.is_own else None
        config = dataclasses.replace(self.config, metric=named, metric_mode=own_mode)
        measured = dataclasses.replace(self, metric=metric, config=config)
        evaluated_once(measured)
        return measured

    def first_samples(self, number: int) -> tuple[Tree, Tree]:
        """Return the first samples and targets of the validation part as an evaluation has them."""
        assert not isinstance(self.dataset, Text)
        x, y = next(iter(self.dataset.val.batches([torch.arange(number)])))
        return self.prepared(x, "eval"), self.typed(y)

    @property
    def largest_segment(self) -> int:
        """Elements of the largest segment, those of all workers hosted here."""
        parts = self.simulator.components
        return len(parts.workers) * max(segment.n for segment in parts.layout.segments)

    @cached_property
    def threads(self) -> ThreadChoice:
        """The threads of the run, out of those that torch had when it was made."""
        return thread_choice(self.simulator, self.config, *next(self.epoch_batches(0)))

    def with_engine(self) -> "Experiment":
        """Return the experiment with the name of its engine, chosen on the first batch if need be.

        A resumed run has it in its config.json, and so makes no other choice.
        """
        if not self.simulator.components.engine.chooses:
            return self
        if self.config.engine == "compiled" and not self.config.quiet:
            told = "simsgd: torch.compile translates the model, which takes seconds to minutes"
            print(told, file=sys.stderr, flush=True)
        engine = self.simulator.engine_for(*next(self.epoch_batches(0)))
        return dataclasses.replace(self, config=dataclasses.replace(self.config, engine=engine))

    def prepared(
        self,
        images: Tree,
        part: str,
        index: Tensor | None = None,
        epoch: int = 0,
        number: int = 0,
    ) -> Tree:
        """Return images [B, C, H, W], or other samples, as the model takes them in a `part`.

        The part is "train" or "eval". A transform with random numbers gets those of (seed, epoch,
        sample); what one draws itself is a function of seed, epoch and the batch's `number`.
        """
        transform = self.transforms.get(part)
        if transform is None:
            return self.typed(images)
        draws = getattr(transform, "draws", 0)
        if draws:
            assert index is not None
            taken = transform(images, self._draw(index, epoch, draws))
        else:
            with put_back(leaves(images)[0].device) as generators:
                generators.seed(derived("transform", self.config.seed, epoch, number))
                taken = transform(images)
        require_as_many(images, taken, part, str(self.config.model))
        return self.typed(taken)

    def typed(self, tree: Tree) -> Tree:
        """Return samples or targets with numbers in floating point of the run's dtype."""
        dtype = DTYPES[self.config.dtype]
        return mapped(lambda t: t.to(dtype) if t.is_floating_point() else t, tree)

    def _draw(self, index: Tensor, epoch: int, n: int) -> Tensor:
        """Return `n` numbers in [0, 1) of each sample of `index` [B] in an epoch, [B, n]."""
        return RandomKey(self.config.seed, index).fold_in("augment", epoch).uniform(n)


def _resolved(config: Config) -> Config:
    """Return the settings with those of the data filled in, and the names of model and device."""
    device = device_of(config.device)
    if not is_text(config.dataset):
        refuse_text_settings(config, config.dataset)
        return dataclasses.replace(config, model=config.model or "lenet", device=device)
    return dataclasses.replace(
        config,
        model=config.model or "lstm_lm",
        device=device,
        tokens=config.tokens or TOKENS[0],
        bptt=config.bptt or BPTT,
    )


def _model(config: Config, dataset: Dataset | Text, module: ModuleType) -> nn.Module:
    assert config.model is not None
    if isinstance(dataset, Text):
        shape: tuple[int, ...] | None = (Streams.of(dataset.train, config).longest,)
    else:
        shape = dataset.input_shape
    with put_back(torch.device(config.device)) as generators:
        generators.seed(config.seed)
        model: nn.Module = build_model(
            module,
            parse_config(config.model_config),
            num_classes=dataset.num_classes,
            input_shape=shape,
        )
    check_tensors(model, config.model)
    model = model.to(config.device, DTYPES[config.dtype])
    if carried(model):
        begin_texts(model, config.pass_batch)
    return model


def _recipe(config: Config) -> dict[str, object]:
    recipe = config.recipe()
    return {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}
