import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.colors import to_hex
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from simsgd.cli import main
from simsgd.communication.topology import topology
from simsgd.results.config_values import OF_THE_MACHINE
from simsgd.results.figures import style
from simsgd.results.figures.canvas import NotebookFigure
from simsgd.results.figures.graph_layout import places_of
from simsgd.results.figures.legends import settle
from simsgd.results.figures.pareto import Point, frontier
from simsgd.results.figures.plot import KINDS, plot_results
from simsgd.results.figures.point_labels import name_nearby
from simsgd.results.figures.run_groups import grouped
from simsgd.results.figures.series import running_mean
from simsgd.results.figures.style import THEMES, Look, look_of, marker_of, save
from simsgd.results.network import Network
from simsgd.results.pricing import Pricing
from simsgd.results.run import Run
from simsgd.results.step_times import step_times
from simsgd.results.tables import EPOCH_COLUMNS, NOISE_STEP_COLUMNS, STEP_COLUMNS
from simsgd.settings import SettingError
from simsgd.training.run_folder import RunFolder


def make(folder, name="run", errors=(60.0, 9.0, 4.0), sent=2**20, layers=0, config=None):
    """Return a run of two steps an epoch; `config` is what it has beside its seed."""
    seed = int(name[-1]) if name[-1].isdigit() else 0
    kept = {"workers": 4, "seed": seed, "name": name, "algorithm": "dpsgd", "topology": None}
    kept |= {"partition": "sorted"} | (config or {})
    run = RunFolder.create(folder, name, kept)
    sizes = dict.fromkeys(("payload_bytes", "payload_bytes_max", "slowest_bytes"), sent // 2)
    usual = {"segments": 1, "messages": 1, "rounds": 1, "degree": 0, "sending": 1, **sizes}
    columns = NOISE_STEP_COLUMNS if kept.get("noise_scale") else STEP_COLUMNS
    for step in range(1, 2 * len(errors) + 1):
        row = dict.fromkeys(columns, 0.5) | {"step": step, "epoch": (step - 1) // 2}
        whole = {"dense_bytes": 2**20, "network_bytes": 1, "sent_elements": 1, "samples": 8}
        least = {"payload_bytes_min": 1, "payload_bytes_max": 1, "busiest_link_bytes": 1}
        least |= {"received_bytes": 1, "received_bytes_max": 1}
        run.add_step(row | whole | least | {"payload_bytes": sent // 2, "loss": float(step)})
        run.add_transfers([{"step": step, "collective": "all-gather", **usual}])
        if layers:
            run.add_layers([_layer(step, i) for i in range(layers)])
    run.flush_steps()
    run.add_partition([{"worker": i, "class": i // 2, "samples": 10 * i + 1} for i in range(4)])
    for epoch, error in enumerate(errors):
        same = {"epoch": epoch, "step": 2 * (epoch + 1), "val_loss": 1, "val_error5": 0}
        run.add_workers([same | {"worker": i, "val_error1": error + i} for i in range(4)])
        row = dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": epoch, "step": 2 * (epoch + 1)}
        total = {"payload_bytes": sent * (epoch + 1), "dense_bytes": 2**21 * (epoch + 1)}
        run.add_epoch(row | total | {"val_error1": error})
    return Run(run.folder)


def _layer(step, i):
    sent = 4 * 10 ** (i % 6) * ((step + 1) // 2)
    known = {"step": step, "segment": f"layer{i}.weight", "elements": 10 ** (i % 6)}
    return {
        **known,
        "payload_bytes": sent,
        "sent_elements": 1,
        "relative_error": 0.25 * (i % 4),
        "memory_norm": 1.0,
    }


def seeds(folder, stem, number=2, **settings):
    config = {"compressor": stem}
    return [
        make(folder, f"{stem}-seed{seed}", (60, 9, 4 + seed), config=config, **settings)
        for seed in range(number)
    ]


def lines(axes):
    """Return the lines of runs: not the dots of the best, nor what leads to a name."""
    own = [line for line in axes.lines if line.get_transform() == axes.transData]
    return [line for line in own if line.get_markersize() < 8]


def visible_texts(figure):
    """Return every text that is seen, with its box: names, and the numbers along the axes."""
    figure.draw_without_rendering()
    clipped = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for label in labels_outside_the_view(axis)
    }
    return [
        (text.get_text(), Text.get_window_extent(text))
        for text in figure.findobj(Text)
        if text.get_text() and text.get_visible() and text not in clipped
    ]


def labels_outside_the_view(axis):
    """Return the labels of ticks beyond the ends of an axis, which matplotlib does not draw."""
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [tick.label1 for tick in ticks if not low <= tick.get_loc() <= high]


# which runs belong together


@pytest.mark.slow
def test_runs_that_differ_in_their_seed_alone_are_one(tmp_path):
    groups = grouped([*seeds(tmp_path, "sign", 3), *seeds(tmp_path, "topk", 2)])
    assert [(group.name, len(group.runs)) for group in groups] == [("sign", 3), ("topk", 2)]


def test_runs_of_the_same_seed_are_not_averaged(tmp_path):
    runs = [make(tmp_path / place, "again-seed1") for place in "ab"]
    assert [len(group.runs) for group in grouped(runs)] == [1, 1]


def test_any_other_setting_keeps_runs_apart(tmp_path):
    runs = [make(tmp_path, f"run-seed{i}", config={"lr": i}) for i in range(2)]
    assert [group.name for group in grouped(runs)] == ["lr 0", "lr 1"]


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("setting", sorted(OF_THE_MACHINE))
def test_settings_that_change_no_number_do_not(tmp_path, setting):
    runs = [make(tmp_path, f"run-seed{i}", config={setting: i}) for i in range(2)]
    assert len(grouped(runs)) == 1


def test_each_run_may_be_drawn_by_itself(tmp_path):
    assert len(grouped(seeds(tmp_path, "sign"), average=False)) == 2


def test_runs_named_by_date_go_by_their_recipe(tmp_path):
    config = {"model": "lenet", "compressor": "sign"}
    runs = [make(tmp_path, f"2026112{i}-0{i}", config=config) for i in range(2)]
    assert [group.name for group in grouped(runs)] == ["lenet sign, 4 workers"]


# curves


def test_the_line_of_several_seeds_is_their_mean_and_the_band_their_range(tmp_path):
    axes = plot_results(seeds(tmp_path, "sign", 3)).axes[0]
    (line,) = lines(axes)
    assert line.get_ydata().tolist() == [60, 9, 5]
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).y0 == 4
    assert {4.0, 6.0} <= set(band.get_paths()[0].vertices[:, 1].tolist())


def test_seeds_that_ended_elsewhere_are_drawn_as_far_as_all_go(tmp_path):
    runs = [make(tmp_path, "run-seed0", (9, 8, 7)), make(tmp_path, "run-seed1", (9, 8))]
    assert len(lines(plot_results(runs).axes[0])[0].get_xdata()) == 2


def test_simulated_seconds_add_up_to_the_ends_of_epochs(tmp_path):
    run, link = make(tmp_path), Network.of("10gbe")
    axes = plot_results([run], x="seconds", network="10gbe").axes[0]
    since = step_times(run, link)["total"].cumsum().to_numpy()
    assert lines(axes)[0].get_xdata().tolist() == since[[1, 3, 5]].tolist()
    assert axes.get_xlabel() == "simulated seconds on 10gbe"


def test_seconds_follow_the_pricing(tmp_path):
    run = make(tmp_path)
    axes = plot_results([run], x="seconds", network="nvlink", compute_ms=1000, compress_ms=0).axes[
        0
    ]
    assert lines(axes)[0].get_xdata()[-1] == pytest.approx(6, rel=1e-3)


def test_a_smoothed_line_has_what_it_was_behind_it(tmp_path):
    axes = plot_results([make(tmp_path)], x="step", y="loss", smooth=3).axes[0]
    raw, smooth = lines(axes)
    assert (raw.get_ydata().tolist(), smooth.get_ydata().tolist()) == (
        [1, 2, 3, 4, 5, 6],
        [1, 1.5, 2, 3, 4, 5],
    )


@pytest.mark.parametrize("points", [1, 2, 5, 100])
def test_the_running_mean_is_that_of_a_loop(points):
    values = np.random.default_rng(0).normal(size=30)
    slow = [values[max(0, i - points + 1) : i + 1].mean() for i in range(30)]
    np.testing.assert_allclose(running_mean(values, points), slow, rtol=1e-12)


# pareto


def point(x, y):
    return Point("", x, y, [x], [y], Look("black"))


def test_the_frontier_has_nothing_below_and_left_of_it():
    points = [point(1, 9), point(2, 5), point(3, 7), point(4, 2), point(5, 2)]
    assert frontier(points) == [(1, 9), (2, 9), (2, 5), (4, 5), (4, 2)]


def test_the_frontier_of_one_is_itself():
    assert frontier([point(3, 4)]) == [(3, 4)]


@pytest.mark.slow
def test_a_point_is_the_end_of_its_runs_with_bars_from_least_to_most(tmp_path):
    axes = plot_results(seeds(tmp_path, "sign", 3), kind="pareto").axes[0]
    ends = [line.get_xydata().tolist() for line in axes.lines]
    assert [[3 * 2**20, 5.0]] in ends
    assert [[3 * 2**20, 4.0], [3 * 2**20, 6.0]] in ends


def test_up_to_49_points_and_28_lines_are_distinguished():
    points = {(look.color, look.marker) for look in map(marker_of, range(49))}
    drawn = [look_of(place, marked=False) for place in range(28)]
    assert len(points) == 49
    assert len({(look.color, look.linestyle) for look in drawn}) == 28
    marked = [look_of(place, marked=True) for place in range(28)]
    assert len({(look.color, look.marker) for look in marked}) == 28


@pytest.mark.slow
def test_labels_and_what_leads_to_them_cross_nothing():
    """Points crowded along a frontier, with bars, in a figure one column wide."""
    figure = NotebookFigure(3.35, 2.2)
    axes = figure.subplots()
    names = ["topk:0.01+terngrad", "topk:0.01", "prune 0.999", "powersgd:2", "sign", "dense"]
    at = [(2.4, 1.7), (4.3, 1.66), (5.8, 1.77), (5.9, 1.26), (6.4, 3.9), (190, 1.3)]
    points = [
        Point(name, x, y, [x, x], [y - 0.2, y + 0.2], marker_of(place))
        for place, (name, (x, y)) in enumerate(zip(names, at, strict=True))
    ]
    axes.set(xscale="log", xlim=(1.8, 300), ylim=(0.6, 4.4))
    settle(figure)
    assert name_nearby(axes, points, frontier(points))
    labels = [text.get_window_extent() for text in axes.texts if text.get_text()]
    markers = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in axes.transData.transform(at)]
    bars = [axes.transData.transform([(x, y - 0.2), (x, y + 0.2)]) for x, y in at]
    leads = [text for text in axes.texts if not text.get_text()]
    assert leads
    boxes = [*labels, *markers, *(Bbox([low, high]).padded(0.5) for low, high in bars)]
    for place, label in enumerate(labels):
        assert not any(label.overlaps(b) for number, b in enumerate(boxes) if number != place)
    for lead in leads:
        line = axes.transData.transform([lead.xyann, lead.xy])
        inner = line[0] + np.linspace(0.05, 0.9, 20)[:, None] * (line[1] - line[0])
        ends = np.hypot(*(line[1] - axes.transData.transform(at)).T)
        others = [*labels, *(m for m, far in zip(markers, ends, strict=True) if far > 1)]
        assert not any(box.contains(*spot) for box in others for spot in inner)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["curves", "pareto", "layers"])
def test_a_figure_can_be_gone_on_with_in_matplotlib(tmp_path, kind):
    runs = [*seeds(tmp_path / "r", "sign", layers=2), *seeds(tmp_path / "r", "topk", layers=2)]
    figure = plot_results(runs, kind=kind)
    axes = figure.axes[0]
    assert axes.get_legend_handles_labels()[1] == ["sign", "topk"]
    figure.savefig(tmp_path / "without.png", dpi=50)
    axes.set_title("A title")
    figure.savefig(tmp_path / "with.png", dpi=50)
    figure.savefig(tmp_path / "with.pdf")
    without, titled = (imread(tmp_path / f"{name}.png") for name in ("without", "with"))
    above = titled.shape[0] - without.shape[0]
    assert above > 5
    assert titled.shape[1] == without.shape[1]
    assert (titled[:above] < 0.5).any()
    assert b"/Type3" not in (tmp_path / "with.pdf").read_bytes()


def test_the_dot_of_the_best_is_whole_at_the_end_of_an_axis_and_cut_beyond(tmp_path):
    run = make(tmp_path)
    dots = [plot_results([run], xlim=limits).axes[0].lines[1] for limits in ((1, 3), (1, 2))]
    assert [dot.get_clip_on() for dot in dots] == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 6])
def test_a_run_of_one_epoch_is_a_dot_that_is_seen(tmp_path, others):
    for other in range(others):
        make(tmp_path, f"before-{other}", config={"lr": other})
    make(tmp_path, "one", (60.0,), config={"compressor": "sign"})
    runs = [Run(path) for path in sorted(tmp_path.iterdir())]
    dot = lines(plot_results(runs, y="ratio").axes[0])[others]
    assert (dot.get_marker(), dot.get_markevery(), len(dot.get_xdata())) == ("o", None, 1)


# layers


@pytest.mark.slow
def test_layers_are_means_over_the_last_epoch(tmp_path):
    left, right = plot_results([make(tmp_path, layers=3)], kind="layers").axes
    assert left.lines[0].get_xdata().tolist() == [12, 120, 1200]
    assert right.lines[0].get_xdata().tolist() == [0, 0.25, 0.5]
    assert [label.get_text() for label in left.get_yticklabels()][2] == "layer2.weight  100"


def test_a_run_without_layers_is_refused_with_how_to_have_them(tmp_path):
    with pytest.raises(SettingError, match=r"^run has no layers.csv.*train it with --log-layers$"):
        plot_results([make(tmp_path)], kind="layers")


# time


def test_a_bar_is_compute_compression_and_communication(tmp_path):
    how = Pricing(compute_ms=5, compress_ms=2)
    run = make(tmp_path, sent=2**19)
    figure = plot_results([run], kind="time", network=["1gbe", "wan"], compute_ms=5, compress_ms=2)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["1gbe", "wan"]
    for axes, name in zip(figure.axes, ("1gbe", "wan"), strict=True):
        mean = 1000 * step_times(run, Network.of(name), how)["communication"].mean()
        assert [bar.get_width() for bar in axes.patches] == pytest.approx([5, 2, mean])
        assert [bar.get_x() for bar in axes.patches] == pytest.approx([0, 5, 7])


@pytest.mark.slow
def test_bars_are_sorted_by_time_unless_an_order_is_asked_for(tmp_path):
    runs = [make(tmp_path, name, sent=2**size) for name, size in (("a", 20), ("b", 22), ("c", 16))]

    def drawn(**settings):
        figure = plot_results(runs, kind="time", network="wan", compute_ms=5, **settings)
        axes = figure.axes[0]
        texts = [float(t.get_text().split()[0].replace(",", "")) for t in axes.texts]
        return [label.get_text() for label in axes.get_yticklabels()], texts

    names, milliseconds = drawn()
    assert (names, milliseconds) == (["c", "a", "b"], sorted(milliseconds))
    assert drawn(order=["b"])[0] == drawn(order="b")[0] == ["b", "a", "c"]


# topology


def dots(axes):
    return [line for line in axes.lines if line.get_marker() == "o"]


def edges(axes):
    """Return the width of each line between two places."""
    return {
        tuple(map(tuple, segment.round(3))): width
        for some in axes.collections
        for segment, width in zip(some.get_segments(), some.get_linewidths(), strict=True)
    }


def test_a_topology_has_a_dot_for_each_worker_and_a_line_for_each_pair_that_exchanges(tmp_path):
    figure = plot_results([make(tmp_path, config={"workers": 8})], kind="topology")
    assert len(dots(figure.axes[0])) == 8
    assert len(edges(figure.axes[0])) == 8
    assert figure.axes[0].get_xlabel() == "ring, W = 8\ndegree 2, gap 0.195"


def test_lines_are_as_wide_as_weights(tmp_path):
    path = tmp_path / "weights.txt"
    path.write_text("0.5 0.3 0.2\n0.3 0.7 0\n0.2 0 0.8\n")
    run = make(tmp_path, config={"workers": 3, "topology": str(path)})
    axes = plot_results([run], kind="topology").axes[0]
    assert axes.get_xlabel().startswith("weights.txt, W = 3")
    widths = edges(axes).values()
    assert max(widths) / min(widths) == pytest.approx(1.5)
    assert len(widths) == 2


@pytest.mark.slow
def test_workers_are_as_dark_as_the_mean_of_their_last_errors(tmp_path):
    figure = plot_results(seeds(tmp_path, "sign", 3), kind="topology")
    axes, bar = figure.axes
    fills = [dot.get_markerfacecolor()[:3] for dot in dots(axes)]
    light = [sum(fill) for fill in fills]
    assert light == sorted(light, reverse=True)
    assert bar.get_ylim() == (5, 8)


def test_workers_without_errors_are_white_and_there_is_no_scale(tmp_path):
    run = make(tmp_path)
    (run.folder / "workers.csv").unlink()
    figure = plot_results([run], kind="topology")
    assert len(figure.axes) == 1
    assert {to_hex(d.get_markerfacecolor()) for d in dots(figure.axes[0])} == {"#ffffff"}


def test_a_torus_leads_out_where_its_borders_meet(tmp_path):
    run = make(tmp_path, config={"workers": 12, "topology": "torus"})
    inside, out = plot_results([run], kind="topology").axes[0].collections
    assert (len(inside.get_segments()), len(out.get_segments())) == (17, 2 * 7)


def test_neighbors_on_the_circle_of_a_hypercube_exchange():
    graph = topology("hypercube", 16).graph()
    at = {place: worker for worker, place in enumerate(places_of("hypercube", graph).dots)}
    around = sorted(at, key=lambda place: np.arctan2(*place))
    pairs = zip(around, [*around[1:], around[0]], strict=True)
    assert all(graph.has_edge(at[a], at[b]) for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "workers"),
    [("ring", 2), ("star", 2), ("star", 9), ("torus", 18), ("social", 32), ("margulis", 25),
     ("erdos-renyi:0.2", 32), ("one-peer", 6), ("path", 5)],
)  # fmt: skip
def test_dots_lie_within_the_panel_and_apart(name, workers):
    places = places_of(name, topology(name, workers).graph())
    assert len(places.dots) == workers
    assert np.abs(places.dots).max() <= 1 + 1e-9
    assert places.least_distance > min(2, 1 / np.sqrt(workers))


def test_a_run_that_has_no_topology_is_refused_with_those_that_have_one(tmp_path):
    run = make(tmp_path, config={"algorithm": "local"})
    error = r"^run has no topology: algorithm local has no neighbors.*draw a run of dpsgd"
    with pytest.raises(SettingError, match=error):
        plot_results([run], kind="topology")


# partition


def test_the_areas_of_dots_are_samples(tmp_path):
    axes = plot_results([make(tmp_path)], kind="partition").axes[0]
    (dots,) = axes.collections
    assert dots.get_offsets().tolist() == [[0, 0], [1, 0], [2, 1], [3, 1]]
    areas = dots.get_sizes()
    assert (areas / areas.max()).tolist() == pytest.approx([1 / 31, 11 / 31, 21 / 31, 1])
    assert axes.get_xlabel() == "worker\nsorted\nlargest dot: 31 samples"


@pytest.mark.slow
def test_equal_partitions_share_a_panel(tmp_path):
    figure = plot_results(seeds(tmp_path, "sign", 3), kind="partition")
    assert [axes.get_title() for axes in figure.axes] == ["sign-seed0, sign-seed1, sign-seed2"]


@pytest.mark.slow
def test_partitions_of_several_seeds_are_drawn_one_by_one(tmp_path):
    runs = seeds(tmp_path, "sign", 3)
    for number, run in enumerate(runs):
        text = (run.folder / "partition.csv").read_text()
        (run.folder / "partition.csv").write_text(text + f"3,0,{number + 1}\n")
    figure = plot_results(runs, kind="partition")
    assert [axes.get_title() for axes in figure.axes] == [f"sign-seed{seed}" for seed in range(3)]


def test_a_run_without_a_partition_is_refused_with_how_to_have_one(tmp_path):
    run = make(tmp_path)
    (run.folder / "partition.csv").unlink()
    with pytest.raises(SettingError, match=r"^run has no partition.csv.*with --partition sorted"):
        plot_results([run], kind="partition")


# how it looks

CROWDS = {
    "five": lambda folder: [
        run
        for place, stem in enumerate(("dense", "topk:0.01", "sign", "powersgd:2", "dgc"))
        for run in seeds(folder, stem.replace(":", "-"), sent=2 ** (13 + 2 * place), layers=5)
    ],
    "one": lambda folder: [make(folder, layers=1)],
    "equal": lambda folder: [make(folder / f"{i}", layers=2) for i in range(4)],
    "eighteen long names": lambda folder: [
        make(folder, f"20261127-231500-lenet-mnist5k-w16-prune0.{i}", sent=2 ** (9 + i), layers=1)
        for i in range(18)
    ],
    "deep": lambda folder: [make(folder, layers=18)],
}


@pytest.fixture(scope="module", params=CROWDS)
def crowd(request, tmp_path_factory):
    return CROWDS[request.param](tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["screen", "paper"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_text_overlaps_another_or_leaves_the_figure(crowd, kind, theme):
    network = ("wan", "10gbe") if kind in ("time", "timeline") else ()
    x = "bytes" if kind in ("curves", "pareto") else None
    figure = plot_results(crowd, kind=kind, network=network, theme=theme, x=x)
    shown = visible_texts(figure)
    pairs = itertools.combinations(shown, 2)
    assert [(a, b) for (a, box), (b, other) in pairs if box.overlaps(other)] == []
    edge = figure.bbox.padded(1)
    out = [word for word, box in shown if not all(edge.contains(*c) for c in box.corners())]
    assert out == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_for_paper_is_one_column_wide_and_set_in_eight_points(tmp_path, kind):
    network = "10gbe" if kind in ("time", "timeline") else ()
    path = tmp_path / "figure.pdf"
    runs = seeds(tmp_path, "sign", layers=2)
    figure = plot_results(runs, kind=kind, network=network, theme="paper", output=path)
    assert figure.get_size_inches()[0] == pytest.approx(3.35)
    assert max(t.get_fontsize() for t in figure.findobj(Text) if t.get_text()) <= 8
    assert b"/Type0" in path.read_bytes()  # an embedded TrueType font, not Type 3
    assert b"/Type3" not in path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_figure_is_written_twice_to_the_letter(tmp_path, kind):
    network = "10gbe" if kind in ("time", "timeline") else ()
    runs = seeds(tmp_path, "sign", layers=2)
    for name in ("a.pdf", "b.pdf"):
        plot_results(runs, kind=kind, network=network, output=tmp_path / name)
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


# mistakes


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"kind": "curve"}, "kind is not known, got curve; did you mean curves"),
        ({"theme": "dark"}, "theme is not known, got dark"),
        ({"smooth": 0}, "smooth must be at least 1, got 0"),
        ({"kind": "pareto", "smooth": 5}, "smooth has no effect on a figure of pareto, got 5"),
        ({"network": "10gbe"}, "network has no effect here, got 10gbe; use it with x seconds"),
        ({"overlap": True}, "overlap has no effect here"),
        ({"x": "seconds"}, "network must be one for simulated seconds; such as 10gbe"),
        ({"x": "seconds", "network": ["wan", "1gbe"]}, "network must be one for simulated seconds"),
        ({"kind": "time"}, "network must be given; such as 10gbe"),
        ({"kind": "timeline"}, "network must be given; such as 10gbe"),
        ({"kind": "time", "network": "slow"}, "network is not known, got slow"),
        ({"kind": "pareto", "y": ("lr", "kept")}, "y must be one column, got lr, kept"),
    ],
)
def test_a_wrong_figure_is_refused_in_one_line(tmp_path, settings, error):
    with pytest.raises(SettingError, match=f"^{error}"):
        plot_results([make(tmp_path)], **settings)


@pytest.mark.parametrize("kind", ["pareto", "layers", "time", "timeline"])
def test_a_run_that_has_nothing_yet_is_refused_in_one_line(tmp_path, kind):
    network = "10gbe" if kind in ("time", "timeline") else ()
    with pytest.raises(SettingError, match=r"^run has no"):
        plot_results([make(tmp_path, errors=())], kind=kind, network=network)


@pytest.mark.slow
def test_the_command_draws_every_kind(tmp_path):
    seeds(tmp_path / "runs", "sign", layers=2)
    for kind in KINDS:
        output = tmp_path / f"{kind}.svg"
        network = ["--network", "10gbe"] if kind in ("time", "timeline") else []
        done = CliRunner().invoke(
            main,
            ["plot-results", str(tmp_path / "runs"), "--kind", kind, *network, "-o", str(output)],
        )
        assert (done.exit_code, done.output.strip()) == (0, str(output)), done.output
        assert output.exists()


@pytest.mark.slow
def test_drawing_loads_no_torch(tmp_path):
    folder = str(make(tmp_path, layers=2).folder)
    code = (
        "import sys; from simsgd.results.figures.plot import plot_results\n"
        f"plot_results([{folder!r}], kind='time', network='wan')\n"
        "sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_letters_without_a_font_are_told_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(style, "_OTHER_FONTS", ())
    with THEMES["screen"].drawing():
        figure = NotebookFigure(1, 1, title="\u00e9 \u8bad\u7ec3")
        save(figure, tmp_path / "a.png", dpi=20)
        save(figure, tmp_path / "a.svg", dpi=20)
    told = "note: no font here has \u7ec3\u8bad, and boxes stand for them; an .svg has them\n"
    assert capsys.readouterr().err == told


@pytest.mark.slow
def test_a_backend_that_matplotlib_does_not_know_is_told():
    code = "from simsgd.results.figures.style import screen_look; screen_look().__enter__()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MPLBACKEND": "nosuch"},
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = "SettingError: MPLBACKEND is no backend that matplotlib knows, got nosuch; unset it"
    assert done.stderr.splitlines()[-1].endswith(told)
