import json
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from simsgd.bench import scaling, step
from simsgd.bench.baseline_loop import OlderStep
from simsgd.bench.cases import CASES, LENET, QUICK, Case, selected, task_of
from simsgd.bench.floors import PARTS, PLAIN, TORCHS, floors
from simsgd.cli import main
from simsgd.simulator.simulator import Simulator


def run(*arguments):
    return CliRunner().invoke(main, ["bench", *arguments])


@pytest.mark.slow
@pytest.mark.distributed
def test_the_quick_step_bench_prints_writes_and_draws_every_kind_of_step(tmp_path):
    file, figure = tmp_path / "rows.json", tmp_path / "step.png"
    done = run("step", "--quick", "--model", "mlp", "--json", str(file), "--plot", str(figure))
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())["rows"]
    kinds = [
        PLAIN,
        PARTS,
        step.PRUNED,
        step.WHOLE,
        step.GRADIENTS,
        step.MOVED,
        step.OLDER,
        step.PROCESSES,
    ]
    assert [row["step"] for row in rows] == kinds
    assert all(0 < row["ms_min"] <= row["ms"] <= row["ms_max"] for row in rows)
    assert all(kind in done.output for kind in kinds)
    assert figure.stat().st_size > 0


@pytest.mark.slow
def test_processes_are_left_out_on_request():
    rows = step.measure(quick=True, model=["mlp"], processes=False)["rows"]
    assert step.PROCESSES not in {row["step"] for row in rows}


@pytest.mark.slow
def test_the_quick_scaling_bench_prints_writes_and_draws_both_rows(tmp_path):
    file, figure = tmp_path / "rows.json", tmp_path / "scaling.svg"
    done = run("scaling", "--quick", "--json", str(file), "--plot", str(figure))
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())["rows"]
    over = {name: [row for row in rows if row["over"] == name] for name in scaling.OVER}
    assert {row["workers"] * row["batch"] for row in over["workers"]} == {16}
    assert len({row["parameters"] for row in over["parameters"]}) == 2
    assert "<svg" in figure.read_text()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("scaling", "--workers", "3"), "must be a divisor of the 512 samples"),
        (("step", "--plot", "a.gif"), "plot must end in .png, .svg or .pdf"),
        (("step", "--plot", "none/a.png"), "there is no folder none"),
        (("step", "--model", "resnett"), "did you mean resnet"),
        (("step", "--batch", "0"), "batch must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_timed(arguments, error):
    done = run(*arguments)
    assert done.exit_code == 2
    assert error in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_model_that_is_not_here_is_left_out_with_a_note():
    cases, notes = selected([LENET, Case("transporter", "", (3, 8, 8), 2)], [2, 3])
    assert [case.workers for case in cases] == [2, 3]
    assert notes == ["transporter is left out: this installation has no model of that name"]


def test_every_kind_of_model_is_timed():
    assert {"mlp", "lenet", "resnet", "resnet9", "lstm_lm"} == {case.model for case in CASES}


def test_the_floors_are_the_gradient_of_the_global_batch():
    task = task_of(QUICK[0], "cpu")
    found = {name: work() for name, work in floors(task).items()}
    model = task.model
    x, y = task.whole
    wanted = torch.autograd.grad(task.criterion(model(x), y), list(model.parameters()))
    assert TORCHS not in found
    for name in (PLAIN, PARTS):
        for one, other in zip(found[name], wanted, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_the_older_step_is_the_same_method_as_ours():
    """Top-k ties aside, of which random gradients have none."""
    case = Case("mlp", "hidden=5", (1, 4, 4), 3, workers=2)
    older, ours = task_of(case, "cpu"), task_of(case, "cpu")
    for task in (older, ours):
        task.model.double()
    older = replace(older, x=older.x.double())
    x, y = ours.whole
    simulator = Simulator(ours.model, workers=2, prune=0.9, warmup=False, lr=1e-3, momentum=0.9)
    step_once = OlderStep(older, 0.1)
    for _ in range(3):
        step_once()
        simulator.step(x.double(), y, 0)
    for one, other in zip(older.model.parameters(), ours.model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-10)
