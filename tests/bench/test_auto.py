import json

import pytest
import torch
from click.testing import CliRunner

from simsgd.bench import auto
from simsgd.bench.engines import EngineCall
from simsgd.bench.public_networks import NETWORKS, network_task
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


def test_an_unknown_network_is_refused():
    done = CliRunner().invoke(main, ["bench", "auto", "--model", "resnett"])
    assert done.exit_code == 2
    assert "did you mean resnet20" in done.stderr


def test_the_column_of_losses_follows_from_the_times():
    rows = auto.measure(quick=True, model=["mlp"])["rows"]
    least = min(row["ms"] for row in rows)
    for row in rows:
        assert row["loss"] == pytest.approx(row["ms"] / least - 1)
