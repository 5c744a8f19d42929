"""Regimes and warm-ups against independent implementations.

The reference is a walker: it moves on by at most one phase a call and remembers where it stands.
Ours is a function of (epoch, step). Cases in which the walker lags or falls back are held to the
right values, written here, in place of the recorded ones.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from simsgd.settings import SettingError, count, kept
from simsgd.simulator.optimizer import RegimeOptimizer
from simsgd.simulator.regime import Regime, Settings, prune_warmup

from ..reference_data import Case, cases, each

STRUCTURE = {"epoch", "step", "epoch_lambda", "step_lambda", "lr_decay_rate", "lr_decay_steps"}


def cosine(start: float, end: float, total: int, begin: int) -> Callable[[float], Settings]:
    def anneal(t: float) -> Settings:
        turned = math.pi * (t - begin) / (total - begin)
        return {"lr": end + (start - end) * (1 + math.cos(turned)) / 2}

    return anneal


def linear(start: float, end: float, total: int) -> Callable[[float], Settings]:
    return lambda t: {"lr": max(start + t * (end - start) / total, 0.0)}


FUNCTIONS: dict[str, Callable[[float], Settings]] = {
    "lambda t: {'lr': 0.1 * min(1.0, (t + 1) / 5.0)}": lambda t: {
        "lr": 0.1 * min(1.0, (t + 1) / 5.0)
    },
    "lambda t: {'lr': 0.1 * (0.5 ** t)}": lambda t: {"lr": 0.1 * 0.5**t},
    "cosine anneal from 0.1 to 0.0 with T=6, t0=0": cosine(0.1, 0.0, 6, 0),
    "cosine anneal from 0.1 to 0.001 with T=8, t0=2": cosine(0.1, 0.001, 8, 2),
    "linear from 0.0 to 0.1 over 5": linear(0.0, 0.1, 5),
}
REFUSED = ("out_of_order",)
LAGGING = (
    "resume_late",  # begun late, it loses the first phase and is one phase behind at first
    "lr_decay",  # between two multiples of the decay steps it falls back to the base value
    "sticky_lr_decay",  # the dict form passes over the decay without a word
)


def regime_of(case: Case) -> Regime:
    """Return the regime of a case, with functions in place of their description."""
    params = case["params"]
    if "config" in params:
        return Regime({int(epoch): phase for epoch, phase in params["config"].items()})
    phases = [
        {key: FUNCTIONS[value] if key.endswith("_lambda") else value for key, value in p.items()}
        for p in params["regime"]
    ]
    return Regime({0: params["defaults"] or {}}).then(Regime(phases))


def step_of(call: Case) -> int:
    """Return the step of a call; where only the epoch is given, no phase asks for it."""
    return call.get("steps") or 0


def as_recorded(case: Case) -> bool:
    return case["name"] not in REFUSED + LAGGING


def settings(regime: Regime, calls: list[Case]) -> list[Settings]:
    return [regime.at(call["epoch"], step_of(call)) for call in calls]


def groups(regime: Regime, calls: list[Case]) -> list[tuple[str, Settings]]:
    """Return the class and the settings of the optimizer after each of the calls."""
    optimizer = RegimeOptimizer({"p": nn.Parameter(torch.zeros(1))})
    found = []
    for now in settings(regime, calls):
        optimizer.follow(now)
        assert optimizer.inner is not None
        group = optimizer.inner.param_groups[0]
        found.append((type(optimizer.inner).__name__, dict(group)))
    return found


def recorded(values: Settings) -> Settings:
    """Return settings as the cases record them: numbers to 9 digits, tuples as lists."""
    return {key: _recorded(value) for key, value in values.items()}


def _recorded(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return float(f"{value:.9g}") if isinstance(value, float) else value


def case_named(topic: str, name: str) -> Case:
    return cases(topic, lambda case: case["name"] == name)[0]


@each("regime", as_recorded)
def test_a_list_of_phases_gives_the_same_settings(case: Case) -> None:
    found = [recorded(now) for now in settings(regime_of(case), case["expected"])]
    wanted = [
        {key: value for key, value in call["setting"].items() if key not in STRUCTURE}
        for call in case["expected"]
    ]
    assert found == wanted


@each("regime", as_recorded)
def test_a_list_of_phases_gives_the_same_optimizer(case: Case) -> None:
    found = [name for name, _ in groups(regime_of(case), case["expected"])]
    assert found == [call["optimizer"] for call in case["expected"]]


@each("regime", as_recorded)
def test_a_list_of_phases_sets_the_optimizer_alike(case: Case) -> None:
    assert_groups_equal(regime_of(case), case["expected"])


@each("regime_dict", as_recorded)
def test_a_dict_by_epoch_gives_the_same_optimizer(case: Case) -> None:
    found = [name for name, _ in groups(regime_of(case), case["expected"])]
    assert found == [call["optimizer"] for call in case["expected"]]


@each("regime_dict", as_recorded)
def test_a_dict_by_epoch_sets_the_optimizer_alike(case: Case) -> None:
    assert_groups_equal(regime_of(case), case["expected"])


def test_a_late_start_finds_all_phases_before_it() -> None:
    case = case_named("regime", "resume_late")
    found = settings(regime_of(case), case["expected"])
    lrs = [0.001, 0.001, 0.001, 0.0001, 0.0001]
    assert found == [{"lr": lr, "momentum": 0.9} for lr in lrs]


def test_a_late_start_equals_the_recorded_one_once_it_has_caught_up() -> None:
    case = case_named("regime", "resume_late")
    calls = case["expected"][1:]
    found = [now["lr"] for now in settings(regime_of(case), calls)]
    assert found == [call["setting"]["lr"] for call in calls]


def test_a_decayed_lr_holds_until_the_next_decay() -> None:
    case = case_named("regime", "lr_decay")
    found = [now["lr"] for now in settings(regime_of(case), case["expected"])]
    assert found == [1.0] * 4 + [0.5] * 4 + [0.25] * 4


def test_a_decayed_lr_equals_the_recorded_one_where_it_decays() -> None:
    case = case_named("regime", "lr_decay")
    calls = [call for call in case["expected"] if call["steps"] % 4 == 0]
    found = [now["lr"] for now in settings(regime_of(case), calls)]
    assert found == [call["setting"]["lr"] for call in calls]


def test_a_dict_by_epoch_decays_as_a_list_does() -> None:
    case = case_named("regime_dict", "sticky_lr_decay")
    found = [regime_of(case).at(step // 2, step)["lr"] for step in range(12)]
    assert found == [1.0] * 4 + [0.5] * 4 + [0.25] * 4


def test_phases_out_of_order_are_refused() -> None:
    case = case_named("regime", "out_of_order")
    with pytest.raises(SettingError, match="by rising epoch"):
        regime_of(case)


LADDERS = {  # the reference's warm-ups that are DGC's own ladder: our final value and epochs
    "warmup_r0.001_E5_list1": (0.999, 4),
    "warmup_r0.01_E0_default": (0.99, 0),
    "warmup_r0.05_E5_0.25": (0.95, 2),
}


@each("dgc_schedule", lambda case: case["name"] in LADDERS)
def test_our_ladder_keeps_the_same_fraction_by_epoch(case: Case) -> None:
    ladder = prune_warmup(*LADDERS[case["name"]])
    found = [kept(ladder.at(row["epoch"], 0)["prune"]) for row in case["expected"]["per_epoch"]]
    assert found == [row["ratio"] for row in case["expected"]["per_epoch"]]


@each("dgc_schedule")
def test_any_ladder_is_a_regime_that_sends_as_many(case: Case) -> None:
    ladder = Regime(lambda epoch: {"prune": kept(ratio_by_epoch(case["params"], epoch))})
    rows = case["expected"]["per_epoch"]
    found = [count(kept(ladder.at(row["epoch"], 0)["prune"]), 64 * 64) for row in rows]
    assert found == [row["num_selects_of_64x64"] for row in rows]


@each("dgc_choco", lambda case: case["name"] == "warmup_0.99_3")
def test_values_beyond_the_final_one_are_left_out_and_the_others_share_the_epochs(
    case: Case,
) -> None:
    ladder = prune_warmup(0.99, 3)
    found = [ladder.at(row["epoch"], 0)["prune"] for row in case["expected"]]
    assert found == [row["dropped_fraction"] for row in case["expected"]]


@each("dgc_choco", lambda case: case["name"] == "warmup_0.999_4")
def test_where_the_reference_spreads_the_final_value_too_whole_epochs_agree(case: Case) -> None:
    rows = [row for row in case["expected"] if float(row["epoch"]).is_integer()]
    ladder = prune_warmup(0.999, 4)
    found = [ladder.at(row["epoch"], 0)["prune"] for row in rows]
    assert found == [row["dropped_fraction"] for row in rows]


def assert_groups_equal(regime: Regime, calls: list[Case]) -> None:
    """Assert what the optimizer's class takes; the reference carries along what it does not."""
    found, wanted = [], []
    for call, (_, group) in zip(calls, groups(regime, calls), strict=True):
        wanted.append({key: value for key, value in call["group"].items() if key in group})
        found.append(recorded({key: group[key] for key in wanted[-1]}))
    assert found == wanted


def ratio_by_epoch(params: Case, epoch: int) -> float:
    """Return the fraction kept at an epoch, by the operation of the cases."""
    base, epochs, coefficient = (
        params[key] for key in ("compress_ratio", "warmup_epochs", "warmup_coeff")
    )
    base = 1 / base if base > 1 else base
    if epoch >= epochs:
        return float(base)
    if isinstance(coefficient, list):
        return float(coefficient[epoch])
    factor = base ** (1 / (epochs + 1)) if coefficient is None else coefficient
    return float(max(factor ** (epoch + 1), base))
