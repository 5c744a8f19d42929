import pytest
from torch import nn

from simsgd.bench import cases
from simsgd.bench.cases import require_room
from simsgd.settings import SettingError


def test_more_workers_than_memory_holds_are_refused(monkeypatch):
    monkeypatch.setattr(cases, "memory_of", lambda device: 2**20)
    model = nn.Linear(1000, 64, bias=False)  # 256,000 bytes, four times for each worker
    require_room(model, "linear", 1, "cpu")
    error = "^workers must be at most 1 for linear in 1 MiB of memory, got 2$"
    with pytest.raises(SettingError, match=error):
        require_room(model, "linear", 2, "cpu")
    monkeypatch.setattr(cases, "memory_of", lambda device: None)  # where the system does not say
    require_room(model, "linear", 2, "cpu")
