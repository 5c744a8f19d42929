"""Every setting, once: the command line's options, Python's keywords and config.json are these.

Letters: W workers, b samples each, B = W * b.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from .settings import (
    AGGREGATES,
    CLIPS,
    INDEX_CODINGS,
    VALUE_DTYPES,
    SettingError,
    fits,
    require,
    told_kinds,
    unknown,
)

_Settings = TypeVar("_Settings", bound="Recipe")


def setting(
    default: Any, group: str, help: str, choices: Iterable[str] = (), unit: str = ""
) -> Any:
    """Return a dataclass field with what the command line's help says of it."""
    metadata = {"group": group, "help": help, "choices": tuple(choices), "unit": unit}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What happens in one step. Raises `SettingError` for a value out of range."""

    workers: int = setting(16, "workers", "Simulated data-parallel workers W.")
    engine: str = setting(
        "auto",
        "workers",
        "How per-worker gradients are computed: onepass, vmap, loop, or the fastest that can take "
        "the model; all give the same numbers.",
    )
    worker_chunk: str | int = setting(
        "auto",
        "workers",
        "Workers that go through the model at a time, with engine onepass or vmap.",
        unit="C|auto",
    )
    prune: float | None = setting(
        None,
        "compression",
        "Fraction of every gradient that is not sent, in [0, 1): 0.999 keeps 1 in 1000 entries, "
        "the largest. Where a regime has it too, this one wins.",
        unit="R",
    )
    compressor: str | None = setting(
        None,
        "compression",
        "What each worker sends of its gradient, such as topk:0.01, qsgd:255 or topk:0.01+sign; "
        "all are listed by `simsgd list compressors`. --prune R is topk:1-R with a warm-up and "
        "memory dgc.",
        unit="SPEC",
    )
    warmup: bool = setting(True, "compression", "With --prune, begin at 75 % and rise to it.")
    warmup_epochs: int = setting(4, "compression", "Epochs before --prune is reached.")
    granularity: str = setting(
        "layer",
        "compression",
        "What is compressed as one: each tensor (layer), all (model), or neighbours up to a size "
        "(bucket:25MB).",
        unit="layer|model|bucket:SIZE",
    )
    compress_if: str = setting(
        "dim>1",
        "compression",
        "Which tensors are compressed: dim>1 (all but biases and BatchNorm), all, or numel>=N; "
        "the others are sent whole.",
        unit="RULE",
    )
    prune_1d: bool = setting(
        False, "compression", "Compress biases and BatchNorm too, as --compress-if all."
    )
    value_dtype: str | None = setting(
        None, "compression", "Values on the network; default: the model's.", choices=VALUE_DTYPES
    )
    index_dtype: str = setting(
        "int32",
        "compression",
        "Indices on the network; packed: ceil(log2 n) bits each; gap16: 16-bit run lengths.",
        choices=INDEX_CODINGS,
    )
    memory: str | None = setting(
        None,
        "memory",
        "What becomes of entries not sent: none, residual, dgc, ef21 or momentum; default: dgc "
        "with --prune, residual with another biased compressor, else none.",
        unit="SPEC",
    )
    lr_in_memory: bool = setting(
        False, "memory", "With memory residual: collect lr times the gradient, as EF-SignSGD does."
    )
    flush_every: int = setting(
        0, "memory", "Every N steps, send all that the memories hold; 0: never.", unit="N"
    )
    clip: float | None = setting(
        None, "memory", "Clip each worker's gradient to the norm C / sqrt(W).", unit="C"
    )
    clip_by: str = setting(
        "global-norm",
        "memory",
        "What --clip holds: the norm of a worker's gradient, of each tensor, or each value.",
        choices=CLIPS,
    )
    aggregate: str = setting(
        "mean",
        "compression",
        "What workers hear: the mean of what all say, or the sign that most vote for.",
        choices=AGGREGATES,
    )
    optimizer: str | None = setting(None, "optimizer", "torch.optim class, for all epochs.")
    lr: float | None = setting(None, "optimizer", "Learning rate, for all epochs.")
    momentum: float | None = setting(None, "optimizer", "Momentum, for all epochs.")
    nesterov: bool | None = setting(None, "optimizer", "Nesterov momentum, for all epochs.")
    weight_decay: float | None = setting(None, "optimizer", "Weight decay, for all epochs.")
    weight_decay_at: str = setting(
        "global",
        "optimizer",
        "Weight decay on the averaged update, or locally before the memory.",
        choices=("global", "local"),
    )
    accumulate: int = setting(
        1,
        "workers",
        "Backward passes of each worker, b samples each, before one exchange.",
        unit="M",
    )
    seed: int = setting(0, "run", "Fixes initial weights, data order and every draw.")

    def __post_init__(self) -> None:
        self._check_kinds()
        require(self.workers >= 1, "workers", self.workers, "must be at least 1")
        _check_prune(self.prune)
        self._check_chunk()
        require(self.warmup_epochs >= 0, "warmup_epochs", self.warmup_epochs, "must be at least 0")
        for name in ("clip", "lr"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "must be greater than 0")
        for name, value in (("momentum", self.momentum), ("weight_decay", self.weight_decay)):
            require(value is None or value >= 0, name, value, "must be at least 0")
        require(0 <= self.seed < 2**63, "seed", self.seed, "must lie in [0, 2**63)")
        require(self.flush_every >= 0, "flush_every", self.flush_every, "must be at least 0")
        require(self.accumulate >= 1, "accumulate", self.accumulate, "must be at least 1")
        self._check_contradictions()

    @property
    def rule(self) -> str:
        """Which tensors are compressed, as `compress_if` says it."""
        return "all" if self.prune_1d else self.compress_if

    @classmethod
    def of(cls: type[_Settings], given: Mapping[str, Any]) -> _Settings:
        """Return the settings with the `given` ones in place of defaults.

        Raises `SettingError` for an unknown name, the nearest ones first.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise unknown("setting", name, known)
        return cls(**given)

    def _check_kinds(self) -> None:
        hints = get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            kinds = get_args(hints[f.name]) or (hints[f.name],)
            if int in kinds and type(value) is float and value.is_integer():
                object.__setattr__(self, f.name, int(value))
            elif Path in kinds and isinstance(value, str):
                object.__setattr__(self, f.name, Path(value))
            elif not fits(value, kinds):
                raise SettingError(f.name, value, f"must be {told_kinds(kinds)}")
            choices = f.metadata["choices"]
            if choices and value is not None:
                require(value in choices, f.name, value, f"must be one of {', '.join(choices)}")

    def _check_chunk(self) -> None:
        chunk = self.worker_chunk
        if isinstance(chunk, str) and chunk.isdecimal():
            object.__setattr__(self, "worker_chunk", chunk := int(chunk))
        good = chunk == "auto" or (isinstance(chunk, int) and chunk >= 1)
        require(good, "worker_chunk", chunk, "must be a number of at least 1, or auto")
        idle = self.engine == "loop" and chunk != "auto"
        fix = "leave it out, or use engine onepass or vmap"
        require(not idle, "worker_chunk", chunk, "has no effect with engine loop", fix)

    def _check_contradictions(self) -> None:
        if self.clip is not None and self.clip == float("inf"):
            raise SettingError("clip", self.clip, "must be finite", "leave it out for no clipping")
        both = self.prune is not None and self.compressor is not None
        fix = "--prune R is short for --compressor topk:1-R with a warm-up and memory dgc"
        require(not both, "compressor", None, "and prune were both given", fix)
        idle = self.prune is None and not (self.warmup and self.warmup_epochs == 4)
        require(not idle, "warmup_epochs", None, "and warmup have no effect without prune")
        idle = self.clip is None and self.clip_by != "global-norm"
        require(not idle, "clip_by", self.clip_by, "has no effect without clip", "set clip too")
        both = self.prune_1d and self.compress_if != "dim>1"
        require(not both, "prune_1d", None, "and compress_if were both given", "give one")


@dataclass(frozen=True, kw_only=True)
class Config(Recipe):
    """A whole run: a recipe, and the model, the data and the folder it is used on."""

    model: str | None = setting(
        None, "model and data", "Name, or a path to a .py file; default: lenet.", unit="NAME|PATH"
    )
    model_config: str = setting(
        "", "model and data", 'Arguments of the model, as "depth=20, width=1".', unit="TEXT"
    )
    dataset: str = setting("mnist5k", "model and data", "Name of the data set.", unit="NAME")
    data_dir: Path = setting(
        Path("data"), "model and data", "Folder of data sets that are not embedded."
    )
    download: bool = setting(False, "model and data", "Fetch the data set if it is missing.")
    dtype: str = setting(
        "float32",
        "model and data",
        "Dtype of parameters and gradients.",
        choices=("float32", "float64"),
    )
    batch_size: int | None = setting(
        None, "workers", "Samples of each worker and pass, b; default: 8.", unit="b"
    )
    global_batch_size: int | None = setting(
        None, "workers", "Samples of all workers and passes together, B = W * b * M.", unit="B"
    )
    epochs: int | None = setting(None, "run", "Passes over the data; default: the model's.")
    regime: str | None = setting(
        None,
        "optimizer",
        "Schedule in place of the model's own: a name or a .py file; several joined by + where "
        "later ones win, and the word model for the model's own.",
        unit="NAME|PATH",
    )
    evaluate_buffers: str = setting(
        "mean",
        "run",
        "BatchNorm statistics to evaluate with: the workers' mean, or worker 0's.",
        choices=("mean", "rank0"),
    )
    device: str = setting("auto", "run", "auto, cpu, cuda or cuda:N.")
    runs_dir: Path = setting(Path("runs"), "run", "Folder of run folders.")
    name: str | None = setting(None, "run", "Name of the run's folder; default: date and recipe.")
    overwrite: bool = setting(False, "run", "Replace a run of the same name.")
    resume: Path | None = setting(
        None, "run", "Go on with the run in this folder, with the settings it has."
    )
    checkpoint_every: int = setting(
        0, "run", "Steps between checkpoints; 0: at the end of each epoch only."
    )
    log_every: int = setting(50, "run", "Steps between writes of steps.csv.")
    log_layers: bool = setting(
        False, "run", "Write layers.csv: bytes and compression error of each segment and step."
    )
    tensorboard: bool = setting(
        False, "run", "Write TensorBoard's event files into the run's folder."
    )
    wandb: bool = setting(
        False, "run", "Log to Weights & Biases, offline unless WANDB_MODE says otherwise."
    )
    quiet: bool = setting(False, "run", "Print nothing but errors.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("model", "regime"):  # so that a run can be resumed from another folder
            object.__setattr__(self, name, _anywhere(getattr(self, name)))
        for name in ("batch_size", "global_batch_size", "epochs", "log_every"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "must be at least 1")
        require(self.checkpoint_every >= 0, "checkpoint_every", self.checkpoint_every, "is below 0")
        require(self.name != "", "name", self.name, "must not be empty")
        both = self.resume is not None and self.overwrite
        require(not both, "overwrite", None, "and resume were both given", "give one")
        both = self.batch_size is not None and self.global_batch_size is not None
        require(not both, "global_batch_size", None, "and batch_size were both given", "give one")
        if self.global_batch_size is not None:
            even = self.global_batch_size % (self.workers * self.accumulate) == 0
            what = f"{self.workers} workers"
            if self.accumulate > 1:
                what += f" x {self.accumulate} passes"
            rule = f"must be a multiple of the {what}"
            require(even, "global_batch_size", self.global_batch_size, rule)

    @property
    def worker_batch(self) -> int:
        """Samples of each worker in a step, b * M."""
        if self.global_batch_size is not None:
            return self.global_batch_size // self.workers
        return self.accumulate * (8 if self.batch_size is None else self.batch_size)

    def recipe(self) -> Recipe:
        """Return the part that concerns one step."""
        return Recipe(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Recipe)})

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON takes them."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: str(v) if isinstance(v, Path) else v for k, v in values.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Config":
        """Return the settings that `plain` gave; keys that are no setting are passed over."""
        given = {f.name: plain[f.name] for f in dataclasses.fields(cls) if f.name in plain}
        for name in ("data_dir", "runs_dir", "resume"):
            given[name] = None if given.get(name) is None else Path(given[name])
        return cls(**given)


def default(name: str) -> Any:
    """Return the default of a setting of `Config`."""
    value = Config.__dataclass_fields__[name].default
    assert value is not MISSING
    return value


def _anywhere(names: str | None) -> str | None:
    """Return names joined by +, those of files with their whole path."""
    if names is None:
        return None
    parts = [
        n if not n.endswith(".py") else str(Path(n).expanduser().absolute())
        for n in names.split("+")
    ]
    return "+".join(parts)


def _check_prune(prune: float | None) -> None:
    if prune is None:
        return
    fix = "for 99.9 % use 0.999"
    if prune == 1:
        fix = "at 1 nothing would be sent; " + fix
    require(0 <= prune < 1, "prune", prune, "must lie in [0, 1)", fix)
