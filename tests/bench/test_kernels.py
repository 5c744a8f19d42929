"""Ceilings of the kernels and waits of a step, and what counts as one."""

import json

import pytest
import torch
from click.testing import CliRunner

from simsgd.bench.cases import QUICK
from simsgd.bench.kernel_count import count_kernels
from simsgd.bench.kernels import METHODS, counted_step
from simsgd.cli import main

CEILINGS = {  # kernels beside those of the gradients, and waits, of ResNet-8 with W = 2
    "none": (190, 1),
    "--prune 0.999": (280, 1),
    "fp16": (300, 1),
    "bf16": (220, 1),
    "int8": (380, 1),
    "topk:0.001": (270, 1),
    "sampled_topk:0.001": (720, 37),
    "randomk:0.001": (620, 9),
    "randomk:0.001,shared=true": (600, 9),
    "block:0.001": (240, 1),
    "threshold:3": (490, 25),
    "adaptive_threshold": (520, 25),
    "adacomp": (1070, 25),
    "sign": (580, 1),
    "onebit": (1110, 1),
    "terngrad": (1080, 1),
    "qsgd:255": (920, 1),
    "qsgd:4,bucket=512": (860, 1),
    "qsgd:4,code=elias": (1660, 1),
    "natural": (640, 1),
    "powersgd:2": (1060, 1),
    "topk:0.001+sign": (530, 1),
    "topk:0.001, residual": (270, 1),
    "topk:0.001, ef21": (320, 1),
    "sign, vote": (290, 1),
    "dpsgd": (420, 0),
    "choco, topk:0.01": (520, 0),
    "local": (260, 0),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_step_launches_no_more_kernels_than_it_did(method):
    counted, of_gradients = counted_step(QUICK[1], METHODS[method])
    kernels, waits = CEILINGS[method]
    assert counted.kernels - of_gradients <= kernels
    assert counted.waits <= waits


def test_views_and_allocations_are_no_kernels():
    x = torch.ones(4, 6)

    def work():
        torch.empty(3)
        x.view(24)[:5].unsqueeze(0).t().detach()

    assert count_kernels(work).kernels == 0


def test_a_number_of_python_is_a_wait():
    x = torch.ones(4)
    assert count_kernels(lambda: x.sum()).waits == 0
    assert count_kernels(lambda: float(x.sum())).waits == 1
    assert count_kernels(lambda: x.nonzero()).waits == 1


def test_the_bench_prints_and_writes_every_method_beside_a_plain_step(tmp_path):
    path = tmp_path / "rows.json"
    asked = ["bench", "kernels", "--quick", "--json", str(path)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())["rows"]
    assert [row["method"] for row in rows] == ["plain step", *METHODS]
    for row in rows:
        assert row["kernels"] == sum(row["calls"].values()) >= row["engine"] > 0
        assert row["method"] in done.output
