"""The settings of one step.

Letters: W workers, b samples each.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .recipe_rules import (
    check_contradictions,
    check_values,
    nodes_and_devices,
    spell_out,
    with_nodes,
    with_preset,
)  # fmt: skip
from .settings import (
    AMPS,
    CLIPS,
    INDEX_CODINGS,
    ON_NONFINITE,
    PLANS,
    SPARSE_COLLECTIVES,
    STATE_DTYPES,
    VALUE_DTYPES,
    SettingsClass,
    check_kinds,
    require_kind,
    setting,
)

_Settings = TypeVar("_Settings", bound="Recipe")
_NO_OWN = ("attack", "algorithm", "method")  # no setting of an algorithm


@dataclass(frozen=True, kw_only=True)
class Recipe(metaclass=SettingsClass):
    """What happens in one step. Raises `SettingError` for a value out of range."""

    workers: int = setting(16, "workers", "Simulated data-parallel workers W.")
    engine: str = setting(
        "auto",
        "workers",
        "How per-worker gradients are computed: onepass, vmap, loop, threads, or the fastest that "
        "supports the model, by a rule (auto) or by timing the first batch (tune); compiled is "
        "vmap through torch.compile. All give the same numbers.",
        scope="machine",
    )
    worker_chunk: str | int = setting(
        "auto", "workers", "Workers computed at a time, with engine onepass or vmap.",
        unit="C|auto", scope="machine",
    )  # fmt: skip
    plan: str = setting(
        "auto",
        "workers",
        "How a step is split into calls: few large ones (gpu), small ones that stay in the cache "
        "(cpu), or what suits the device (auto). The numbers are the same.",
        choices=PLANS,
        scope="machine",
    )
    cuda_graph: str = setting(
        "off", "workers", "On a GPU, replay the gradients as a CUDA graph, one launch for all: "
        "never (off), or where engine and model allow it (auto).", choices=("off", "auto"),
        scope="machine", on_resume=True,
    )  # fmt: skip
    amp: str | None = setting(
        None, "workers", "Mixed precision in the forward and backward passes.", choices=AMPS
    )
    cluster: str | None = setting(
        None, "workers", "Each worker is one of N nodes with G devices of b samples each, which "
        "average their gradients uncompressed; the nodes exchange the result. W is then N.",
        unit="NxG",
    )  # fmt: skip
    prune: float | None = setting(
        None,
        "compression",
        "Fraction of every gradient that is not sent, in [0, 1): 0.999 keeps 1 in 1000 entries, "
        "the largest. It overrides the regime's.",
        unit="R",
    )
    compressor: str | None = setting(
        None,
        "compression",
        "What each worker sends of its gradient, such as topk:0.01, qsgd:255 or topk:0.01+sign; "
        "see `simsgd list compressors`. --prune R is topk:1-R with a warm-up and memory dgc.",
        unit="SPEC",
    )
    compress_layers: str | None = setting(
        None,
        "compression",
        "Compressors for some layers, by patterns of parameter names (* and ?), such as "
        "features.*=topk:0.01,classifier.*=none. The first match wins; what matches none follows "
        "--compressor or --prune. Needs granularity layer.",
        unit="PATTERN=SPEC,...",
    )
    warmup: bool = setting(True, "compression", "With --prune, begin at 75 % and rise to R.")
    warmup_epochs: int = setting(4, "compression", "Epochs before --prune is reached.")
    granularity: str = setting(
        "layer",
        "compression",
        "What is compressed together: each tensor (layer), all tensors (model), or consecutive "
        "tensors up to a size (bucket:25MB).",
        unit="layer|model|bucket:SIZE",
    )
    compress_if: str = setting(
        "dim>1",
        "compression",
        "Which tensors are compressed: dim>1 (all but biases and BatchNorm), all, or numel>=N; "
        "the others are sent uncompressed.",
        unit="RULE",
    )
    prune_1d: bool = setting(
        False, "compression", "Compress biases and BatchNorm too, like --compress-if all.",
    )  # fmt: skip
    value_dtype: str | None = setting(
        None, "compression", "Dtype of values on the network; default: the model's.",
        choices=VALUE_DTYPES,
    )  # fmt: skip
    index_dtype: str = setting(
        "int32",
        "compression",
        "Encoding of indices on the network; packed: ceil(log2 n) bits each; gap16: 16-bit run "
        "lengths.",
        choices=INDEX_CODINGS,
    )
    memory: str | None = setting(
        None,
        "memory",
        "What happens to entries that are not sent: none, residual, dgc, ef21 or momentum; "
        "default: dgc with --prune, residual with another biased compressor, else none.",
        unit="SPEC",
    )
    state_dtype: str | None = setting(
        None,
        "memory",
        "Dtype of the memories between steps; bfloat16 halves their size and rounds small updates "
        "away; default: the model's.",
        choices=STATE_DTYPES,
    )
    lr_in_memory: bool = setting(
        False, "memory",
        "With memory residual: accumulate lr times the gradient, as EF-SignSGD does.",
    )  # fmt: skip
    flush_every: int = setting(
        0, "memory", "Send everything that the memories hold every N steps; 0: never.", unit="N"
    )
    clip: float | None = setting(
        None,
        "memory",
        "Clip each worker's gradient to the norm C / sqrt(W), or to C where workers have their own "
        "models.",
        unit="C",
    )
    clip_by: str = setting(
        "global-norm",
        "memory",
        "What --clip limits: the norm of a worker's gradient, of each tensor, or each value.",
        choices=CLIPS,
    )
    method: str | None = setting(
        None, "algorithm",
        "A published method, which sets the algorithm, compressor, memory and more; an option "
        "given beside it wins; `simsgd list methods` has all.",
        unit="NAME",
    )  # fmt: skip
    algorithm: str = setting(
        "allreduce", "algorithm",
        "What workers exchange with whom, and when; `simsgd list algorithms` has all, with their "
        "settings and defaults.",
        unit="SPEC",
    )  # fmt: skip
    aggregate: str = setting(
        "mean",
        "algorithm",
        "With allreduce and diloco, how the workers' messages are combined: their mean, their "
        "median, a vote on the sign, or another of `simsgd list aggregations`.",
        unit="SPEC",
    )
    attack: str | None = setting(
        None,
        "algorithm",
        "What the first F workers send in place of their gradients, to make training fail: "
        "sign-flip:F, noise:F or another of `simsgd list attacks`.",
        unit="SPEC",
    )
    downlink: str | None = setting(
        None,
        "algorithm",
        "With allreduce, also compress what a server sends back, with its own memory.",
        unit="SPEC",
    )
    collective: str = setting(
        "allgather", "algorithm",
        "With allreduce, how sparse messages become their mean: as they are (allgather, dense), as "
        "the largest of their sum (gtopk, oktopk), at the places of one worker's largest (cltk), "
        "or whichever brings a worker the fewest bytes (auto).", choices=SPARSE_COLLECTIVES,
    )  # fmt: skip
    topology: str | None = setting(
        None, "algorithm", "With gossip, the graph of workers; see `simsgd list topologies`.",
        unit="NAME|FILE",
    )  # fmt: skip
    consensus_stepsize: float | None = setting(
        None, "algorithm", "With choco and deepsqueeze, gamma in (0, 1].", unit="G"
    )
    local_steps: int | None = setting(
        None, "algorithm", "With local, fedavg, diloco and the like, steps between exchanges.",
        unit="H",
    )  # fmt: skip
    post_local_from: int | None = setting(
        None,
        "algorithm",
        "Epoch from which --local-steps applies; before it, workers exchange at every step.",
        unit="EPOCH",
    )
    final_exchange: bool = setting(
        False,
        "algorithm",
        "With local, fedavg, diloco and the like, exchange after the last step too, even if no "
        "round of --local-steps ends there.",
    )
    local_epochs: int | None = setting(
        None,
        "algorithm",
        "With fedavg, fedprox and scaffold, in place of local steps: how often each client goes "
        "through its samples in a round.",
        unit="E",
    )
    clients: int | None = setting(
        None,
        "algorithm",
        "With fedavg, fedprox and scaffold, the number of clients, of which each round draws as "
        "many as there are workers; default: the workers are the clients.",
        unit="N",
    )
    participation: float | None = setting(
        None, "algorithm", "With fedavg, fedprox and scaffold, fraction of workers in a round.",
        unit="C",
    )  # fmt: skip
    outer_optimizer: str | None = setting(
        None,
        "algorithm",
        "With diloco and fedavg, the optimizer that moves the common model along the mean change "
        "of the workers' models; `simsgd list outer-optimizers` has all.",
        unit="SPEC",
    )
    inner_state: str | None = setting(
        None,
        "algorithm",
        "With local, fedavg, diloco and the like, what happens at an exchange to the state of "
        "the workers' own optimizers, such as momenta: each keeps its own, they are averaged and "
        "sent as the models are, or they start over.",
        choices=("keep", "average", "reset"),
    )
    client_buffers: str | None = setting(
        None,
        "algorithm",
        "With fedavg, what happens to buffers such as BatchNorm statistics: each client's own, "
        "averaged and sent as the models are, or the server's.",
        choices=("local", "average", "server"),
    )
    outer_lr: float | None = setting(
        None, "algorithm", "With diloco and fedavg, lr of the outer optimizer.")  # fmt: skip
    outer_momentum: float | None = setting(
        None, "algorithm", "With diloco and fedavg, momentum of the outer optimizer.")  # fmt: skip
    staleness: str | int | None = setting(
        None, "algorithm", "With async, the delay of gradients in steps: N for all workers, or "
        "uniform:N, a delay of 0 to N for each.", unit="N|uniform:N",
    )  # fmt: skip
    optimizer: str | None = setting(None, "optimizer", "torch.optim class, for all epochs.")
    lr: float | None = setting(None, "optimizer", "Learning rate, for all epochs.")
    momentum: float | None = setting(None, "optimizer", "Momentum, for all epochs.")
    nesterov: bool | None = setting(None, "optimizer", "Nesterov momentum, for all epochs.")
    weight_decay: float | None = setting(None, "optimizer", "Weight decay, for all epochs.")
    param_groups: str | None = setting(
        None,
        "optimizer",
        "Parameter groups, for all epochs: no_decay_1d, without weight decay for parameters with "
        "fewer than two dimensions, or none; a regime may have others.",
        unit="NAME",
    )
    scheduler: str | None = setting(
        None,
        "optimizer",
        "A class of torch.optim.lr_scheduler with its arguments, such as "
        "CosineAnnealingLR:T_max=30; it starts from the regime's first lr and replaces the later "
        "ones.",
        unit="SPEC",
    )
    scheduler_every: str = setting(
        "epoch", "optimizer", "When --scheduler is stepped.", choices=("epoch", "step")
    )
    weight_decay_at: str = setting(
        "global",
        "optimizer",
        "Apply weight decay to the averaged gradient, or locally before the memory.",
        choices=("global", "local"),
    )
    accumulate: int = setting(
        1, "workers", "Backward passes of each worker before an exchange, b samples each.", unit="M"
    )
    on_nonfinite: str = setting(
        "stop",
        "run",
        "What to do if a worker's loss, gradient or float16 message is not finite: stop the run, "
        "skip the step for all workers, or zero that worker's gradient.",
        choices=ON_NONFINITE,
        on_resume=True,
    )
    noise_scale: bool = setting(
        False, "run", "Estimate the gradient noise scale in each step, for steps.csv.",
        scope="machine",
    )  # fmt: skip
    seed: int = setting(0, "run", "Seed of initial weights, data order and all random numbers.")

    def __post_init__(self) -> None:
        check_kinds(self)
        spell_out(self)
        check_values(self)
        check_contradictions(self)

    @property
    def rule(self) -> str:
        """Which tensors are compressed, as `compress_if` says it."""
        return "all" if self.prune_1d else self.compress_if

    @property
    def devices(self) -> int:
        """Devices of a node, G; 1 where each worker is a device."""
        return 1 if self.cluster is None else nodes_and_devices(self.cluster)[1]

    def algorithm_settings(self) -> dict[str, object]:
        """Return the settings of the algorithm's own that were given, by name."""
        own = [f for f in dataclasses.fields(Recipe) if f.metadata["group"] == "algorithm"]
        values = {f.name: getattr(self, f.name) for f in own if f.name not in _NO_OWN}
        usual = {f.name: f.default for f in own}
        return {name: value for name, value in values.items() if value != usual[name]}

    @classmethod
    def of(cls: type[_Settings], given: Mapping[str, Any]) -> _Settings:
        """Return the settings of a mapping: those of a method and defaults where it lacks them."""
        require_kind("settings", given, Mapping)
        made: _Settings = cls(**given)
        return made

    @staticmethod
    def completed(given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings with those of the `method` and the `cluster`, where they lack them."""
        return with_nodes(with_preset(given))
