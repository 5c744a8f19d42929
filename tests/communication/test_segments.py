import pytest
import torch

from simsgd.communication.segments import Layout
from simsgd.settings import SettingError

SHAPES = {"conv.weight": (4, 3, 2, 2), "conv.bias": (4,), "scale": (), "fc.weight": (5, 4)}
SHAPES = {name: torch.Size(shape) for name, shape in SHAPES.items()}


def values(workers=3):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(workers, *shape, generator=generator) for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("granularity", ["layer", "model", "bucket:100B"])
@pytest.mark.parametrize("rule", ["dim>1", "all", "numel>=10"])
def test_split_and_join_are_inverse(granularity, rule):
    layout = Layout.of(SHAPES, granularity, rule)
    back = layout.join(layout.split(values()))
    assert back.keys() == SHAPES.keys()
    assert all(torch.equal(back[name], value) for name, value in values().items())


def test_join_gives_shared_values_their_shapes():
    layout = Layout.of(SHAPES, "model", "all")
    joined = layout.join([piece.mean(0) for piece in layout.split(values())])
    assert {name: value.shape for name, value in joined.items()} == SHAPES


def test_each_tensor_is_a_segment_and_small_ones_go_dense():
    segments = Layout.of(SHAPES, "layer", "dim>1").segments
    assert [(s.name, s.n, s.dense) for s in segments] == [
        ("conv.weight", 48, False), ("conv.bias", 4, True), ("scale", 1, True),
        ("fc.weight", 20, False),
    ]  # fmt: skip


def test_the_whole_model_is_one_segment_beside_what_goes_dense():
    segments = Layout.of(SHAPES, "model", "dim>1").segments
    assert [(s.name, s.n) for s in segments] == [("model", 68), ("conv.bias", 4), ("scale", 1)]


def test_with_all_nothing_is_exempt():
    assert [s.n for s in Layout.of(SHAPES, "model", "all").segments] == [73]


def test_a_model_of_vectors_alone_has_no_compressed_segment():
    layout = Layout.of({"bias": torch.Size((4,))}, "model", "dim>1")
    assert [s.dense for s in layout.segments] == [True]


def test_an_unknown_granularity_is_refused():
    with pytest.raises(SettingError, match="must be layer, model or bucket:SIZE, got tensor"):
        Layout.of(SHAPES, "tensor", "dim>1")


def test_buckets_hold_neighbors_up_to_their_size():
    shapes = {f"w{i}": torch.Size((n, 1)) for i, n in enumerate([10, 15, 30, 5, 5])}

    def sizes(granularity):
        return [s.n for s in Layout.of(shapes, granularity, "dim>1").segments]

    assert sizes("bucket:100B") == [25, 30, 10]
    assert sizes("bucket:0.1KB") == sizes("bucket:100")
    assert sizes("bucket:25MB") == [65]
    assert sizes("bucket:1") == [10, 15, 30, 5, 5]


@pytest.mark.parametrize("rule", ["dims>1", "numel", "dim<2", "1"])
def test_an_unknown_rule_is_refused(rule):
    with pytest.raises(SettingError, match="compress_if must be all, dim>N or numel>=N, got"):
        Layout.of(SHAPES, "layer", rule)


@pytest.mark.parametrize("granularity", ["bucket", "bucket:", "bucket:0MB", "bucket:5XB"])
def test_a_bucket_needs_a_size(granularity):
    with pytest.raises(SettingError, match=r"(such as|for example) bucket:\d+MB"):
        Layout.of(SHAPES, granularity, "all")
