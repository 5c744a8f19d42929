import sys
from types import SimpleNamespace

import pytest

import simsgd
from simsgd.training.progress import Progress, is_seen


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


def test_progress_shows_a_block_once_and_never_an_epoch_without_steps(monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr(Progress, "show", lambda self, loss, metric, sent: shown.append(metric))
    run = simsgd.train(
        model="mlp", model_config="hidden=4", dataset="digits", workers=4, epochs=2, quiet=True,
        runs_dir=tmp_path, name="a",
    )  # fmt: skip
    assert shown == [f"error@1 {error:.2f} %" for error in run.epochs["train_error1"]]
