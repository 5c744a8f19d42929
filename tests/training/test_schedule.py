"""Regimes by name, what docs/regimes.md says of them, scaled rates, and regimes of past results."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import simsgd
from simsgd import catalog
from simsgd.config import Config
from simsgd.settings import SettingError
from simsgd.simulator.regime import Regime
from simsgd.training.schedule import Schedule, schedule_of

TEXT = (Path(__file__).parents[2] / "docs" / "regimes.md").read_text()
BATCHES = 100  # steps an epoch


def of_file(name: str, epochs: int | None = None, **settings: Any) -> Schedule:
    """Return the schedule of a regime file, at the batch that it is for unless another is given."""
    file = catalog.load("regimes", name)
    size = settings.pop("size", getattr(file, "batch", 128))
    epochs = epochs or (None if hasattr(file, "epochs") else 10)
    config = Config(workers=1, batch_size=size, regime=name, epochs=epochs, **settings)
    return schedule_of(config, SimpleNamespace(), nn.Linear(1, 1), BATCHES)


def rows() -> list[tuple[str, float, list[float], dict[str, float]]]:
    """Return the rows of the table of values: regime, epoch, losses before it, settings."""
    found = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| ([\d., ]*)\| `(.+)` \|$", TEXT, re.MULTILINE)
    return [
        (
            name,
            float(epoch),
            [float(loss) for loss in losses.split(",") if loss.strip()],
            {key: float(value) for key, value in re.findall(r"(\w+)=([\d.e-]+)", settings)},
        )
        for name, epoch, losses, settings in found
    ]


def test_every_regime_is_in_the_table() -> None:
    assert {name for name, *_ in rows()} == set(catalog.names("regimes"))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]} at {row[1]:g}")
def test_the_table_of_values_is_right(row: Any) -> None:
    name, epoch, losses, wanted = row
    results = [{"val_loss": loss} for loss in losses]
    step = round(epoch * BATCHES)
    got = of_file(name).regime.at(int(epoch), step, results)
    assert {key: got[key] for key in wanted} == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "epochs"),
    [("cifar_step", 164), ("cifar_step_300", 300), ("cifar_cosine", 200), ("imagenet_step", 90),
     ("large_batch", 164), ("gpt_cosine", 10), ("ptb_plateau", 40), ("onecycle_resnet9", 24)],
)  # fmt: skip
def test_a_regime_file_sets_the_number_of_epochs(name: str, epochs: int) -> None:
    assert of_file(name).epochs == epochs


def test_a_schedule_ends_with_the_run_however_long_it_is() -> None:
    for epochs in (10, 40):
        regime = of_file("cifar_cosine", epochs).regime
        assert regime.at(epochs - 1, epochs * BATCHES)["lr"] == pytest.approx(0)
        assert regime.at(5, 5 * BATCHES)["lr"] == pytest.approx(0.1)


def test_the_cosine_is_the_papers() -> None:
    regime = of_file("cifar_cosine").regime
    for step in (0, 1, 250, 499, 500, 501, 10_250, 19_999):
        done = step / BATCHES
        wanted = 0.1 * done / 5 if done < 5 else 0.05 * (1 + math.cos(math.pi * (done - 5) / 195))
        assert regime.at(int(done), step)["lr"] == pytest.approx(wanted, abs=1e-12)


def test_a_large_batch_has_a_larger_rate_and_as_many_steps() -> None:
    schedule = of_file("large_batch", size=2048)
    assert schedule.epochs == 164 * 16
    rates = [schedule.regime.at(e, e * BATCHES)["lr"] for e in (0, 5, 81 * 16 - 1, 81 * 16)]
    assert rates == pytest.approx([0.1, 0.4, 0.4, 0.04])


def test_the_rate_is_reached_step_by_step() -> None:
    regime = of_file("cifar_step", size=1024, scale_lr="linear", scale_warmup_epochs=2).regime
    rates = [regime.at(step // BATCHES, step)["lr"] for step in (0, 50, 100, 200, 300)]
    assert rates == pytest.approx([0.1, 0.275, 0.45, 0.8, 0.8])


def test_a_smaller_batch_has_its_smaller_rate_at_once() -> None:
    assert of_file("cifar_step", size=32, scale_lr="linear").regime.at(0, 0)["lr"] == 0.025
    assert of_file("cifar_step", size=32, scale_lr="sqrt").regime.at(0, 0)["lr"] == 0.05


def test_the_scaling_of_the_user_comes_before_that_of_the_regime() -> None:
    schedule = of_file("large_batch", size=512, scale_lr="none", scale_epochs=False)
    assert schedule.epochs == 164
    assert schedule.regime.at(82, 9000)["lr"] == 0.01


@pytest.mark.slow
def test_a_rate_set_on_the_command_line_is_scaled_too(tmp_path: Path) -> None:
    run = simsgd.train(
        model="logistic", dataset="digits", workers=2, global_batch_size=32, lr=0.4, epochs=1,
        scale_lr="linear", runs_dir=tmp_path, quiet=True,
    )  # fmt: skip
    assert run.last.lr == pytest.approx(0.1)


def test_asking_twice_scales_once() -> None:
    regime = of_file("large_batch", size=2048).regime
    assert regime.at(9, 900) == regime.at(9, 900)


def test_a_warmup_without_scaling_is_refused() -> None:
    with pytest.raises(SettingError, match="scale_warmup_epochs has no effect without scale_lr"):
        of_file("cifar_step", scale_warmup_epochs=3)


def test_a_stretched_regime_lets_every_epoch_last_longer() -> None:
    from fractions import Fraction

    regime = Regime({0: {"lr": 1.0}, 3: {"lr": 0.5}}).stretched(Fraction(7, 3))
    assert [regime.at(epoch, 0)["lr"] for epoch in (0, 6, 7)] == [1.0, 1.0, 0.5]


def test_a_model_may_name_its_regime() -> None:
    module = catalog.load("models", "resnet9")
    network = catalog.build_model(module, {"width": 2}, 10, (3, 32, 32))
    schedule = schedule_of(Config(workers=4, batch_size=128), module, network, BATCHES)
    assert schedule.epochs == 24
    assert schedule.regime.at(5, 500)["lr"] == pytest.approx(0.4)


def test_a_file_without_a_regime_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("lr = 3\n")
    with pytest.raises(SettingError, match="defines no regime"):
        schedule_of(Config(regime=str(file)), SimpleNamespace(), nn.Linear(1, 1), BATCHES)


PLATEAU = """
def regime(epoch, step, results):
    lr = 0.4
    for before, after in zip(results, results[1:]):
        if after["train_loss"] < before["train_loss"]:
            lr /= 2
    return {"lr": lr}
"""


@pytest.mark.slow
def test_a_regime_of_past_results_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    file = tmp_path / "plateau.py"
    file.write_text(PLATEAU)
    settings = {
        "model": "mlp", "model_config": "hidden=8", "dataset": "digits", "workers": 2,
        "batch_size": 30, "regime": str(file), "quiet": True, "runs_dir": tmp_path,
    }  # fmt: skip
    whole = simsgd.train(**settings, name="whole", epochs=4)
    assert whole.epochs["lr"].tolist() == [0.4, 0.4, 0.2, 0.1]
    simsgd.train(**settings, name="parts", epochs=2)
    parts = simsgd.train(resume=tmp_path / "parts", epochs=4)
    assert parts.epochs["lr"].tolist() == whole.epochs["lr"].tolist()
    assert parts.epochs["val_loss"].tolist() == whole.epochs["val_loss"].tolist()
