import multiprocessing

import pytest

from simsgd.processes import launch


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("_importable")
def test_ranks_have_the_environment_of_now(monkeypatch):
    from tests.crew import tell

    for value in ("before", "now"):
        monkeypatch.setenv("SIMSGD_VALUE", value)
        assert list(launch(tell, 2, "SIMSGD_VALUE")) == [value, value]


def test_ranks_are_forked_from_one_where_the_system_can(monkeypatch):
    asked = []
    monkeypatch.setattr(multiprocessing, "get_context", lambda start: asked.append(start))
    for known in (["spawn"], ["fork", "spawn", "forkserver"]):
        monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda known=known: known)
        with pytest.raises(AttributeError):
            next(launch(print, 2))
    assert asked == ["spawn", "forkserver"]
