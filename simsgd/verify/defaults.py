"""The defaults of `verify` where they differ from those of `train`."""

from typing import Any

STEPS = 50  # to compare
DEFAULTS: dict[str, Any] = {"workers": 4, "dtype": "float64"}
