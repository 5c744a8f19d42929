"""Outer optimizers and aggregation rules: held to torch.optim, and added by a file of one's own."""

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import simsgd
from simsgd.cli import main
from simsgd.registry import build
from simsgd.settings import SettingError

TINY = {"model": "mlp", "model_config": "hidden=8", "dataset": "digits", "workers": 4,
        "batch_size": 40, "epochs": 1, "quiet": True}  # fmt: skip
MEDIAN = '''
from dataclasses import dataclass

from simsgd.methods import Aggregation


@dataclass(frozen=True)
class Median(Aggregation):
    """The median of each entry over all workers."""

    def aggregate(self, message, segment, channel, at_server):
        sent, rows = channel.gather(message, segment)
        return sent, rows.median(0).values
'''
HALVES = '''
from dataclasses import dataclass

from simsgd.methods import OuterOptimizer


@dataclass(frozen=True)
class Halves(OuterOptimizer):
    """Goes half of the way."""

    def step(self, anchor, gradient, state):
        anchor.sub_(gradient, alpha=0.5)
'''


@pytest.mark.parametrize(("spec", "nesterov"), [("nesterov", True), ("sgd", False)])
def test_it_is_that_of_torch(spec, nesterov):
    anchor = torch.linspace(-1, 1, 6, dtype=torch.float64).view(1, 6)
    wanted = nn.Parameter(anchor[0].clone())
    torch_optimizer = torch.optim.SGD([wanted], lr=0.3, momentum=0.8, nesterov=nesterov)
    outer = build("outer_optimizer", spec)[0].filled(0.3, 0.8)
    state = outer.init(anchor)
    for step in range(4):
        gradient = torch.sin(torch.arange(6, dtype=torch.float64) + step)
        wanted.grad = gradient.clone()
        torch_optimizer.step()
        outer.step(anchor, gradient, state)
    assert torch.allclose(anchor[0], wanted, rtol=1e-14)


def test_the_values_of_its_spec_win_over_the_settings_of_the_algorithm():
    assert build("outer_optimizer", "sgd:0.5")[0].filled(0.7, 0.9).lr == 0.5


@pytest.mark.parametrize(("spec", "rule"), [("sgd:0", "greater than 0"), ("sgd:1,1", "lie in")])
def test_a_wrong_value_is_refused(spec, rule):
    with pytest.raises(SettingError, match=rule):
        build("outer_optimizer", spec)


def test_an_outer_optimizer_of_ones_own_is_one_file(tmp_path):
    (tmp_path / "mine.py").write_text(HALVES)
    spec = f"{tmp_path}/mine.py:Halves"
    run = simsgd.train(
        **TINY, algorithm="diloco", local_steps=4, outer_optimizer=spec, runs_dir=tmp_path
    )
    assert run.config["used"]["outer_optimizer"] == spec
    assert len(run.epochs) == 1


def test_an_aggregation_rule_of_ones_own_is_one_file(tmp_path):
    (tmp_path / "mine.py").write_text(MEDIAN)
    spec = f"{tmp_path}/mine.py:Median"
    usual = simsgd.train(**TINY, runs_dir=tmp_path, name="mean")
    median = simsgd.train(**TINY, aggregate=spec, runs_dir=tmp_path, name="median")
    assert median.last.payload_bytes == usual.last.payload_bytes
    assert median.last.train_loss != usual.last.train_loss


@pytest.mark.parametrize("kind", ["aggregations", "outer-optimizers"])
def test_they_are_listed_with_their_settings(kind):
    listed = CliRunner().invoke(main, ["list", kind])
    assert listed.exit_code == 0
    assert "settings: " in listed.output
