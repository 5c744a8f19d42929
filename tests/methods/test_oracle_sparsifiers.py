"""Sparsifiers against independent implementations.

Not imitated: `threshold_grace` lowers a threshold that no signed value reaches to the largest one,
`randomk_grace` draws with replacement and sends an entry twice, `randomk_choco` and `randomk_grace`
round a share that is not whole down, in binary. A segment of zeros is sent whole by `adaptive` and
`dgc_sampled`, and by us not at all. Where more entries reach the bar than are asked for,
`dgc_sampled` sends all and the code behind `dgc_sampling` the first by index; we send the largest.
"""

import pytest
import torch

from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, randomk
from simsgd.methods.compressors import sampled_topk as sampled
from simsgd.methods.compressors.randomk import RandomK
from simsgd.methods.compressors.sampled_topk import SampledTopK, sampling
from simsgd.methods.compressors.threshold import AdaptiveThreshold, Threshold
from simsgd.settings import count, kept

from ..reference_data import assert_equals_step, cases, each, flat

STEP = StepInfo(RandomKey(0, torch.arange(1)).fold_in(0, "segment"))


def sent(compressor, x):
    return compressor.compress(x.unsqueeze(0), {}, STEP).to_dense()[0]


def named(start):
    return lambda case: case["name"].startswith(start)


def lowered(case):
    """Return whether the reference lowered its threshold."""
    return bool(flat(case["input"]).max() < case["params"]["threshold"])


@each("sparse_threshold", named("threshold_plain"))
def test_a_threshold_selects_the_same(case):
    ours = sent(Threshold(case["params"]["V"]), flat(case["input"]))
    assert_equals_step(ours, flat(case["expected"]["dense"]))


@each("sparse_threshold", lambda case: named("threshold_grace")(case) and not lowered(case))
def test_a_threshold_that_a_positive_entry_reaches_selects_the_same(case):
    ours = sent(Threshold(case["params"]["threshold"]), flat(case["input"]))
    assert_equals_step(ours, flat(case["expected"]["dense"]))


@each("sparse_threshold", lambda case: named("threshold_grace")(case) and lowered(case))
def test_a_threshold_that_no_positive_entry_reaches_is_not_lowered(case):
    x, v = flat(case["input"]), case["params"]["threshold"]
    theirs = flat(case["expected"]["dense"])
    assert_equals_step(sent(Threshold(v), x), theirs.where(theirs.abs() >= v, 0.0))


@each("sparse_threshold", named("adaptive"))
def test_half_the_largest_magnitude_selects_the_same(case):
    assert_equals_step(
        sent(AdaptiveThreshold(), flat(case["input"])), flat(case["expected"]["dense"])
    )


@each("sparse_randomk", named("randomk_perm"))
def test_a_permutation_keeps_as_many(case):
    assert case["expected"]["count"] == count(case["params"]["K"], len(flat(case["input"])))


@each("sparse_randomk", named("randomk_perm"))
def test_the_places_of_a_permutation_give_the_same_message(case, monkeypatch):
    x, ratio = flat(case["input"]), case["params"]["K"]
    chosen = torch.tensor(case["expected"]["permutation"]) < len(x) * ratio
    monkeypatch.setattr(randomk, "distinct", lambda key, n, k: chosen.nonzero().T)
    assert_equals_step(sent(RandomK(ratio), x), flat(case["expected"]["dense"]))


@pytest.mark.parametrize("scale", [False, True])
@each("sparse_randomk", named("randomk_choco"))
def test_the_same_places_give_the_same_values(case, scale, monkeypatch):
    x, index = flat(case["input"]), torch.tensor([case["expected"]["indices"]])
    monkeypatch.setattr(randomk, "distinct", lambda key, n, k: index)
    ratio = (case["expected"]["k"] - 0.5) / len(x)  # amid those that keep as many
    message = RandomK(ratio, scale=scale).compress(x.unsqueeze(0), {}, STEP)
    wanted = case["expected"]["unbiased_values" if scale else "biased_values"]
    assert_equals_step(message.values[0], flat(wanted))


@each("sparse_randomk", named("randomk_choco"))
def test_a_random_share_is_counted_in_decimal_and_rounded_up(case):
    n, drop, k = len(flat(case["input"])), case["params"]["drop_ratio"], case["expected"]["k"]
    assert k == max(1, int(n * (1 - drop)))  # 7 of 80 at 0.9
    share = n * kept(drop)
    assert count(kept(drop), n) == (k + 1 if share > k else k)


@each("sparse_randomk", named("randomk_grace"))
def test_random_entries_are_distinct_where_the_reference_repeats_some(case):
    x, ratio = flat(case["input"]), case["params"]["ratio"]
    index = RandomK(ratio).compress(x.unsqueeze(0), {}, STEP).index[0]
    assert len(index.unique()) == count(ratio, len(x))
    for step in case["expected"]["per_step"]:
        assert step["distinct"] <= step["k_sent"] <= count(ratio, len(x))


def bar_of(case):
    """Return the bar that the reference's sample gives."""
    x, ratio = flat(case["input"]), case["params"]["ratio"]
    sample = x[torch.tensor(case["expected"]["sample_indices"])].abs()
    return sample.topk(max(1, int(len(x) * ratio / 100))).values.min()


@each("sparse_dgc_sampled", lambda case: flat(case["input"]).count_nonzero() > 1)
def test_the_same_first_bar_is_moved_the_same_way(case, monkeypatch):
    x, ratio = flat(case["input"]), case["params"]["ratio"]
    bar = bar_of(case).view(1, 1)
    monkeypatch.setattr(SampledTopK, "_estimated", lambda *_: bar)
    monkeypatch.setattr(sampled, "_at_most", lambda found, k: found)
    method = SampledTopK(ratio, lower=0.7, upper=1.3, resample=False)
    assert_equals_step(sent(method, x), flat(case["expected"]["dense"]))


@each("sparse_dgc_sampled", lambda case: flat(case["input"]).count_nonzero() > 1)
def test_of_what_reaches_the_bar_the_largest_go(case, monkeypatch):
    x, ratio = flat(case["input"]), case["params"]["ratio"]
    bar = bar_of(case).view(1, 1)
    monkeypatch.setattr(SampledTopK, "_estimated", lambda *_: bar)
    theirs = flat(case["expected"]["dense"])
    order = theirs.abs().sort(descending=True, stable=True).indices[: count(ratio, len(x))]
    wanted = torch.zeros_like(x).index_copy_(0, order, theirs[order])
    ours = sent(SampledTopK(ratio, lower=0.7, upper=1.3, resample=False), x)
    assert_equals_step(ours, wanted)


@each("sparse_dgc_sampled", lambda case: not flat(case["input"]).any())
def test_of_a_segment_of_zeros_nothing_goes(case):
    x = flat(case["input"])
    message = SampledTopK(case["params"]["ratio"]).compress(x.unsqueeze(0), {}, STEP)
    assert message.counts.tolist() == [0]


@each("sparse_dgc_sampled", lambda case: len(flat(case["input"])) == 1)
def test_of_one_entry_that_one_goes_where_the_reference_sends_none(case):
    x = flat(case["input"])
    assert torch.equal(sent(SampledTopK(case["params"]["ratio"]), x), x)


GEOMETRY = cases("dgc_sampling", named("sampling_geometry"))[0]["expected"]


def geometry(n, ratio, sample_ratio):
    samples, stride = sampling(n, ratio, sample_ratio)
    return {
        "num_samples": samples,
        "sample_stride": stride,
        "top_k_samples": count(ratio, samples),
    }


@pytest.mark.parametrize("row", GEOMETRY, ids=lambda row: f"{row['ratio']} of {row['numel']}")
def test_as_many_are_looked_at(row):
    ratio, n = row["ratio"], row["numel"]
    assert row == {"numel": n, "ratio": ratio, **geometry(n, ratio, 0.01)}


@each("dgc_sampling", named("resnet20"))
def test_resnet20_is_sampled_the_same_in_every_layer(case):
    ratio, sample_ratio = case["params"]["compress_ratio"], case["params"]["sample_ratio"]
    for layer in case["expected"]["compressed"]:
        n = layer["numel"]
        assert layer == {"numel": n, **geometry(n, ratio, sample_ratio)}
