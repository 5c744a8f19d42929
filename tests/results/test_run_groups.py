import pytest

from simsgd.results.figures.plot import plot_results
from simsgd.results.figures.run_groups import grouped
from simsgd.results.figures.style import NUM_LOOKS
from simsgd.results.run import Run
from simsgd.results.tables import EPOCH_COLUMNS
from simsgd.training.run_folder import RunFolder


def made(folder, name, **config):
    run = RunFolder.create(folder, name, {"workers": 4, "seed": 0, **config})
    run.add_epoch(dict.fromkeys(EPOCH_COLUMNS, 1) | {"epoch": 0})
    return Run(run.folder)


def names(runs):
    return [group.name for group in grouped(runs)]


def test_a_seed_is_no_part_of_a_name(tmp_path):
    runs = [made(tmp_path, "topk-seed0", lr=1), made(tmp_path, "sign-seed0", lr=2)]
    assert names(runs) == ["topk", "sign"]


def test_words_with_which_all_names_begin_are_left_out(tmp_path):
    runs = [made(tmp_path, f"lenet-w16-{own}", lr=i) for i, own in enumerate(("topk", "sign"))]
    assert names(runs) == ["topk", "sign"]


def test_numbers_alone_are_no_names(tmp_path):
    runs = [made(tmp_path, f"topk-0.{i}", lr=i) for i in (1, 2)]
    assert names(runs) == ["topk-0.1", "topk-0.2"]


def test_automatic_names_give_way_to_the_settings_that_differ(tmp_path):
    given = [{"compressor": "topk:0.01"}, {"compressor": "sign", "lr": 0.5}, {}]
    runs = [
        made(tmp_path, f"20261127-23150{i}-lenet-mnist5k-w4", model="lenet", **settings)
        for i, settings in enumerate(given)
    ]
    assert names(runs) == ["topk:0.01", "sign, lr 0.5", "dense"]


def test_seeds_of_automatic_names_are_one(tmp_path):
    runs = [
        made(tmp_path, f"20261127-23150{i}{j}-lenet", compressor=compressor, seed=j)
        for i, compressor in enumerate(("sign", "topk:0.1"))
        for j in range(2)
    ]
    assert names(runs) == ["sign", "topk:0.1"]


@pytest.mark.slow
def test_a_method_has_the_same_color_in_every_figure_of_its_folder(tmp_path):
    runs = {name: made(tmp_path, name, compressor=name) for name in ("a", "b", "c", "d", "e")}
    colors = {line.get_label(): line for line in plot_results([runs["d"]]).axes[0].lines[:1]}
    alone = next(iter(colors.values())).get_color()
    places = {group.name: group.place for group in grouped([runs["e"], runs["d"], runs["a"]])}
    assert places == {"a": 0, "d": 3, "e": 4}
    assert plot_results([runs["a"], runs["d"]]).axes[0].lines[2].get_color() == alone
    points = plot_results([runs["d"]], kind="pareto").axes[0].lines
    assert points[-1].get_color() == alone


@pytest.mark.slow
def test_a_method_has_the_same_color_in_figures_of_all_folders_beside_and_of_one(tmp_path):
    places = {}
    for folder, methods in (("first", ("a", "b", "c")), ("second/deeper", ("d", "e"))):
        for name in methods:
            places[name] = made(tmp_path / folder, name, compressor=name), len(places)
    beside = made(tmp_path, "third", compressor="f")
    (tmp_path / "figures").mkdir()  # without folders: it does not matter
    for run, place in (*places.values(), (beside, 5)):
        if run.folder.parent.name != "deeper":
            assert [group.place for group in grouped([run])] == [place]
    every = [run for run, _ in places.values()]
    assert [group.place for group in grouped([*every, beside])] == [0, 1, 2, 3, 4, 5]
    for i in range(NUM_LOOKS):  # more than there are looks: those of its own folder
        made(tmp_path / "first", f"more-{i}", compressor=f"m{i}")
    assert [group.place for group in grouped([places["e"][0]])] == [1]


def test_runs_beside_other_folders_are_counted_alone(tmp_path):
    made(tmp_path / "first", "a", compressor="a")
    run = made(tmp_path / "second", "b", compressor="b")
    assert [group.place for group in grouped([run])] == [1]
    (tmp_path / "code/package").mkdir(parents=True)
    assert [group.place for group in grouped([run])] == [0]


def test_a_link_to_a_folder_of_runs_ends_no_search(tmp_path):
    run = made(tmp_path / "first", "a", compressor="a")
    (tmp_path / "first/again").symlink_to(tmp_path)
    assert [group.place for group in grouped([run])] == [0]


def test_runs_that_have_names_leave_the_settings_of_others_short(tmp_path):
    swept = [made(tmp_path / "s", f"run{i}", compressor=c) for i, c in enumerate(("none", "sign"))]
    (tmp_path / "s/sweep.json").write_text("{}")
    other = made(tmp_path, "ring", workers=8, compressor="topk:0.1", algorithm="dpsgd")
    assert names([*swept, other]) == ["dense", "sign", "ring"]
    assert names([swept[1], other]) == ["workers 4, sign", "ring"]


def test_another_seed_does_not_change_the_color(tmp_path):
    for seed in range(3):
        made(tmp_path, f"a-seed{seed}", compressor="a", seed=seed)
        made(tmp_path, f"b-seed{seed}", compressor="b", seed=seed)
    assert [group.place for group in grouped([Run(tmp_path / "b-seed2")])] == [1]


def test_a_damaged_neighbor_is_passed_over(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.json").write_text("{")
    assert grouped([made(tmp_path, "b")])[0].place == 0


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [2, NUM_LOOKS])
def test_no_two_lines_of_a_figure_look_the_same(tmp_path, drawn):
    runs = [made(tmp_path, f"run-{i}", lr=i) for i in range(NUM_LOOKS + 1)]
    places = [group.place % NUM_LOOKS for group in grouped(runs[:1] + runs[-drawn + 1 :])]
    assert len(set(places)) == drawn


def test_runs_of_a_sweep_are_named_by_what_was_asked_for(tmp_path):
    given = [
        {"compressor": "none", "memory": "none"},
        {"compressor": "topk:0.01+terngrad", "memory": "residual"},
        {"prune": 0.999, "memory": "dgc"},
    ]
    runs = [made(tmp_path, f"run{i}", **settings) for i, settings in enumerate(given)]
    (tmp_path / "sweep.json").write_text("{}")
    assert names(runs) == ["dense", "topk:0.01+terngrad", "prune 0.999"]
    more = made(tmp_path, "run3", prune=0.999, memory="residual")
    assert names([*runs[2:], more]) == ["dgc", "residual"]


def test_runs_with_the_same_settings_are_told_apart_by_where_their_folders_part(tmp_path):
    runs = [made(tmp_path / place, "20261127-231501", lr=lr) for place, lr in (("a", 1), ("b", 1))]
    other = made(tmp_path / "b", "20261127-231502", lr=2)
    expected = ["lr 1 (a/20261127-231501)", "lr 1 (b/20261127-231501)", "lr 2"]
    assert names([*runs, other]) == expected
