"""What changes from step to step, and how it is saved and loaded.

Letters: W simulated workers, L hosted here, b samples each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..given_object import plainly
from ..gradients.contract import Tensors, carried
from .checkpoint_check import StateDict as StateDict
from .checkpoint_check import require_fitting, require_optimizers, taken_apart
from .client_pool import ClientPool
from .components import Components
from .layer_compressors import LayerRule, LayerRules, in_words, specs_of
from .method_choice import compressors_for
from .step_settings import StepSettings


@dataclass
class RunningState:
    """Where a simulation is, beside the states that its parts keep."""

    buffers: Tensors  # each hosted worker's, {name: [L, *shape]}, or its devices', [L, G, *shape]
    initial: Tensors  # those that carry a state of each sample, as at the start
    server_buffers: Tensors  # as at the start, where clients begin each round with them
    clients: ClientPool | None = None  # what they keep while nobody acts for them
    steps: int = 0  # done
    epoch: int | None = None  # the last one given
    results: list[Mapping[str, float]] = field(default_factory=list)  # of the epochs that ended
    compressor: str = ""  # the spec in force
    layers: LayerRules = ()  # those in force beside it
    is_tried: bool = False  # whether a step was taken since this was made
    is_checked: bool = False  # whether it was looked at what model and criterion keep
    half_done: bool = False  # whether a step has its gradients, and has not come to its end

    @classmethod
    def of(cls, parts: Components) -> "RunningState":
        """Return the state before the first step."""
        workers, devices = len(parts.workers), parts.recipe.devices
        buffers = {n: torch.stack([b] * workers) for n, b in parts.model.named_buffers()}
        if devices > 1:
            buffers = {n: torch.stack([own] * devices, dim=1) for n, own in buffers.items()}
        initial = {name: buffers[name].clone() for name in carried(parts.model)}
        server = {}
        if parts.algorithm.client_buffers == "server":
            server = {n: own.clone() for n, own in buffers.items() if n not in initial}
        state = cls(buffers, initial, server)
        state.clients = ClientPool.of(parts, state.own_buffers)
        return state

    @property
    def own_buffers(self) -> Tensors:
        """The buffers [L, ...] that do not carry a state of each sample."""
        return {name: own for name, own in self.buffers.items() if name not in self.initial}

    def begin(self) -> None:
        """Put back the states that the model carries from step to step, as at the start."""
        self.buffers.update({name: value.clone() for name, value in self.initial.items()})

    def set_compressor(self, parts: Components, spec: str, layers: LayerRules) -> None:
        """Compress by the method of `spec` from now on, and what has a rule in `layers` by that.

        A segment has a new state if its compressor is another one. Raises `SettingError` if one
        does not go with the algorithm or the memory.
        """
        if (spec, layers) == (self.compressor, self.layers):
            return
        compressors = compressors_for(parts.recipe, parts.algorithm, parts.layout, spec, layers)
        before = specs_of(parts.layout, self.layers, self.compressor)
        after = specs_of(parts.layout, layers, spec)
        self.compressor, self.layers = spec, layers
        changes = zip(parts.segment_states, compressors, before, after, strict=True)
        for state, compressor, old, new in changes:
            if new != old:
                state.set_compressor(compressor)

    def end_step(self) -> None:
        """Count a step that has come to its end."""
        self.steps, self.half_done = self.steps + 1, False

    def state_dict(self, parts: Components) -> StateDict:
        """Return all that a resumed simulation needs: of all W workers."""
        gather = parts.transport.all_gather_rows
        return {
            "parameters": parts.parameters.state_dict(gather),
            "buffers": {name: gather(own) for name, own in self.buffers.items()},
            "compressor": str(self.compressor),
            **self._layer_state(),
            "voices": {
                state.segment.name: state.state_dict(None if parts.hosts_all else gather)
                for state in parts.segment_states
            },
            "optimizer": parts.optimizer.state_dict(parts.parameters.optimizer_rows(gather)),
            "steps": self.steps,
            "epoch": self.epoch,
            "results": list(self.results),
            "engine": parts.engine_name,
            "workers": parts.recipe.workers,
            **self._server_state(),
            **({} if self.clients is None else {"clients": self.clients.rows}),
        }

    def load_state_dict(self, parts: Components, state: StateDict) -> None:
        """Take over what `state_dict` returned.

        Raises `SettingError` if it belongs to another model, W, memory or optimizer.
        """
        require_fitting(state, self.state_dict(parts))
        if not parts.regime.follows_results:  # whose optimizers depend on more
            require_optimizers(state, _optimizers(parts, state))
        with taken_apart():
            layers, epoch = state.get("compress_layers", ()), state["epoch"] or 0
            saved = tuple(LayerRule(*pair) for pair in layers)
        last = epoch, max(0, state["steps"] - 1)
        own: LayerRules = parts.regime.at(*last, state["results"]).get("compress_layers", ())
        with taken_apart():
            self._load(parts, state, own if in_words(own) == in_words(saved) else saved)

    def _load(self, parts: Components, state: StateDict, layers: LayerRules) -> None:
        """Take a state over, with these rules in force."""
        parts.parameters.load_state_dict(state["parameters"], parts.hosted)
        for name, buffer in self.buffers.items():
            buffer.copy_(state["buffers"][name][parts.hosted])
        same = plainly(state["compressor"]) == plainly(self.compressor)  # an object, given again
        saved = self.compressor if same else state["compressor"]
        self.set_compressor(parts, saved, layers)
        parts.engine.keep_choice(state.get("engine", ""))
        for own in parts.segment_states:
            saved = state["voices"][own.segment.name]
            own.load_state_dict(saved, None if parts.hosts_all else parts.hosted)

        def hosted(rows: Tensor) -> Tensor:
            return rows[parts.hosted]

        rows = parts.parameters.optimizer_rows(hosted)
        parts.optimizer.load_state_dict(state["optimizer"], rows)
        self.steps, self.epoch, self.half_done = state["steps"], state["epoch"], False
        self.results = list(state["results"])
        for name, buffer in self.server_buffers.items():
            buffer.copy_(state["server_buffers"][name].expand_as(buffer))
        for name, kept in (self.clients.rows if self.clients else {}).items():
            kept.copy_(state["clients"][name])

    def _layer_state(self) -> StateDict:
        if not self.layers:
            return {}
        return {"compress_layers": [[rule.pattern, str(rule.compressor)] for rule in self.layers]}

    def _server_state(self) -> StateDict:
        if not self.server_buffers:
            return {}
        return {"server_buffers": {name: own[:1] for name, own in self.server_buffers.items()}}


def _optimizers(parts: Components, state: StateDict) -> dict[str, str]:
    """Return what steps each parameter at the last step of a state, {name: optimizer}."""
    last = state["epoch"] or 0, max(0, state["steps"] - 1)
    settings = StepSettings.at(parts.recipe, parts.regime, *last, parts.memory)
    chosen = {n: p.optimizer for p in parts.optimizer.plans(settings.optimizer) for n in p.names}
    return {name: chosen[name] for name in parts.optimizer.params}
