"""All settings of a run: the options, Python's keywords and config.json are made from them.

Letters: W workers, b samples each, B = W * b.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from .recipe import Recipe
from .recipe_rules import whole_spec
from .settings import MOST_THREADS, SettingError, require, setting, size_in_bytes
from .units import home_path, joined_by_plus

TOKENS = ("word", "char", "byte")
KEEPS = ("last", "best", "all")
_SPECS = (  # settings that may name files of a user's own
    "model", "dataset", "criterion", "metric", "regime", "compressor", "compress_layers", "memory",
    "algorithm", "aggregate", "attack", "downlink", "outer_optimizer", "method",
)  # fmt: skip
BPTT = 35  # as in Zaremba et al., "Recurrent Neural Network Regularization", 2014


@dataclass(frozen=True, kw_only=True)
class Config(Recipe):
    """A whole run: a recipe, and the model, the data and the folder it is used on."""

    model: str | None = setting(
        None,
        "model and data",
        "Name, or a path to a .py file; default: lenet, or lstm_lm on text.",
        unit="NAME|PATH",
    )
    model_config: str = setting(
        "", "model and data", 'Arguments of the model, as "depth=20, width=1".', unit="TEXT"
    )
    dataset: str = setting(
        "mnist5k",
        "model and data",
        "Name of the data set, or FILE.py[:FUNCTION], which makes it.",
        unit="NAME",
    )
    data_dir: Path = setting(
        Path("data"),
        "model and data",
        "Folder of data sets that are not embedded.",
        scope="machine",
        on_resume=True,
        per_rank=True,
    )
    download: bool = setting(
        False, "model and data", "Download the data set if it is missing.",
        scope="machine", on_resume=True,
    )  # fmt: skip
    criterion: str | None = setting(
        None,
        "model and data",
        "Loss in place of the model's: one of torch.nn.functional, such as mse_loss, or "
        "FILE.py[:FUNCTION] of (output, target) that returns a mean.",
        unit="NAME",
    )
    metric: str | None = setting(
        None,
        "model and data",
        "What tables and figures show, and what decides which epoch is the best: error, "
        "accuracy, perplexity, pixel-error, none (the loss alone), or FILE.py[:FUNCTION] of "
        "(output, target) that returns a mean; default: error, or perplexity on text.",
        unit="NAME",
        scope="machine",
    )
    metric_mode: str | None = setting(
        None,
        "model and data",
        "For a metric of your own, whether less (min) or more (max) is better; default: what its "
        "attribute higher_is_better says.",
        choices=("min", "max"),
        scope="machine",
    )
    dtype: str = setting(
        "float32",
        "model and data",
        "Dtype of parameters and gradients.",
        choices=("float32", "float64"),
    )
    tokens: str | None = setting(
        None,
        "text",
        "How a text is split into tokens; default: word. characters is another name for char.",
        choices=(*TOKENS, "characters"),
    )
    min_count: int | None = setting(
        None,
        "text",
        "Occurrences in the training text below which a word or character becomes <unk>; default: "
        "2 for words of pydoc and text:PATH, else 1.",
        unit="N",
    )
    bptt: int | None = setting(
        None,
        "text",
        f"Tokens T of each stream in a pass, through which gradients flow back; default: {BPTT}.",
        unit="T",
    )
    vary_bptt: bool = setting(
        False, "text", "Draw the number of tokens in each step, from T / 2 to 3 T / 2."
    )
    batch_size: int | None = setting(
        None, "workers", "Samples of each worker in a pass, b; default: 8.", unit="b"
    )
    global_batch_size: int | None = setting(
        None, "workers", "Samples of all workers and passes together, B = W * b * M.", unit="B"
    )
    epochs: int | None = setting(
        None, "run", "Passes over the data; default: the model's.", on_resume=True
    )
    steps: int | None = setting(
        None, "run", "Steps of the run, in place of epochs.", unit="N", on_resume=True
    )
    until_bytes: str | int | None = setting(
        None,
        "run",
        "End once each worker has sent this many bytes, such as 10MB, or at the end of the epochs"
        " or steps if that comes first.",
        unit="SIZE",
        on_resume=True,
    )
    eval_every: int = setting(
        0,
        "run",
        "Steps between evaluations within an epoch; 0: at the end of each epoch only.",
        unit="N",
        scope="machine",
        on_resume=True,
    )
    regime: str | None = setting(
        None,
        "optimizer",
        "Schedule in place of the model's: a name or a .py file, or several joined by +, of which"
        " later ones win; the word model stands for the model's own.",
        unit="NAME|PATH",
    )
    partition: str = setting(
        "iid-reshuffled",
        "model and data",
        "How samples are divided among workers: iid-reshuffled (again in each epoch), iid-fixed, "
        "sorted (by class), dirichlet:ALPHA (unequal classes), shards:S (S pieces of the sorted "
        "samples), quantity:ALPHA (unequal sizes) or label-dirichlet:ALPHA (both unequal).",
        unit="NAME",
    )
    evaluate: str = setting(
        "average",
        "run",
        "Which model is evaluated after each epoch where workers have their own: the average, each "
        "worker's (into workers.csv), or both.",
        choices=("average", "workers", "both"),
    )
    recalibrate_bn: int = setting(
        0, "run", "Before evaluating, estimate the BatchNorm statistics of the averaged model on N "
        "batches.", unit="N",
    )  # fmt: skip
    scale_lr: str | None = setting(
        None, "optimizer", "Multiply lr by sqrt(B / 128), by B / 128, or not at all; a regime may "
        "name another batch than 128. Default: the regime's.", ("sqrt", "linear", "none"),
    )  # fmt: skip
    scale_warmup_epochs: int = setting(
        5, "optimizer", "Epochs of warm-up to an lr that --scale-lr increases."
    )
    scale_epochs: bool | None = setting(
        None, "optimizer", "Multiply the regime's epochs, and those of a run without --epochs, by "
        "B / 128."
    )  # fmt: skip
    evaluate_buffers: str = setting(
        "mean", "run", "BatchNorm statistics to evaluate with: the workers' mean, or worker 0's.",
        choices=("mean", "rank0"),
    )  # fmt: skip
    device: str = setting(
        "auto", "run", "auto, cpu, cuda or cuda:N.", scope="machine", on_resume=True, per_rank=True
    )
    threads: str | int = setting(
        "auto",
        "run",
        "CPU threads: N for every operation, or auto: one for short operations, all for long ones.",
        unit="N|auto",
        scope="machine",
        on_resume=True,
        per_rank=True,
    )
    deterministic: bool = setting(
        False, "run", "On a GPU, sum in a fixed order: slower, but reproducible to the last bit.",
        scope="machine",
    )  # fmt: skip
    runs_dir: Path = setting(Path("runs"), "run", "Folder of run folders.", scope="run")
    name: str | None = setting(
        None, "run", "Name of the run's folder; default: date and recipe.", scope="run"
    )
    overwrite: bool = setting(
        False, "run", "Replace a run of the same name.", scope="run", on_resume=True
    )
    resume: Path | None = setting(
        None, "run", "Continue the run in this folder, with its settings.",
        scope="run", on_resume=True,
    )  # fmt: skip
    checkpoint_every: int = setting(
        0, "run", "Steps between checkpoints; 0: at the end of each epoch only.",
        scope="machine", on_resume=True,
    )  # fmt: skip
    keep: str = setting(
        "best", "run", "Checkpoints to keep: last, to resume; best, also the model of the best "
        "evaluation (best.pt); or all, also that of every one (models/step-N.pt).",
        choices=KEEPS, scope="machine", on_resume=True,
    )  # fmt: skip
    log_every: int = setting(
        50, "run", "Steps between writes of steps.csv.", scope="machine", on_resume=True
    )
    log_layers: bool = setting(
        False, "run", "Write layers.csv: bytes and compression error of each segment and step.",
        scope="machine",
    )  # fmt: skip
    tensorboard: bool = setting(
        False, "run", "Write TensorBoard's event files into the run's folder.",
        scope="machine", on_resume=True,
    )  # fmt: skip
    wandb: bool = setting(
        False,
        "run",
        "Log to Weights & Biases, offline unless WANDB_MODE is set.",
        scope="machine",
        on_resume=True,
    )
    quiet: bool = setting(
        False, "run", "Print nothing but errors.", scope="machine", on_resume=True, per_rank=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_text()
        self._check_threads()
        for name in _SPECS:  # so that a run can be resumed from another folder
            object.__setattr__(self, name, whole_spec(getattr(self, name)))
        if self.data_dir != default("data_dir"):
            object.__setattr__(self, "data_dir", home_path(str(self.data_dir)).absolute())
        least_one = "batch_size", "global_batch_size", "epochs", "steps", "log_every"
        for name in (*least_one, "min_count", "bptt"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "must be at least 1")
        for name in ("checkpoint_every", "eval_every", "scale_warmup_epochs", "recalibrate_bn"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must be at least 0")
        if self.until_bytes is not None:
            size = size_in_bytes("until_bytes", self.until_bytes)
            object.__setattr__(self, "until_bytes", size)
        require(self.name != "", "name", self.name, "must not be empty")
        if self.overwrite and self.resume is not None:
            raise SettingError("overwrite", None, "and resume were both given", "give one")
        if self.overwrite and self.name is None:
            rule = "has no effect without name: the default name is a new one"
            raise SettingError("overwrite", None, rule, "set name too")
        self._check_batch()

    @property
    def worker_batch(self) -> int:
        """Samples of each worker in a step, b * M, of each of its devices."""
        if self.global_batch_size is not None:
            return self.global_batch_size // self.workers
        own = 8 if self.batch_size is None else self.batch_size
        return self.accumulate * self.devices * own

    @property
    def pass_batch(self) -> int:
        """Samples in a pass of a worker, or of one of its devices, b."""
        return self.worker_batch // (self.accumulate * self.devices)

    @property
    def files_of_code(self) -> list[str]:
        """The .py files that settings name, each once, by their whole paths."""
        every = [getattr(self, name) for name in _SPECS if name != "compress_layers"]
        named = [spec for spec in every if not str(spec).startswith("text:")]
        layers = re.split(r"[=,\"]", self.compress_layers or "")
        parts = [part for spec in (*named, *layers) if spec for part in joined_by_plus(spec)]
        named_by = (re.match(r"(?:[^/:]*:)?((?:.*/)?[^/:]*\.py)(?=:|$)", part) for part in parts)
        files = [found[1] for found in named_by if found]
        return list(dict.fromkeys(str(home_path(name).absolute()) for name in files))

    def recipe(self) -> Recipe:
        """Return the part that concerns one step."""
        return Recipe(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Recipe)})

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON takes them."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: str(v) if isinstance(v, Path | str) else v for k, v in values.items()}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Config":
        """Return the settings with the `given` ones in place of defaults.

        Raises `SettingError` as `Recipe.of`, and for two lengths of one run.
        """
        made = super().of(given)
        two = given.get("steps") is not None and given.get("epochs") is not None
        require(not two, "steps", None, "and epochs were both given", "give one")
        return made

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Config":
        """Return the settings that `plain` gave; keys that are no setting are passed over."""
        given = {f.name: plain[f.name] for f in dataclasses.fields(cls) if f.name in plain}
        return cls(**given)

    def _check_batch(self) -> None:
        size = self.global_batch_size
        if size is None:
            return
        if self.batch_size is not None:
            rule = "and batch_size were both given"
            raise SettingError("global_batch_size", None, rule, "give one")
        if size % (self.workers * self.devices * self.accumulate):
            passes = f" x {self.accumulate} passes" if self.accumulate > 1 else ""
            devices = f" x {self.devices} devices" if self.devices > 1 else ""
            rule = f"must be a multiple of the {self.workers} workers{devices}{passes}"
            raise SettingError("global_batch_size", size, rule)

    def _check_threads(self) -> None:
        threads = self.threads
        if isinstance(threads, str) and threads.isascii() and threads.isdecimal():
            object.__setattr__(self, "threads", threads := int(threads))
        holds = threads == "auto" or (isinstance(threads, int) and 1 <= threads <= MOST_THREADS)
        require(holds, "threads", threads, f"must be a number from 1 to {MOST_THREADS}, or auto")

    def _check_text(self) -> None:
        if self.tokens == "characters":
            object.__setattr__(self, "tokens", "char")
        if self.min_count is not None and self.tokens == "byte":
            rule = "has no effect with tokens byte, all of which are known"
            raise SettingError("min_count", self.min_count, rule, "leave it out")


def default(name: str) -> object:
    """Return the default of a setting of `Config`."""
    value = Config.__dataclass_fields__[name].default
    assert value is not MISSING
    return value
