import sys
from types import SimpleNamespace

import pytest

from simsgd.progress import is_seen


@pytest.mark.parametrize(
    ("shell", "seen"),
    [(None, False), (SimpleNamespace(), False), (SimpleNamespace(kernel=object()), True)],
    ids=["no shell", "a shell without a terminal", "a notebook"],
)
def test_a_bar_is_drawn_in_a_notebook_and_not_where_its_package_was_but_imported(
    monkeypatch, shell, seen
):
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert is_seen() is seen


def test_without_a_terminal_there_is_nobody_to_see_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_seen()


def test_a_bar_is_drawn_at_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert is_seen()
