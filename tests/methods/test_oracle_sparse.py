"""Exact top-k against independent implementations, which count k in other ways.

`topk_grace` keeps max(1, floor(n * ratio)). `topk_choco` names the fraction dropped and keeps
max(1, floor(n * (1 - drop_ratio))). `topk_kthvalue` keeps all from the m-th smallest magnitude on,
m = ceil(n * (1 - K)): one more than n * K where that is whole, as many as we do where it is not,
and all that tie. `mask_prune` keeps max(1, floor(n * fraction)).
"""

import math

import pytest
import torch
from torch import Tensor

from simsgd.communication.messages import Sparse
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo
from simsgd.methods.compressors.topk import TopK
from simsgd.settings import count, kept

from ..reference_data import Case, assert_equals_step, cases, each, flat


def ratio_asked(case: Case) -> float:
    """Return the fraction kept that the reference was asked for."""
    params = case["params"]
    if "drop_ratio" in params:
        return kept(params["drop_ratio"])
    ratio: float = params.get("ratio", params.get("K", params.get("fraction")))
    return ratio


def reference_k(case: Case) -> int:
    """Return how many entries the reference kept."""
    expected = case["expected"]
    return int(expected["k"]) if "k" in expected else int(flat(expected["dense"]).count_nonzero())


def has_ties(case: Case) -> bool:
    """Return whether the least magnitude kept equals the largest dropped: either may go."""
    size = flat(case["input"]).abs().sort(descending=True).values
    k = reference_k(case)
    return k < len(size) and bool(size[k - 1] == size[k])


def agrees_on_k(case: Case) -> bool:
    return reference_k(case) == count(ratio_asked(case), len(flat(case["input"])))


def compress(x: Tensor, ratio: float) -> Sparse:
    return TopK(ratio).compress(x.unsqueeze(0), {}, StepInfo(RandomKey(0, torch.arange(1))))


def compress_as_many(case: Case) -> Sparse:
    """Return our message of the reference's k; the ratio lies amid those that keep k of n."""
    x, k = flat(case["input"]), reference_k(case)
    return compress(x, (k - 0.5) / len(x))


@each("sparse_topk", lambda case: agrees_on_k(case) and not has_ties(case))
def test_the_same_ratio_gives_the_same_message(case: Case) -> None:
    message = compress(flat(case["input"]), ratio_asked(case))
    assert_equals_step(message.to_dense()[0], flat(case["expected"]["dense"]))


@each("sparse_topk", lambda case: not has_ties(case))
def test_the_same_k_gives_the_same_message(case: Case) -> None:
    message = compress_as_many(case)
    assert_equals_step(message.to_dense()[0], flat(case["expected"]["dense"]))


@each("sparse_topk", lambda case: "indices_sorted" in case["expected"] and not has_ties(case))
def test_the_same_k_gives_the_same_places(case: Case) -> None:
    assert compress_as_many(case).index[0].tolist() == case["expected"]["indices_sorted"]


@each("sparse_topk", has_ties)
def test_of_equal_magnitudes_as_many_go(case: Case) -> None:
    assert compress_as_many(case).index.shape[1] == reference_k(case)


@each("sparse_topk", has_ties)
def test_of_equal_magnitudes_the_same_values_go(case: Case) -> None:
    sent = compress_as_many(case).to_dense()[0].sort().values
    assert_equals_step(sent, flat(case["expected"]["dense"]).sort().values)


@each("sparse_topk", has_ties)
def test_of_equal_magnitudes_the_lowest_places_go(case: Case) -> None:
    all_equal = list(range(reference_k(case)))
    assert compress_as_many(case).index[0].tolist() == all_equal


@each("sparse_topk", lambda case: not case["name"].startswith("topk_kthvalue"))
def test_a_share_that_is_not_whole_is_rounded_up_not_down(case: Case) -> None:
    n = len(flat(case["input"]))
    share = n * ratio_asked(case)
    ours = count(ratio_asked(case), n)
    assert ours == reference_k(case) + (share > 1 and not share.is_integer())


@each("sparse_topk", lambda case: case["name"].startswith("topk_kthvalue"))
def test_a_threshold_keeps_one_more_than_we_where_the_share_is_whole(case: Case) -> None:
    share = len(flat(case["input"])) * ratio_asked(case)
    ours = count(ratio_asked(case), len(flat(case["input"])))
    assert ours == reference_k(case) - share.is_integer()


@each("dgc_resnet20", lambda case: case["name"].startswith("resnet20"))
def test_resnet20_sends_as_many_of_each_layer(case: Case) -> None:
    ratio = case["params"]["compress_ratio"]
    layers = case["expected"]["compressed"]
    ours = {layer["name"]: count(ratio, math.prod(layer["shape"])) for layer in layers}
    assert ours == {layer["name"]: layer["num_selects"] for layer in layers}


@each("dgc_resnet20", lambda case: case["name"].startswith("resnet20"))
def test_resnet20_sends_as_many_in_all(case: Case) -> None:
    ratio = case["params"]["compress_ratio"]
    sent = sum(count(ratio, layer["numel"]) for layer in case["expected"]["compressed"])
    assert sent == case["expected"]["total_selected"]


GEOMETRY = cases("dgc_resnet20", lambda case: case["name"] == "sampling_geometry")[0]["expected"]


@pytest.mark.parametrize("row", GEOMETRY, ids=lambda row: f"{row['ratio']} of {row['numel']}")
def test_a_fraction_keeps_as_many(row: Case) -> None:
    assert count(row["ratio"], row["numel"]) == row["num_selects"]
