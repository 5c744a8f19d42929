import numpy as np
import pytest
from click.testing import CliRunner

from simsgd.cli import main
from simsgd.results.figures.appearance import _check_positive
from simsgd.results.figures.plot import KINDS, plot_results
from simsgd.results.run import Run
from simsgd.results.tables import EPOCH_COLUMNS, STEP_COLUMNS
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder


def made(folder, name, errors=(60.0, 9.0, 4.0), **config):
    run = RunFolder.create(folder, name, {"workers": 4, "seed": 0, **config})
    for epoch, error in enumerate(errors):
        row = dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": epoch, "payload_bytes": 1024 << epoch}
        run.add_epoch(row | {"val_error1": error})
    return Run(run.folder)


@pytest.fixture
def runs(tmp_path):
    """Two runs of two methods, and three seeds of one."""
    several = [made(tmp_path, f"c-seed{i}", (60, 9, 3 + i), seed=i, lr=3) for i in range(3)]
    return [made(tmp_path, "a", lr=1), made(tmp_path, "b", lr=2), *several]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_runs_are_labeled_by_their_names_or_by_those_in_the_figure(runs):
    labels = {"a": "Top-k", "c-seed1": "Sign $x$"}
    assert texts(plot_results(runs, labels=labels)) == ["Top-k", "b", "Sign $x$"]


@pytest.mark.slow
def test_runs_come_in_the_order_asked_for_and_keep_their_colors(runs):
    before, after = plot_results(runs), plot_results(runs, order=["c", "b"])
    assert texts(after) == ["c", "b", "a"]
    colors = [
        {text.get_text(): text.get_color() for text in figure.axes[0].texts}
        for figure in (before, after)
    ]
    assert colors[0] == colors[1]


def test_limits_and_scales_are_those_asked_for(runs):
    axes = plot_results(runs, xlim=(1, 2), ylim=(1, 100), logx=True, logy=False).axes[0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((1, 2), (1, 100))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")


def test_a_name_leads_to_where_its_line_leaves_the_limits(runs):
    figure = plot_results(runs[:1], xlim=(0.5, 2.5), logy=False)
    axes = figure.axes[0]
    leader = axes.lines[-1]
    low, high = axes.get_ylim()
    middle = (9 + 4) / 2
    assert leader.get_xdata()[0] == 1
    assert leader.get_ydata()[0] == pytest.approx((middle - low) / (high - low))


@pytest.mark.slow
def test_a_point_chart_takes_limits_and_scales_too(runs):
    axes = plot_results(runs, kind="pareto", logx=False, ylim=(0, 10)).axes[0]
    assert (axes.get_xscale(), axes.get_ylim()) == ("linear", (0, 10))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["curves", "pareto"])
def test_the_legend_is_where_it_was_asked_for(runs, kind):
    inside = plot_results(runs, kind=kind, legend="inside")
    outside = plot_results(runs, kind=kind, legend="outside")
    none = plot_results(runs, kind=kind, legend="none")
    assert [t.get_text() for t in inside.axes[0].get_legend().get_texts()] == ["a", "b", "c"]
    assert [t.get_text() for t in outside.legends[0].get_texts()] == ["a", "b", "c"]
    assert (none.legends, none.axes[0].get_legend(), texts(none)) == ([], None, [])


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("band", "half"), [("std", 1.0), ("sem", 1 / np.sqrt(3)), ("range", 1.0), ("none", None)]
)
def test_a_band_is_the_one_asked_for(runs, band, half):
    axes = plot_results(runs[2:], band=band).axes[0]
    if half is None:
        assert not axes.collections
    else:
        heights = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(4 - half)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["curves", "pareto"])
def test_a_title_stands_above_the_figure_to_the_letter(runs, kind):
    network = "10gbe" if kind in ("time", "timeline") else ()
    figure = plot_results(runs, kind=kind, network=network, title="LeNet, $W$ = 4")
    assert figure.get_suptitle() == "LeNet, $W$ = 4"
    top = max(axes.get_tightbbox().y1 for axes in figure.axes)
    top = max([top, *(legend.get_window_extent().y1 for legend in figure.legends)])
    assert figure._suptitle.get_window_extent().y0 >= top - 1


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"labels": {"d": "x"}}, "labels is not known, got d"),
        ({"order": ["d"]}, "order is not known, got d"),
        ({"labels": {"a": "\udcff"}}, "labels holds bytes that are no text"),
        ({"title": "\udcff"}, "title holds bytes that are no text"),
        ({"xlim": (2, 1)}, "xlim must be a lower and an upper limit, got 2,1"),
        (
            {"xlim": (-1e308, 1e308)},
            r"xlim must lie within -1e\+300 and 1e\+300, got -1e\+308,1e\+308",
        ),
        ({"legend": "left"}, "legend is not known, got left"),
        ({"band": "ci"}, "band is not known, got ci"),
        ({"logy": True, "ylim": (0, 1)}, "logy needs values above 0"),
        ({"kind": "pareto", "band": "std"}, "band has no effect on a figure of pareto"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(runs, settings, error):
    with pytest.raises(SettingError, match=f"^{error}"):
        plot_results(runs, **settings)


def test_limits_are_advised_only_where_a_value_lies_above_zero():
    with pytest.raises(SettingError, match="above 0; leave it out: none of them is"):
        _check_positive("logy", None, np.zeros(2), True)


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("kind", sorted({*KINDS} - {"curves", "pareto"}))
@pytest.mark.parametrize(
    "setting", [{"xlim": (0, 1)}, {"logy": True}, {"legend": "none"}, {"band": "std"}]
)
def test_what_has_no_effect_is_refused(runs, kind, setting):
    network = "10gbe" if kind in ("time", "timeline") else ()
    with pytest.raises(SettingError, match=rf"^{next(iter(setting))} has no effect on a figure"):
        plot_results(runs, kind=kind, network=network, **setting)


def call(*words):
    return CliRunner().invoke(main, ["plot-results", *map(str, words)])


@pytest.mark.slow
def test_the_command_takes_all_of_it(runs, tmp_path):
    output = tmp_path / "figure.svg"
    done = call(
        tmp_path, "-o", output, "--label", "a=Top-k = 1 %", "--order", "b", "--title", "Title",
        "--xlim", "1,3", "--ylim", "1,100", "--logx", "--no-logy", "--legend", "inside",
        "--band", "sem",
    )  # fmt: skip
    assert (done.exit_code, done.output.strip()) == (0, str(output)), done.output
    assert {"Top-k = 1 %", "Title"} <= {
        line.strip() for part in output.read_text().split("<text")[1:] for line in
        [part.split(">", 1)[1].split("</text>")[0]]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("1,3", (1, 3)),
        ("0.5,1e3", (0.5, 1000)),
        ("1KB,10MiB", (1000, 10 * 2**20)),
        ("-1,0", (-1, 0)),
    ],
)
def test_limits_are_numbers_or_sizes(text, limits):
    command = main.commands["plot-results"]
    with command.make_context("plot-results", ["run", "--xlim", text]) as context:
        assert context.params["xlim"] == limits


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--label", "a"], "--label must be RUN=TEXT, got a"),
        (["--xlim", "3"], "--xlim must be LOW,HIGH, two numbers or sizes such as 1KB,10MB, got 3"),
        (["--label", "d=x"], "--label is not known, got d"),
    ],
)
def test_the_command_refuses_in_one_line(runs, tmp_path, words, error):
    done = call(tmp_path, *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"simsgd: {error}"), done.stderr


@pytest.mark.parametrize("theme", ["screen", "paper"])
def test_a_title_leaves_room_for_the_legend_of_times(tmp_path, theme):
    run = made(tmp_path, "a")
    kind = {"step": 1, "collective": "all-reduce", "segments": 1, "messages": 1, "rounds": 1}
    sizes = dict.fromkeys(("payload_bytes", "payload_bytes_max", "slowest_bytes"), 1)
    folder = RunFolder.resume(run.folder)
    folder.add_transfers([{**kind, "degree": 0, "sending": 1, **sizes}])
    folder.add_step(dict.fromkeys(STEP_COLUMNS, 1))
    folder.flush_steps()
    figure = plot_results(run, kind="time", network="wan", title="Title", theme=theme)
    figure.draw_without_rendering()
    title, legend = figure._suptitle.get_window_extent(), figure.legends[0].get_window_extent()
    assert not title.overlaps(legend)
