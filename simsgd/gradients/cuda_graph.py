"""Gradients of all workers as a CUDA graph: what a call launches, captured once, then replayed.

A graph launches the same kernels on the same memory as when it was captured, by a single call. So
what an engine is given is copied to where the graph reads it, and what may be kept is copied from
where it writes. Python does not run again: an engine or a model that would then do something else
is called as usual.

Letters: L workers hosted here, b samples each.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..settings import one_line
from .attributes import plain_attributes
from .contract import GradientEngine, Gradients, Tensors
from .trees import Tree, copy_all, mapped

Work = Callable[[], Gradients]
Capture = Callable[[Work], tuple[Gradients, Callable[[], None]]]

_MOST = 4  # forms of a call, each of which takes a graph's memory


def captured(work: Work) -> tuple[Gradients, Callable[[], None]]:
    """Return what some work of a GPU gives, and what replays it as a CUDA graph.

    The result is there once it was replayed. The work is done once before, on a stream beside the
    usual one, for libraries that begin with their first call. Raises `RuntimeError` for work that
    cannot be captured.
    """
    usual, beside = torch.cuda.current_stream(), torch.cuda.Stream()
    beside.wait_stream(usual)
    with torch.cuda.stream(beside):
        work()
    usual.wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = work()
    except RuntimeError:
        graph.reset()
        raise
    return found, graph.replay


def graphs_of(engine: GradientEngine, wanted: str, device: torch.device) -> "CudaGraphs | None":
    """Return the graphs of an engine's calls on a device, None where there are to be none."""
    return CudaGraphs(engine) if wanted == "auto" and device.type == "cuda" else None


class CudaGraphs:
    """The calls of an engine, from a graph once two were of the same form.

    A form is what Python could go by: shapes, dtypes and strides of a batch, which tensors a model
    has and which of them train, and what its modules, and a criterion that is one, have as plain
    attributes. `why_not` says why calls are made as usual from now on, "" while they may not be.
    """

    def __init__(self, engine: GradientEngine, capture: Capture = captured) -> None:
        self.engine, self.capture = engine, capture
        self.why_not = ""
        self._graphs: dict[object, _Graph | None] = {}  # by form; None: called once

    @property
    def note(self) -> str:
        """What to say of it, "" while that is not known."""
        if self.why_not:
            return f"no CUDA graph: {self.why_not}"
        some = any(graph is not None for graph in self._graphs.values())
        return "gradients are replayed as a CUDA graph" if some else ""

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tree, y: Tree, keys: Tensor
    ) -> Gradients:
        """Return what a call of the engine does; shapes as there."""
        if not (self.why_not or (isinstance(x, Tensor) and isinstance(y, Tensor))):
            self.why_not = "batches are not one tensor"
        if self.why_not:
            return self.engine(params, buffers, x, y, keys)
        form = self._form(params, buffers, x, y)
        if form not in self._graphs:
            return self._first_of(form, params, buffers, x, y, keys)
        graph = self._graphs[form]
        if graph is None:
            try:
                graph = _Graph(self.capture, self.engine, params, buffers, x, y, keys)
            except RuntimeError as wrong:  # torch has a dozen for what cannot be captured
                self.why_not = f"a call cannot be captured: {one_line(wrong)}"
            if form != self._form(params, buffers, x, y):
                self.why_not = "the model changes its attributes in each step"
            if graph is None or self.why_not:
                self._graphs.clear()
                return self.engine(params, buffers, x, y, keys)
            self._graphs[form] = graph
        return graph(params, buffers, x, y, keys)

    def _first_of(
        self, form: object, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        found = self.engine(params, buffers, x, y, keys)
        if not self.engine.capturable():
            name = self.engine.chosen or type(self.engine).__name__.lower()
            self.why_not = f"engine {name} waits for the device"
        elif len(self._graphs) == _MOST:
            self.why_not = f"batches or the model's attributes take more than {_MOST} forms"
            self._graphs.clear()
        else:
            self._graphs[form] = None
        return found

    def _form(self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor) -> object:
        model, criterion = self.engine.model, self.engine.criterion
        given = [(t.shape, t.stride(), t.dtype) for t in (x, y, *params.values())]
        before = [(name, t.shape, t.dtype) for name, t in buffers.items()]
        standing = [
            (t.data_ptr(), t.requires_grad) for t in (*model.parameters(), *model.buffers())
        ]
        modules = [*model.modules()]
        if isinstance(criterion, nn.Module):
            modules += criterion.modules()
        attributes = [plain for module in modules for plain in plain_attributes(module)]
        return (
            self.engine.reduced_chunk,
            tuple(given),
            tuple(before),
            tuple(standing),
            tuple(attributes),
        )


class _Graph:
    """One captured call, and the memory that it reads."""

    def __init__(
        self,
        capture: Capture,
        engine: GradientEngine,
        params: Tensors,
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        keys: Tensor,
    ) -> None:
        own = {n: p.detach().clone().requires_grad_(p.requires_grad) for n, p in params.items()}
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        batch = x.clone(), y.clone(), keys.clone()
        self._read = [*own.values(), *before.values(), *batch]
        self._found, self._replay = capture(lambda: engine(own, before, *batch))

    def __call__(
        self, params: Tensors, buffers: Tensors, x: Tensor, y: Tensor, keys: Tensor
    ) -> Gradients:
        copy_all(self._read, [*params.values(), *buffers.values(), x, y, keys])
        self._replay()
        found = self._found
        after = {name: torch.empty_like(buffer) for name, buffer in found.buffers.items()}
        copy_all([*after.values()], [*found.buffers.values()])
        return dataclasses.replace(
            found,
            loss=found.loss.clone(),
            output=mapped(Tensor.clone, found.output),
            buffers=after,
        )
