"""Per-worker gradients by `torch.func.vmap`: the definition, in one batched call.

Letters: L workers hosted here, b samples each.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from ..registry import register
from ..settings import SettingError
from .attributes import Switches
from .batching import quiet_batching
from .contract import (
    DEFAULT,
    Criterion,
    EngineConfig,
    GradientEngine,
    Gradients,
    Tensors,
    UnsupportedModel,
    unused_by,
)
from .dropout import KeyedDropout
from .generators import put_back, untouched
from .loop import Loop
from .self_check import BYPASSED, Batch, check_against_loop
from .training_mode import modes
from .trees import is_of_tensors, leaves, row

_TRIED = 2  # workers, with models or buffers of their own, of which a loop is to give the same
_CONVOLVED = 4  # workers at a time, of a model with convolutions


@register("engine", "vmap")
class Vmap(GradientEngine):
    """All workers at once: `vmap(grad_and_value(loss))`.

    By itself, a model with convolutions takes four workers at a time, whose activations stay in a
    processor's cache.
    """

    def __init__(
        self, model: torch.nn.Module, criterion: Criterion, config: EngineConfig = DEFAULT
    ) -> None:
        super().__init__(model, criterion, config)
        convolves = any(isinstance(module, _ConvNd) for module in model.modules())
        by_itself = _CONVOLVED if convolves else None
        self._size = by_itself if isinstance(config.chunk, str) else config.chunk
        self._translated = self._checked = False
        self._missing: dict[Any, list[str]] = {}  # parameters without gradient, by kind of batch
        self._switches = Switches(model)
        self._map()

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return the gradients of all workers; shapes as in `GradientEngine`.

        Raises `SettingError` for a model with a part that does not batch under vmap.
        """
        try:
            if (self.per_worker or buffers) and not (self._checked or self._translated):
                batch = Batch(params, buffers, x, y, keys, self.per_worker)
                check_against_loop(self, batch, _TRIED)
                self._checked = True
            with untouched(keys.device):
                gradients = self.attempt(params, buffers, x, y, keys)
            return replace(gradients, unused=self._unused(gradients, params, buffers, x, y, keys))
        except torch.OutOfMemoryError:
            raise
        except UnsupportedModel as reason:
            told = f"declines this model: {reason}"
            raise SettingError("engine", "vmap", told, "use engine loop") from None
        except RuntimeError as wrong:
            shared = {name: parameter.detach() for name, parameter in params.items()}
            with put_back(keys.device):
                raise self._explained(wrong, shared, buffers, x, y, keys) from wrong

    def attempt(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        """Return what a call does, with torch's own errors."""
        if not (is_of_tensors(x) and is_of_tensors(y)):
            raise UnsupportedModel("its batches hold what is no tensor")
        shared = {name: parameter.detach() for name, parameter in params.items()}
        with quiet_batching(), torch.enable_grad():
            values, (value, (loss, output, after)) = self._mapped(shared, buffers, x, y, keys)
        if value.requires_grad:  # by what vmap does not look at
            raise UnsupportedModel(BYPASSED)
        space = self.space(params, len(keys))
        for name, value in values.items():
            space.values[name].copy_(value)
        if self.scale != 1:
            for flat in space.flat:
                flat.div_(self.scale)
        return Gradients(space.values, loss, output, after, flat=space.flat)

    def _unused(
        self, got: Gradients, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Tensors:
        """Return who did not use which parameter, as a loop finds for the first batch of a kind.

        All workers do the same under vmap, whatever their data.
        """
        switches = self._switches.now()
        like = *(part.shape[1:] for part in leaves(x)), modes(self.model), switches
        known = None if switches is None else self._missing.get(like)
        if known is None or any(got.values[name].any() for name in known):
            self._missing[like] = []
            if not all(value.any() for value in got.values.values()):
                one = {name: p[:1] for name, p in params.items()} if self.per_worker else params
                own = {name: buffer[:1] for name, buffer in buffers.items()}
                few = slice(1)
                loop = Loop(self.model, self.criterion, self.config)
                self._missing[like] = [*loop(one, own, row(x, few), row(y, few), keys[:1]).unused]
        return unused_by([self._missing[like]] * len(keys))

    def capturable(self) -> bool:
        """Return True, unless torch.compile, which has graphs of its own, translates the call."""
        return not self._translated

    def chunk_size(self, workers: int) -> int:
        """Return the chunk, all workers if there is none."""
        return workers if self._size is None else min(workers, self._size)

    def compile_(self) -> None:
        """Let `torch.compile` translate the call, when it is made."""
        self._translated = True
        self._map()

    def halve_chunk(self, workers: int) -> int:
        """Let half as many workers through at a time from now on; return how many, 0 if none."""
        fewer = super().halve_chunk(workers)
        if fewer:
            self._size = fewer
            self._map()
        return fewer

    def _map(self) -> None:
        mapped = torch.func.vmap(
            torch.func.grad_and_value(self._one_worker, has_aux=True),
            in_dims=(0 if self.per_worker else None, 0, 0, 0, 0),
            randomness="error",
            chunk_size=self._size,
        )
        self._mapped = torch.compile(mapped) if self._translated else mapped

    def _one_worker(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, key: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensors]]:
        own = {name: buffer.clone() for name, buffer in buffers.items()}  # else the caller's change
        with KeyedDropout(key):
            loss, output = self.loss(params, own, x, y)
        return loss if self.scale == 1 else loss * self.scale, (loss.detach(), output, own)

    def _explained(self, wrong: RuntimeError, *arguments: Any) -> Exception:
        """Return the error that names the module which failed, or the error itself.

        It is the module's fault if one worker alone can be computed without vmap.
        """
        entered: list[str] = []
        hooks = [
            module.register_forward_pre_hook(lambda *_, name=name: entered.append(name))
            for name, module in self.model.named_modules()
        ]
        try:
            with quiet_batching():
                self._mapped(*arguments)
        except RuntimeError:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        if not self._computes_unmapped(*arguments):
            return wrong
        name = entered[-1] if entered else ""
        kind = type(self.model.get_submodule(name)).__name__
        where = f"{name} ({kind})" if name else kind
        reason = str(wrong).strip().splitlines()[0]
        if "data-dependent control flow" in reason:  # of torch's three guesses
            reason = "its forward reads numbers of the samples, as .item() or if does"
        return SettingError(
            "engine", "vmap", f"cannot batch the module {where}: {reason}", "use engine loop"
        )

    def _computes_unmapped(self, params: Tensors, *mapped: Any) -> bool:
        if self.per_worker:
            params = {name: p[0] for name, p in params.items()}
        one: list[Any] = [
            {name: t[0].clone() for name, t in a.items()} if isinstance(a, dict) else row(a, 0)
            for a in mapped
        ]
        try:
            self._one_worker({name: p.requires_grad_() for name, p in params.items()}, *one)
        except RuntimeError:
            return False
        return True
