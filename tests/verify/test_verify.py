import io
import re
import sys
import tempfile

import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import simsgd
from simsgd import SettingError
from simsgd.cli import main
from simsgd.communication.messages import Dense, Levels, SharedSparse, Signs, Sparse
from simsgd.communication.node_bytes import WithinNodes
from simsgd.communication.transport import Measured, RankLost
from simsgd.config import Config
from simsgd.results.tables import STEP_COLUMNS
from simsgd.verify.link_times import LinkStep, LinkTimes
from simsgd.verify.message_flips import Flip, decisions, first_flip
from simsgd.verify.real_worker import OwnWorker, TorchWorker
from simsgd.verify.verdict import COLUMNS, Verdict
from simsgd.verify.verify import checked, difference, verify

from ..process_group import (
    held_to_another,
    held_to_another_device,
    messages_of_a_step,
    messages_of_steps,
    verified,
    verified_with_riders,
)

distributed = pytest.mark.distributed

SMALL = """
from torch import nn
regime = {0: {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}, 1: {"lr": 0.01}}
epochs = 1
def model(num_classes, dropout=0.0, norm=True):
    first = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU()
    layers = [*first, nn.Dropout(dropout), nn.Flatten(), nn.Linear(4 * 36, num_classes)]
    return nn.Sequential(*layers)
"""
UNUSED = """
import torch
from torch import nn
regime = {0: {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}}
epochs = 1
class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.used, self.unused = nn.Linear(64, num_classes), nn.Linear(64, 5)
    def forward(self, x):
        return self.used(x.flatten(1) + 0.1 * torch.randn_like(x.flatten(1)))
def model(num_classes):
    return Net(num_classes)
"""
WHOLE = """
import torch
from torch import nn
regime = {0: {"lr": 0.5}}
epochs = 1
input_transform = {"train": lambda images: (images * 16).round()}
def criterion(output, target):
    return (output * (1 + target.unsqueeze(1) % 3)).sum()
def model(num_classes):
    layer = nn.Linear(64, num_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
"""

GROUPS = """
regime = {
    0: {
        "optimizer": "Adafactor",
        "lr": 0.01,
        "param_groups": [
            {"params": "dim=4", "optimizer": "SGD", "lr": 0.1, "momentum": 0.9},
            {"params": "dim<2", "optimizer": "AdamW", "lr": 0.005},
        ],
    }
}
"""

OWN = """
import torch
from dataclasses import dataclass
from simsgd.methods import Compressor, Dense, Memory

@dataclass(frozen=True)
class Half(Compressor):
    biased = True
    def compress(self, x, state, step):
        return Dense.of(x * (step.key.uniform(x.shape[1], x.dtype) < 0.5))

@dataclass(frozen=True)
class Drawing(Compressor):
    biased = True
    def compress(self, x, state, step):
        return Dense.of(x * (torch.rand_like(x) < 0.5))

@dataclass(frozen=True)
class Quarter(Memory):
    def init(self, like, dense): return {"residual": torch.zeros_like(like)}
    def compensate(self, grad, state): return grad + 0.25 * state["residual"]
    def update(self, compensated, message, state):
        state["residual"].copy_(compensated - message.to_dense())
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "small.py").write_text(SMALL)
    (folder / "whole.py").write_text(WHOLE)
    (folder / "unused.py").write_text(UNUSED)
    (folder / "groups.py").write_text(GROUPS)
    (folder / "own_methods_of_ranks.py").write_text(OWN)
    return folder


def recipe(files, **settings):
    base = {"model": str(files / "small.py"), "dataset": "digits", "workers": 4, "batch_size": 6,
            "dtype": "float64"}  # fmt: skip
    return base | settings


MATRIX = [
    ("topk:0.1", "none"),
    ("topk:0.1", "residual"),
    ("topk:0.1", "dgc"),
    ("topk:0.1", "ef21"),
    ("sampled_topk:0.1", "dgc"),
    ("randomk:0.1", "none"),
    ("randomk:0.1,scale=true", "none"),
    ("randomk:0.1,shared=true", "residual"),
    ("block:0.1", "dgc"),
    ("threshold:0.002", "none"),
    ("threshold:0.002", "residual"),
    ("threshold:0.002", "dgc"),
    ("adaptive_threshold", "residual"),
    ("adacomp", "residual"),
    ("sign", "none"),
    ("sign", "residual"),
    ("onebit", "residual"),
    ("terngrad", "none"),
    ("terngrad:shared_scale=true", "none"),
    ("qsgd:4,bucket=32", "none"),
    ("qsgd:4,code=elias", "residual"),
    ("natural", "none"),
    ("int8", "none"),
    ("fp16", "none"),
    ("powersgd:2", "none"),
    ("powersgd:2", "residual"),
    ("topk:0.1+sign", "dgc"),
    ("threshold:0.002+qsgd:4", "residual"),
    ("randomk:0.1,shared=true+terngrad", "none"),
]


ALGORITHMS = [
    {"algorithm": "dpsgd"},
    {"algorithm": "dpsgd", "topology": "one-peer", "compressor": "qsgd:63"},
    {"algorithm": "powergossip:rank=2", "topology": "star"},
    {"algorithm": "powergossip:iterations=3", "value_dtype": "float16"},
    {"algorithm": "sgp", "topology": "random-peer"},
    {"algorithm": "sgp", "compressor": "qsgd:63"},
    {"algorithm": "qg_dsgdm:nesterov=true", "compressor": "qsgd:63", "momentum": 0.0},
    {"algorithm": "choco", "compressor": "topk:0.1", "consensus_stepsize": 0.2},
    {"algorithm": "choco", "compressor": "threshold:0.01", "consensus_stepsize": 0.2},
    {"algorithm": "choco", "compressor": "sign", "topology": "star"},
    {"algorithm": "dcd", "compressor": "qsgd:63"},
    {"algorithm": "ecd", "compressor": "qsgd:127", "topology": "complete"},
    {"algorithm": "deepsqueeze", "compressor": "topk:0.5", "consensus_stepsize": 0.2},
    {"algorithm": "local", "local_steps": 3},
    {"algorithm": "local", "local_steps": 2, "compressor": "topk:0.1"},
    {"algorithm": "fedavg", "local_steps": 2, "participation": 0.5, "compressor": "qsgd:63"},
    {"algorithm": "fedprox:mu=0.5", "local_steps": 2, "outer_optimizer": "fedyogi:0.01"},
    {"algorithm": "scaffold", "local_steps": 2, "compressor": "qsgd:63", "partition": "sorted"},
    {
        "algorithm": "scaffold",
        "clients": 12,
        "local_steps": 2,
        "compressor": "topk:0.3",
        "partition": "label-dirichlet:0.5",
    },
    {"algorithm": "fedprox", "clients": 300, "local_epochs": 2, "partition": "quantity:2"},
    {"algorithm": "diloco", "local_steps": 3, "partition": "sorted"},
    {
        "algorithm": "diloco",
        "local_steps": 2,
        "outer_optimizer": "slowmo",
        "compressor": "topk:0.1",
    },
    {"algorithm": "diloco", "local_steps": 2, "inner_state": "average", "optimizer": "AdamW"},
    {"algorithm": "fedavg", "local_steps": 2, "inner_state": "average", "compressor": "qsgd:63"},
    {"algorithm": "fedavg", "local_steps": 2, "client_buffers": "average", "participation": 0.75},
    {
        "algorithm": "streaming:fragments=2,delay=1,mixing=0.5,local_steps=4",
        "compressor": "e3m0",
        "memory": "none",
    },
    {"algorithm": "islands:island_size=3,local_steps=2", "compressor": "qsgd:63"},
    {"algorithm": "sparta", "compressor": "turns:0.3,fresh=true"},
    {"algorithm": "sparta_diloco:selector=partitioned,local_steps=3", "compressor": "topk:0.1"},
    {"algorithm": "noloco:local_steps=2", "compressor": "bins:4"},
    {
        "algorithm": "onebit_adam:freeze_step=3",
        "compressor": "sign:rms",
        "optimizer": "Adam",
        "lr": 0.01,
        "momentum": None,
    },
    {
        "algorithm": "zero_one_adam:freeze_step=3,kappa=1,local_scaler=2",
        "compressor": "sign:rms",
        "lr": 0.01,
        "momentum": 0.0,
    },
    {"algorithm": "async", "staleness": "uniform:3"},
    {"algorithm": "async", "compressor": "topk:0.1", "memory": "residual"},
    {"downlink": "topk:0.1", "compressor": "qsgd:63", "memory": "residual"},
    {"downlink": "threshold:0.01", "compressor": "none"},
    {"downlink": "qsgd:15,bucket=32", "compressor": "topk:0.1", "memory": "dgc"},
]


AVERAGED = {
    "algorithm": "fedavg",
    "local_steps": 1,
    "inner_state": "average",
    "client_buffers": "average",
    "optimizer": "AdamW",
}
MESSAGES = [  # of a step
    ({"compressor": "none"}, ["all-reduce"]),
    ({"compressor": "topk:0.1"}, ["all-gather", "all-reduce"]),
    ({"compressor": "threshold:0.01", "aggregate": "senders"}, ["all-gather", "all-reduce"]),
    ({"compressor": "randomk:0.1,shared=true"}, ["all-reduce"]),
    ({"compressor": "powersgd:2"}, ["all-reduce"] * 2),
    ({"compressor": "terngrad"}, ["all-gather", "all-reduce"]),
    ({"compressor": "terngrad:shared_scale=true"}, ["all-reduce", "all-gather", "all-reduce"]),
    ({"compressor": "topk:0.1", "collective": "gtopk"}, ["neighbours"] * 2 + ["all-reduce"]),
    (
        {"compressor": "topk:0.1", "collective": "oktopk"},
        ["neighbours"] * 3 + ["all-gather", "all-reduce"],
    ),
    ({"compressor": "topk:0.1", "collective": "cltk"}, ["neighbours"] * 2 + ["all-reduce"]),
    ({"compressor": "sign:none", "aggregate": "vote"}, ["gather", "broadcast", "all-reduce"]),
    ({"compressor": "qsgd:63", "downlink": "topk:0.1"}, ["gather", "broadcast"]),
    ({"algorithm": "dpsgd", "compressor": "qsgd:63"}, ["neighbours"]),
    ({"compressor": "topk:0.1", "collective": "auto"}, ["neighbours"] * 2 + ["all-reduce"]),
    (  # cltk of the larger weight, a dense all-reduce of the other
        {"compressor": "topk:0.79", "collective": "auto"},
        ["neighbours"] * 2 + ["all-reduce"],
    ),
    (
        {"compressor": "powersgd:2", "compress_layers": "0.*=terngrad:shared_scale=true"},
        ["all-reduce", "all-gather"] + ["all-reduce"] * 2,
    ),
    ({"algorithm": "sgp", "compressor": "qsgd:63"}, ["neighbours"] * 2),
    ({"algorithm": "powergossip:rank=2"}, ["neighbours"] * 2),
    ({"algorithm": "fedavg", "local_steps": 1, "compressor": "qsgd:63"}, ["gather", "broadcast"]),
    ({"algorithm": "local:1", "inner_state": "average"}, ["all-reduce"]),
    (
        {"algorithm": "diloco:1", "inner_state": "average", "compressor": "qsgd:63"},
        ["all-gather", "all-reduce"],
    ),
    ({**AVERAGED, "compressor": "qsgd:63"}, ["gather", "broadcast"]),
    ({**AVERAGED, "dtype": "float32"}, ["gather", "broadcast"] * 2),  # counts of batches in float64
]


@distributed
@pytest.mark.parametrize(("settings", "sent"), MESSAGES, ids=str)
def test_real_ranks_send_as_many_messages_as_are_priced(four_ranks, files, settings, sent):
    """The model has two weights and three segments that go whole."""
    found, rows = four_ranks(messages_of_a_step, recipe(files, **settings))
    priced = [row["collective"] for row in rows for _ in range(row["rounds"])]
    assert sorted(priced) == sorted(sent)
    acted = "all-gather" if "downlink" in settings else "gather"  # every rank acts as the server
    assert sorted(found) == sorted(acted if name == "gather" else name for name in sent)


_ACTED = {"gather": "all-gather", "all-to-all": "all-gather"}  # where every rank is a server


@distributed
@pytest.mark.parametrize("settings", ALGORITHMS, ids=str)
def test_every_step_of_every_algorithm_has_the_messages_it_is_priced_by(
    four_ranks, files, settings
):
    name = settings.get("algorithm", "downlink")
    acts = name.startswith(("downlink", "async", "onebit_adam", "zero_one_adam"))  # as the server
    for found, rows in four_ranks(messages_of_steps, recipe(files, **settings), 6):
        priced = [row["collective"] for row in rows for _ in range(row["rounds"])]
        if acts:
            priced = [_ACTED.get(own, own) for own in priced]
        if name == "async":
            priced.remove("broadcast")
        assert sorted(found) == sorted(priced)


@distributed
@pytest.mark.parametrize("settings", [{"algorithm": "async"}, {"aggregate": "median"}], ids=str)
def test_where_every_rank_acts_as_the_server_a_real_one_is_priced(four_ranks, files, settings):
    found, rows = four_ranks(messages_of_a_step, recipe(files, **settings))
    assert [(row["collective"], row["rounds"]) for row in rows] == [("gather", 1), ("broadcast", 1)]
    assert found == ["all-gather"]


@distributed
@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"compressor": "topk:0.1", "memory": "residual"}, ["all-gather"]),
        ({"compressor": "threshold:0.01", "aggregate": "senders"}, ["all-gather"]),
        ({"compressor": "sign:none", "aggregate": "vote", "lr": 0.001}, ["gather", "broadcast"]),
        ({"compressor": "powersgd:2", "memory": "residual"}, ["all-reduce"] * 2),
        (
            {"algorithm": "local:1", "inner_state": "average", "compressor": "topk:0.1"},
            ["all-gather"],
        ),
        (
            {
                "algorithm": "streaming:fragments=2,local_steps=2,pattern=sequential",
                "compressor": "topk:0.1",
            },
            ["all-gather"],
        ),
        ({"compressor": "topk:0.1", "collective": "cltk"}, ["neighbours"] * 2 + ["all-reduce"]),
    ],
    ids=str,
)
def test_what_goes_whole_rides_along_where_it_is_priced_so(four_ranks, files, settings, sent):
    rows, found = four_ranks(verified_with_riders, 10, recipe(files, **settings))
    assert_real(rows)
    assert found == sent


NODES = {"cluster": "2x2", "workers": 2}
OF_SMALL = 4 * 9 + 2 * 4 + 4 * 36 * 10 + 10  # numbers of the small model
CLUSTERS = [
    {"compressor": "none"},
    {"compressor": "topk:0.1", "model_config": "dropout=0.3", "accumulate": 2},
    {"compressor": "powersgd:2", "memory": "residual", "clip": 1.0},
    {"compressor": "topk:0.1", "collective": "gtopk"},
    {"compressor": "sign:none", "memory": "momentum", "aggregate": "vote", "lr": 0.001},
    {"downlink": "topk:0.1", "compressor": "qsgd:63", "memory": "residual"},
    {"algorithm": "choco", "compressor": "topk:0.1", "consensus_stepsize": 0.2},
    {"algorithm": "local", "local_steps": 2, "compressor": "topk:0.1"},
    {"algorithm": "fedavg", "local_steps": 2, "participation": 0.5, "partition": "sorted"},
    {"algorithm": "diloco", "local_steps": 2, "inner_state": "average", "optimizer": "AdamW"},
    {"algorithm": "async", "compressor": "topk:0.1", "memory": "residual"},
]


def assert_real(rows, steps=10):
    assert len(rows) == steps
    assert max(row["parameter_difference"] for row in rows) < 1e-10
    assert max(row["loss_difference"] for row in rows) < 1e-10
    assert [row["sent_bytes"] for row in rows] == [row["ledger_bytes"] for row in rows]
    assert all(row["bytes_agree"] for row in rows)
    assert rows[-1]["flipped_worker"] == -1


@distributed
@pytest.mark.parametrize("settings", ALGORITHMS, ids=str)
def test_workers_with_models_of_their_own_are_real_ranks(four_ranks, files, settings):
    rows, plain = four_ranks(verified, 10, recipe(files, **settings))
    assert not plain
    assert_real(rows)


@distributed
@pytest.mark.parametrize("settings", CLUSTERS, ids=str)
def test_devices_of_nodes_are_real_ranks(four_ranks, files, settings):
    rows, plain = four_ranks(verified, 10, recipe(files, **NODES, **settings))
    assert not plain
    assert_real(rows)
    within = 2 * sum(WithinNodes.of([(OF_SMALL, 8)], 2).sent)
    least = min(row["sent_bytes"] for row in rows)
    assert least >= (within // 2 if "participation" in settings else within)


@distributed
def test_a_node_whose_device_does_something_else_is_found(four_ranks, files):
    settings = recipe(files, **NODES, compressor="topk:0.1")
    rows = four_ranks(held_to_another_device, 3, settings)
    assert max(row["parameter_difference"] for row in rows) > 1e-6


@distributed
def test_in_float32_nodes_agree_but_in_steps_with_a_flip(four_ranks, files):
    settings = {"model": "resnet", "model_config": "depth=8", "dtype": "float32"}
    settings = recipe(files, **NODES, **settings, compressor="qsgd:255", memory="residual")
    rows, _ = four_ranks(verified, 20, settings)
    assert Verdict("float32", 20, False, files, rows).holds


@distributed
def test_nodes_behind_links_of_one_rate_are_refused():
    with pytest.raises(SettingError, match=r"^cluster has no place behind links of one rate"):
        checked(Config.of(NODES), 1, timed=True)


@distributed
@pytest.mark.parametrize("engine", ["auto", "tune"])
def test_only_the_simulation_chooses_an_engine_and_asks_no_other_process(four_ranks, files, engine):
    rows, _ = four_ranks(verified, 3, recipe(files, engine=engine))
    assert_real(rows, 3)


@pytest.mark.slow
@distributed
def test_gtopk_of_three_workers_is_three_real_ranks(files, tmp_path):
    settings = recipe(files, workers=3, compressor="topk:0.1", collective="gtopk")
    verdict = verify(steps=4, **settings, runs_dir=tmp_path)
    assert verdict.holds


@distributed
def test_what_needs_one_process_is_refused(files):
    with pytest.raises(SettingError, match="algorithm runs in one process only"):
        verify(steps=1, **recipe(files, algorithm="butterfly"))


@distributed
@pytest.mark.parametrize(("compressor", "memory"), MATRIX)
def test_simulation_and_processes_agree(four_ranks, files, compressor, memory):
    rows, plain = four_ranks(verified, 10, recipe(files, compressor=compressor, memory=memory))
    assert not plain
    assert_real(rows)


@distributed
@pytest.mark.parametrize(
    "settings",
    [
        {"prune": 0.9, "clip": 1.0, "granularity": "model", "index_dtype": "packed"},
        {"prune": 0.9, "value_dtype": "float16", "index_dtype": "gap16", "prune_1d": True},
        {"prune": 0.9, "weight_decay_at": "local", "nesterov": True, "flush_every": 3},
        {"compressor": "sign:none", "memory": "momentum", "aggregate": "vote", "lr": 0.001},
        {"aggregate": "median", "attack": "alie:1,z=1"},
        {"aggregate": "trimmed-mean:0.25", "attack": "noise:1", "compressor": "qsgd:15"},
        {"compressor": "topk:0.1", "accumulate": 2, "model_config": "dropout=0.2"},
        {"compressor": "variance", "memory": "none", "model_config": "norm=False"},
        {"compressor": "none", "memory": "dgc"},
        {"compressor": "topk:0.1", "collective": "gtopk"},
        {"compressor": "topk:0.1", "collective": "oktopk", "memory": "dgc"},
        {"prune": 0.9, "collective": "cltk", "index_dtype": "packed", "value_dtype": "float16"},
        {"compressor": "threshold:0.01", "collective": "dense"},
        {"prune": 0.95, "collective": "auto", "granularity": "model"},
        {"compress_layers": "0.*=topk:0.1,*=qsgd:15,bucket=64", "memory": "residual"},
        {"compressor": "none", "value_dtype": "float16", "memory": "residual"},
        {"compressor": "topk:0.1", "memory": "residual", "lr_in_memory": True, "momentum": 0.0},
    ],
    ids=lambda s: ",".join(s),
)
def test_so_it_is_with_every_other_option(four_ranks, files, settings):
    rows, plain = four_ranks(verified, 10, recipe(files, **settings))
    assert not plain
    assert_real(rows)


@distributed
@pytest.mark.parametrize(
    "settings",
    [{}, {"model_config": "dropout=0.3"}, {"optimizer": "Adam", "momentum": None, "lr": 0.01}],
    ids=["plain", "dropout", "adam"],
)
def test_without_compression_it_is_distributed_data_parallel(four_ranks, files, settings):
    rows, plain = four_ranks(verified, 10, recipe(files, compressor="none", **settings))
    assert plain
    assert_real(rows)


@distributed
@pytest.mark.parametrize(
    "settings", [{}, {"algorithm": "local", "local_steps": 2}], ids=["ddp", "local"]
)
def test_groups_of_parameters_are_the_same_on_both_sides(four_ranks, files, settings):
    settings = {"regime": str(files / "groups.py"), "compressor": "none", **settings}
    rows, plain = four_ranks(verified, 10, recipe(files, **settings))
    assert plain == ("algorithm" not in settings)
    assert_real(rows)


@distributed
@pytest.mark.parametrize("compressor", ["none", "topk:0.1"])
def test_parameters_without_gradient_and_noise_are_the_same_on_both_sides(
    four_ranks, files, compressor
):
    settings = {"model": str(files / "unused.py"), "compressor": compressor}
    rows, plain = four_ranks(verified, 10, recipe(files, **settings))
    assert not plain  # which sends zeros for them
    assert_real(rows)


@distributed
@pytest.mark.parametrize("memory", ["residual", "Quarter"])
@pytest.mark.parametrize("compressor", ["Half", "topk:0.1"])
@pytest.mark.parametrize("algorithm", ["allreduce", "local:local_steps=1"])
def test_methods_of_ones_own_are_those_of_real_ranks(
    four_ranks, files, compressor, memory, algorithm
):
    if (memory, algorithm[:5]) == ("Quarter", "local"):
        memory = "none"
    own = {"compressor": compressor, "memory": memory, "algorithm": algorithm}
    place = files / "own_methods_of_ranks.py"
    own = {k: f"{place}:{v}" if v in ("Half", "Quarter") else v for k, v in own.items()}
    rows, _ = four_ranks(verified, 5, recipe(files, **own))
    assert max(row["parameter_difference"] for row in rows) < 1e-12
    assert {row["sent_bytes"] == row["ledger_bytes"] for row in rows} == {True}


@distributed
def test_a_method_that_draws_from_a_global_generator_has_no_ranks(four_ranks, files):
    own = f"{files / 'own_methods_of_ranks.py'}:Drawing"
    with pytest.raises(SettingError, match=r"draws from a global generator.*draw from step\.key"):
        four_ranks(verified, 2, recipe(files, compressor=own))


@distributed
@pytest.mark.parametrize("compressor", ["none", "topk:0.1", "block:0.1", "threshold:30"])
def test_gradients_of_whole_numbers_agree_bit_for_bit(four_ranks, files, compressor):
    settings = {"model": str(files / "whole.py"), "compressor": compressor, "dtype": "float32"}
    memory = "none" if compressor == "none" else "residual"
    rows, _ = four_ranks(verified, 10, recipe(files, memory=memory, **settings))
    assert {row["parameter_difference"] for row in rows} == {0.0}
    assert {row["loss_difference"] for row in rows} == {0.0}


@distributed
@pytest.mark.parametrize(
    "settings",
    [
        {"compressor": "none"},
        {"compressor": "none", "memory": "dgc", "accumulate": 2},
        {"compressor": "qsgd:255", "memory": "residual"},
        {"algorithm": "choco", "compressor": "qsgd:255", "momentum": 0.0},
    ],
    ids=["plain", "dgc", "qsgd", "choco"],
)
def test_in_float32_parameters_agree_but_in_steps_with_a_flip(four_ranks, files, settings):
    settings = {"model": "resnet", "model_config": "depth=8", "dtype": "float32", **settings}
    rows, _ = four_ranks(verified, 12, recipe(files, **settings))
    verdict = Verdict("float32", 12, False, files, rows)
    assert verdict.holds
    assert len(verdict.held) >= 6
    assert max(row["loss_difference"] for row in rows) < 1e-4


@distributed
@pytest.mark.parametrize("wrong", ["lr", "gradient", "momentum"])
@pytest.mark.parametrize("compressor", ["none", "qsgd:255"])
def test_in_float32_a_real_side_that_does_something_else_is_found(
    four_ranks, files, wrong, compressor
):
    settings = {"model": "resnet", "model_config": "depth=8", "dtype": "float32"}
    rows = four_ranks(held_to_another, 3, recipe(files, compressor=compressor, **settings), wrong)
    verdict = Verdict("float32", 3, False, files, rows)
    assert not verdict.holds
    assert "they differ" in verdict.summary()


@distributed
@pytest.mark.slow
def test_the_command_line_prints_a_verdict_and_leaves_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--model", "mlp", "--model-config", "hidden=16", "--dataset", "digits", "--workers"]
    words += ["2", "--compressor", "topk:0.1", "--device", "cpu", "--steps", "4", "--name", "both"]
    done = CliRunner().invoke(main, ["verify", *words])
    assert done.exit_code == 0, done.output
    assert re.search(r"verdict +simulation and processes agree", done.output)
    assert "step    4: loss" in done.output
    table = pd.read_csv("runs/both/verify.csv")
    assert table["step"].tolist() == [1, 2, 3, 4]
    assert len(simsgd.Run("runs/both").steps) == 4
    assert (tmp_path / "runs/both/verify.png").stat().st_size > 10_000


WRITING = """
from torch import nn
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(64, classes)
    def forward(self, x):
        return self.linear(x.flatten(1).sub_(0.5).mul_(3))
def model(num_classes):
    return Net(num_classes)
"""


@distributed
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["allreduce", "local"])
def test_a_model_that_writes_into_its_input_is_verified(tmp_path, algorithm):
    (tmp_path / "net.py").write_text(WRITING)
    verdict = verify(
        2, model=f"{tmp_path}/net.py", dataset="digits", workers=2, epochs=1, lr=0.1, device="cpu",
        algorithm=algorithm, runs_dir=tmp_path, quiet=True,
    )  # fmt: skip
    assert verdict.holds, verdict.summary()


@distributed
@pytest.mark.slow
def test_a_rank_that_raises_leaves_no_file(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "net.py").write_text(
        "import multiprocessing\n"
        + WRITING
        + "if multiprocessing.parent_process() is not None: del model\n"
    )
    with pytest.raises((RankLost, SettingError)):
        verify(
            2, model=f"{tmp_path}/net.py", dataset="digits", workers=2, epochs=1, lr=0.1,
            device="cpu", runs_dir=tmp_path / "runs", quiet=True,
        )  # fmt: skip
    assert list((tmp_path / "temporary").iterdir()) == []


@distributed
@pytest.mark.slow
def test_a_process_that_fails_ends_the_verification(tmp_path, files):
    path = tmp_path / "failing.py"
    path.write_text(SMALL + "\nimport os, multiprocessing\n"
                    "if multiprocessing.parent_process() is not None: os._exit(9)\n")  # fmt: skip
    with pytest.raises(RankLost, match=r"rank [01] died"):
        verify(2, **recipe(files, model=str(path), workers=2, runs_dir=tmp_path, device="cpu"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"resume": "runs/x"}, "resume has no place in verify"),
        ({"compressor": "topk:7"}, "has ratio 7, which must lie in"),
    ],
)
def test_wrong_settings_are_refused_before_any_process_starts(files, tmp_path, settings, message):
    settings = recipe(files, runs_dir=tmp_path / "runs", device="cpu", **settings)
    with pytest.raises(SettingError, match=message):
        verify(**settings)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, True),
        ({"memory": "residual"}, False),
        ({"clip": 1.0}, False),
        ({"value_dtype": "float16"}, False),
        ({"value_dtype": "float64"}, True),
        ({"prune": 0.5, "warmup": False}, False),
        ({"accumulate": 2}, False),
        ({"weight_decay_at": "local"}, False),
    ],
)
def test_plain_pytorch_is_held_to_where_it_can_do_the_same(files, settings, plain):
    config = simsgd.Config(**recipe(files, device="cpu", **settings))
    assert checked(config, 5)[1] is (TorchWorker if plain else OwnWorker)


def sparse(values, index, n=6):
    return Sparse.of(torch.tensor(values), torch.tensor(index), n)


def flip_of(one, other, step=1):
    """Return the first flip where two messages follow two that are equal."""
    sides = [[("v", decisions(one)), ("w", decisions(message))] for message in (one, other)]
    return first_flip(step, *sides)


def test_another_selection_is_a_flip():
    one = sparse([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [2, 5]])
    other = sparse([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [2, 4]])
    assert flip_of(one, other, 7) == Flip(7, 1, "w", "message", 2, 9)


def test_other_values_at_the_same_places_are_no_flip():
    one = sparse([[1.0, 2.0], [3.0, 4.0]], [[0, 1], [2, 5]])
    other = sparse([[1.1, 2.0], [3.0, 4.4]], [[0, 1], [2, 5]])
    assert flip_of(one, other) is None


def test_padding_decides_nothing():
    one = Sparse.of(torch.tensor([[1.0, 0.0]]), torch.tensor([[3, 6]]), 6, torch.tensor([1]))
    other = Sparse.of(torch.tensor([[1.0]]), torch.tensor([[3]]), 6, torch.tensor([1]))
    assert flip_of(one, other) is None


def test_another_code_is_a_flip():
    codes = torch.tensor([[1, -2, 0]], dtype=torch.int8)
    one = Levels(codes, torch.ones(1, 1), torch.float32, None, 4)
    other = Levels(codes + 1, torch.ones(1, 1), torch.float32, None, 4)
    assert flip_of(one, other).worker == 0
    inside = SharedSparse(one, torch.arange(3), 6), SharedSparse(other, torch.arange(3), 6)
    assert flip_of(*inside).worker == 0


def test_a_rounding_to_float16_can_flip():
    values = torch.tensor([[1.0, 2.0]])
    one, other = Dense(values, torch.float16), Dense(values + 0.001, torch.float16)
    assert flip_of(one, other).worker == 0


def test_a_sign_decides():
    codes = torch.tensor([[True, False]])
    one = Signs(codes, torch.ones(1, 1), torch.float32, None, 1)
    assert decisions(one).tolist() == [[2, 1]]


def test_the_difference_is_that_of_the_worst_tensor():
    models = [torch.nn.Linear(2, 1).double() for _ in range(2)]
    for model in models:
        torch.nn.init.constant_(model.weight, 4.0)
        torch.nn.init.constant_(model.bias, 1e-9)
    models[1].weight.data[0, 0] += 0.004
    parameters = [{n: p.detach() for n, p in m.named_parameters()} for m in models]
    assert difference(*parameters) == pytest.approx(0.001)
    models[1].bias.data += 1e-4  # of next to nothing: held against 4 / 1000
    assert difference(*parameters) == pytest.approx(0.025)


def row(step, **changed):
    numbers = {"loss": 1.0, "real_loss": 1.0, "parameter_difference": 0.0, "loss_difference": 0.0,
               "ledger_bytes": 8, "sent_bytes": 8, "bytes_agree": 1, "flip": "",
               "flipped_worker": -1, "flipped_segment": "", "flipped_entries": 0,
               "decided_entries": 0}  # fmt: skip
    return {"step": step} | numbers | changed


@pytest.mark.parametrize(
    ("dtype", "second", "holds"),
    [
        ("float64", {}, True),
        ("float64", {"parameter_difference": 2e-10}, False),
        ("float64", {"parameter_difference": 2e-10, "flip": "message"}, False),
        ("float64", {"parameter_difference": float("nan")}, False),
        ("float32", {"parameter_difference": 2e-10}, True),
        ("float32", {"parameter_difference": 2e-5}, False),
        ("float32", {"parameter_difference": 2e-2, "flip": "kink"}, True),
        ("float32", {"real_loss": 1.02, "flip": "kink"}, False),
        ("float32", {"flip": "message", "flipped_entries": 2, "decided_entries": 9}, True),
        ("float32", {"flip": "message", "flipped_entries": 3, "decided_entries": 299}, False),
        ("float32", {"flip": "message", "flipped_entries": 3, "decided_entries": 300}, True),
        ("float32", {"bytes_agree": 0}, False),
    ],
)
def test_the_judgement(tmp_path, dtype, second, holds):
    verdict = Verdict(dtype, 2, False, tmp_path, [row(1), row(2, **second)])
    assert verdict.holds is holds
    assert ("simulation and processes agree" in verdict.summary()) is holds


@pytest.mark.parametrize(
    ("kind", "flips"),
    [
        ("message", "in 1 of 2 steps, the first at step 2 in the message for a.weight of worker 3"),
        ("kink", "in 1 of 2 steps, the first at step 2 at a kink, in a.weight of worker 3"),
    ],
)
def test_the_first_flip_is_named(tmp_path, kind, flips):
    flipped = {"flip": kind, "flipped_worker": 3, "flipped_segment": "a.weight"}
    verdict = Verdict("float32", 2, False, tmp_path, [row(1), row(2, **flipped)])
    assert re.search(rf"flips +{flips}\n", verdict.summary())
    assert re.search(r"flips +none\n", Verdict("float32", 1, False, tmp_path, [row(1)]).summary())


def test_more_flips_than_rounding_makes_are_found(tmp_path):
    rows = [row(1, flip="message", flipped_entries=50, decided_entries=100)]
    assert (
        "they differ: more flips than rounding makes"
        in Verdict("float32", 1, False, tmp_path, rows).summary()
    )


def test_the_step_from_which_parameters_differ_is_named(tmp_path):
    rows = [row(1), row(2, parameter_difference=1e-4), row(3)]
    verdict = Verdict("float32", 3, False, tmp_path, rows)
    assert "they differ: parameters from step 2 on\n" in verdict.summary()


@pytest.mark.parametrize(
    ("seconds", "changed", "words"),
    [
        (
            9.0,
            {},
            "inconclusive: parameters, losses and bytes agree, seconds of all-gather are",
        ),
        (0.1, {}, "they differ: seconds of all-gather"),
        (9.0, {"bytes_agree": 0}, "they differ: bytes, seconds of all-gather"),
    ],
)
def test_slow_messages_alone_are_inconclusive(tmp_path, seconds, changed, words):
    times = LinkTimes("1MB", 8e6, 4)
    measured = Measured("all-gather", 1_000_000, 0, seconds)
    times.add(LinkStep(1, [measured], [], {"all-gather": 0.001}))
    verdict = Verdict("float64", 1, False, tmp_path, [row(1, **changed)], times=times)
    assert re.search(rf"verdict +{words}", verdict.summary())
    assert not verdict.holds


def test_a_verification_that_ended_early_does_not_hold(tmp_path):
    verdict = Verdict("float64", 2, False, tmp_path, [row(1)])
    assert "only 1 of 2 steps ran" in verdict.summary()


@pytest.mark.slow
def test_a_terminal_shows_how_far_verify_has_come(tmp_path, monkeypatch):
    rows = dict.fromkeys(STEP_COLUMNS, 1), dict.fromkeys(COLUMNS, 1) | {"flip": ""}

    def steps(*_, **__):
        for step in (1, 2, 3):
            logged, compared = (row | {"step": step} for row in rows)
            yield compared | {"flipped_segment": ""}, logged

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(verify.__globals__, "launch", steps)
    settings = {"model": "mlp", "dataset": "digits", "workers": 2, "runs_dir": tmp_path}
    lines = []
    verify(steps=3, name="a", log=lines.append, **settings)
    assert "| 0/3 [" in terminal.getvalue()
    assert lines[0].startswith("mlp on digits")
    terminal.truncate(0)
    verify(steps=3, name="b", **settings)  # without a log, as with --quiet
    assert terminal.getvalue() == ""
