"""Points of pareto: bytes, seconds, or the value at a number of bytes."""

import pytest

from simsgd.results.figures.pareto import Point, frontier
from simsgd.results.figures.plot import plot_results
from simsgd.settings import SettingError
from tests.results.test_targets import ERRORS, made

NETWORK = {"network": "bandwidth=1kbit,latency=0s", "compute_ms": 3000, "compress_ms": 100}
SECONDS = 3.1 + 3 * 8 * 500 / 1000  # of a step on it: compute, compression, three hops


def point(run, **settings):
    """Return where the only point of a figure stands."""
    axes = plot_results([run], kind="pareto", **settings).axes[0]
    drawn = axes.lines[-1]
    return float(drawn.get_xdata()[0]), float(drawn.get_ydata()[0]), axes


@pytest.mark.slow
def test_at_the_end_a_run_has_all_its_bytes_and_seconds(tmp_path):
    run = made(tmp_path)
    assert point(run)[:2] == (4000, 10)
    x, y, axes = point(run, x="seconds", **NETWORK)
    assert (x, y) == (pytest.approx(8 * SECONDS, rel=1e-12), 10)
    assert axes.get_xlabel() == "simulated seconds on bandwidth=1kbit,latency=0s"


@pytest.mark.slow
def test_with_a_budget_a_run_is_taken_as_far_as_it_goes(tmp_path):
    run = made(tmp_path)
    assert point(run, at_bytes="2999B")[:2] == (2000, 20)
    x, y, axes = point(run, x="seconds", at_bytes=2000, **NETWORK)
    assert (x, y) == (pytest.approx(4 * SECONDS, rel=1e-12), 20)
    assert axes.get_ylabel() == "validation error@1 (%)\nafter 2 KB"


def test_the_value_at_a_budget_may_stand_along_x(tmp_path):
    x, y, axes = point(made(tmp_path), x="budget", at_bytes=3000)
    assert (x, y) == (30, 10)
    assert axes.get_xlabel() == "validation error@1 (%) after 3 KB"
    assert axes.get_ylabel() == "validation error@1 (%)\nat the end"
    assert axes.get_xscale() == "linear"


def test_the_frontier_of_two_values_is_where_both_are_good():
    points = [Point(str(i), x, y, [x], [y], None) for i, (x, y) in
              enumerate([(1, 5), (2, 4), (3, 9), (4, 1)])]  # fmt: skip
    assert frontier(points) == [(1, 5), (2, 5), (2, 4), (4, 4), (4, 1)]
    assert frontier(points, higher=True, right=True) == [(4, 1), (3, 1), (3, 9)]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"kind": "pareto", "x": "epoch"}, "x must be one of bytes, seconds, budget on a figure"),
        (
            {"kind": "pareto", "x": "budget"},
            "at_bytes must be given with budget along x; such as 10MB",
        ),
        ({"kind": "pareto", "x": "seconds"}, "network must be one for simulated seconds"),
        ({"kind": "pareto", "at_bytes": 999}, "run had sent more than at_bytes 999 before its fir"),
        ({"kind": "pareto", "at_bytes": "x"}, "at_bytes must be a number of bytes greater than 0"),
        ({"at_bytes": "1KB"}, "at_bytes has no effect on a figure of curves, got 1KB; use kind"),
        ({"x": "budget"}, "x is of figures of kind pareto, got budget; use bytes, or kind pareto"),
        ({"kind": "layers", "x": "bytes"}, "x has no effect on a figure of layers, got bytes"),
    ],
)
def test_what_has_no_effect_or_no_value_is_refused_in_one_line(tmp_path, settings, error):
    with pytest.raises(SettingError, match=f"^{error}"):
        plot_results([made(tmp_path, ERRORS)], **settings)
