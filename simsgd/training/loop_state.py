"""The state of a loop of the user's own: random generators, and what else it names.

Captured between steps, saved with a checkpoint, put back when the loop goes on.
"""

import io
import random
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from ..settings import SettingError, require_kind


@runtime_checkable
class Stateful(Protocol):
    """What can be saved and put back: a scheduler, an average of weights, a sampler."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Go on from what `state_dict` returned."""


Kept = Mapping[str, Stateful | torch.Generator]
State = dict[str, Any]


def check_kept(kept: Kept) -> None:
    """Raise `SettingError` for what is no dict, or has an object whose state cannot be saved."""
    require_kind("state", kept, Mapping)
    for name, one in kept.items():
        if not isinstance(one, torch.Generator | Stateful):
            rule = f"has {name}, which has no state_dict and load_state_dict"
            raise SettingError("state", None, rule, "give it both, or leave it out")
    states_of(kept)


def check_saved(loop: State, kept: Kept) -> None:
    """Raise `SettingError` unless `kept` has the same names, of the same kinds, as a saved loop.

    A checkpoint that says nothing of them fits any.
    """
    if "kept" not in loop or "own" not in loop["random"]:
        return
    saved = {**dict.fromkeys(loop["random"]["own"], True), **dict.fromkeys(loop["kept"], False)}
    lacking = [name for name in saved if name not in kept]
    if lacking:
        rule = f"lacks {', '.join(lacking)}, which the run was saved with"
        given = ", ".join(f'"{name}": ...' for name in saved)
        raise SettingError("state", None, rule, f"give state={{{given}}}")
    new = [name for name in kept if name not in saved]
    if new:
        rule = f"has {', '.join(new)}, which the run was saved without"
        raise SettingError("state", None, rule, "leave it out, or begin a new run")
    for name, one in kept.items():
        if isinstance(one, torch.Generator) != saved[name]:
            kind = "a torch generator" if saved[name] else "no torch generator"
            rule = f"has another {name} than the run was saved with, which was {kind}"
            raise SettingError("state", None, rule, "give one like it")


def capture_random(kept: Kept) -> State:
    """Return the states of torch's, NumPy's and Python's generators, and of those that are kept."""
    kind, words, *rest = np.random.get_state(legacy=True)
    version, numbers, gauss = random.getstate()
    own = {n: one.get_state() for n, one in kept.items() if isinstance(one, torch.Generator)}
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "numpy": [str(kind), torch.from_numpy(np.asarray(words).astype("int64")), *rest],
        "python": [version, list(numbers), gauss],
        "own": own,
    }


def restore_random(state: State, kept: Kept) -> None:
    """Put back what `capture_random` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, words, *rest = state["numpy"]
    np.random.set_state((kind, words.numpy().astype("uint32"), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    for name, one in kept.items():
        if isinstance(one, torch.Generator) and name in state.get("own", ()):
            one.set_state(state["own"][name])


def states_of(kept: Kept) -> State:
    """Return the states of all that is kept but generators.

    Raises `SettingError` for one that a checkpoint could not be read with, as no code in it is run.
    """
    states = {}
    for name, one in kept.items():
        if not isinstance(one, torch.Generator):
            states[name] = one.state_dict()
            _require_plain(name, states[name])
    return states


def _require_plain(name: str, state: object) -> None:
    """Raise `SettingError` for a state that holds objects of classes that torch does not load."""
    file = io.BytesIO()
    try:
        torch.save(_without_tensors(state), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as wrong:  # pickle and torch have half a dozen for what they cannot do
        rule = f"has {name}, whose state_dict() holds more than tensors and plain values"
        fix = "return numbers, texts, tensors, and dicts and lists of them"
        raise SettingError("state", None, rule, fix) from wrong


def _without_tensors(state: Any) -> Any:
    """Return a state with an empty tensor for each, so that it is small."""
    if isinstance(state, torch.Tensor):
        return torch.empty(0)
    if type(state) is dict:
        return {key: _without_tensors(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(_without_tensors, state))
    return state


def load_states(states: State, kept: Kept) -> None:
    """Put back what `states_of` returned."""
    for name, one in kept.items():
        if not isinstance(one, torch.Generator) and name in states:
            one.load_state_dict(states[name])
