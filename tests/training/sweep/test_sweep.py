import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import simsgd
from simsgd.cli import main
from simsgd.results.outcome import measures_of
from simsgd.results.sweep import part_done
from simsgd.settings import SettingError
from simsgd.training.sweep import sweep as sweeping
from simsgd.training.sweep.precheck import refusal
from simsgd.training.sweep.process_pool import Ending, make_run

TINY = {
    "model": "mlp",
    "model_config": "hidden=8",
    "dataset": "digits",
    "workers": 2,
    "batch_size": 60,
    "epochs": 2,
}
WORDS = [word for pair in TINY.items() for word in (f"--{pair[0].replace('_', '-')}", str(pair[1]))]


class Here:
    """A launcher that makes each run at once, in this process."""

    def __init__(self):
        self.jobs, self.started = 1, []

    def check(self, settings, request):
        return refusal(settings)

    def start(self, settings):
        self.started.append(settings)
        return Made(make_run(settings))

    def close(self):
        pass


class Made:
    def __init__(self, ending):
        self.ending = ending

    def ended(self):
        return self.ending

    def stop(self):
        pass

    def wait(self):
        pass


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of its own, and sweeps that stay in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeping, "_PAUSE", 0)
    launcher = Here()
    monkeypatch.setattr(sweeping, "launcher_of", lambda *words: launcher)
    return launcher


@pytest.mark.parametrize("wrong", ["./none.py:Mine", "nosuch:1", "topk:9"])
def test_a_spec_that_is_wrong_wherever_it_stands_makes_nothing(here, tmp_path, wrong):
    with pytest.raises(SettingError, match="compressor"):
        simsgd.sweep(**TINY, compressor=["none", wrong], lr=[0.1, 0.2])
    assert here.started == []
    assert not [*tmp_path.iterdir()]


def test_a_removed_working_directory_is_told_in_one_line(here, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SettingError, match=r"runs_dir cannot be made \(No such file"):
        simsgd.sweep(**TINY, lr=[0.1, 0.2])
    monkeypatch.chdir(tmp_path)


def test_an_empty_folder_is_no_place_for_a_sweep():
    with pytest.raises(SettingError, match="runs_dir must not be empty"):
        simsgd.sweep(**TINY, lr=[0.1, 0.2], runs_dir="")


def sweep(**settings):
    return simsgd.sweep(**{**TINY, "quiet": True, **settings})


@pytest.mark.slow
def test_a_sweep_makes_every_run_and_their_means(here, tmp_path):
    left = sweep(compressor=["none", "topk:0.01"], seeds=2, runs_dir="made")
    assert sorted(run.name for run in left.runs) == [
        "no-compressor-seed0", "no-compressor-seed1", "topk-0.01-seed0", "topk-0.01-seed1",
    ]  # fmt: skip
    errors = [simsgd.Run(f"made/topk-0.01-seed{seed}").last.val_error1 for seed in (0, 1)]
    row = left.table.set_index("compressor").loc["topk:0.01"]
    assert row.seeds == 2
    assert row.val_error1_mean == pytest.approx(sum(errors) / 2)
    assert row.val_error1_std == pytest.approx(abs(errors[0] - errors[1]) / 2**0.5)
    written = pd.read_csv(tmp_path / "made/sweep.csv", keep_default_na=False)
    assert written["val_error1_mean"].tolist() == left.table["val_error1_mean"].tolist()
    assert list(written) == [
        "compressor", "seeds", *(f"{m}_{of}" for m in measures_of([]) for of in ("mean", "std")),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_of_a_sweep_is_the_run_that_train_makes(here):
    sweep(prune=[0.9], memory=["none"], runs_dir="made")
    alone = simsgd.train(**TINY, prune=0.9, memory="none", name="alone", quiet=True)
    made = simsgd.Run("made/seed0")
    assert made.steps["loss"].tolist() == alone.steps["loss"].tolist()


@pytest.mark.slow
def test_what_is_done_is_not_done_again(here):
    sweep(lr=[0.1, 0.2], runs_dir="made")
    here.started.clear()
    left = sweep(lr=[0.1, 0.2], runs_dir="made", log_every=7)
    assert here.started == []
    assert left.table["seeds"].tolist() == [1, 1]


@pytest.mark.slow
def test_a_folder_of_another_run_and_one_that_cannot_be_read_are_told_and_left_out(here):
    sweep(lr=[0.1, 0.2], seeds=2, runs_dir="made")
    simsgd.train(resume="made/lr0.1-seed0", epochs=3, quiet=True)
    simsgd.train(**TINY, lr=0.3, seed=1, runs_dir="made", name="lr0.1-seed1", overwrite=True)
    Path("made/lr0.2-seed0/epochs.csv").write_text("x\n1\n2\n")
    left = sweep(lr=[0.1, 0.2], seeds=2, runs_dir="made")
    other = "runs_dir holds another run, with {}, got made/{}; remove it, or name another folder"
    assert left.failures == {
        "lr0.1-seed0": other.format("epochs 3 and not 2", "lr0.1-seed0"),
        "lr0.1-seed1": other.format("lr 0.3 and not 0.1", "lr0.1-seed1"),
        "lr0.2-seed0": "run is damaged: its rows cannot be read, got made/lr0.2-seed0/epochs.csv",
    }
    assert left.table["seeds"].tolist() == [0, 1]


@pytest.mark.slow
def test_a_sweep_can_be_widened_and_its_runs_keep_their_names(here):
    sweep(runs_dir="made")
    here.started.clear()
    left = sweep(lr=[0.1, None], seeds=2, runs_dir="made")
    assert len(here.started) == 3
    assert left.settings.keys() == {"seed0", "no-lr-seed1", "lr0.1-seed0", "lr0.1-seed1"}
    assert dict(zip(left.table["lr"], left.table["seeds"], strict=True)) == {"none": 2, "0.1": 2}


@pytest.mark.slow
def test_what_stopped_goes_on_to_the_same_end(here):
    whole = sweep(runs_dir="whole")
    sweep(runs_dir="made", epochs=1)
    for path, inside in ((Path("made/sweep.json"), ["runs", "seed0"]),
                         (Path("made/seed0/config.json"), [])):  # fmt: skip
        whole_text = settings = json.loads(path.read_text())
        for key in inside:
            settings = settings[key]
        settings["epochs"] = 2
        path.write_text(json.dumps(whole_text))
    assert part_done(Path("made/seed0")) == 0.5
    left = sweep(runs_dir="made")
    assert here.started[-1]["resume"] == "made/seed0"
    assert left.runs[0].steps["loss"].tolist() == whole.runs[0].steps["loss"].tolist()


@pytest.mark.slow
def test_contradictions_are_reported_before_the_first_run_and_the_others_run(here):
    done = CliRunner().invoke(
        main,
        ["sweep", *WORDS, "--memory", "dgc,residual", "--optimizer", "Adam", "--compressor",
         "topk:0.1"],
    )  # fmt: skip
    assert done.exit_code == 1
    assert done.output.startswith("left out: memory=dgc: memory must not be dgc with Adam")
    assert "[1/1] residual-seed0" in done.output
    assert "not made: memory=dgc" in done.output


def test_a_sweep_of_nothing_but_contradictions_is_a_users_error(here, tmp_path):
    done = CliRunner().invoke(main, ["sweep", *WORDS[:6], "--workers", "0,-1"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "simsgd: --workers must be at least 1, got 0\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"lr": [0.1, "x"]}, "lr must be a number, got 'x'"),
        ({"lr": [0.1, -1.0], "momentum": [0.0, 0.9]}, "lr must be greater than 0, got -1.0"),
        ({"compressor": ["topk:0.1", "tokp"]}, "compressor is not known, got tokp; did you"),
        ({"workers": [2, 0]}, "workers must be at least 1, got 0"),
    ],
)
def test_a_value_that_is_wrong_wherever_it_stands_is_refused_before_the_first_run(
    here, tmp_path, values, told
):
    with pytest.raises(SettingError) as refused:
        sweep(**values)
    assert str(refused.value).startswith(told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_fails_does_not_end_the_sweep(here):
    left = sweep(lr=[1e38, 0.1], runs_dir="made")
    assert list(left.failures) == ["lr1e+38-seed0"]
    assert left.failures["lr1e+38-seed0"].startswith("the loss of worker 0 became")
    assert left.table.set_index("lr")["seeds"].to_dict() == {"1e+38": 0, "0.1": 1}
    assert "lr1e+38-seed0" in left.summary()
    assert "lr1e+38-seed0" in left._repr_html_()


def test_a_run_whose_folder_is_still_written_is_made_once_that_ends(here, monkeypatch):
    endings = [Ending(2, "is being written by another process", in_use=True), Ending(0, "")]
    monkeypatch.setattr(here, "start", lambda settings: Made(endings.pop(0)))
    monkeypatch.setattr(sweeping.SweepProgress, "end", lambda self, folder, ending: None)
    assert (sweep(lr=0.1, runs_dir="made").failures, endings) == ({}, [])


def test_a_run_does_not_wait_for_ever_for_its_folder(here, monkeypatch):
    held = Ending(2, "is being written by another process", in_use=True)
    monkeypatch.setattr(here, "start", lambda settings: Made(held))
    monkeypatch.setattr(sweeping, "_PATIENCE", 0.01)
    assert sweep(lr=0.1, runs_dir="made").failures == {"seed0": held.reason}


@pytest.mark.slow
def test_a_folder_of_a_run_that_was_killed_at_once_is_taken(here, tmp_path):
    sweep(lr=0.1, runs_dir="made")
    for path in (tmp_path / "made/seed0").iterdir():
        path.unlink()
    (tmp_path / "made/seed0/.lock").touch()
    again = sweep(lr=0.1, runs_dir="made")
    assert (again.failures, [len(run.epochs) for run in again.runs]) == ({}, [2])


@pytest.mark.slow
def test_files_of_the_same_name_in_two_folders_are_two_values(here, tmp_path):
    for folder, hidden in (("a", 8), ("b", 16)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(
            "from torch import nn\ndef mine():\n    return nn.Sequential("
            f"nn.Flatten(), nn.Linear(64, {hidden}), nn.Linear({hidden}, 10))\n"
        )
    kinds = ["./a/mine.py", "./b/mine.py"]
    left = sweep(model=kinds, model_config="", lr=0.1, optimizer="SGD", runs_dir="made")
    assert left.table["model"].tolist() == kinds
    assert left.table["seeds"].tolist() == [1, 1]
    assert left.table["payload_bytes_mean"].nunique() == 2


def test_no_seeds_are_no_sweep(here):
    with pytest.raises(SettingError, match="seed needs at least one value"):
        sweep(seed=[])


@pytest.mark.slow
def test_a_sweep_is_shown_safely_in_html(here):
    left = sweep(runs_dir="made")
    left.failures = {"<script>": "a & b"}
    assert "<script>" not in left._repr_html_()
    assert "a &amp; b" in left._repr_html_()


@pytest.mark.slow
def test_a_sweep_draws_a_line_in_a_band_for_each_combination(here, tmp_path):
    left = sweep(lr=[0.1, 0.2], seeds=2, runs_dir="made")
    figure = left.plot(output=tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert len(figure.axes[0].collections) == 2  # a band for each combination, over its seeds


@pytest.mark.slow
def test_the_folder_is_named_by_what_varies(here, tmp_path):
    sweep(lr=[0.1, 0.2], workers=[2, 1])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sweep-workers-lr"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--seeds 0", "--seeds must be at least 1, got 0"),
        ("--seeds 2 --seed 4", "--seed and --seeds were both given"),
        ("--workers many", "Invalid value for '--workers': 'many' is not a valid integer"),
        ("--dtype float32,most", "Invalid value for '--dtype'"),
        ("--lr 0.1,0.1", "--lr is given twice, got 0.1"),
        ("--name a", "No such option"),
        ("--network fast", "network is not known, got fast"),
        ("--prune nothing", "'nothing' is not a valid float"),
    ],
)
def test_a_sweep_refuses_bad_input_in_one_line(here, tmp_path, words, error):
    done = CliRunner().invoke(main, ["sweep", *words.split()])
    assert (done.exit_code, done.stdout) == (2, "")
    assert error in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_sweep_prices_the_steps_of_its_runs_as_the_network_command_does(here):
    words = [*WORDS, "--compressor", "none,sign", "--runs-dir", "made"]
    done = CliRunner().invoke(main, ["sweep", *words, "--network", "10gbe", "--network", "wan"])
    assert done.exit_code == 0, done.output
    priced = CliRunner().invoke(main, ["network", "made", "--network", "10gbe", "--network", "wan"])
    rows = [line.split() for line in priced.stdout.splitlines() if "seed0" in line]
    assert len(rows) == 4
    assert all(row in [line.split() for line in done.stdout.splitlines()] for row in rows)


@pytest.mark.slow
def test_a_quiet_sweep_tells_what_it_left_out(here):
    words = ["--workers", "3,4", "--global-batch-size", "32", "--steps", "1", "--quiet"]
    model = ["--model", "mlp", "--model-config", "hidden=4", "--dataset", "digits"]
    done = CliRunner().invoke(main, ["sweep", *model, *words])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("not made: workers=3\n")


@pytest.mark.slow
def test_switches_given_both_ways_are_two_values(here, tmp_path):
    done = CliRunner().invoke(
        main, ["sweep", *WORDS, "--prune", "0.9", "--warmup", "--no-warmup", "--quiet"]
    )
    assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "runs/sweep-warmup").iterdir()}
    assert names >= {"warmup-seed0", "no-warmup-seed0"}


@pytest.mark.slow
def test_runs_that_have_sent_their_bytes_are_done(here):
    asked = {**TINY, "compressor": ["topk:0.1", "none"], "until_bytes": "10KB", "quiet": True}
    first = simsgd.sweep(**asked)
    dense, sparse = sorted(first.runs, key=lambda run: run.step)
    assert (dense.step, sparse.step) == (5, 19)  # of 24, of 2,440 and 552 bytes
    assert first.table["payload_bytes_mean"].tolist() == [19 * 552, 5 * 2440]
    started = len(here.started)
    simsgd.sweep(**asked)
    assert len(here.started) == started


def test_a_sweep_over_a_setting_of_another_version_is_read(tmp_path):
    runs = {"a": {"lr": 0.1, "gone": 5}, "b": {"lr": 0.1}}
    definition = {"format": "simsgd-sweep/1", "asked": {"lr": [0.1], "gone": [5]}, "runs": runs}
    (tmp_path / "sweep.json").write_text(json.dumps(definition))
    assert simsgd.Sweep(tmp_path).table["gone"].tolist() == ["5", "none"]
