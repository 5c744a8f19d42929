"""Compressors by layer: each segment as in a run of its compressor alone, or refused in one line.

Letters: W workers, n elements of one segment.
"""

import json
from dataclasses import dataclass

import pandas as pd
import pytest
import torch
from torch import nn

import simsgd
from simsgd import SettingError, Simulator
from simsgd.methods import Compressor, Dense
from simsgd.methods.compressors.topk import TopK
from simsgd.simulator.layer_compressors import layer_rules
from simsgd.simulator.notes import notes_of
from simsgd.simulator.step_bytes import sizes
from tests.toy import batches

STILL = {0: {"lr": 0.0}}  # gradients do not depend on what is sent
NAMES = ("0.weight", "2.weight")
SPECS = ("topk:0.2", "qsgd:15,bucket=4", "powersgd:1", "randomk:0.3", "topk:0.3+sign", "none")
RUN = {"dataset": "digits", "model": "mlp", "model_config": "hidden=8", "workers": 2, "quiet": True}
BY_LAYER = "1.*=topk:0.1,3.weight=none"


class Sent:
    """Keeps the buffers of every message."""

    def __init__(self):
        self.buffers = []

    def __call__(self, transfer, message):
        self.buffers.append([message.pack(row) for row in range(len(message.payload_bytes()))])


def network():
    """Return a model of two segments, 0.weight and 2.weight."""
    torch.manual_seed(0)
    layers = nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)
    return nn.Sequential(*layers).double()


def followed(regime=None, steps=range(3), **settings):
    """Return a simulator of 3 workers after a step in each epoch of `steps`, and what it sent."""
    sent = Sent()
    simulator = Simulator(network(), regime=regime, workers=3, observers=[sent], **settings)
    run(simulator, steps)
    return simulator, sent.buffers


def run(simulator, steps):
    for number, (x, y) in enumerate(batches(steps.stop, 12)):
        if number in steps:
            simulator.step(x, y, epoch=number)


def of_segment(buffers, place, specs):
    """Return the buffers of one of two segments; PowerSGD sends two messages of each."""
    each = [2 if spec.startswith("powersgd") else 1 for spec in specs]
    assert len(buffers) == 3 * sum(each)
    own = slice(None, each[0]) if place == 0 else slice(each[0], None)
    steps = (buffers[start : start + sum(each)] for start in range(0, len(buffers), sum(each)))
    return [row for step in steps for message in step[own] for row in message]


def state_of(simulator, segment):
    found = simulator.state_dict()["voices"][segment]
    return {(place, name): value for place, own in found.items() for name, value in own.items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.quick_cases(10)
@pytest.mark.parametrize(
    "settings",
    [
        {"memory": "residual"},
        {"memory": "dgc", "momentum": 0.9},
        {"algorithm": "choco"},
        {"algorithm": "local", "local_steps": 1, "compressor": "sign", "memory": "none"},
    ],
    ids=str,
)
@pytest.mark.parametrize("pair", list(zip(SPECS, SPECS[1:] + SPECS[:1], strict=True)))
def test_a_segment_is_sent_and_kept_as_with_its_compressor_alone(pair, settings):
    if "algorithm" in settings:
        pair = tuple(spec.replace("powersgd:1", "sign") for spec in pair)  # which takes no part
    rules = {"0.*": pair[0], "?.weight": pair[1]}
    mixed, sent = followed(STILL, compress_layers=rules, **settings)
    for place, (name, spec) in enumerate(zip(NAMES, pair, strict=True)):
        alone, buffers = followed(STILL, **{**settings, "compressor": spec})
        ours, theirs = of_segment(sent, place, pair), of_segment(buffers, place, (spec, spec))
        assert len(ours) == len(theirs)
        assert all(map(torch.equal, ours, theirs))
        assert_equal(state_of(mixed, name), state_of(alone, name))


@pytest.mark.parametrize("algorithm", ["allreduce", "choco"])
def test_segments_that_go_together_are_those_of_one_compressor(algorithm):
    settings = {"compress_layers": "0.*=topk:0.2,2.*=qsgd:15", "compress_if": "all", "lr": 0.1}
    one, two = (followed(algorithm=algorithm, plan=plan, **settings)[0] for plan in ("cpu", "gpu"))
    for name in NAMES:
        assert_equal(state_of(one, name), state_of(two, name))
    assert_equal(one.parameters(), two.parameters())


def test_what_no_pattern_matches_follows_the_compressor():
    rules, one = {"2.*": "none"}, {"compressor": "topk:0.2", "memory": "residual", "lr": 0.1}
    mixed, _ = followed(compress_layers=rules, **one)
    by_name, _ = followed(compress_layers="2.*=none", **one)
    by_pruning, _ = followed(
        compress_layers={"2.*": "none"}, prune=0.8, warmup=False, memory="residual", lr=0.1
    )
    objects, _ = followed(compress_layers={"0.*": TopK(0.2)}, lr=0.1)
    for other in (by_name, by_pruning, objects):
        assert_equal(mixed.parameters(), other.parameters())
    assert objects.compress_layers == "0.*=object:TopK(ratio=0.2)"


def test_a_regime_changes_layers_and_leaves_the_state_of_the_others():
    phases = {
        0: {"lr": 0.0, "compress_layers": "0.*=powersgd:1,2.*=topk:0.2"},
        1: {"compress_layers": {"0.*": "powersgd:1", "2.*": "none"}},
        2: {"compress_layers": "none"},
    }
    simulator, _ = followed(phases, range(2), memory="residual")
    constant, _ = followed(STILL, range(2), memory="residual", compressor="powersgd:1")
    assert_equal(state_of(simulator, "0.weight"), state_of(constant, "0.weight"))
    record = simulator.step(*next(batches(1, 12)), epoch=2)
    assert record.payload_bytes == [record.dense_bytes] * 3
    assert simulator.compress_layers == ""


def test_a_function_gives_layers_by_epoch():
    regime = {0: {"lr": 0.1, "compress_layers": lambda epoch: {"0.*": f"topk:{0.5 - epoch / 4}"}}}
    simulator, _ = followed(regime, range(0))
    sent = [simulator.step(*next(batches(1, 12)), epoch=e).payload_bytes[0] for e in (0, 1)]
    assert sent == [24 * 12 + 24 * 8, 12 * 12 + 24 * 8]


@pytest.mark.parametrize("given", ["0.*=powersgd:1,2.*=topk:0.2", {"0.*": TopK(0.5)}], ids=str)
def test_a_resumed_simulation_is_the_same_to_the_last_bit(given, tmp_path):
    change = {0: {"lr": 0.1}, 2: {"compress_layers": {"0.*": TopK(0.2), "2.*": "sign"}}}
    own = {"compress_layers": given, "compressor": "qsgd:15", "memory": "residual"}
    for settings in ({"lr": 0.1, **own}, {"regime": change, "memory": "residual"}):
        whole, _ = followed(steps=range(6), **settings)
        first, _ = followed(steps=range(3), **settings)
        torch.save(first.state_dict(), tmp_path / "state.pt")
        again, _ = followed(steps=range(0), **settings)
        again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        run(again, range(3, 6))
        assert_equal(again.parameters(), whole.parameters())
        for name in NAMES:
            assert_equal(state_of(again, name), state_of(whole, name))


def test_the_memory_suits_the_compressor_of_any_layer():
    def memory(**settings):
        return Simulator(network(), workers=2, lr=0.1, **settings).recipe.memory

    assert memory(compress_layers="0.*=topk:0.1") == "residual"
    assert memory(compress_layers="0.*=qsgd:15") == "none"
    assert memory(compress_layers="0.*=qsgd:15", prune=0.9, warmup=False) == "dgc"
    rule = "memory must be none with variance, which keeps"
    with pytest.raises(SettingError, match=rule):
        memory(compress_layers="0.*=variance", compressor="topk:0.1")


def test_bytes_from_shapes_are_the_bytes_sent():
    shapes = {name: tuple(p.shape) for name, p in network().named_parameters()}
    for rules in ("0.*=topk:0.3", {"2.*": "qsgd:15,bucket=4", "*": TopK(0.1)}):
        settings = {"compress_layers": rules, "compressor": "sign"}
        counted = sizes(shapes, "float64", workers=3, **settings)
        simulator = Simulator(network(), workers=3, lr=0.1, **settings)
        record = simulator.step(*next(batches(1, 12)))
        assert record.payload_bytes == [counted.payload_bytes] * 3
        own = [int(m.payload[0]) for m in record.segments]
        assert [segment.payload_bytes for segment in counted.segments] == own


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("a.*=topk:0.1,b=none", {"a.*": "topk:0.1", "b": "none"}),
        ("a=qsgd:15,bucket=4,b=sign,scale=none", {"a": "qsgd:15,bucket=4", "b": "sign",
                                                  "scale": "none"}),
        ("a=sign:mean,zero=keep, b=sign", {"a": "sign:mean,zero=keep", "b": "sign"}),
        ("a=topk:0.2+qsgd:3,code=elias,*=sampled_topk:0.3,0.1",
         {"a": "topk:0.2+qsgd:3,code=elias", "*": "sampled_topk:0.3,0.1"}),
        ('{"a": "sign:mean", "scale": "sign"}', {"a": "sign:mean", "scale": "sign"}),
        ("none", {}),
    ],
)  # fmt: skip
def test_a_comma_begins_a_pattern_unless_a_setting_follows(text, rules):
    assert {rule.pattern: rule.compressor for rule in layer_rules(text)} == rules


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compress_layers": {"0.*": 3}}, "must have a compressor by pattern, got {'0.*': 3}"),
        (
            {"compress_layers": "0.wieght=sign"},
            "matches no parameter, got 0.wieght; near it are 0.weight, 2.weight",
        ),
        ({"compress_layers": {"0.*": None}}, "compress_layers must have a compressor by pattern"),
        ({"regime": {0: {"lr": 0.1}, 3: {"compress_layers": "1.*=sign"}}}, "matches no parameter"),
        ({"compress_layers": "object:0.*=TopK(ratio=0.2)"}, "was an object in Python"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_step(settings, message):
    with pytest.raises(SettingError) as wrong:
        Simulator(network(), workers=3, **{"lr": 0.1, **settings})
    assert message in str(wrong.value)


@pytest.mark.slow
def test_a_run_names_its_layers_and_goes_on_with_them(tmp_path):
    settings = {**RUN, "compress_layers": BY_LAYER, "log_layers": True, "lr": 0.1}
    whole = simsgd.train(**settings, epochs=2, runs_dir=tmp_path, name="whole")
    half = simsgd.train(**settings, epochs=1, runs_dir=tmp_path, name="half")
    simsgd.train(resume=half.folder, epochs=2, quiet=True)
    for table in ("steps.csv", "layers.csv"):
        own, other = (pd.read_csv(run.folder / table) for run in (whole, half))
        same = [name for name in own if "seconds" not in name]
        assert own[same].equals(other[same])
    assert whole.config["used"]["compress_layers"] == BY_LAYER
    assert json.loads((whole.folder / "config.json").read_text())["compress_layers"] == BY_LAYER


IDLE = "note: prune 0.9 compresses nothing: compress_layers takes all that is compressed"
NO_INDEX = "note: index_dtype gap16 changes nothing: no index is sent"
NOTED = [
    ({"prune": 0.9, "compress_layers": "*=sign"}, [IDLE]),
    ({"prune": 0.9, "compress_layers": "0.*=sign"}, []),
    ({"compressor": "sign", "index_dtype": "gap16"}, [NO_INDEX]),
    ({"compressor": "randomk:0.1,shared=true", "index_dtype": "gap16"}, [NO_INDEX]),
    ({"compressor": "topk:0.1+sign", "index_dtype": "gap16"}, []),
]


@pytest.mark.parametrize(("settings", "noted"), NOTED)
def test_what_changes_nothing_that_is_sent_is_noted(settings, noted):
    simulator = Simulator(network(), workers=2, lr=0.1, **settings)
    assert notes_of(simulator.components) == noted


@dataclass(frozen=True)
class Counting(Compressor):
    biased = False
    kept = ("seen", 1)

    def init(self, like):
        return {self.kept[0]: torch.zeros(len(like), self.kept[1])}

    def compress(self, x, state, step):
        return Dense.of(x.clone())


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (("met", 1), "lacks met of 0.weight, which the compressor keeps by now"),
        (("seen", 2), r"has seen of 0.weight as \[2, 1\], and the compressor keeps \[2, 2\]"),
    ],
)
def test_the_state_of_a_compressor_that_was_changed_is_refused(monkeypatch, kept, told):
    state = Simulator(network(), workers=2, lr=0.1, compressor=Counting()).state_dict()
    monkeypatch.setattr(Counting, "kept", kept)
    again = Simulator(network(), workers=2, lr=0.1, compressor=Counting())
    with pytest.raises(SettingError, match=told):
        again.load_state_dict(state)
