import copy
import json

import pytest
import torch
from click.testing import CliRunner

from simsgd.bench import auto
from simsgd.bench.engines import EngineCall
from simsgd.bench.public_networks import NETWORKS, network_task
from simsgd.bench.timing import budget
from simsgd.cli import main


def test_the_bench_tells_what_auto_takes_and_what_it_loses(tmp_path):
    path = tmp_path / "rows.json"
    asked = ["bench", "auto", "--quick", "--model", "mlp", "--json", str(path)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())["rows"]
    assert {(row["model"], row["workers"], row["batch"]) for row in rows} == {("mlp", 2, 2)}
    assert min(row["loss"] for row in rows) == 0
    (chosen,) = (row for row in rows if row["chosen"])
    line = done.output.splitlines()[-1]
    assert line.split()[-2:] == [chosen["engine"], f"{chosen['loss']:.0%}"]


@pytest.mark.parametrize("name", ["unet", "vit", "gpt", "lstm"])
def test_networks_of_torchs_own_modules_are_taken_as_their_kind_is(name):
    task = network_task(name, 2, 1, "cpu")
    assert EngineCall.of("auto", task).choose() == ("loop" if name == "lstm" else "onepass")


def test_all_ten_networks_can_be_made():
    with torch.device("meta"):
        sizes = {
            name: sum(p.numel() for p in n.make().parameters()) for name, n in NETWORKS.items()
        }
    assert len(sizes) == 10
    assert 11e6 < sizes["resnet18"] < 12e6


def test_an_unknown_network_is_refused_and_leaves_files_as_they_were(tmp_path):
    (tmp_path / "kept.json").write_text("kept")
    for name in ("kept.json", "new.json"):
        words = ["bench", "auto", "--model", "resnett", "--json", str(tmp_path / name)]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 2
        assert "did you mean resnet20" in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"kept.json": "kept"}


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path):
    done = CliRunner().invoke(main, ["bench", "auto", "--json", str(tmp_path / "none/a.json")])
    assert done.exit_code == 2
    assert "there is no folder" in done.stderr


def test_each_number_of_threads_has_a_table_and_so_have_models_of_their_own(tmp_path):
    path = tmp_path / "rows.json"
    asked = ["bench", "auto", "--quick", "--model", "mlp", "--own-models", "--json", str(path)]
    done = CliRunner().invoke(main, [*asked, "--threads", "1", "--threads", "2"])
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())["rows"]
    assert {(row["threads"], row["own_models"]) for row in rows} == {(1, True), (2, True)}
    titles = [line for line in done.output.splitlines() if line.startswith("ms of all")]
    assert [title.partition("engine, ")[2] for title in titles] == [
        "on 1 thread, a model each", "on 2 threads, a model each"
    ]  # fmt: skip
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("engine", ["onepass", "vmap", "loop"])
def test_models_of_their_own_are_given_to_each_engine(engine):
    task = network_task("mlp", 3, 2, "cpu")
    each = EngineCall.of(engine, task, own_models=True)().values
    for worker in range(3):
        scale = 1 + worker / 10
        model = copy.deepcopy(task.model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
        loss = task.criterion(model(task.x[worker]), task.y[worker])
        for (name, _), wanted in zip(
            model.named_parameters(), torch.autograd.grad(loss, model.parameters()), strict=True
        ):
            torch.testing.assert_close(each[name][worker], wanted, rtol=1e-4, atol=1e-6)


def test_what_there_is_no_time_for_is_named():
    with budget(0):
        measured = auto.measure(quick=True, model=["mlp"], batch=[1, 2], threads=[1])
    assert measured["rows"] == []
    assert measured["notes"] == [
        "there was no time for mlp with W = 2, b = 1, 1 thread; mlp with W = 2, b = 2, 1 thread"
    ]


def test_the_column_of_losses_follows_from_the_times():
    rows = auto.measure(quick=True, model=["mlp"])["rows"]
    least = min(row["ms"] for row in rows)
    for row in rows:
        assert row["loss"] == pytest.approx(row["ms"] / least - 1)
