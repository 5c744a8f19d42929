"""Numbers that independent implementations computed, from tests/data.

Each file is a list of cases: what is computed (`operation`), with what (`params`, `input` or
`inputs`), the result (`expected`) and whose it is (`source`).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

Case = dict[str, Any]

DATA = Path(__file__).parent / "data"

SINGLE_STEP = 1e-6  # relative
MULTI_STEP = 1e-5  # of the largest entry


def cases(topic: str, holds: Callable[[Case], bool] = lambda case: True) -> list[Case]:
    """Return the cases of a file for which `holds`; there is at least one."""
    found = json.loads((DATA / f"{topic}.json").read_text())
    chosen = [case for case in found if holds(case)]
    assert chosen, f"no case of {topic} is asked for"
    return chosen


def each(topic: str, holds: Callable[[Case], bool] = lambda case: True) -> pytest.MarkDecorator:
    """Return a decorator that runs a test with every `case` of a file for which `holds`."""
    chosen = cases(topic, holds)
    return pytest.mark.parametrize("case", chosen, ids=[case["name"] for case in chosen])


def tensor(values: Any) -> Tensor:
    """Return nested lists as float32, with "nan", "inf" and "-inf" as numbers."""
    return torch.tensor(_numbers(values), dtype=torch.float32)


def flat(values: Any) -> Tensor:
    """Return nested lists as one row of float32, [n]."""
    return tensor(values).flatten()


def assert_equals_step(actual: Tensor, expected: Tensor) -> None:
    """Assert that the result of one step agrees."""
    torch.testing.assert_close(actual, expected, rtol=SINGLE_STEP, atol=0.0, equal_nan=True)


def assert_equals_steps(actual: Tensor, expected: Tensor) -> None:
    """Assert that the result of several steps agrees."""
    atol = MULTI_STEP * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=atol)


def _numbers(values: Any) -> Any:
    return [_numbers(value) for value in values] if isinstance(values, list) else float(values)
