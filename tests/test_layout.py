import pytest
import torch

from simsgd.layout import Layout
from simsgd.settings import SettingError

SHAPES = {"conv.weight": (4, 3, 2, 2), "conv.bias": (4,), "scale": (), "fc.weight": (5, 4)}
SHAPES = {name: torch.Size(shape) for name, shape in SHAPES.items()}


def values(workers=3):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(workers, *shape, generator=generator) for name, shape in SHAPES.items()
    }


@pytest.mark.parametrize("granularity", ["layer", "model"])
@pytest.mark.parametrize("prune_1d", [False, True])
def test_split_and_join_are_inverse(granularity, prune_1d):
    layout = Layout.of(SHAPES, granularity, prune_1d)
    back = layout.join(layout.split(values()))
    assert back.keys() == SHAPES.keys()
    assert all(torch.equal(back[name], value) for name, value in values().items())


def test_join_gives_shared_values_their_shapes():
    layout = Layout.of(SHAPES, "model", prune_1d=True)
    joined = layout.join([piece.mean(0) for piece in layout.split(values())])
    assert {name: value.shape for name, value in joined.items()} == SHAPES


def test_each_tensor_is_a_segment_and_small_ones_go_dense():
    segments = Layout.of(SHAPES, "layer", prune_1d=False).segments
    assert [(s.name, s.n, s.dense) for s in segments] == [
        ("conv.weight", 48, False), ("conv.bias", 4, True), ("scale", 1, True),
        ("fc.weight", 20, False),
    ]  # fmt: skip


def test_the_whole_model_is_one_segment_beside_what_goes_dense():
    segments = Layout.of(SHAPES, "model", prune_1d=False).segments
    assert [(s.name, s.n) for s in segments] == [("model", 68), ("conv.bias", 4), ("scale", 1)]


def test_with_prune_1d_nothing_is_exempt():
    assert [s.n for s in Layout.of(SHAPES, "model", prune_1d=True).segments] == [73]


def test_a_model_of_vectors_alone_has_no_compressed_segment():
    layout = Layout.of({"bias": torch.Size((4,))}, "model", prune_1d=False)
    assert [s.dense for s in layout.segments] == [True]


def test_an_unknown_granularity_is_refused():
    with pytest.raises(SettingError, match="granularity must be layer or model, got tensor"):
        Layout.of(SHAPES, "tensor", prune_1d=False)
