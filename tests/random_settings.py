"""Settings of a recipe drawn at random, for whole simulations and whole runs.

Every setting of `Recipe` is drawn, and every compressor, memory, algorithm and topology, but for
those in `LEFT_OUT`. What is drawn need not go together: a recipe may be refused.

Letters: W workers.
"""

from hypothesis import strategies as st

LEFT_OUT = {
    "engine": {"compiled": "takes seconds a model, and is vmap", "tune": "goes by the clock"},
    "compressor": {"grace": "runs a file, see test_adapters.py"},
    "topology": {
        "torus": "needs 9 workers",
        "social": "needs 32 workers",
        "FILE": "is a file, see test_topology.py",
    },
    "optimizer": {"LBFGS": "needs a closure", "SparseAdam": "needs sparse gradients"},
}
SIMPLE = (
    "none", "topk:0.1", "topk:0.5", "topk:0.2+sign", "topk:0.3+qsgd:15", "randomk:0.2", "block:0.2",
    "sampled_topk:0.1", "threshold:0.01", "adaptive_threshold", "adacomp", "variance", "sign",
    "onebit", "qsgd:15", "terngrad", "natural", "int8", "fp16", "bf16", "powersgd:1",
    "tiled_topk:2,tile=4", "bins:2", "e3m0", "turns:0.3",
)  # fmt: skip
COMPRESSORS = (
    *SIMPLE, "topk:1", "topk:0.000001", "randomk:0.3,shared=true,scale=true",
    "randomk:0.3,shared=true+bf16", "block:0.4+fp16", "threshold:1000", "threshold:0+int8",
    "adacomp:bin=3,c=0,variant=values", "sampled_topk:0.3,0.1,resample=false,strided=false",
    "sign:scale=none", "sign:zero=keep", "qsgd:1,bucket=4,code=elias",
    "qsgd:3,norm=max,biased=true",
    "terngrad:clip=none,shared_scale=true", "terngrad:pack=base3", "adaptive_threshold+natural",
    "topk:0.2+qsgd:3,code=elias", "topk:0.4+terngrad:pack=base3", "topk:0.4+onebit",
    "powersgd:2,variant=package", "powersgd:1,num_iters_per_step=2,variant=package",
    "powersgd:1,start_compressing_after_num_steps=1", "powersgd:1,min_compression_rate=2",
    "variance:alpha=0", "variance+sign", "tiled_topk:3,tile=8,basis=dct", "topk:0.3+bins:3",
    "turns:0.5,fresh=true", "dion:2", "dion2:0.5",
)  # fmt: skip
PRUNED = (0.5, 0.9)
GOSSIP = ("dpsgd", "qg_dsgdm", "sgp", "choco", "deepsqueeze", "dcd", "ecd")
FEDERATED = ("fedavg", "fedprox", "scaffold")
LOCAL = ("local", *FEDERATED, "diloco")
SELDOM = (
    "islands:local_steps=2", "noloco:local_steps=2", "sparta", "sparta_diloco:local_steps=2",
    "streaming:local_steps=2,fragments=1,delay=1", "onebit_adam:1",
    "powergossip", "powergossip:rank=2,iterations=2",
    "zero_one_adam:freeze_step=1,local_scaler=1",
)  # fmt: skip
ALGORITHMS = ("allreduce", *GOSSIP, *LOCAL, *SELDOM, "async", "butterfly")
MEMORIES = (
    "none", "residual", "residual:beta=0.9", "dgc", "dgc:masking=false", "ef21", "momentum",
)  # fmt: skip
INERT = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "Rprop", "ASGD",
         "Adafactor")  # fmt: skip

ALWAYS = {  # settings that any recipe takes
    "engine": ("onepass", "vmap", "loop", "threads"),
    "plan": ("gpu",),
    "granularity": ("model", "bucket:100", "bucket:1KB"),
    "value_dtype": ("float16", "bfloat16", "float32", "float64"),
    "accumulate": (2, 3),
    "clip": (0.1, 10.0),
    "on_nonfinite": ("skip", "zero"),
    "optimizer": ("SGD", "SGD", "RMSprop", "Muon", *INERT),
    "weight_decay": (0.0, 0.01),
    "param_groups": ("no_decay_1d", '[{"params": "*bias", "lr_mult": 0.5}]'),
    "scheduler": ("ExponentialLR:gamma=0.9",),
    "attack": ("sign-flip:1", "noise:1", "alie:1,z=1"),
}
WHERE = {  # and those that others need, by the setting and the values that they need it to have
    ("engine", ("onepass", "vmap")): {"worker_chunk": (1, 2, "auto")},
    ("engine", ("loop", "threads")): {"amp": ("bf16", "fp16")},
    ("workers", (2,)): {"cluster": ("2x2", "2x3")},
    ("clip", (0.1, 10.0)): {"clip_by": ("per-tensor", "value")},
    ("optimizer", (None, "SGD", "RMSprop", "Muon")): {"momentum": (0.0, 0.9)},
    ("scheduler", ("ExponentialLR:gamma=0.9",)): {"scheduler_every": ("step", "epoch")},
    ("momentum", (0.9,)): {"nesterov": (True, False)},
    ("weight_decay", (0.01,)): {"weight_decay_at": ("local",)},
    ("prune", PRUNED): {
        "warmup": (False,), "warmup_epochs": (0, 1, 2), "prune_1d": (True,),
    },
    ("compressor", (None, *COMPRESSORS[1:])): {
        "compress_if": ("all", "numel>=10"),
        "index_dtype": ("int64", "packed", "gap16"),
        "flush_every": (1, 2),
        "memory": MEMORIES,
    },
    ("granularity", (None,)): {
        "compress_layers": ("*weight=topk:0.3", "*0*=qsgd:15,bucket=4,*=none", "*1*=sign,*=int8"),
    },
    ("memory", ("residual", "residual:beta=0.9", "dgc", "dgc:masking=false", "momentum")): {
        "state_dtype": ("bfloat16", "float16", "float32"),
    },
    ("memory", ("residual",)): {"lr_in_memory": (True,)},
    ("algorithm", ("allreduce",)): {
        "aggregate": ("vote", "median", "trimmed-mean:0.3", "krum:0,m=2", "senders"),
        "method": ("demo", "dion", "sparseloco", "muloco"),
        "downlink": ("topk:0.3", "sign", "qsgd:15", "none", "fp16", "randomk:0.5+int8"),
        "collective": ("gtopk", "oktopk", "cltk", "dense", "auto"),
        "noise_scale": (True,),
    },
    ("algorithm", GOSSIP): {
        "topology": ("ring", "complete", "path", "star", "exponential", "hypercube", "one-peer",
                     "expander", "margulis", "erdos-renyi:0.7,1"),
    },
    ("algorithm", ("choco", "deepsqueeze")): {"consensus_stepsize": (0.1, 1.0)},
    ("algorithm", LOCAL): {
        "local_steps": (1, 2), "final_exchange": (True,),
        "inner_state": ("keep", "average", "reset"),
    },
    ("algorithm", ("local", "diloco")): {"post_local_from": (0, 1)},
    ("algorithm", FEDERATED): {
        "clients": (4, 7), "local_epochs": (1, 2),
        "participation": (0.5, 1.0), "client_buffers": ("local", "average", "server"),
    },
    ("algorithm", ("diloco",)): {"outer_lr": (0.5,), "outer_momentum": (0.0, 0.5),
                                 "outer_optimizer": ("sgd", "nesterov:0.5")},
    ("algorithm", ("async",)): {"staleness": (0, 2, "uniform:2")},
}  # fmt: skip
ONCE = ("workers", "seed", "lr", "algorithm", "compressor", "prune")  # drawn by `recipes` itself


@st.composite
def recipes(draw):
    """Draw from all settings of a recipe; those drawn need not go together."""
    algorithm = draw(st.sampled_from(ALGORITHMS))
    several = {"butterfly": [2, 4]} | {name: [2, 3, 4] for name in GOSSIP}
    chosen = {
        "workers": draw(st.sampled_from(several.get(algorithm, [1, 2, 3, 4]))),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "lr": 0.01,
        "algorithm": algorithm,
    }
    option = draw(st.sampled_from(["compressor", "compressor", "compressor", "prune", ""]))
    if option:
        chosen[option] = draw(st.sampled_from(COMPRESSORS if option == "compressor" else PRUNED))
    for needed, group in [(None, ALWAYS), *WHERE.items()]:
        if needed is None or chosen.get(needed[0]) in needed[1]:
            for name, values in group.items():
                if draw(st.integers(0, 3)) == 0:
                    chosen[name] = draw(st.sampled_from(values))
    return chosen


def drawn_of(name):
    """Return every value of a setting that may be drawn."""
    own = {"compressor": COMPRESSORS, "algorithm": ALGORITHMS, "prune": PRUNED}.get(name, ())
    for group in (ALWAYS, *WHERE.values()):
        own += group.get(name, ())
    return own
