"""The defaults of `verify` where they differ from those of `train`."""

STEPS = 50  # to compare
IDLE = (  # settings of `train` that two runs which are compared step by step do not use
    "checkpoint_every", "eval_every", "evaluate", "evaluate_buffers", "keep", "log_every",
    "log_layers", "recalibrate_bn", "tensorboard", "wandb",
)  # fmt: skip
DEFAULTS: dict[str, object] = {"workers": 4, "dtype": "float64"}
