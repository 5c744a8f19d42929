"""Counts what layers compute, and so how far backward is when a parameter's gradient is there."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from .model_cost import CallCounter


class LayerWork(CallCounter):
    """Within it, counts what each call of a layer with parameters computes, in their order.

    What is computed between two such calls, as by an activation, belongs to the first of them;
    what comes before all of them has no backward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._names = {
            module: name
            for name, module in model.named_modules()
            if any(True for _ in module.parameters(recurse=False))
        }
        self.calls_of_layers: list[tuple[str, int]] = []  # and what was computed before each

    def __enter__(self) -> "LayerWork":
        self._hook = register_module_forward_pre_hook(self._begin)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._hook.remove()

    def _begin(self, module: nn.Module, _: object) -> None:
        if module in self._names:
            self.calls_of_layers.append((self._names[module], self._done))

    @property
    def _done(self) -> int:
        return self.multiplications + self.elements

    def ready(self) -> dict[str, float]:
        """Return after which part of backward, in (0, 1], each parameter's gradient is there.

        Backward goes through the calls in reverse order, and takes time as each computed forward.
        Of a layer that was called several times, all of them have to be done. A parameter whose own
        layer was not called goes by the one around it, and is late where there is none.
        """
        first: dict[str, int] = {}
        for name, before in self.calls_of_layers:
            first.setdefault(name, before)
        end, total = self._done, max(1, self._done - min(first.values(), default=0))
        parts = {name: (end - before) / total for name, before in first.items()}
        return {
            parameter: _of_layer(parameter.rpartition(".")[0], parts)
            for parameter, _ in self.model.named_parameters()
        }


def backward_order(model: nn.Module, forward: Callable[[], object]) -> dict[str, float]:
    """Return after which part of the backward pass each parameter's gradient is there, by name.

    `forward` calls the model once; its samples may be few.
    """
    with LayerWork(model) as work:
        forward()
    return work.ready()


def _of_layer(layer: str, parts: dict[str, float]) -> float:
    while layer not in parts and layer:
        layer = layer.rpartition(".")[0]
    return parts.get(layer, 1.0)
