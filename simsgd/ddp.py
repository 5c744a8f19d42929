"""Compress the gradients of a real DistributedDataParallel model.

Letters: n elements of one parameter. Here L = 1: each process is one worker.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from .communication.ledger import Ledger
from .communication.segments import Layout, Segment
from .communication.transport import (
    Bucket,
    Channel,
    Distributed,
    all_gather_object,
    fused,
    odd_rank,
    register_hook,
)
from .communication.wire import Wire
from .keyed_random import RandomKey
from .methods.compressors import composed
from .methods.memories import Memory
from .settings import SettingError, one_line, require, require_kind, shown, unknown
from .simulator.checkpoint_check import StateDict, taken_apart
from .simulator.exchange_step import ExchangeStep, exchange_gradient
from .simulator.method_choice import memory_named, needs_memory
from .simulator.own_methods import without_draws
from .simulator.segment_state import SegmentState


class HookSettings(TypedDict, total=False):
    """The settings of `register` beside compressor and memory, as `train` has them."""

    compress_if: str
    value_dtype: str | None
    index_dtype: str
    seed: int


def register(
    parallel: nn.parallel.DistributedDataParallel,
    compressor: str = "topk:0.01",
    memory: str | None = None,
    **settings: Unpack[HookSettings],
) -> "Hook":
    """Let a model's processes exchange compressed gradients from its next backward on.

    `parallel` is a DistributedDataParallel model without a communication hook; each process of the
    default group calls this. Specs are those of `simsgd train`, and so are the memory that is left
    out, residual for a biased compressor, and the settings `compress_if`, `value_dtype`,
    `index_dtype`, `seed`. Backward leaves the mean of what all workers sent in `.grad`. Memory dgc
    owns the momentum: write dgc:0.9, and give the optimizer none. Save the returned hook's
    `state_dict()`, of every rank, beside the model's.
    Raises `SettingError` for settings that do not fit.
    """
    for name in settings:
        if name not in (known := HookSettings.__annotations__):
            raise unknown("setting", name, known)
    hook = Hook(parallel, compressor, memory, **settings)
    try:
        register_hook(parallel, hook.reduce_bucket)
    except RuntimeError as wrong:  # of torch, where there is one
        rule = f"takes no communication hook: {one_line(wrong)}"
        raise SettingError("parallel", None, rule, "wrap the model anew") from wrong
    return hook


class Hook:
    """What one process keeps for each parameter of a model, by name, and its exchange."""

    def __init__(
        self,
        parallel: nn.parallel.DistributedDataParallel,
        compressor: str,
        memory: str | None,
        compress_if: str = "dim>1",
        value_dtype: str | None = None,
        index_dtype: str = "int32",
        seed: int = 0,
    ) -> None:
        require_kind("seed", seed, int)
        require(0 <= seed < 2**63, "seed", seed, "must lie in [0, 2**63)")
        require_kind("compress_if", compress_if, str)
        require_kind("parallel", parallel, nn.parallel.DistributedDataParallel)
        params = {n: p for n, p in parallel.module.named_parameters() if p.requires_grad}
        self.names = {id(parameter): name for name, parameter in params.items()}
        self.compressor = composed(compressor)
        memory = memory or ("residual" if needs_memory(self.compressor) else "none")
        self.memory = _memory(memory)
        if self.compressor.needs_squares:
            rule = "needs gradients of single samples, which a DistributedDataParallel model lacks"
            raise SettingError("compressor", compressor, rule, "use another compressor")
        if self.compressor.has_own_memory and not self.memory.keeps_nothing:
            rule = f"must be none with {compressor}, which keeps what it does not send itself"
            raise SettingError("memory", memory, rule)
        layout = Layout.of({n: p.shape for n, p in params.items()}, "layer", compress_if)
        layout.require_compressed(compressor, compress_if)
        self.segment_states = {
            s.name: self._segment_state(s, params[s.name]) for s in layout.segments
        }
        own = {
            "compressor": str(compressor), "memory": str(memory), "compress_if": compress_if,
            "value_dtype": value_dtype, "index_dtype": index_dtype, "seed": seed,
            "parallel": {n: (tuple(p.shape), str(p.dtype)) for n, p in params.items()},
        }  # fmt: skip
        every = all_gather_object(own)
        _require_alike(every)
        self.transport = Distributed(len(every))
        wire = Wire(value_dtype, index_dtype)
        self.channel = Channel(self.transport, Ledger(self.transport.workers), wire)
        device = next(iter(params.values())).device
        self.key = RandomKey(seed, torch.tensor([self.transport.rank], device=device))
        self.steps = 0  # backward passes that were exchanged

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has handed to the network so far."""
        return int(self.transport.sent)

    def state_dict(self) -> StateDict:
        """Return what this rank needs to go on: tensors and plain values."""
        segment_states = {
            name: segment_state.state_dict() for name, segment_state in self.segment_states.items()
        }
        return {"steps": self.steps, "rank": self.transport.rank, "parameters": segment_states}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned on this rank.

        Raises `SettingError` if it belongs to another rank or another model.
        """
        require_kind("checkpoint", state, dict)
        own = self.state_dict()
        lacking = [name for name in own if name not in state]
        require(not lacking, "checkpoint", None, f"lacks {', '.join(lacking)}")
        for name in ("steps", "rank"):
            holds = type(state[name]) is int and state[name] >= 0
            rule = f"holds {shown(state[name])} as {name}, which must be a whole number"
            require(holds, "checkpoint", None, rule)
        if state["rank"] != own["rank"]:
            raise SettingError("checkpoint", state["rank"], f"is not that of rank {own['rank']}")
        if _forms(state["parameters"]) != _forms(own["parameters"]):
            rule = "belongs to another model, memory or compressor"
            raise SettingError("checkpoint", None, rule)
        with taken_apart():
            for name, segment_state in self.segment_states.items():
                segment_state.load_state_dict(state["parameters"][name])
        self.steps = state["steps"]

    def reduce_bucket(self, bucket: Bucket) -> None:
        """Exchange the gradients of a bucket of DistributedDataParallel's, in place."""
        names = [self.names[id(parameter)] for parameter in bucket.parameters()]
        pairs = zip(names, bucket.gradients(), strict=True)
        own = [self.segment_states[name].own for name in names]
        with without_draws(own, self.channel.transport, self.key.workers.device):
            fused(self.channel, [partial(self._exchange_, *pair) for pair in pairs])
        if bucket.is_last():
            self.steps += 1
            self.channel.ledger.transfers.clear()

    def _exchange_(self, name: str, gradient: Tensor, channel: Channel) -> None:
        """Replace a parameter's own gradient [*shape] by the aggregate, in place."""
        own = gradient.detach().reshape(1, -1).clone()  # [1, n]
        step = ExchangeStep(channel, self.memory, self.key.fold_in(self.steps), self.steps)
        aggregated, _ = exchange_gradient(step, self.segment_states[name], own)
        gradient.copy_(aggregated.view_as(gradient))

    def _segment_state(self, segment: Segment, parameter: Tensor) -> SegmentState:
        like = parameter.detach().new_empty(1).expand(1, segment.n)
        state = SegmentState(segment, like, self.memory)
        state.set_compressor(self.compressor)
        return state


def _require_alike(every: Sequence[Mapping[str, object]]) -> None:
    """Raise `SettingError` on all ranks if some have other settings than rank 0."""
    if (odd := odd_rank(every)) is not None:
        name, rank = odd
        rule = f"is {shown(every[0][name])} on rank 0 and {shown(every[rank][name])} on rank {rank}"
        if name == "parallel":
            rule = f"has other parameters on rank {rank} than on rank 0"
        raise SettingError(name, None, rule, "give all ranks the same")


def _forms(kept: object) -> object:
    """Return the shapes of all tensors in dicts by name; a compressor's may grow as it steps."""
    if isinstance(kept, dict):
        return {name: _forms(value) for name, value in kept.items() if name != "compressor"}
    return kept.shape if isinstance(kept, Tensor) else None


def _memory(spec: str) -> Memory:
    memory = memory_named(spec)
    if memory.owns_momentum and getattr(memory, "momentum", None) is None:
        fix = "give it, as in dgc:0.9, and take momentum out of the optimizer"
        raise SettingError("memory", spec, "owns the momentum, which no regime gives here", fix)
    if memory.keeps_lr:
        raise SettingError("memory", spec, "needs the learning rate, which no regime gives here")
    return memory
