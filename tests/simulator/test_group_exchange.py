"""Segments that are exchanged together are held to the same, exchanged one by one."""

import copy

import pytest
import torch
from torch import nn

from simsgd import Simulator
from simsgd.communication.cuts import Cuts, adjacent, end_to_end
from simsgd.communication.messages import Joined
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey, stacked, uniform_at
from simsgd.methods.compressors import StepInfo, composed
from simsgd.methods.compressors.contract import run_rounds
from simsgd.methods.compressors.group import Group, compressor_of
from simsgd.methods.compressors.none import NoCompression
from simsgd.methods.compressors.topk_selection import largest_of_each, ranked_in_segments
from tests.methods.test_compressors import SPECS

SHAPES = [(7, 5), (1, 3), (33, 64), (5, 7), (2, 2), (40, 30), (7, 5)]
L = 3


def group_of(spec, dtype=torch.float32, kind="normal"):
    """Return the group of segments of all shapes, and what it compresses, [L, P]."""
    cuts = Cuts(tuple(torch.Size(shape).numel() for shape in SHAPES))
    x = torch.randn(L, cuts.total, generator=torch.Generator().manual_seed(1), dtype=dtype)
    if kind == "zeros":
        x.zero_()
    elif kind == "outlier":
        x[:, :: cuts.total // 4] *= 1e30
    elif kind == "ties":
        x = x.round()
    compressors = [composed(spec).for_shape(shape) for shape in SHAPES]
    key = RandomKey(0, torch.arange(L)).fold_in(4)
    steps = [
        StepInfo(key.fold_in(f"s{i}"), 4, gradient=own / 2) for i, own in enumerate(cuts.split(x))
    ]
    states = [c.init(own) for c, own in zip(compressors, cuts.split(x), strict=True)]
    return Group(cuts, compressors, states, steps), x


def packed(message):
    return [part.pack(row).tolist() for part in message.parts for row in range(L)]


OTHERS = ["topk:0.1+sign", "topk:0.1+qsgd:4,bucket=3", "topk:0.1+natural", "topk:0.1+int8"]
GROUPED = [spec for spec in SPECS + OTHERS if composed(spec).group_key is not None]


@pytest.mark.quick_cases(64)
@pytest.mark.parametrize("kind", ["normal", "zeros", "outlier", "ties"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("spec", GROUPED)
def test_messages_made_together_are_those_made_one_by_one(spec, dtype, kind):
    group, x = group_of(spec, dtype, kind)
    slow = group.one_by_one(x)
    group, _ = group_of(spec, dtype, kind)
    fast = compressor_of(group).compress(x, {}, group.steps[0])
    for wire in (Wire(), Wire("bfloat16", "packed"), Wire(None, "gap16")):
        one, other = fast.on_wire(wire), slow.on_wire(wire)
        assert packed(one) == packed(other)
        for a, b in zip(one.parts, other.parts, strict=True):
            assert a.payload_bytes().tolist() == b.payload_bytes().tolist()
            assert a.entries().tolist() == b.entries().tolist()
            assert type(a) is type(b)
        assert one.summable == other.summable
        assert torch.equal(one.to_dense(), other.to_dense())
        assert torch.equal(one.mean_of_senders(), other.mean_of_senders())
        torch.testing.assert_close(one.sum(), other.sum(), rtol=1e-6, atol=0)
        for change in ("subtract_from_", "clear_"):
            left, right = x.clone(), x.clone()
            getattr(one, change)(left)
            getattr(other, change)(right)
            assert torch.equal(left, right)


def in_rounds(rounds):
    """Return what is sent in each round, the message for the memory, and the aggregate."""
    sent = []

    def carry(message):
        sent.append(packed(message))
        mean = torch.stack([row for row in message.to_dense()]).sum(0) / L
        return message, mean.unsqueeze(0)

    return sent, run_rounds(rounds, carry)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "spec", ["powersgd:1", "powersgd:2", "powersgd:4", "dion:1", "dion:3", "dion2", "dion2:0.6"]
)
def test_rounds_made_together_are_those_made_one_by_one(spec, dtype):
    apart, x = group_of(spec, dtype)
    together, _ = group_of(spec, dtype)
    whole = [getattr(own, "sends_whole", False) for own in apart.compressors]
    chosen = [i for i, small in enumerate(whole) if not small]
    for number in range(3):
        pieces = [apart.cuts.split(x)[i] + number for i in chosen]
        one = [
            in_rounds(apart.compressors[i].rounds(own, apart.states[i], apart.steps[i]))
            for i, own in zip(chosen, pieces, strict=True)
        ]
        group = Group(
            Cuts(tuple(own.shape[1] for own in pieces)),
            *[[part[i] for i in chosen] for part in (
                together.compressors, together.states, together.steps
            )],
        )  # fmt: skip
        joined = torch.cat(pieces, dim=1)
        sent, (message, mean) = in_rounds(compressor_of(group).rounds(joined, {}, group.steps[0]))
        for turn in range(2):
            assert sent[turn] == [row for own, _ in one for row in own[turn]]
        assert packed(message) == [row for _, (m, _) in one for row in packed(m)]
        assert torch.equal(mean, torch.cat([own for _, (_, own) in one], dim=1))
        for i in chosen:
            assert together.states[i].keys() == apart.states[i].keys()
            for name, own in apart.states[i].items():
                assert torch.equal(together.states[i][name], own)


@pytest.mark.parametrize("kind", ["normal", "zeros", "ties"])
def test_two_sorts_find_the_largest_of_each_segment(kind):
    group, x = group_of("none", torch.float64, kind)
    kept = Cuts(tuple(-(-n // 5) for n in group.cuts.sizes))
    found = ranked_in_segments(x, group.cuts, kept)
    assert torch.equal(found, largest_of_each(x, group.cuts, kept))


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
        nn.Linear(54, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3),
    ).double()  # fmt: skip


def trained(plan, steps=3, **settings):
    simulator = Simulator(model(), workers=4, lr=0.1, momentum=0.9, plan=plan, **settings)
    return simulator, [step(simulator, i) for i in range(steps)]


def step(simulator, number):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(16, 2, 5, 5, generator=generator, dtype=torch.float64)
    return simulator.step(x, torch.arange(16) % 3, epoch=0)


RUNS = {
    "none": {},
    "clip": {"clip": 0.1, "weight_decay": 0.01, "weight_decay_at": "local"},
    "prune": {"prune": 0.9, "warmup": False},
    "nesterov": {"prune": 0.9, "warmup": False, "nesterov": True},
    "bucket": {"prune": 0.9, "warmup": False, "granularity": "bucket:3KB"},
    "all": {"prune": 0.9, "warmup": False, "compress_if": "all"},
    "residual": {"compressor": "topk:0.1", "memory": "residual"},
    "ef21": {"compressor": "topk:0.1", "memory": "ef21"},
    "senders": {"compressor": "topk:0.1", "aggregate": "senders"},
    "float16": {"compressor": "topk:0.1", "value_dtype": "float16"},
    "state": {"compressor": "topk:0.1", "memory": "residual", "state_dtype": "float32"},
    "flush": {"compressor": "topk:0.1", "memory": "residual", "flush_every": 2},
    "vote": {"compressor": "sign:scale=none", "aggregate": "vote"},
    "terngrad": {"compressor": "terngrad"},
    "shared scale": {"compressor": "terngrad:shared_scale=true"},
    "sign": {"compressor": "sign"},
    "powersgd": {"compressor": "powersgd:2"},
    "randomk": {"compressor": "randomk:0.1", "memory": "residual"},
    "scaled": {"compressor": "randomk:0.1,shared=true,scale=true"},
    "block": {"compressor": "block:0.1", "memory": "residual"},
    "threshold": {"compressor": "threshold:0.05", "memory": "residual", "index_dtype": "packed"},
    "adaptive": {"compressor": "adaptive_threshold+int8", "aggregate": "senders"},
    "marked choco": {"algorithm": "choco", "compressor": "threshold:0.01"},
    "composed": {"compressor": "topk:0.1+terngrad", "value_dtype": "float16"},
    "late powersgd": {"compressor": "powersgd:2,start_compressing_after_num_steps=2"},
    "package": {"compressor": "powersgd:2,variant=package"},
    "downlink": {"compressor": "topk:0.1", "downlink": "topk:0.2"},
    "skip": {"compressor": "topk:0.1", "on_nonfinite": "zero", "value_dtype": "float16"},
    "dpsgd": {"algorithm": "dpsgd"},
    "qg_dsgdm": {"algorithm": "qg_dsgdm"},
    "choco": {"algorithm": "choco", "compressor": "topk:0.1"},
    "dcd": {"algorithm": "dcd", "compressor": "qsgd:255"},
    "ecd": {"algorithm": "ecd", "compressor": "qsgd:255"},
    "deepsqueeze": {"algorithm": "deepsqueeze", "compressor": "topk:0.1"},
    "local": {"algorithm": "local", "local_steps": 2, "compressor": "topk:0.1"},
    "fedavg": {"algorithm": "fedavg", "local_steps": 2},
    "diloco": {"algorithm": "diloco", "local_steps": 2},
}


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_in_groups_is_the_run_segment_by_segment(name):
    apart, of_apart = trained("cpu", **RUNS[name])
    together, of_together = trained("gpu", **RUNS[name])
    expected = apart.parameters()
    for key, value in together.parameters().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-10, atol=1e-12)
    for a, b in zip(of_apart, of_together, strict=True):
        assert a.payload_bytes == b.payload_bytes
        assert a.network_bytes == b.network_bytes
        assert a.sent_elements == b.sent_elements
        assert [t.segment for t in a.bytes.transfers] == [
            t.segment for t in sorted(b.bytes.transfers, key=lambda t: order(a, t))
        ]
        for m, other in zip(a.segments, b.segments, strict=True):
            assert m.segment == other.segment
            for field in ("compensated", "error", "memory"):
                found, wanted = getattr(other, field), getattr(m, field)
                torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def order(record, transfer):
    return [t.segment for t in record.bytes.transfers].index(transfer.segment)


@pytest.mark.parametrize("name", ["prune", "choco", "terngrad", "state"])
def test_a_run_in_groups_resumes_to_the_same_bit_in_either_plan(name):
    whole, _ = trained("gpu", steps=4, **RUNS[name])
    begun, _ = trained("gpu", steps=2, **RUNS[name])
    saved = copy.deepcopy(begun.state_dict())
    resumed, _ = trained("gpu", steps=0, **RUNS[name])
    resumed.load_state_dict(saved)
    other, _ = trained("cpu", steps=0, **RUNS[name])
    other.load_state_dict(saved)
    for number in (2, 3):
        step(resumed, number)
        step(other, number)
    for key, value in whole.parameters().items():
        assert torch.equal(resumed.parameters()[key], value)
        torch.testing.assert_close(other.parameters()[key], value, rtol=1e-10, atol=1e-12)


def test_gradients_and_memories_of_a_group_lie_end_to_end():
    simulator, _ = trained("gpu", prune=0.9, warmup=False)
    groups = simulator.components.groups.of()
    assert [len(group.states) for group in groups] == [4, 6]
    for group in groups:
        kept = [own.memory_state["momentum"] for own in group.states]
        assert adjacent(kept) is not None


def test_a_group_holds_no_more_numbers_than_fill_a_device(monkeypatch):
    monkeypatch.setattr("simsgd.simulator.state_groups.MOST", 2000)
    expected, _ = trained("cpu", prune=0.9, warmup=False)
    simulator, _ = trained("gpu", prune=0.9, warmup=False)
    sizes = [[own.segment.n for own in g.states] for g in simulator.components.groups.of()]
    assert sizes == [[108], [648], [144, 36], [6, 6, 6, 12, 12, 3]]
    for key, value in simulator.parameters().items():
        torch.testing.assert_close(value, expected.parameters()[key], rtol=1e-10, atol=1e-12)


def test_pieces_that_lie_apart_are_copied_end_to_end():
    flat = torch.arange(24.0).view(2, 12)
    first, second, third = flat.split([5, 4, 3], dim=1)
    assert end_to_end([first, second, third]).data_ptr() == flat.data_ptr()
    assert torch.equal(end_to_end([second, third]), flat[:, 5:])
    for apart in ([second, first], [first, third], [first, second.clone()]):
        assert adjacent(apart) is None
        assert torch.equal(end_to_end(apart), torch.cat(apart, dim=1))
    assert adjacent([flat[:1, :5], flat[1:, :5]]) is None


def test_numbers_of_a_group_are_those_of_its_segments():
    keys = [RandomKey(3, torch.arange(L)).fold_in(7, name) for name in ("a", "b")]
    streams = stacked(keys)
    for dtype in (torch.float32, torch.float64):
        for own, key in zip(streams.unbind(1), keys, strict=True):
            place = torch.arange(5)
            drawn = uniform_at(own.unsqueeze(1), place, dtype)
            assert torch.equal(drawn, key.uniform(5, dtype))


def test_joined_messages_are_packed_one_after_the_other():
    group, x = group_of("none")
    message = compressor_of(group).compress(x, {}, group.steps[0])
    buffers = [message.pack(row) for row in range(L)]
    assert [len(buffer) for buffer in buffers] == message.payload_bytes().tolist()
    assert message.entries().tolist() == [x.shape[1]] * L
    assert torch.equal(Joined.unpack(buffers, message.header()).to_dense(), x)
    assert message.explained(0).count("values x 4 B") == len(SHAPES)
    assert isinstance(group.compressors[0], NoCompression)
