"""One step of W data-parallel workers, from batch to parameters.

Letters: W simulated workers, L hosted here (L = W), b samples each, B = W * b, n elements of one
segment.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .compressors.dense import NoCompression
from .config import Recipe
from .draw import Draw
from .exchange import AllReduce
from .gradients import GradientEngine, Gradients
from .gradients.clipping import clip_
from .gradients.contract import Criterion, Tensors
from .layout import Layout
from .ledger import Ledger
from .method import Method, memory_of, regime_of
from .optimizer import RegimeOptimizer
from .record import StepRecord
from .regime import Form, Regime
from .registry import find
from .settings import require
from .transport import Channel, InProcess
from .wire import Wire


class Simulator:
    """W workers that train one model together.

    >>> model = nn.Linear(4, 2)
    >>> simulator = Simulator(model, workers=2, prune=0.5, warmup=False, lr=0.1, momentum=0.9)
    >>> record = simulator.step(torch.ones(6, 4), torch.zeros(6, dtype=torch.long))
    >>> record.payload_bytes, record.dense_bytes
    ([40, 40], 40)

    Here 4 of 8 weights go as 4 bytes of value and 4 of index, and both biases whole.

    The parameters of `model` are updated in place. Each worker has BatchNorm statistics of its
    own; `evaluation_model()` puts their mean into the model. Settings are those of `Recipe`, by
    the same names as the command line's options. Raises `SettingError` for any that is wrong.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Criterion = F.cross_entropy,
        *,
        regime: Form | Regime = None,
        **settings: Any,
    ) -> None:
        self.recipe = Recipe.of(settings)
        self.regime = regime_of(self.recipe, regime)
        self.model = model
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        require(bool(self.params), "model", None, "has no parameters to train")
        like = next(iter(self.params.values()))
        workers = torch.arange(self.recipe.workers, device=like.device)
        buffers = model.named_buffers()
        self.buffers = {name: torch.stack([b] * len(workers)) for name, b in buffers}
        self.draw = Draw(self.recipe.seed, workers)
        self.engine: GradientEngine = find("engine", self.recipe.engine)(model, criterion)
        shapes = {name: p.shape for name, p in self.params.items()}
        self.layout = Layout.of(shapes, self.recipe.granularity, self.recipe.prune_1d)
        self.exchange = AllReduce()
        wire = Wire(self.recipe.value_dtype, self.recipe.index_dtype)
        self.channel = Channel(InProcess(), Ledger(len(workers)), wire)
        self.optimizer = RegimeOptimizer(self.params)
        self.optimizer.follow(Method.at(self.recipe, self.regime, 0, 0).optimizer)
        self.state = self._initial_state(like.detach())
        self.steps = 0
        self.epoch: int | None = None

    def step(self, x: Tensor, y: Tensor, epoch: int | None = None) -> StepRecord:
        """Train on one global batch, `x` [B, ...] and `y` [B, ...], B a multiple of W.

        Worker w gets the samples w * b to (w + 1) * b. `epoch` counts from 0 and drives the regime
        and the warm-up; without it the last one given holds. Raises `SettingError` if B is no
        multiple of W, or if the regime follows epochs and none was ever given.
        """
        method, draw = self._method(epoch), self.draw.at(self.steps)
        gradients = self._gradients(self._shard(x), self._shard(y), draw)
        pieces = self._prepared(gradients, method)
        heard = []
        for segment, grad in zip(self.layout.segments, pieces, strict=True):
            state = self.state[segment.name]
            compressor = NoCompression() if segment.dense else method.compressor
            said = method.memory.compensate(grad, state["memory"])
            message, answer = self.exchange.gradients(
                said, compressor, state["compressor"], draw.at(segment.name), segment, self.channel
            )
            method.memory.keep(said, message, state["memory"])
            heard.append(answer)
        self._update(self.layout.join(heard), method)
        self.steps += 1
        return self._record(gradients, method)

    def evaluation_model(self, buffers: str = "mean") -> nn.Module:
        """Return the model in evaluation mode, with BatchNorm statistics to evaluate with.

        `buffers` is "mean", the mean over workers, or "rank0", worker 0's. Training goes on as if
        this had not been called.
        """
        for name, buffer in self.model.named_buffers():
            own = self.buffers[name]
            averaged = buffers == "mean" and own.is_floating_point()
            buffer.copy_(own.mean(0) if averaged else own[0])
        return self.model.eval()

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed simulation needs: tensors and plain values."""
        return {
            "parameters": {name: p.detach() for name, p in self.params.items()},
            "buffers": self.buffers,
            "state": self.state,
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "epoch": self.epoch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises `SettingError` if it belongs to another model, another W or another memory.
        """
        own = self.state_dict()
        for name, whose in _OWNERS.items():
            same = _shapes(state[name]) == _shapes(own[name])
            require(same, "checkpoint", None, f"belongs to {whose}")
        with torch.no_grad():
            _copy_(state["parameters"], own["parameters"])
            _copy_(state["buffers"], own["buffers"])
            _copy_(state["state"], own["state"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self.epoch = state["steps"], state["epoch"]

    def _method(self, epoch: int | None) -> Method:
        self.epoch = self.epoch if epoch is None else epoch
        known = self.epoch is not None or not self.regime.follows_epochs
        fix = "call step(x, y, epoch=e), or set warmup=False and a regime without epochs"
        require(known, "epoch", None, "is needed: the regime or the warm-up follows it", fix)
        method = Method.at(self.recipe, self.regime, self.epoch or 0, self.steps)
        self.optimizer.follow(method.optimizer)
        return method

    def _shard(self, batch: Tensor) -> Tensor:
        workers = self.recipe.workers
        even = len(batch) > 0 and len(batch) % workers == 0
        require(even, "batch", len(batch), f"must be a multiple of the {workers} workers")
        shards: Tensor = batch.unflatten(0, (workers, -1))  # [L, b, ...]
        return shards

    def _gradients(self, x: Tensor, y: Tensor, draw: Draw) -> Gradients:
        self.model.train()
        keys = draw.at("dropout").keys()
        gradients = self.engine(dict(self.params), self.buffers, x, y, keys)
        self.buffers = gradients.buffers
        return gradients

    def _prepared(self, gradients: Gradients, method: Method) -> list[Tensor]:
        pieces = self.layout.split(gradients.values)
        if self.recipe.clip is not None:
            clip_(pieces, self.recipe.clip, self.recipe.workers)
        if method.local_decay:
            shared = {name: p.detach().unsqueeze(0) for name, p in self.params.items()}
            for piece, weights in zip(pieces, self.layout.split(shared), strict=True):
                piece.add_(weights, alpha=method.local_decay)
        return pieces

    def _update(self, heard: Tensors, method: Method) -> None:
        if method.own_decay:
            memory: Any = method.memory
            self.optimizer.decay(heard, method.own_decay, memory.momentum, memory.nesterov)
        self.optimizer.step(heard)

    def _record(self, gradients: Gradients, method: Method) -> StepRecord:
        dense = sum(p.numel() * p.element_size() for p in self.params.values())
        return StepRecord(
            step=self.steps,
            epoch=self.epoch or 0,
            lr=float(method.optimizer["lr"]),
            kept=method.kept,
            losses=gradients.loss,
            output=gradients.output.flatten(0, 1),
            bytes=self.channel.ledger.close(dense),
        )

    def _initial_state(self, like: Tensor) -> dict[str, dict[str, Tensors]]:
        memory = memory_of(self.recipe, self.regime)
        return {
            segment.name: {
                "memory": memory.init(
                    like.new_empty(1).expand(self.recipe.workers, segment.n), segment.dense
                ),
                "compressor": {},
            }
            for segment in self.layout.segments
        }


_OWNERS = {
    "parameters": "another model",
    "buffers": "another number of workers",
    "state": "another memory, granularity or number of workers",
}


def _shapes(tensors: Any, path: str = "") -> dict[str, torch.Size]:
    if isinstance(tensors, Tensor):
        return {path: tensors.shape}
    return {k: v for name in tensors for k, v in _shapes(tensors[name], f"{path}/{name}").items()}


def _copy_(source: Any, target: Any) -> None:
    for name, value in target.items():
        if isinstance(value, Tensor):
            value.copy_(source[name])
        else:
            _copy_(source[name], value)
