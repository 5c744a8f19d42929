"""The defaults of `verify` where they differ from those of `train`."""

STEPS = 50  # to compare
DEFAULTS: dict[str, object] = {"workers": 4, "dtype": "float64"}
