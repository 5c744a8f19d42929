"""The gradient noise scale, by hand, of known noise, and in runs."""

import math

import pytest
import torch
import torch.nn.functional as F

import simsgd
from simsgd import SettingError, Simulator
from simsgd.results.noise_scale import noise_scale_of
from simsgd.simulator.gradient_noise import estimate_noise
from simsgd.simulator.notes import notes_of

from ..process_group import trained, verified
from ..toy import TINY, batches, mlp

DOUBLE = {"dtype": torch.float64}


def itself(rows):
    return rows


def estimates(gradients, samples):
    noise = estimate_noise(gradients, torch.tensor(samples), itself)
    return float(noise.square), float(noise.variance), float(noise.scale)


def test_two_gradients_by_hand():
    # |g_0|^2 = 25, |g_1|^2 = 1, mean (2, 2) of norm 8: A.2 and A.3 with batches of 5 and 10.
    rows = torch.tensor([[3.0, 4.0], [1.0, 0.0]], **DOUBLE)
    assert estimates([rows], [5, 5]) == pytest.approx(
        ((10 * 8 - 5 * 13) / 5, 5 / (1 / 5 - 1 / 10), 50 / 3)
    )


def test_parameters_add_up():
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), **DOUBLE)
    parts = [rows[:, :1], rows[:, 1:].unflatten(1, (5, 1))]
    assert estimates(parts, [3] * 4) == pytest.approx(estimates([rows], [3] * 4), rel=1e-12)


def test_where_batches_are_unequal_the_estimates_have_no_bias():
    # Three workers whose gradients are exact in the mean over all signs of the noise.
    true, samples, signs = (
        2.0,
        [1, 2, 6],
        [(a, b, c) for a in (1, -1) for b in (1, -1) for c in (1, -1)],
    )
    found = []
    for each in signs:
        rows = [[true + sign * 3.0 / math.sqrt(m)] for sign, m in zip(each, samples, strict=True)]
        found.append(estimates([torch.tensor(rows, **DOUBLE)], samples)[:2])
    square, variance = torch.tensor(found, **DOUBLE).mean(0).tolist()
    assert (square, variance) == pytest.approx((true**2, 3.0**2), rel=1e-12)


def test_workers_without_samples_are_left_out():
    rows = torch.tensor([[3.0, 4.0], [math.nan, 7.0], [1.0, 0.0]], **DOUBLE)
    assert estimates([rows], [5, 0, 5]) == pytest.approx((3.0, 50.0, 50 / 3))


def test_a_gradient_below_the_noise_has_no_scale():
    square, variance, scale = estimates([torch.tensor([[1.0], [-1.0]], **DOUBLE)], [1, 1])
    assert (square, variance) == (-1.0, 2.0)
    assert math.isnan(scale)


def test_a_known_noise_scale_is_recovered():
    generator = torch.Generator().manual_seed(0)
    n, workers, samples, steps = 500, 8, 16, 300
    true = torch.full((n,), 0.3, **DOUBLE)  # |G|^2 = 45, tr(Sigma) = 4 * 500, B = 44.4
    sums = torch.zeros(2, **DOUBLE)
    for _ in range(steps):
        noise = torch.randn(workers, n, generator=generator, **DOUBLE)
        rows = true + 2.0 / math.sqrt(samples) * noise
        sums += torch.tensor(estimates([rows], [samples] * workers)[:2], **DOUBLE)
    square, variance = (sums / steps).tolist()
    assert variance == pytest.approx(2000, rel=0.01)
    assert square == pytest.approx(45, rel=0.01)
    assert variance / square == pytest.approx(2000 / 45, rel=0.02)


@pytest.mark.parametrize("engine", ["loop", "onepass", "vmap"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_step_measures_the_gradients_of_its_workers(engine, passes):
    model = mlp()
    x, y = next(batches(1, 24))
    rows = []
    for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
        grads = torch.autograd.grad(F.cross_entropy(model(part), target), list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    each = torch.stack(rows)
    small, large = each.square().sum(1).mean(), each.mean(0).square().sum()
    wanted = (24 * large - 6 * small) / 18, (small - large) / (1 / 6 - 1 / 24)
    settings = {"clip": 0.01, "compressor": "topk:0.1", "weight_decay": 0.1, "attack": "noise:1"}
    simulator = Simulator(
        model, workers=4, engine=engine, accumulate=passes, noise_scale=True, lr=0.1, **settings
    )
    record = simulator.step(x, y, epoch=0)
    assert float(record.noise.square) == pytest.approx(float(wanted[0]), rel=1e-10)
    assert float(record.noise.variance) == pytest.approx(float(wanted[1]), rel=1e-10)
    assert wanted[0] > 0
    assert record.noise_scale == pytest.approx(float(wanted[1] / wanted[0]))


def test_measuring_changes_no_number():
    models = []
    for measured in (False, True):
        simulator = Simulator(mlp(), workers=4, prune=0.5, noise_scale=measured, lr=0.1)
        for x, y in batches(5, 24):
            record = simulator.step(x, y, epoch=9)
        models.append(simulator.parameters())
    assert all(torch.equal(p, models[1][name]) for name, p in models[0].items())
    assert Simulator(mlp(), workers=4, lr=0.1).step(*next(batches(1, 24)), epoch=0).noise is None
    assert record.noise is not None


def test_a_worker_whose_gradient_counts_as_0_is_left_out():
    x, y = next(batches(1, 24))
    rest = torch.cat([x[:12], x[18:]]), torch.cat([y[:12], y[18:]])
    fewer = Simulator(mlp(), workers=3, noise_scale=True, lr=0.1).step(*rest)
    x[13] = math.inf
    record = Simulator(
        mlp(), workers=4, noise_scale=True, lr=0.1, on_nonfinite="zero"
    ).step(x, y)  # fmt: skip
    assert float(record.noise.square) == pytest.approx(float(fewer.noise.square), rel=1e-12)
    assert float(record.noise.variance) == pytest.approx(float(fewer.noise.variance), rel=1e-12)


@pytest.mark.parametrize("algorithm", ["dpsgd", "local:local_steps=2", "diloco", "async"])
def test_workers_that_share_no_model_are_refused(algorithm):
    with pytest.raises(SettingError, match=r"^noise_scale needs workers that share one model"):
        Simulator(mlp(), workers=4, algorithm=algorithm, noise_scale=True)


@pytest.mark.parametrize(("workers", "noted"), [(1, True), (2, False)])
def test_that_one_worker_has_no_noise_scale_is_noted(workers, noted):
    simulator = Simulator(mlp(), workers=workers, lr=0.1, noise_scale=True)
    note = "note: noise_scale compares workers, and is nan with one"
    assert notes_of(simulator.components) == [note] * noted


@pytest.mark.slow
def test_one_worker_has_no_noise_scale(tmp_path):
    settings = {**TINY, "steps": 2, "quiet": True, "runs_dir": tmp_path}
    run = simsgd.train(**settings, workers=1, noise_scale=True, name="one")
    last = (run.folder / "steps.csv").read_text().splitlines()[-1]
    assert last.endswith(",nan,nan,nan")
    assert math.isnan(noise_scale_of(run))
    assert "gradient noise" not in run.summary()
    plain = simsgd.train(**settings, workers=2, name="plain")
    assert "noise_scale" not in plain.steps
    assert "noise" not in simsgd.results(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 12])  # the latter in the middle of an epoch
def test_a_run_that_goes_on_measures_what_one_that_never_stopped_does(tmp_path, stop):
    settings = {**TINY, "workers": 4, "quiet": True, "runs_dir": tmp_path, "noise_scale": True}
    whole = simsgd.train(**settings, steps=15, name="whole")
    part = simsgd.train(**settings, steps=stop, name="part")
    again = simsgd.train(resume=part.folder, steps=15)
    names = ["gradient_square", "gradient_variance", "noise_scale"]
    assert again.steps[names].equals(whole.steps[names])
    assert whole.steps["gradient_variance"].gt(0).all()


@pytest.mark.slow
def test_tables_and_figures_divide_means(tmp_path):
    settings = {**TINY, "workers": 4, "quiet": True, "runs_dir": tmp_path, "noise_scale": True}
    run = simsgd.train(**settings, epochs=2, name="run")
    steps = run.steps
    last = steps[steps["epoch"] == 1]
    wanted = last["gradient_variance"].mean() / last["gradient_square"].mean()
    assert noise_scale_of(run) == pytest.approx(wanted)
    assert simsgd.results(tmp_path)["noise"].item() == pytest.approx(wanted)
    assert f"{wanted:.4g} samples, over the last epoch" in run.summary()
    axes = run.plot(x="step", y="noise_scale", smooth=len(steps)).axes[0]
    drawn = axes.lines[0].get_ydata()[-1]
    sums = steps[["gradient_variance", "gradient_square"]].sum()
    assert drawn == pytest.approx(sums["gradient_variance"] / sums["gradient_square"])


def test_a_loop_of_ones_own_has_the_columns_too(tmp_path):
    simulator = Simulator(mlp(), workers=4, noise_scale=True, lr=0.1)
    with simsgd.recording(tmp_path / "loop", simulator) as run:
        for _ in run.epochs(1):
            for x, y in run.batches(list(batches(3, 24))):
                simulator.step(x, y, epoch=0)
    assert simsgd.Run(tmp_path / "loop").steps["gradient_variance"].gt(0).all()


@pytest.mark.distributed
def test_workers_in_two_processes_measure_what_those_in_one_do(two_ranks, tmp_path):
    settings = {**TINY, "workers": 4, "quiet": True, "runs_dir": tmp_path, "noise_scale": True}
    settings |= {"steps": 6, "dtype": "float64", "compressor": "topk:0.1", "device": "cpu"}
    alone = simsgd.train(**settings, name="alone").steps
    shared = simsgd.Run(two_ranks(trained, {**settings, "name": "shared"})).steps
    for name in ("gradient_square", "gradient_variance", "noise_scale"):
        assert shared[name].tolist() == pytest.approx(alone[name].tolist(), rel=1e-10, nan_ok=True)
    assert alone["gradient_variance"].gt(0).all()


@pytest.mark.distributed
def test_what_is_measured_is_no_message(two_ranks, tmp_path):
    settings = {**TINY, "workers": 2, "dtype": "float64", "runs_dir": tmp_path}
    rows, _ = two_ranks(verified, 3, {**settings, "compressor": "sign", "noise_scale": True})
    plain, _ = two_ranks(verified, 3, {**settings, "compressor": "sign"})
    assert max(row["parameter_difference"] for row in rows) < 1e-12
    assert all(row["bytes_agree"] for row in rows)
    assert [row["sent_bytes"] for row in rows] == [row["sent_bytes"] for row in plain]


def test_a_parameter_that_is_one_number_counts():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return x * self.scale

    simulator = Simulator(Scaled(), F.mse_loss, workers=2, lr=0.1, noise_scale=True)
    record = simulator.step(torch.arange(4.0).view(4, 1), torch.ones(4, 1), 0)
    assert record.noise is not None
