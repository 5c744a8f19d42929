"""More workers than memory holds are refused before anything is allocated."""

import pytest
import torch
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.simulator import room


def test_more_workers_than_memory_holds_are_refused_with_how_many_fit(monkeypatch):
    monkeypatch.setattr(room, "memory_of", lambda device: 1000)
    model = nn.Linear(4, 2, bias=False)  # 32 bytes
    wanted = (
        r"^workers needs at least 1 KiB of memory, and there are 1000 B, got 32; at most 31 fit$"
    )
    with pytest.raises(SettingError, match=wanted):
        Simulator(model, nn.functional.cross_entropy, workers=32, lr=0.1)
    Simulator(model, nn.functional.cross_entropy, workers=31, lr=0.1)


def test_the_machine_has_memory():
    assert room.memory_of(torch.device("cpu")) > 2**20


def test_a_billion_workers_are_refused_at_once():
    with pytest.raises(SettingError, match=r"^workers needs at least "):
        Simulator(nn.Linear(4, 2), nn.functional.cross_entropy, workers=10**9, lr=0.1)
