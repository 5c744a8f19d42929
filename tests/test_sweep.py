import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as some

import simsgd
from simsgd import sweeping
from simsgd.cli import main
from simsgd.grid import Grid, identity, names_of, values_of
from simsgd.launchers import launcher_of
from simsgd.options import words
from simsgd.pool import Ending, last_line
from simsgd.rehearsal import refusal
from simsgd.settings import SettingError
from simsgd.swept import MEASURES, part_done

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
        self.jobs, self.commands = 1, []

    def start(self, command):
        self.commands.append(command)
        done = CliRunner().invoke(main, command)
        return Made(Ending(done.exit_code, last_line(done.stderr, done.exit_code)))

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
    monkeypatch.setattr(
        sweeping, "refusals", lambda points, on_cpu: (refusal(point, on_cpu) for point in points)
    )
    launcher = Here()
    monkeypatch.setattr(sweeping, "launcher_of", lambda *words: launcher)
    return launcher


def sweep(**settings):
    return simsgd.sweep(**{**TINY, "quiet": True, **settings})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("4", ["4"]),
        ("4,16", ["4", "16"]),
        ("none, topk:0.01 ,terngrad", ["none", "topk:0.01", "terngrad"]),
        ("qsgd:15,bucket=512", ["qsgd:15,bucket=512"]),
        ("qsgd:15,bucket=512,code=elias,none", ["qsgd:15,bucket=512,code=elias", "none"]),
        ("topk:0.01+qsgd:4, bucket=9,sign", ["topk:0.01+qsgd:4, bucket=9", "sign"]),
        ("depth=8, width=2", ["depth=8, width=2"]),
        ("hidden=((4,8),2)", ["hidden=((4,8),2)"]),
        ("", [""]),
    ],
)
def test_a_comma_begins_a_value_unless_an_argument_follows(text, values):
    assert values_of(text) == values


@given(some.lists(some.sampled_from(["none", "qsgd:4,bucket=2", "topk:0.1", "16"]), min_size=1))
def test_values_are_what_was_joined(values):
    assert values_of(",".join(values)) == values


def test_every_combination_is_there_once_with_each_seed():
    grid = Grid({"workers": [2, 4], "lr": [0.1], "memory": ["none", "residual"]}, [0, 1, 2])
    runs = {(run["workers"], run["memory"], run["seed"]) for run in grid.runs()}
    assert len(grid.runs()) == len(runs) == 12


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"wrokers": [2]}, "did you mean workers"),
        ({"name": ["a"]}, "setting is not known, got name"),
        ({"workers": []}, "workers needs at least one value"),
        ({"lr": [1, 1.0]}, "lr stands there twice"),
        ({"device": ["cpu", "cuda"]}, "device takes one value"),
        ({"seed": [1]}, "seed is counted apart"),
    ],
)
def test_a_grid_that_makes_no_sense_is_told(values, told):
    with pytest.raises(SettingError, match=told):
        Grid(values)


def test_names_tell_what_varies_and_are_folders_names():
    runs = [
        {"workers": 4, "compressor": spec, "memory": memory, "warmup": warmup, "seed": 7}
        for spec in ("qsgd:15,bucket=512", "./some/mine.py:Mine:5", None)
        for memory, warmup in (("none", True), ("residual", False))
    ]
    assert names_of(runs) == [
        "qsgd-15-bucket-512-no-memory-warmup-seed7",
        "qsgd-15-bucket-512-residual-no-warmup-seed7",
        "mine.py-Mine-5-no-memory-warmup-seed7",
        "mine.py-Mine-5-residual-no-warmup-seed7",
        "no-compressor-no-memory-warmup-seed7",
        "no-compressor-residual-no-warmup-seed7",
    ]


def test_no_two_runs_have_the_same_name():
    runs = [{"compressor": spec, "seed": 0} for spec in ("topk:0.1", "topk:0:1", "topk-0.1")]
    assert len(set(names_of(runs, taken=["topk-0.1-seed0"]))) == 3
    assert "topk-0.1-seed0" not in names_of(runs, taken=["topk-0.1-seed0"])


def test_a_run_is_itself_whatever_the_machine_and_however_a_default_is_said():
    assert identity({"workers": 16, "device": "cuda", "seed": 0}) == identity({"device": "cpu"})
    assert identity({"workers": 16.0}) != identity({"workers": 4})
    assert identity({"memory": None}) != identity({"memory": "none"})


def test_what_a_sweep_says_to_train_is_what_was_asked():
    asked = {
        "workers": 4, "compressor": "qsgd:15,bucket=512", "model_config": "depth=8, width=2",
        "lr": 1e-3, "momentum": 0.0, "nesterov": False, "prune_1d": True, "seed": 3,
        "runs_dir": "a b",
    }  # fmt: skip
    train = main.commands["train"]
    context = train.make_context("train", words(asked))
    assert {name: context.params[name] for name in asked} == {
        **asked,
        "runs_dir": type(context.params["runs_dir"])("a b"),
    }
    assert words({"download": False, "prune": None, "warmup": True}) == []


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
        "compressor", "seeds", *(f"{m}_{of}" for m in MEASURES for of in ("mean", "std")),
    ]  # fmt: skip


def test_a_run_of_a_sweep_is_the_run_that_train_makes(here):
    sweep(prune=[0.9], memory=["none"], runs_dir="made")
    alone = simsgd.train(**TINY, prune=0.9, memory="none", name="alone", quiet=True)
    made = simsgd.Run("made/seed0")
    assert made.steps["loss"].tolist() == alone.steps["loss"].tolist()


def test_what_is_done_is_not_done_again(here):
    sweep(lr=[0.1, 0.2], runs_dir="made")
    here.commands.clear()
    left = sweep(lr=[0.1, 0.2], runs_dir="made", log_every=7)
    assert here.commands == []
    assert left.table["seeds"].tolist() == [1, 1]


def test_a_sweep_can_be_widened_and_its_runs_keep_their_names(here):
    sweep(runs_dir="made")
    here.commands.clear()
    left = sweep(lr=[0.1, None], seeds=2, runs_dir="made")
    assert len(here.commands) == 3
    assert left.settings.keys() == {"seed0", "no-lr-seed1", "lr0.1-seed0", "lr0.1-seed1"}
    assert dict(zip(left.table["lr"], left.table["seeds"], strict=True)) == {"none": 2, "0.1": 2}


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
    assert "--resume=made/seed0" in here.commands[-1]
    assert left.runs[0].steps["loss"].tolist() == whole.runs[0].steps["loss"].tolist()


def test_contradictions_are_told_before_the_first_run_and_the_others_run(here):
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


def test_a_run_that_fails_does_not_end_the_sweep(here):
    left = sweep(lr=[1e38, 0.1], runs_dir="made")
    assert list(left.failures) == ["lr1e+38-seed0"]
    assert left.failures["lr1e+38-seed0"].startswith("the loss of worker 0 became")
    assert left.table.set_index("lr")["seeds"].to_dict() == {"1e+38": 0, "0.1": 1}
    assert "lr1e+38-seed0" in left.summary()
    assert "lr1e+38-seed0" in left._repr_html_()


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


def test_a_sweep_is_told_safely_in_html(here):
    left = sweep(runs_dir="made")
    left.failures = {"<script>": "a & b"}
    assert "<script>" not in left._repr_html_()
    assert "a &amp; b" in left._repr_html_()


def test_a_sweep_draws_its_runs(here, tmp_path):
    left = sweep(lr=[0.1, 0.2], runs_dir="made")
    left.plot(path=tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_the_folder_is_named_by_what_varies(here, tmp_path):
    sweep(lr=[0.1, 0.2], workers=[2, 1])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sweep-workers-lr"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--seeds 0", "--seeds must be at least 1, got 0"),
        ("--seeds 2 --seed 4", "--seed and --seeds were both given"),
        ("--workers many", "Invalid value for '--workers': 'many' is not a valid integer"),
        ("--aggregate mean,most", "Invalid value for '--aggregate'"),
        ("--lr 0.1,0.1", "--lr stands there twice, got 0.1"),
        ("--name a", "No such option"),
        ("--prune nothing", "'nothing' is not a valid float"),
    ],
)
def test_a_sweep_tells_bad_input_in_one_line(here, tmp_path, words, told):
    done = CliRunner().invoke(main, ["sweep", *words.split()])
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_switches_given_both_ways_are_two_values(here, tmp_path):
    done = CliRunner().invoke(
        main, ["sweep", *WORDS, "--prune", "0.9", "--warmup", "--no-warmup", "--quiet"]
    )
    assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "runs/sweep-warmup").iterdir()}
    assert names >= {"warmup-seed0", "no-warmup-seed0"}


def test_a_launcher_that_is_not_installed_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SettingError, match=r"pip install 'simsgd\[cluster\]'"):
        launcher_of("slurm", None, tmp_path)


def test_an_unknown_launcher_and_no_jobs_are_told(tmp_path):
    with pytest.raises(SettingError, match="launcher is not known, got pbs"):
        launcher_of("pbs", None, tmp_path)
    with pytest.raises(SettingError, match="jobs must be at least 1, got 0"):
        launcher_of(None, 0, tmp_path)


@pytest.mark.slow
def test_processes_make_the_runs_and_a_dead_one_takes_only_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import os\nfrom torch import nn\n"
        "class Dies(nn.Linear):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        Dies.calls += 1\n"
        "        if Dies.calls > 6: os.kill(os.getpid(), 9)\n"
        "        return super().forward(x.flatten(1))\n"
        "def mine(num_classes, mortal):\n"
        "    kind = Dies if mortal else nn.Linear\n"
        "    return nn.Sequential(nn.Flatten(), kind(64, num_classes))\n"
    )
    own = {**TINY, "model": "./mine.py", "engine": "loop", "optimizer": "SGD", "lr": 0.1}
    kinds = ["mortal=True", "mortal=False"]
    left = simsgd.sweep(**{**own, "model_config": kinds}, seeds=2, jobs=2, quiet=True)
    assert set(left.failures) == {"mortal-True-seed0", "mortal-True-seed1"}
    assert all("killed by SIGKILL" in why for why in left.failures.values())
    assert left.table.set_index("model_config")["seeds"].to_dict() == {kinds[0]: 0, kinds[1]: 2}


@pytest.mark.slow
def test_a_sweep_that_is_asked_to_stop_saves_its_runs_and_can_go_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {**TINY, "epochs": 4000, "runs_dir": "made", "quiet": True, "log_every": 1}
    seen = []

    class Soon(sweeping.Request):
        @property
        def made(self):
            return seen != [] or (part_done(tmp_path / "made/seed0") > 0 and not seen.append(1))

    monkeypatch.setattr("simsgd.interrupt.Request", Soon)
    with pytest.raises(sweeping.Interrupted, match="the same command goes on"):
        simsgd.sweep(**asked)
    run = simsgd.Run("made/seed0")
    assert run.log.count("Interrupted") == 0
    assert (tmp_path / "made/seed0/last.pt").exists()
    assert len(run.steps) > 0


@pytest.mark.slow
def test_submitit_makes_the_runs_where_it_is_installed(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    places = {Path(module.__file__).parents[1] for module in (simsgd, submitit)}
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))
    monkeypatch.chdir(tmp_path)
    left = simsgd.sweep(**TINY, lr=[0.1, 1e38], launcher="local", quiet=True, runs_dir="made")
    assert list(left.failures) == ["lr1e+38-seed0"]
    assert left.failures["lr1e+38-seed0"].startswith("the loss of worker 0 became")
    assert left.table["seeds"].tolist() == [1, 0]
