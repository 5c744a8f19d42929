import json
import math
import re

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import simsgd
from simsgd import catalog
from simsgd.cli import main
from simsgd.communication.messages import LowRank
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.adapters import grace
from simsgd.methods.compressors import StepInfo, composed
from simsgd.registry import names
from simsgd.settings import INDEX_CODINGS, SettingError
from simsgd.simulator.model_shapes import shapes_of
from simsgd.simulator.step_bytes import sizes

SPECS = [
    "none", "topk:0.1", "randomk:0.1", "randomk:0.1,shared=true", "block:0.1", "threshold:1",
    "adaptive_threshold", "sampled_topk:0.1", "adacomp:7", "adacomp:7,variant=values", "variance",
    "sign", "sign:none", "onebit", "terngrad", "terngrad:none,pack=base3", "qsgd:4",
    "qsgd:4,bucket=7", "qsgd:1,code=elias", "natural", "fp16", "bf16", "int8", "topk:0.1+terngrad",
    "topk:0.1+qsgd:4,bucket=3", "randomk:0.1,shared=true+fp16", "threshold:1+onebit",
]  # fmt: skip
LAYERS = {"weight": (20, 30), "bias": (20,), "kernel": (8, 3, 3, 3)}


def worth(words):
    """Return the bytes that an arithmetic in words comes to."""
    total = 0
    for term in words.split(" + "):
        number, size, unit = re.fullmatch(r"([\d,]+) .+ x ([\d,]+) (B|bits?)", term).groups()
        amount = int(number.replace(",", "")) * int(size.replace(",", ""))
        total += amount if unit == "B" else math.ceil(amount / 8)
    return total


def compress(spec, x):
    compressor = composed(spec)
    key = RandomKey(0, torch.arange(len(x))).fold_in(0, "segment")
    step = StepInfo(key, gradient=x / 2, squares=torch.ones_like(x))
    return compressor.compress(x, compressor.init(x), step)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=12, deadline=None)
@given(st.sampled_from([1, 2, 7, 33, 127, 1000]), st.sampled_from(INDEX_CODINGS), st.integers(0, 9))
def test_the_arithmetic_in_words_adds_up_to_the_payload(spec, n, coding, seed):
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(seed))
    for value_dtype in (None, "float16"):
        message = compress(spec, x).on_wire(Wire(value_dtype, coding))
        explained = [worth(message.explained(row)) for row in range(3)]
        assert explained == message.payload_bytes().tolist()


def test_the_fillers_of_gap16_are_part_of_the_arithmetic():
    x = torch.zeros(1, 300_000)
    x[0, 250_000] = 1.0
    message = compress("topk:0.000001", x).on_wire(Wire(None, "gap16"))
    assert message.explained(0) == "4 values x 4 B + 4 run lengths x 2 B + 1 count x 4 B"
    assert worth(message.explained(0)) == int(message.payload_bytes())


def test_a_product_of_matrices_is_explained_as_two_factors():
    message = LowRank.of(torch.ones(1, 4, 2), torch.ones(1, 9, 2), 3)
    assert message.explained(2) == "8 values of P x 4 B + 18 values of Q x 4 B"
    assert worth(message.explained(2)) == int(message.payload_bytes()[2])


def test_the_tensors_of_a_foreign_compressor_are_explained_by_their_dtypes():
    class Int8:
        def compress(self, tensor, name):
            return [tensor.to(torch.int8), tensor.max()], None

        def decompress(self, tensors, ctx):
            return tensors[0].float()

    compressor, x = grace(Int8()), torch.ones(2, 5)
    step = StepInfo(RandomKey(0, torch.arange(2)).fold_in(0, "segment"))
    message = compressor.compress(x, compressor.init(x), step)
    assert message.explained(0) == "5 int8 values x 1 B + 1 float32 value x 4 B"
    assert worth(message.explained(0)) == int(message.payload_bytes()[0])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("none", "600 values x 4 B"),
        ("topk:0.01", "6 values x 4 B + 6 indices x 4 B"),
        ("sign", "1 scale x 4 B + 600 codes x 1 bit"),
        ("sign:none", "600 codes x 1 bit"),
        ("topk:0.01+terngrad", "1 scale x 4 B + 6 codes x 2 bits + 6 indices x 4 B"),
        ("block:0.01", "6 values x 4 B + 6 shared places x 0 B"),
        ("natural", "600 codes x 1 B"),
        ("terngrad:pack=base3", "1 scale x 4 B + 120 fives of codes x 1 B"),
    ],
)
def test_the_arithmetic_reads_so(spec, words):
    assert [sent.words for sent in sizes(LAYERS, compressor=spec).segments[0].sent] == [words]


@pytest.mark.parametrize("spec", [*SPECS, "powersgd:2", "terngrad:shared_scale=true"])
def test_every_segment_is_explained_by_what_it_sends(spec):
    for segment in sizes(LAYERS, compressor=spec).segments:
        explained = [worth(sent.words) for sent in segment.sent]
        assert explained == [sent.payload_bytes for sent in segment.sent]


@pytest.mark.parametrize(
    ("spec", "extra"),
    [
        ("none", {}),
        ("topk:0.1", {"index_dtype": "packed", "value_dtype": "float16"}),
        ("topk:0.1", {"granularity": "model", "compress_if": "all"}),
        ("topk:0.1", {"granularity": "bucket:100B", "index_dtype": "gap16"}),
        ("qsgd:4,bucket=64", {}),
        ("randomk:0.2,shared=true", {}),
        ("powersgd:2", {}),
        ("terngrad:shared_scale=true", {}),
        ("sign", {"aggregate": "vote"}),
    ],
)
def test_a_simulated_step_sends_what_was_foretold(spec, extra):
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    recipe = {"workers": 4, "compressor": spec, "memory": "none", **extra}
    simulator = simsgd.Simulator(model, lr=0.1, **recipe)
    x, y = torch.randn(8, 6), torch.zeros(8, dtype=torch.long)
    record = simulator.step(x, y)
    counted = sizes({name: p.shape for name, p in model.named_parameters()}, **recipe)
    assert record.payload_bytes == [counted.payload_bytes] * 4
    assert record.network_bytes == sum(counted.network_bytes.values())
    assert record.dense_bytes == counted.dense_bytes


def test_pruning_counts_what_is_sent_after_the_warmup():
    pruned, topk = sizes(LAYERS, prune=0.9), sizes(LAYERS, compressor="topk:0.1")
    assert pruned.payload_bytes == topk.payload_bytes


@pytest.mark.parametrize(
    ("spec", "varies"),
    [
        ("topk:0.1", ""), ("sign", ""), ("powersgd:2", ""), ("qsgd:4", ""), ("block:0.3", ""),
        ("threshold:1", "gradient"), ("adacomp", "gradient"), ("variance", "gradient"),
        ("qsgd:4,code=elias", "gradient"), ("sampled_topk:0.1", "gradient"),
        ("threshold:1+sign", "gradient"), ("powersgd:2,variant=package", "step"),
    ],
)  # fmt: skip
def test_sizes_that_vary_are_marked(spec, varies):
    assert sizes(LAYERS, compressor=spec).varies == varies


def test_a_method_that_begins_late_is_counted_when_it_has_begun():
    late = sizes({"w": (64, 64)}, compressor="powersgd:2,variant=package")
    assert late.payload_bytes == 64 * 2 * 4


def test_a_model_takes_no_memory_to_be_measured():
    shapes = shapes_of("mlp", "hidden=10000000")
    assert sum(shape.numel() for shape in shapes.values()) > 7_000_000_000


def test_resnet18_for_cifar_is_the_one_of_powersgd():
    shapes = shapes_of("resnet18_cifar")
    assert len(shapes) == 62
    assert sum(shape.numel() for shape in shapes.values()) == 11_173_962


def test_a_model_that_looks_into_its_weights_is_built_for_real(tmp_path):
    code = "from torch import nn\n\ndef mine():\n    layer = nn.Linear(3, 2)\n"
    code += "    assert layer.weight.sum().item() is not None\n    return layer\n"
    (tmp_path / "mine.py").write_text(code)
    assert shapes_of(str(tmp_path / "mine.py"))["weight"] == torch.Size([2, 3])


def test_classes_and_input_shape_default_to_the_models_own():
    assert shapes_of("resnet")["first.weight"][1] == 3
    assert shapes_of("resnet", input_shape="1x28x28")["first.weight"][1] == 1
    assert shapes_of("resnet", num_classes=100)["classifier.weight"][0] == 100


def call(*words):
    return CliRunner().invoke(main, [*words])


def counted(*words):
    return call("bytes", "--model", "mlp", "--model-config", "hidden=16", *words)


def test_bytes_prints_a_step_and_an_epoch():
    done = counted("--compressor", "topk:0.01", "--samples", "4000", "--batch-size", "8")
    assert done.exit_code == 0, done.output
    assert "mlp: 12,730 parameters in 4 tensors, 16 workers" in done.output
    assert "an epoch of 31 steps" in done.output
    assert "all-gather" in done.output
    assert max(map(len, done.output.splitlines())) <= 100


def test_bytes_explains_each_segment():
    done = counted("--compressor", "topk:0.01", "--explain")
    assert "126 values x 4 B + 126 indices x 4 B" in done.output


def test_bytes_marks_where_sizes_follow_the_gradient():
    assert "one normal draw" in counted("--compressor", "threshold:1").output
    assert "one normal draw" not in counted("--compressor", "topk:0.1").output


def test_bytes_as_json_adds_up():
    words = ("--compressor", "sign", "--samples", "4000", "--batch-size", "8", "--json")
    printed = json.loads(counted(*words).output)
    assert printed["step"]["payload_bytes"] == sum(s["payload_bytes"] for s in printed["segments"])
    assert printed["epoch"]["payload_bytes"] == 31 * printed["step"]["payload_bytes"]
    assert printed["parameters"] == 12_730


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--compressor topq:0.1", "--compressor is not known, got topq; did you mean topk"),
        ("--model-config depth=3", "has arguments that mlp does not take: depth"),
        (
            "--input-shape 3,32",
            "--input-shape must be sizes joined by x, got 3,32; such as 3x32x32",
        ),
        ("--num-classes 0", "--num-classes must be at least 1, got 0"),
        ("--samples 10", "must not exceed the 10 training samples"),
        (
            "--samples 10 --cluster 4x2 --batch-size 8",
            "times 4 workers of 2 devices must not exceed the 10 training samples, got 8; at most ",
        ),
        ("--compressor powersgd:2 --compress-if all", "powersgd needs granularity layer"),
        ("--compressor topk:0.1 --prune 0.9", "and --prune were both given"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(words, message):
    done = counted(*words.split())
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_the_list_of_compressors_has_settings_nature_and_papers():
    text = call("list", "compressors").output
    assert all(name in text for name in names("compressor"))
    for line in (
        "settings: ratio, shared=false, scale=false",
        "biased (unbiased with scale=true); not all-reducible (all-reducible with shared=true)",
        "unbiased (biased with biased=true); not all-reducible",
        "biased; all-reducible",
        '"Deep Gradient Compression", ICLR 2018, https://arxiv.org/abs/1712.01887',
    ):
        assert line in text


def test_models_are_described_in_less_than_a_hundred_characters():
    lines = call("list", "models").output.splitlines()
    assert [line.split()[0] for line in lines] == catalog.names("models")
    assert all(len(line.split(maxsplit=1)[1]) < 100 for line in lines)


def test_an_unknown_setting_is_refused():
    with pytest.raises(SettingError, match="did you mean compressor"):
        sizes(LAYERS, compresor="sign")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("algorithm", "async"), ("algorithm", "butterfly"), ("downlink", "topk:0.1")],
)
def test_what_shapes_do_not_determine_is_refused_rather_than_counted_as_all_reduce(setting, value):
    error = f"{setting} cannot be counted from shapes alone"
    with pytest.raises(SettingError, match=error):
        sizes({"weight": (10, 20)}, compressor="topk:0.1", workers=8, **{setting: value})
    done = CliRunner().invoke(main, ["bytes", f"--{setting}", value])
    assert (done.exit_code, done.stdout) == (2, "")
    assert error in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"algorithm": "dpsgd", "topology": "star"}, "the busiest worker"),
        ({"algorithm": "dpsgd", "topology": "ring"}, "one worker"),
        ({}, "one worker"),
        ({"collective": "gtopk"}, "one worker"),
        ({"collective": "gtopk", "workers": 6}, "the busiest worker"),
    ],
)
def test_a_hub_of_neighbors_is_told_apart(settings, told):
    usual = {"workers": 4, "compressor": "topk:0.1" if "collective" in settings else "sign"}
    summary = simsgd.bytes_of(model="mlp", **{**usual, **settings}).summary()
    assert [line for line in summary.splitlines() if line.startswith(f"{told} ")]


@pytest.mark.parametrize(
    ("collective", "varies"), [("allgather", ""), ("gtopk", ""), ("oktopk", "gradient")]
)
def test_what_follows_the_gradient_in_a_collective_is_told(collective, varies):
    sizes = simsgd.bytes_of(model="mlp", workers=4, compressor="topk:0.1", collective=collective)
    assert sizes.varies == varies
