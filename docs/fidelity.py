"""Write docs/fidelity.md: simulations held to real processes, recipe by recipe.

python docs/fidelity.py > docs/fidelity.md

With --quick five steps of some recipes: a check, not a result.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from simsgd.communication.transport import is_rank_zero
from simsgd.config import Config
from simsgd.verify.launch import launch
from simsgd.verify.real_worker import TorchWorker
from simsgd.verify.verdict import Verdict
from simsgd.verify.verify import checked, compare

COMMON = {"model": "resnet", "model_config": "depth=8", "dataset": "digits", "workers": 4,
          "batch_size": 8, "device": "cpu", "lr": 0.05}  # fmt: skip
RECIPES = [
    ("none", "none"), ("topk:0.01", "none"), ("topk:0.01", "residual"), ("topk:0.01", "dgc"),
    ("topk:0.01", "ef21"), ("sampled_topk:0.01", "dgc"), ("randomk:0.01", "residual"),
    ("randomk:0.01,shared=true", "residual"), ("block:0.01", "dgc"), ("threshold:0.01", "residual"),
    ("adaptive_threshold", "residual"), ("adacomp", "residual"), ("sign", "residual"),
    ("onebit", "residual"), ("terngrad", "none"), ("qsgd:255", "none"),
    ("qsgd:4,bucket=512", "none"), ("natural", "none"), ("int8", "none"), ("fp16", "none"),
    ("powersgd:2", "residual"), ("topk:0.01+sign", "dgc"), ("turns:0.01", "residual"),
    ("tiled_topk:4,tile=16", "residual"), ("tiled_topk:4,tile=16,basis=dct", "residual"),
    ("topk:0.1+bins:2", "residual"), ("e3m0", "residual"), ("dion:2", "residual"),
]  # fmt: skip
ALGORITHMS = [
    {"algorithm": "dpsgd"},
    {"algorithm": "dpsgd", "topology": "one-peer", "compressor": "qsgd:63"},
    {"algorithm": "choco", "compressor": "topk:0.01", "consensus_stepsize": 0.1},
    {"algorithm": "choco", "compressor": "sign", "topology": "star", "consensus_stepsize": 0.1},
    {"algorithm": "dcd", "compressor": "qsgd:255,bucket=512"},
    {"algorithm": "ecd", "compressor": "qsgd:255,bucket=512", "topology": "complete"},
    {"algorithm": "deepsqueeze", "compressor": "qsgd:255,bucket=512"},
    {"algorithm": "local", "local_steps": 5},
    {"algorithm": "local", "local_steps": 5, "compressor": "topk:0.01"},
    {"algorithm": "fedavg", "local_steps": 5, "compressor": "qsgd:255"},
    {"algorithm": "diloco", "local_steps": 5},
    {"algorithm": "async", "staleness": "uniform:3", "compressor": "topk:0.01"},
    {"algorithm": "allreduce", "compressor": "qsgd:255", "downlink": "topk:0.1"},
    {"algorithm": "allreduce", "compressor": "topk:0.01", "collective": "gtopk"},
    {"algorithm": "allreduce", "compressor": "topk:0.01", "collective": "oktopk"},
    {"algorithm": "allreduce", "compressor": "topk:0.01", "collective": "cltk"},
    {"algorithm": "streaming:delay=1,mixing=0.5", "local_steps": 6, "compressor": "e3m0",
     "memory": "none"},
    {"algorithm": "sparta", "compressor": "randomk:0.01,shared=true"},
    {"algorithm": "sparta_diloco", "local_steps": 5},
    {"algorithm": "diloco", "local_steps": 5, "outer_optimizer": "slowmo", "outer_lr": 1.0},
    {"algorithm": "noloco", "local_steps": 5},
    {"algorithm": "islands", "local_steps": 5},
    {"algorithm": "sgp"},
    {"algorithm": "qg_dsgdm", "momentum": 0.0},
    {"algorithm": "powergossip"},
    {"algorithm": "onebit_adam:freeze_step=20", "compressor": "sign:rms", "optimizer": "Adam",
     "lr": 0.01, "momentum": None},
    {"algorithm": "zero_one_adam:freeze_step=30,local_scaler=20", "compressor": "sign:rms",
     "lr": 0.01, "momentum": 0.0},
    {"algorithm": "scaffold", "local_steps": 5},
    {"algorithm": "fedprox:mu=0.1", "local_steps": 5},
]  # fmt: skip
IN_FLOAT32 = [
    ("none", "none"),
    ("topk:0.01", "dgc"),
    ("sign", "residual"),
    ("qsgd:255", "none"),
    ("natural", "none"),
    ("fp16", "none"),
    ("powersgd:2", "residual"),
]
HOOKS = {  # PyTorch's own, and what simulates them
    "fp16_compress_hook": ("fp16", "none"),
    "powerSGD_hook": ("powersgd:2,start_compressing_after_num_steps=2", "residual"),
}


def listen(hook, parallel):
    """Register a hook of PyTorch's, whose bytes are not counted."""
    if hook == "powerSGD_hook":
        state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        parallel.register_comm_hook(None, getattr(default_hooks, hook))
    return []


def work(put, tasks, steps):
    """Compare one recipe after the other in one group of processes."""
    for number, (config, real) in enumerate(tasks):
        compare(lambda rows, number=number: put((number, rows[0])), config, steps, real)
        if is_rank_zero():
            print(f"{number + 1} of {len(tasks)} recipes", file=sys.stderr)


def config_of(compressor, memory, dtype):
    """Return the configuration of a recipe."""
    return Config.of({**COMMON, "compressor": compressor, "memory": memory, "dtype": dtype})


def main(quick):
    """Print the page."""
    steps, every = (5, 10) if quick else (50, 1)
    recipes, in_float32, algorithms = RECIPES[::every], IN_FLOAT32[::every], ALGORITHMS[::every]
    tasks = [checked(config_of(*recipe, "float64"), steps) for recipe in recipes]
    tasks += [checked(config_of(*recipe, "float32"), steps) for recipe in in_float32]
    mean_of_gradients = len(tasks)
    unlike = {**COMMON, "dtype": "float64", "partition": "sorted"}
    tasks += [checked(Config.of({**unlike, **settings}), steps) for settings in algorithms]
    for hook, recipe in HOOKS.items():
        config, _ = checked(config_of(*recipe, "float32"), steps)
        tasks.append((config, partial(TorchWorker, listen=partial(listen, hook))))
    verdicts = [Verdict(config.dtype, steps, False, Path()) for config, _ in tasks]
    for number, row in launch(work, COMMON["workers"], tasks, steps):
        verdicts[number].add(row)
    lines = [line(config, verdict) for (config, _), verdict in zip(tasks, verdicts, strict=True)]
    hooks = [
        f"| `{hook}` | `{compressor}`, {memory} | {verdict.rows[0]['parameter_difference']:.1e} "
        f"| {verdict.rows[2]['parameter_difference']:.1e} "
        f"| {mean(verdict, 'loss'):.3f} | {mean(verdict, 'real_loss'):.3f} |"
        for (hook, (compressor, memory)), verdict in zip(
            HOOKS.items(), verdicts[-len(HOOKS) :], strict=True
        )
    ]
    text = Path(__file__).with_name("fidelity.template.md").read_text()
    tables = {
        "table": lines[:mean_of_gradients],
        "algorithms": [
            f"| {named(settings)} | {config.topology or ''} {lines[place]}"
            for place, ((config, _), settings) in enumerate(
                zip(tasks[mean_of_gradients:], algorithms, strict=False), mean_of_gradients
            )
        ],
        "hooks": hooks,
    }
    told = {name: "\n".join(rows) for name, rows in tables.items()}
    print(text.format(**told, torch=torch.__version__), end="")


def named(settings):
    """Return an algorithm with what else tells it from others."""
    beside = [settings[key] for key in ("collective", "outer_optimizer") if key in settings]
    return ", ".join([f"`{settings['algorithm']}`", *beside])


def line(config, verdict):
    """Return a recipe's row of the table."""
    kinds = [row["flip"] for row in verdict.flips]
    flips = f"{kinds.count('message')} + {kinds.count('kink')}" if kinds else "none"
    first = next((f"step {r['step']}, worker {r['flipped_worker']}" for r in verdict.flips), "")
    sent, weighed = (sum(r[c] for r in verdict.rows) for c in ("sent_bytes", "ledger_bytes"))
    return (
        f"| `{config.compressor or 'none'}` | {config.memory} | {config.dtype} "
        f"| {most(verdict.held, 'parameter_difference')} | {most(verdict.rows, 'loss_difference')} "
        f"| {flips} | {first} | {sent:,} | {weighed:,} "
        f"| {'yes' if verdict.holds else 'no'} |"
    )


def most(rows, column):
    """Return the largest number in a column."""
    return f"{max(row[column] for row in rows):.1e}"


def mean(verdict, column):
    """Return the mean of a column over all steps."""
    return sum(row[column] for row in verdict.rows) / len(verdict.rows)


if __name__ == "__main__":
    import fidelity  # by a name that the processes know too

    fidelity.main("--quick" in sys.argv[1:])
