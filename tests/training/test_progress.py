import io
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


@pytest.mark.slow
def test_progress_shows_a_block_once_and_never_an_epoch_without_steps(monkeypatch, tmp_path):
    shown = []
    monkeypatch.setattr(Progress, "show", lambda self, loss, metric, sent: shown.append(metric))
    run = simsgd.train(
        model="mlp", model_config="hidden=4", dataset="digits", workers=4, epochs=2, quiet=True,
        runs_dir=tmp_path, name="a",
    )  # fmt: skip
    assert shown == [f"error@1 {error:.2f} %" for error in run.epochs["train_error1"]]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (120, "train: loss 0.123, error@1 12.34 %, sent 5.836 MiB"),
        (80, "train: loss 0.123, error@1 12.34 %"),
        (50, "train: loss 0.123"),
    ],
)
def test_the_bar_keeps_the_text_that_a_terminal_has_room_for(monkeypatch, columns, shown):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    progress = Progress(15500, 12345, False, lambda _: None)
    progress.bar.ncols, progress.bar.dynamic_ncols = columns, None
    progress.show(0.1234, "error@1 12.34 %", 6_119_400)
    last = terminal.getvalue().split("\r")[-1]
    progress.close()
    assert shown in last
    assert "12345/15500" in last
    assert len(last.rstrip()) <= columns


def test_lines_are_broken_between_words_at_a_terminal_alone(monkeypatch, capsys):
    logged = []
    progress = Progress(3, 0, False, logged.append)
    line = "epoch  24: train loss 0.0338, val loss 0.0515, val error@1 1.60 %, sent 1/32.8 of dense"
    progress.write(line)
    assert capsys.readouterr().out == f"{line}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    progress.write(line)
    first, second = capsys.readouterr().out.splitlines()
    assert f"{first} {second.strip()}" == line
    assert len(first) <= 80
    assert second.startswith("  ")
    assert logged == [line, line]
