import itertools
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex

from simsgd.results.figures.plot import plot_results
from simsgd.results.run import Run
from simsgd.results.tables import EPOCH_COLUMNS, STEP_COLUMNS
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder


def make(folder, name="run", errors=(60.0, 9.0, 4.0, 5.0), sent=2**20, **columns):
    run = RunFolder.create(folder, name, {})
    for step in range(1, 2 * len(errors) + 1):
        row = dict.fromkeys(STEP_COLUMNS, 1) | {"step": step, "loss": 1 / step}
        run.add_step(row | {"payload_bytes": sent // 2})
    run.flush_steps()
    for epoch, error in enumerate(errors):
        row = dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": epoch, "step": 2 * (epoch + 1)}
        total = {"payload_bytes": sent * (epoch + 1), "dense_bytes": 2**20 * (epoch + 1)}
        run.add_epoch(row | total | {"val_error1": error} | columns)
    return Run(run.folder)


def several(folder, number, sent=None, gap=0.001):
    return [
        make(folder, f"run-{i}", [60, 9, 4 + gap * i], 2**20 if sent is None else sent[i])
        for i in range(number)
    ]


def curves(axes):
    """Return the runs' lines: not the dots of the best, nor what leads to a name."""
    return [
        line
        for line in axes.lines
        if line.get_transform() == axes.transData and line.get_markersize() < 8
    ]


def dots(axes):
    return [line.get_xydata()[0].tolist() for line in axes.lines if line.get_markersize() == 8]


def names(figure):
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    return legends + [text for axes in figure.axes for text in axes.texts]


def boxes(figure):
    figure.draw_without_rendering()
    return [text.get_window_extent() for text in names(figure)]


def ticks(axis, limits):
    """Return the ticks that are seen and have a number."""
    axis.get_figure().draw_without_rendering()
    low, high = limits
    return [
        tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high
    ]


# what is drawn


def test_a_line_is_the_column_against_the_epochs_that_have_ended(tmp_path):
    figure = plot_results([make(tmp_path)])
    line = curves(figure.axes[0])[0]
    assert line.get_xydata().tolist() == [[1, 60], [2, 9], [3, 4], [4, 5]]


def test_a_run_may_be_given_as_its_folder(tmp_path):
    figure = plot_results([make(tmp_path).folder])
    assert len(curves(figure.axes[0])) == 1


@pytest.mark.slow
def test_against_bytes_the_axis_is_logarithmic(tmp_path):
    axes = plot_results([make(tmp_path, sent=1000)], x="bytes").axes[0]
    assert (axes.get_xscale(), curves(axes)[0].get_xdata().tolist()) == (
        "log",
        [1000, 2000, 3000, 4000],
    )


def test_against_steps_an_epochs_column_is_drawn_where_its_epochs_end(tmp_path):
    figure = plot_results([make(tmp_path)], x="step")
    assert curves(figure.axes[0])[0].get_xdata().tolist() == [2, 4, 6, 8]


def test_against_steps_a_column_of_both_tables_is_the_steps(tmp_path):
    figure = plot_results([make(tmp_path, sent=64)], x="step", y="payload_bytes")
    assert curves(figure.axes[0])[0].get_ydata().tolist() == [32] * 8


def test_each_quantity_has_a_panel(tmp_path):
    figure = plot_results(several(tmp_path, 2), y=("val_error1", "val_loss", "ratio"))
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "validation error@1 (%)",
        "validation loss",
        "dense bytes / bytes sent",
    ]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("x", "label"), [("epoch", "epoch"), ("step", "step"), ("bytes", "bytes sent per worker")]
)
def test_the_label_of_the_axis_across_names_what_it_shows(tmp_path, x, label):
    assert plot_results([make(tmp_path)], x=x).axes[0].get_xlabel() == label


COLUMNS = {*EPOCH_COLUMNS, *STEP_COLUMNS} - {"epoch", "step", "samples"}


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_every_column_can_be_drawn(tmp_path, column):
    figure = plot_results([make(tmp_path)], x="step", y=column)
    assert figure.axes[0].get_ylabel() != ""


def test_the_best_value_is_a_dot(tmp_path):
    assert dots(plot_results([make(tmp_path)]).axes[0]) == [[3, 4]]


def test_what_has_no_best_has_no_dot(tmp_path):
    assert dots(plot_results([make(tmp_path)], y="lr").axes[0]) == []


@pytest.mark.slow
def test_values_that_span_more_than_twentyfold_are_drawn_on_a_logarithmic_axis(tmp_path):
    wide = plot_results([make(tmp_path / "a", errors=[60, 2])]).axes[0].get_yscale()
    narrow = plot_results([make(tmp_path / "b", errors=[60, 4])]).axes[0].get_yscale()
    assert (wide, narrow) == ("log", "linear")


def test_values_that_are_no_numbers_are_left_out(tmp_path):
    figure = plot_results([make(tmp_path, errors=[60, float("nan"), 4, float("inf")])])
    assert curves(figure.axes[0])[0].get_xydata().tolist() == [[1, 60], [3, 4]]


def test_a_single_epoch_is_seen(tmp_path):
    figure = plot_results([make(tmp_path, errors=[4])], y="lr")
    assert curves(figure.axes[0])[0].get_marker() == "o"


# how it looks


@pytest.mark.slow
@pytest.mark.parametrize("sent", [10, 5000, 3 * 2**30])
@pytest.mark.parametrize("epochs", [1, 3, 40])
def test_at_least_two_amounts_of_bytes_can_be_read_off(tmp_path, sent, epochs):
    axes = plot_results([make(tmp_path, errors=[5] * epochs, sent=sent)], x="bytes").axes[0]
    seen = ticks(axes.xaxis, axes.get_xlim())
    assert len(set(seen)) == len(seen) >= 2


@pytest.mark.slow
def test_bytes_are_read_off_in_binary_units(tmp_path):
    runs = [make(tmp_path, "a", sent=300 * 2**10), make(tmp_path, "b", sent=300 * 2**20)]
    axes = plot_results(runs, x="bytes").axes[0]
    assert ticks(axes.xaxis, axes.get_xlim()) == ["1 MiB", "10 MiB", "100 MiB", "1 GiB"]


def test_epochs_are_counted_in_whole_numbers(tmp_path):
    axes = plot_results([make(tmp_path, errors=[5, 4, 3])]).axes[0]
    assert ticks(axes.xaxis, axes.get_xlim()) == ["1", "2", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [4, 9])
def test_no_two_runs_share_color_and_line_style(tmp_path, number):
    lines = curves(plot_results(several(tmp_path, number)).axes[0])
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == number


def test_four_runs_differ_in_line_style_alone(tmp_path):
    lines = curves(plot_results(several(tmp_path, 4)).axes[0])
    assert len({line.get_linestyle() for line in lines}) == 4


def test_up_to_four_runs_are_named_in_the_color_of_their_lines(tmp_path):
    axes = plot_results(several(tmp_path, 4)).axes[0]
    lines = [to_hex(line.get_color()) for line in curves(axes)]
    assert [(t.get_text(), to_hex(t.get_color())) for t in axes.texts] == [
        (f"run-{i}", color) for i, color in enumerate(lines)
    ]


def test_more_runs_are_named_in_a_legend(tmp_path):
    figure = plot_results(several(tmp_path, 5))
    assert ([text.get_text() for text in names(figure)], figure.axes[0].texts[:]) == (
        [f"run-{i}" for i in range(5)],
        [],
    )


CROWDS = {
    "two nearly equal": lambda folder: several(folder, 2),
    "four equal": lambda folder: several(folder, 4, gap=0),
    "four apart": lambda folder: several(folder, 4, gap=9),
    "four that end elsewhere": lambda folder: several(folder, 4, [10, 10**4, 10**6, 10**8]),
    "four long names": lambda folder: [
        *several(folder / "x", 3),
        make(folder, "20261127-231500-lenet-" * 6),
    ],
    "nine long names": lambda folder: [
        make(folder, f"{i}-20261127-231500-lenet-mnist5k-w16-prune0.999") for i in range(9)
    ],
    "twenty": lambda folder: several(folder, 20),
}


@pytest.fixture(scope="module", params=CROWDS)
def crowd(request, tmp_path_factory):
    """Return a figure in which many names want the same place."""
    runs = CROWDS[request.param](tmp_path_factory.mktemp("runs"))
    return plot_results(runs, x="bytes", y=("val_error1", "lr"))


@pytest.mark.slow
def test_no_name_overlaps_another(crowd):
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes(crowd), 2))


@pytest.mark.slow
def test_no_name_overlaps_a_panel(crowd):
    panels = [axes.get_window_extent() for axes in crowd.axes]
    assert not any(name.overlaps(panel) for name in boxes(crowd) for panel in panels)


@pytest.mark.quick_cases(2)
def test_every_name_lies_within_the_figure(crowd):
    corners = [corner for box in boxes(crowd) for corner in box.corners()]
    assert all(crowd.bbox.contains(x, y) for x, y in corners)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("number", [1, 5])
def test_names_are_shown_to_the_letter(tmp_path, number):
    runs = [make(tmp_path, f"_$x^{i}$%") for i in range(number)]
    shown = names(plot_results(runs))
    assert [(t.get_text(), t.get_parse_math()) for t in shown] == [(r.name, False) for r in runs]


def test_runs_of_the_same_name_are_distinguished_by_their_folders(tmp_path):
    runs = [make(tmp_path / "a"), make(tmp_path / "b")]
    shown = [text.get_text().replace("\n", "") for text in names(plot_results(runs))]
    assert shown == ["a/run", "b/run"]


def test_the_global_style_is_neither_used_nor_touched(tmp_path):
    before = dict(mpl.rcParams)
    with mpl.rc_context({"axes.facecolor": "black", "font.size": 30}):
        axes = plot_results([make(tmp_path)]).axes[0]
    assert (to_hex(axes.get_facecolor()), dict(mpl.rcParams) == before) == ("#ffffff", True)


# the file


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("suffix", "begins"),
    [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")],
)
def test_the_suffix_chooses_what_is_written(tmp_path, suffix, begins):
    path = tmp_path / f"figure{suffix}"
    plot_results([make(tmp_path)], output=path)
    assert path.read_bytes().startswith(begins)


def test_a_png_has_200_dots_an_inch(tmp_path):
    figure = plot_results([make(tmp_path)], output=tmp_path / "figure.png")
    header = (tmp_path / "figure.png").read_bytes()[16:24]
    size = np.frombuffer(header, dtype=">u4")
    assert np.abs(size - 200 * figure.get_size_inches()).max() <= 1


def test_another_suffix_is_refused_before_anything_is_read():
    with pytest.raises(
        SettingError, match=r"^output must end in \.png, \.svg or \.pdf, got a\.gif"
    ):
        plot_results([Path("nowhere")], output="a.gif")


def test_a_file_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    with pytest.raises(SettingError, match=r"^output cannot be written"):
        plot_results([make(tmp_path)], output=tmp_path / "nowhere" / "figure.png")


# mistakes


def test_an_unknown_x_is_refused_with_the_choices(tmp_path):
    with pytest.raises(SettingError, match=r"^x is not known, got epochs; did you mean epoch"):
        plot_results([make(tmp_path)], x="epochs")


def test_an_unknown_y_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(
        SettingError, match=r"^y is not known, got val_eror1; did you mean val_error1"
    ):
        plot_results([make(tmp_path)], y=("val_eror1",))


def test_a_column_of_the_steps_is_unknown_against_epochs(tmp_path):
    with pytest.raises(SettingError, match=r"^y is not known, got payload_bytes_min"):
        plot_results([make(tmp_path)], y="payload_bytes_min")


def test_no_run_at_all_is_refused_in_one_line():
    with pytest.raises(SettingError, match=r"^run must name at least one run folder$"):
        plot_results([])


def test_no_column_at_all_is_refused_in_one_line(tmp_path):
    with pytest.raises(SettingError, match=r"^y must name at least one column$"):
        plot_results([make(tmp_path)], y=())


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path):
    with pytest.raises(SettingError, match=r"^run is not a run folder and holds none"):
        plot_results([tmp_path])


@pytest.mark.parametrize("x", ["epoch", "step", "bytes"])
def test_a_run_without_epochs_is_refused_in_one_line(tmp_path, x):
    with pytest.raises(SettingError, match=r"^run has nothing to draw, no epoch of it has ended"):
        plot_results([make(tmp_path, errors=[])], x=x)


def test_a_run_that_lacks_the_column_is_refused_in_one_line(tmp_path):
    run = make(tmp_path)
    run.epochs.drop(columns="lr").to_csv(run.folder / "epochs.csv", index=False)
    with pytest.raises(SettingError, match=r"^run has no (column|values of) lr\b.* got .*run$"):
        plot_results([run], y="lr")


def test_a_column_without_a_number_is_refused_in_one_line(tmp_path):
    run = make(tmp_path, val_error5=float("nan"))
    with pytest.raises(SettingError, match=r"^run has no values of val_error5 to draw"):
        plot_results([run], y="val_error5")


# what it costs


@pytest.mark.slow
def test_a_run_draws_itself(tmp_path):
    figure = make(tmp_path).plot("bytes", ("val_error1", "lr"), tmp_path / "figure.svg")
    assert (len(figure.axes), (tmp_path / "figure.svg").exists()) == (2, True)


def test_importing_it_loads_neither_torch_nor_matplotlib_nor_pandas():
    heavy = "{'torch', 'matplotlib', 'pandas'}"
    code = f"import sys, simsgd.results.figures.plot; sys.exit(bool({heavy} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_drawing_touches_no_pyplot(tmp_path):
    folder = str(make(tmp_path).folder)
    code = (
        "import sys; from simsgd.results.figures.plot import plot_results\n"
        f"plot_results([{folder!r}]); sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_figure_shows_itself_in_a_notebook(tmp_path):
    figure = plot_results([make(tmp_path, "a")])
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.slow
def test_what_lies_far_below_does_not_squeeze_the_rest_of_a_logarithmic_axis(tmp_path):
    runs = [
        make(tmp_path, name, consensus_distance=value)
        for name, value in (("complete", 2e-8), ("ring", 0.5), ("torus", 0.01))
    ]
    axes = plot_results(runs, y="consensus_distance").axes[0]
    assert axes.get_ylim()[0] == pytest.approx(0.7 * 0.01)
    assert "below:\ncomplete: at most 2e-08" in [text.get_text() for text in axes.texts]
    whole = plot_results(runs, y="consensus_distance", ylim=(1e-9, 1)).axes[0]
    assert whole.get_ylim() == (1e-9, 1)
    assert not any(text.get_text().startswith("below") for text in whole.texts)


@pytest.mark.slow
def test_texts_and_images_are_not_drawn_in_one_panel_in_silence(tmp_path, capsys):
    runs = [make(tmp_path, "images"), make(tmp_path, "text")]
    (runs[1].folder / "config.json").write_text('{"tokens": "char"}')
    plot_results(runs, y="val_loss")
    note = "note: losses and errors per char (text) and samples (images) are in one panel\n"
    assert capsys.readouterr().err == note
    plot_results(runs[:1], y="val_loss")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("kind", "given", "line"),
    [
        ("layers", {"y": "val_loss"}, "y has no effect on a figure of layers, got val_loss; leave"),
        ("time", {"y": ["lr", "kept"]}, "y has no effect on a figure of time, got lr, kept; leave"),
        ("pareto", {"smooth": 3}, "smooth has no effect on a figure of pareto, got 3; leave it"),
        ("partition", {"each": True}, "each has no effect on a figure of partition; leave it out"),
    ],
)
def test_a_kind_refuses_what_it_has_no_use_for(tmp_path, kind, given, line):
    with pytest.raises(SettingError) as refused:
        plot_results([make(tmp_path)], kind=kind, **given)
    assert str(refused.value).startswith(line)
