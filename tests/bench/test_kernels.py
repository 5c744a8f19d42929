"""Ceilings of the kernels and waits of a step, and what counts as one."""

import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from simsgd.bench.cases import QUICK, RESNET
from simsgd.bench.kernel_count import count_kernels
from simsgd.bench.kernels import METHODS, counted_step
from simsgd.cli import main

CEILINGS = {  # kernels beside those of the gradients, and waits, of ResNet-8 with W = 2
    "none": (190, 0),
    "--prune 0.999": (280, 0),
    "fp16": (300, 0),
    "bf16": (220, 0),
    "int8": (380, 0),
    "topk:0.001": (270, 0),
    "sampled_topk:0.001": (720, 36),
    "randomk:0.001": (710, 0),
    "randomk:0.001,shared=true": (710, 0),
    "block:0.001": (240, 0),
    "turns:0.001": (510, 0),
    "tiled_topk:64": (330, 0),
    "tiled_topk:64,basis=dct": (380, 0),
    "threshold:3": (490, 24),
    "adaptive_threshold": (520, 24),
    "adacomp": (1070, 24),
    "sign": (580, 0),
    "onebit": (1110, 0),
    "terngrad": (1080, 0),
    "qsgd:255": (920, 0),
    "qsgd:4,bucket=512": (860, 0),
    "qsgd:4,code=elias": (1660, 0),
    "natural": (640, 0),
    "bins:2": (850, 0),
    "e3m0": (420, 0),
    "powersgd:2": (1060, 0),
    "dion:2": (1080, 0),
    "dion2": (690, 0),
    "topk:0.001+sign": (530, 0),
    "topk:0.001, residual": (270, 0),
    "topk:0.001, ef21": (320, 0),
    "sign, vote": (290, 0),
    "dpsgd": (420, 0),
    "choco, topk:0.01": (520, 0),
    "local": (260, 0),
}

GPU_CEILINGS = {  # the same in the GPU's plan
    "none": (50, 0),
    "--prune 0.999": (90, 0),
    "fp16": (60, 0),
    "bf16": (50, 0),
    "int8": (80, 0),
    "topk:0.001": (90, 0),
    "sampled_topk:0.001": (430, 1),
    "randomk:0.001": (120, 0),
    "randomk:0.001,shared=true": (130, 0),
    "block:0.001": (60, 0),
    "turns:0.001": (100, 0),
    "tiled_topk:64": (220, 0),
    "tiled_topk:64,basis=dct": (270, 0),
    "threshold:3": (220, 1),
    "adaptive_threshold": (230, 1),
    "adacomp": (320, 1),
    "sign": (110, 0),
    "onebit": (190, 0),
    "terngrad": (180, 0),
    "qsgd:255": (150, 0),
    "qsgd:4,bucket=512": (130, 0),
    "qsgd:4,code=elias": (230, 0),
    "natural": (100, 0),
    "bins:2": (140, 0),
    "e3m0": (80, 0),
    "powersgd:2": (460, 0),
    "dion:2": (480, 0),
    "dion2": (460, 0),
    "topk:0.001+sign": (130, 0),
    "topk:0.001, residual": (90, 0),
    "topk:0.001, ef21": (90, 0),
    "sign, vote": (70, 0),
    "dpsgd": (90, 0),
    "choco, topk:0.01": (130, 0),
    "local": (60, 0),
}
WHOLE_CEILINGS = {  # kernels of a whole step, and of all but gradients, ResNet-20 with W = 16
    "none": (300, 60),
    "--prune 0.999": (400, 150),
    "sign": (360, 120),
    "terngrad": (440, 190),
    "qsgd:255": (400, 160),
    "qsgd:4,code=elias": (560, 310),
    "natural": (360, 120),
    "int8": (330, 90),
    "powersgd:2": (760, 500),
    "dpsgd": (380, 130),
    "choco, topk:0.01": (470, 230),
}


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize("plan", [pytest.param("cpu", marks=pytest.mark.slow), "gpu"])
@pytest.mark.parametrize("method", METHODS)
def test_a_step_launches_no_more_kernels_than_it_did(method, plan):
    counted, of_gradients = counted_step(QUICK[1], METHODS[method] | {"plan": plan})
    kernels, waits = (CEILINGS if plan == "cpu" else GPU_CEILINGS)[method]
    assert counted.kernels - of_gradients <= kernels
    assert counted.waits <= waits


@pytest.mark.slow
@pytest.mark.parametrize("method", WHOLE_CEILINGS)
def test_a_whole_step_of_many_segments_takes_few_kernels_and_waits_for_nothing(method):
    case = replace(RESNET, workers=16, batch=2)
    counted, of_gradients = counted_step(case, METHODS[method] | {"plan": "gpu"})
    whole, outside = WHOLE_CEILINGS[method]
    assert counted.kernels <= whole
    assert counted.kernels - of_gradients <= outside
    assert counted.waits == 0


@pytest.mark.slow
def test_the_plan_of_a_gpu_takes_few_kernels_for_all_gradients():
    case = replace(RESNET, workers=16, batch=2)
    for method, ceiling in (("none", 245), ("dpsgd", 245)):
        counted, of_gradients = counted_step(case, METHODS[method] | {"plan": "gpu"})
        assert of_gradients <= ceiling
        assert counted.waits == 0


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
    assert count_kernels(lambda: x.tolist()).waits == 1


@pytest.mark.slow
def test_the_bench_prints_and_writes_every_method_beside_a_plain_step(tmp_path):
    path = tmp_path / "rows.json"
    asked = ["bench", "kernels", "--quick", "--plan", "gpu", "--json", str(path)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())["rows"]
    assert [row["method"] for row in rows] == ["plain step", *METHODS]
    for row in rows:
        assert row["kernels"] == sum(row["calls"].values()) == row["engine"] + row["outside"]
        assert row["engine"] > 0
        assert row["plan"] == "gpu"
        assert row["method"] in done.output
