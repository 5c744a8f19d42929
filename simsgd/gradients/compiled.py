"""Per-worker gradients by `torch.func.vmap`, translated by `torch.compile`.

Letters: L workers hosted here, b samples each.
"""

from torch import Tensor

from ..registry import register
from .auto import Auto
from .contract import Tensors
from .self_check import compare, without_extremes
from .trees import cloned
from .vmap import Vmap


@register("engine", "compiled")
class Compiled(Auto):
    """Engine vmap through `torch.compile`: seconds to minutes before the first step, for long runs.

    The compiler works once for each shape of a batch. Where there is none, where it refuses the
    model, as it does dropout, or where the result differs from engine vmap's, that one is used
    instead, and `note` says why; `chosen` is what is used.
    """

    def choose(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor) -> str:
        """Return "compiled", or "vmap" if that has to do; the same arguments as for a call.

        Raises `SettingError` for a model that vmap cannot take either.
        """
        plain, engine = self.made("vmap"), self.made("vmap")
        assert isinstance(engine, Vmap)
        x = without_extremes(x)
        wanted = plain(params, buffers, cloned(x), cloned(y), keys)
        engine.compile_()
        try:
            compare(engine.attempt(params, buffers, cloned(x), cloned(y), keys), wanted, self.model)
        except Exception as wrong:  # the compiler fails in a hundred ways, of its own and others'
            self.chosen, self._engine = "vmap", plain
            self.note = f"compiled declines: {' '.join(_first_line(wrong).split())}"
        else:
            self.chosen, self._engine = "compiled", engine
        return self.chosen

    def keep_choice(self, name: str) -> None:
        """Use vmap from now on if that was chosen; what is compiled is compiled once more."""
        if name == "vmap":
            super().keep_choice(name)


def _first_line(wrong: Exception) -> str:
    return str(wrong).strip().partition("\n")[0] or type(wrong).__name__
