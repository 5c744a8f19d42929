"""Chooses the fastest engine for a model by timing all of them.

Letters: L workers hosted here, b samples each.
"""

import statistics
import time

import torch
from torch import Tensor

from ..registry import register
from ..settings import SettingError
from .attributes import attributes_kept
from .auto import Auto, try_out
from .contract import GradientEngine, Tensors, UnsupportedModel
from .trees import cloned, leaves

_ROUNDS = 3  # after one that allocates memory and is not counted


@register("engine", "tune")
class Tune(Auto):
    """The fastest of the other engines on the first batch, by measuring.

    `chosen` is its name, once it was chosen, and `note` says what each took. The choice is written
    to config.json and stays on resume; another run may come to another one, whose gradients differ
    by rounding.
    """

    def choose(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor) -> str:
        """Return the name of the fastest engine for such a batch; arguments as for a call.

        Where several processes hold the workers, the first one's choice is everybody's. Raises
        `SettingError` if none can take the model with as many workers at a time as asked for.
        """
        engines: dict[str, GradientEngine] = {}
        notes = []
        for name in self._candidates(leaves(x)[0].device.type):
            engine = self.made(name)
            try:
                try_out(engine, params, buffers, x, y, keys)
            except UnsupportedModel as reason:
                notes.append(f"{name} declines: {reason}")
                continue
            engines[name] = engine
        if not engines:
            told = f"has no effect with engine loop, and {'; '.join(notes)}"
            raise SettingError("worker_chunk", self.chunk, told, "leave it out")
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(_ROUNDS + 1):
            for name, engine in engines.items():
                samples = cloned(x), cloned(y)
                with attributes_kept(self.model, self.criterion):
                    began = _now(leaves(x)[0].device)
                    engine(params, buffers, *samples, keys)
                    spent = _now(leaves(x)[0].device) - began
                if turn > 0:
                    seconds[name].append(spent)
        took = {name: statistics.median(spent) for name, spent in seconds.items()}
        self.chosen = self.config.agree(min(took, key=lambda name: took[name]))
        notes.insert(0, ", ".join(f"{name} took {1000 * s:.3g} ms" for name, s in took.items()))
        self.note, self._engine = "; ".join(notes), engines[self.chosen]
        return self.chosen

    def _candidates(self, device: str) -> list[str]:
        names = ["onepass", "vmap"]
        if self.chunk == "auto":
            names.append("loop")
            if device == "cpu" and torch.get_num_threads() > 1:
                names.append("threads")
        return names


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
