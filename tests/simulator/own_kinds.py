"""Methods of one's own in a few words, and a small simulator that takes them."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import simsgd
from simsgd.methods import Compressor, Memory
from simsgd.settings import SettingError

X, Y = torch.linspace(-1, 1, 48).view(16, 3).sin(), torch.arange(16) % 2


def made(base, **body):
    """Return a method of a class Mine with these attributes."""
    return dataclass(frozen=True)(type("Mine", (base,), body))()


def sender(compress, **body):
    """Return a biased compressor."""
    return made(Compressor, **{"biased": True, "compress": compress, **body})


def keeper(**body):
    """Return a memory that keeps nothing, but for what is given."""
    given = {
        "init": lambda self, like, dense: {},
        "compensate": lambda self, grad, state: grad,
        "update": lambda self, compensated, message, state: None,
        **body,
    }
    return made(Memory, **given)


def stepped(steps=1, **settings):
    """Return a simulator after some steps."""
    torch.manual_seed(0)
    settings = {"workers": 4, "lr": 0.1, **settings}
    if "compressor" in settings:
        settings["compress_if"] = "all"
    simulator = simsgd.Simulator(nn.Linear(3, 2), nn.CrossEntropyLoss(), **settings)
    for _ in range(steps):
        simulator.step(X, Y)
    return simulator


def refused(match, steps=1, **settings):
    """Require that a setting is refused in one line that names the class Mine."""
    with pytest.raises(SettingError, match=match) as wrong:
        stepped(steps, **settings)
    assert "Mine" in str(wrong.value)
    assert "\n" not in str(wrong.value)
