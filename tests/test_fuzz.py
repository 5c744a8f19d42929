"""Whole settings drawn at random: finite losses, bytes that are buffers, and resuming.

Letters: W workers, n elements of one segment.
"""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import nn

import simsgd
from simsgd.settings import SettingError
from simsgd.transport import Channel

COMPRESSORS = (
    "none", "topk:0.1", "topk:0.5", "topk:0.2+sign", "topk:0.3+qsgd:15", "randomk:0.2", "block:0.2",
    "sampled_topk:0.1", "threshold:0.01", "adaptive_threshold", "adacomp", "variance", "sign",
    "onebit", "qsgd:15", "terngrad", "natural", "int8", "fp16", "bf16", "powersgd:1",
)  # fmt: skip
ALGORITHMS = (
    "allreduce", "dpsgd", "choco", "deepsqueeze", "dcd", "ecd", "local", "fedavg", "diloco",
    "async", "butterfly",
)  # fmt: skip
GOSSIP = ("dpsgd", "choco", "deepsqueeze", "dcd", "ecd")
STEPS, BATCH = 3, 2


@st.composite
def combinations(draw):
    """Draw settings that go together, and the model they are for."""
    workers = draw(st.sampled_from([1, 2, 3, 4]))
    algorithm = draw(st.sampled_from(ALGORITHMS))
    if algorithm in GOSSIP:
        workers = max(2, workers)
    if algorithm == "butterfly":
        workers = draw(st.sampled_from([2, 4]))
    pushes = algorithm in ("allreduce", "async", "butterfly")
    compressor = draw(st.sampled_from(COMPRESSORS).filter(lambda c: c != "variance" or pushes))
    chosen = {
        "workers": workers,
        "algorithm": algorithm,
        "compressor": compressor,
        "engine": draw(st.sampled_from(["auto", "loop", "vmap"])),
        "accumulate": draw(st.sampled_from([1, 1, 2])),
        "value_dtype": draw(st.sampled_from([None, "float32", "float64", "bfloat16"])),
        "index_dtype": draw(st.sampled_from(["int32", "int64", "packed", "gap16"])),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "lr": 0.01,
    }
    if compressor != "powersgd:1":
        chosen["granularity"] = draw(st.sampled_from(["layer", "model", "bucket:100"]))
        chosen["compress_if"] = draw(st.sampled_from(["dim>1", "all", "numel>=10"]))
    if algorithm in GOSSIP:
        chosen["topology"] = draw(st.sampled_from(["ring", "complete", "path", "star"]))
    if algorithm in ("local", "fedavg", "diloco"):
        chosen["local_steps"] = draw(st.sampled_from([1, 2]))
    if algorithm not in GOSSIP and compressor != "variance":
        known = ["none", "residual"] + ["ef21"] * (algorithm not in ("async", "butterfly"))
        known += ["dgc", "momentum"] * (algorithm == "allreduce")
        chosen["memory"] = draw(st.sampled_from(known))
        if chosen["memory"] in ("residual", "dgc") and draw(st.booleans()):
            chosen["state_dtype"] = draw(st.sampled_from(["float32", "bfloat16"]))
    if algorithm == "allreduce" and draw(st.booleans()):
        chosen["clip"] = 1.0
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    model = st.sampled_from(sorted(MODELS)).filter(
        lambda m: m != "norm" or compressor != "variance"
    )
    return draw(model), dtype, chosen


ALWAYS = {  # settings that any recipe takes
    "engine": ("onepass", "vmap", "loop", "threads"),
    "granularity": ("model", "bucket:100"),
    "value_dtype": ("float16", "bfloat16"),
    "accumulate": (2,),
    "clip": (0.1, 10.0),
    "on_nonfinite": ("skip", "zero"),
    "optimizer": ("SGD", "Adam", "AdamW", "RMSprop"),
    "momentum": (0.0, 0.9),
    "weight_decay": (0.01,),
}
WHERE = {  # and those that others need, by the setting and the values that they need it to have
    ("engine", ("onepass", "vmap")): {"worker_chunk": (1, 2)},
    ("engine", ("loop", "threads")): {"amp": ("bf16", "fp16")},
    ("clip", (0.1, 10.0)): {"clip_by": ("per-tensor", "value")},
    ("momentum", (0.9,)): {"nesterov": (True,)},
    ("weight_decay", (0.01,)): {"weight_decay_at": ("local",)},
    ("prune", (0.5, 0.9)): {"warmup": (False,), "prune_1d": (True,)},
    ("compressor", COMPRESSORS[1:]): {
        "compress_if": ("all", "numel>=10"),
        "index_dtype": ("int64", "packed", "gap16"),
        "flush_every": (1, 2),
        "memory": ("none", "residual", "residual:beta=0.9", "dgc", "dgc:masking=false", "ef21",
                   "momentum"),
    },
    ("memory", ("residual", "residual:beta=0.9", "dgc", "momentum")): {
        "state_dtype": ("bfloat16",),
    },
    ("memory", ("residual",)): {"lr_in_memory": (True,)},
    ("algorithm", ("allreduce",)): {
        "aggregate": ("vote",),
        "downlink": ("topk:0.3", "sign", "qsgd:15", "none"),
    },
    ("algorithm", GOSSIP): {
        "topology": ("complete", "path", "star", "exponential", "hypercube", "one-peer"),
        "consensus_stepsize": (0.1, 1.0),
    },
    ("algorithm", ("local", "fedavg", "diloco")): {"local_steps": (1, 2)},
    ("algorithm", ("local",)): {"post_local_from": (0, 1)},
    ("algorithm", ("fedavg",)): {"participation": (0.5, 1.0)},
    ("algorithm", ("diloco",)): {"outer_lr": (0.5,), "outer_momentum": (0.5,)},
    ("algorithm", ("async",)): {"staleness": (0, 2, "uniform:2")},
}  # fmt: skip


@st.composite
def anything(draw):
    """Draw from all settings of a recipe; those drawn need not go together."""
    workers, seed = draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(0, 2**63 - 1))
    chosen = {"workers": workers, "seed": seed, "lr": 0.01}
    chosen["algorithm"] = draw(st.sampled_from(ALGORITHMS))
    said, values = draw(st.sampled_from([("compressor", COMPRESSORS), ("prune", (0.5, 0.9))]))
    chosen[said] = draw(st.sampled_from(values))
    groups = [ALWAYS, *WHERE.values()]
    for needed, group in zip([None, *WHERE], groups, strict=True):
        if needed is None or chosen.get(needed[0]) in needed[1]:
            for name, values in group.items():
                if draw(st.integers(0, 3)) == 0:
                    chosen[name] = draw(st.sampled_from(values))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return draw(st.sampled_from(sorted(MODELS))), dtype, chosen


MODELS = {
    "linear": lambda: nn.Linear(6, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "norm": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)
    ),
}


def simulator(model, dtype, chosen):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = MODELS[model]().to(dtype)
    return simsgd.Simulator(network, **chosen)


def batches(chosen, dtype):
    generator = torch.Generator().manual_seed(1)
    size = chosen["workers"] * chosen.get("accumulate", 1) * BATCH
    for _ in range(STEPS):
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64).to(dtype)
        yield x, torch.randint(3, (size,), generator=generator)


@contextmanager
def listening(heard):
    """Keep each message that a channel carries to all, with the transfer that weighs it."""
    usual = {name: getattr(Channel, name) for name in ("mean", "mean_at_server", "gossip", "up")}

    def kept(name):
        def carry(self, message, segment, *rest):
            sent, answer = usual[name](self, message, segment, *rest)
            heard.append((sent, self.ledger.transfers[-1]))
            return sent, answer

        return carry

    with pytest.MonkeyPatch.context() as patch:
        for name in usual:
            patch.setattr(Channel, name, kept(name))
        yield


def check(model, dtype, chosen):
    """Run three steps; hold the bytes to buffers, and a resumed run to one that never stopped."""
    whole, heard = simulator(model, dtype, chosen), []
    with listening(heard):
        for number, (x, y) in enumerate(batches(chosen, dtype)):
            if number == STEPS - 1:
                saved = whole.state_dict()
                resumed = simulator(model, dtype, chosen)
                resumed.load_state_dict(_copied(saved))
            heard.clear()
            record = whole.step(x, y, epoch=0)
            assert record.losses.isfinite().all()
            for message, transfer in heard:
                packed = [len(message.pack(row)) for row in range(chosen["workers"])]
                assert packed == transfer.payload.tolist() == message.payload_bytes().tolist()
    again = resumed.step(x, y, epoch=0)
    assert torch.equal(again.losses, record.losses)
    assert again.payload_bytes == record.payload_bytes
    for name, value in whole.parameters().items():
        assert value.isfinite().all()
        assert torch.equal(resumed.parameters()[name], value), name


def _copied(state):
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    return [_copied(value) for value in state] if isinstance(state, list) else state


QUIET = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=30, **QUIET)
@given(combinations())
def test_settings_drawn_at_random_train_count_and_resume(drawn):
    check(*drawn)


@pytest.mark.slow
@settings(max_examples=300, **QUIET)
@given(combinations())
def test_many_settings_drawn_at_random_train_count_and_resume(drawn):
    check(*drawn)


def check_or_refuse(drawn):
    """Hold settings to it that are not refused, which they must be before or in the first step."""
    model, dtype, chosen = drawn
    try:
        first = simulator(*drawn)
        first.step(*next(batches(chosen, dtype)), epoch=0)
    except SettingError:
        reject()
    check(model, dtype, chosen)


@settings(max_examples=60, **QUIET)
@given(anything())
def test_any_settings_at_all_train_count_and_resume_or_are_refused(drawn):
    check_or_refuse(drawn)


@pytest.mark.slow
@settings(max_examples=600, **QUIET)
@given(anything())
def test_many_settings_at_all_train_count_and_resume_or_are_refused(drawn):
    check_or_refuse(drawn)


@pytest.mark.parametrize("algorithm", ["async", "butterfly"])
def test_ef21_is_refused_where_nobody_hears_a_mean(algorithm):
    chosen = {"workers": 2, "algorithm": algorithm, "compressor": "topk:0.5", "memory": "ef21"}
    with pytest.raises(SettingError, match=f"which algorithm {algorithm} has nowhere"):
        simulator("linear", torch.float32, {**chosen, "lr": 0.1})


@pytest.mark.parametrize("algorithm", ["dpsgd", "choco", "local", "diloco"])
def test_models_are_not_said_by_the_gradients_of_samples(algorithm):
    chosen = {"workers": 2, "algorithm": algorithm, "compressor": "variance", "lr": 0.1}
    with pytest.raises(SettingError, match="looks at the gradients of single samples"):
        simulator("linear", torch.float32, chosen)
