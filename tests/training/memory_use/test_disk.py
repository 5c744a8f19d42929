"""The number of evaluations that a run will have, by arithmetic and one by one."""

from types import SimpleNamespace

import pytest

from simsgd.training.memory_use.disk import _evaluations


def experiment(steps, batches, every):
    return SimpleNamespace(steps=steps, batches=batches, config=SimpleNamespace(eval_every=every))


@pytest.mark.parametrize("every", [0, 1, 2, 4, 6, 7, 50])
@pytest.mark.parametrize("batches", [1, 5, 6])
@pytest.mark.parametrize("steps", [1, 12, 30, 43])
def test_evaluations_are_counted_as_one_by_one(steps, batches, every):
    due = {s for s in range(1, steps + 1) if s % batches == 0 or (every and s % every == 0)}
    assert _evaluations(experiment(steps, batches, every)) == len(due | {steps})


def test_a_run_of_more_epochs_than_memory_could_list_is_counted():
    assert _evaluations(experiment(10**15, 10, 7)) == 10**14 + 10**15 // 7 - 10**15 // 70
