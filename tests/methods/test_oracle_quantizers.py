"""Quantizers against independent implementations, with the random numbers these drew.

Cases whose input is not finite are left out: a run ends there with an error, before anything is
quantized. `qsgd_choco` and `dithering` give NaN for zeros, and `terngrad_grace` gives 0 for a
single entry; where we do not follow them the test says so.
"""

import pytest
import torch

from simsgd import compiled_loops
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, composed

from ..reference_data import assert_equals_step, cases, each, flat

WITHIN = 5  # standard errors


class Given:
    """The numbers that a reference drew, in place of ours."""

    def __init__(self, numbers):
        self.numbers = numbers

    def uniform(self, n, dtype):
        return torch.nn.functional.pad(self.numbers, (0, n - len(self.numbers))).unsqueeze(0)


def compress(spec, x, draws=None):
    key = RandomKey(0, torch.arange(1)) if draws is None else Given(draws)
    with compiled_loops.switched(draws is None):  # kernels draw by themselves
        return composed(spec).compress(x.unsqueeze(0), {}, StepInfo(key))


def drawn(case):
    return flat(case["expected"]["uniform_draws"])


def dense(case):
    return flat(case["expected"]["dense"])


def named(*starts):
    return lambda case: case["name"].startswith(starts)


def single(case):
    return len(flat(case["input"])) == 1


def zero(case):
    return not flat(case["input"]).any()


@each("quant_terngrad", lambda case: named("terngrad_grace")(case) and not single(case))
def test_terngrad_with_clipping(case):
    message = compress("terngrad", flat(case["input"]), drawn(case))
    assert_equals_step(message.scales[0], flat(case["expected"]["scale"]))
    assert message.codes[0].tolist() == case["expected"]["codes"]
    assert_equals_step(message.to_dense()[0], dense(case))


@each("quant_terngrad", lambda case: named("terngrad_grace")(case) and single(case))
def test_terngrad_does_not_clip_a_single_entry_though_the_reference_loses_it(case):
    assert case["expected"]["dense"] == [0.0]
    x = flat(case["input"])
    assert torch.equal(compress("terngrad", x, drawn(case)).to_dense()[0], x)


@each("quant_terngrad", named("terngrad_noclip"))
def test_terngrad_without_clipping(case):
    message = compress("terngrad:clip=none", flat(case["input"]), drawn(case))
    assert_equals_step(message.to_dense()[0], dense(case))


@each("quant_qsgd", named("qsgd_grace"))
def test_qsgd_in_buckets(case):
    params = case["params"]
    spec = f"qsgd:{params['quantum_num']},bucket={params['bucket_size']}"
    message = compress(spec, flat(case["input"]), drawn(case))
    assert message.codes[0].tolist() == case["expected"]["levels"]
    assert_equals_step(message.scales[0], flat(case["expected"]["bucket_norms"]))
    assert_equals_step(message.to_dense()[0], dense(case))


def choco_spec(case):
    return f"qsgd:{2 ** case['params']['bits'] - 1},biased={case['params']['is_biased']}"


@each("quant_qsgd", lambda case: named("qsgd_choco")(case) and not zero(case))
def test_qsgd_of_the_whole_segment(case):
    message = compress(choco_spec(case), flat(case["input"]), drawn(case))
    assert_equals_step(message.to_dense()[0], dense(case))


@each("quant_qsgd", lambda case: named("dithering")(case) and not zero(case))
def test_qsgd_equals_random_dithering(case):
    spec = f"qsgd:{case['params']['qstates']}"
    message = compress(spec, flat(case["input"]), 1 - drawn(case))  # theirs is floor(r + u)
    assert_equals_step(message.to_dense()[0], dense(case))


@each("quant_qsgd", lambda case: named("qsgd_choco", "dithering")(case) and zero(case))
def test_qsgd_of_zeros_is_zero_though_the_reference_divides_by_the_norm(case):
    assert set(case["expected"]["dense"]) == {"nan"}
    spec = choco_spec(case) if "bits" in case["params"] else "qsgd:255"
    assert not compress(spec, flat(case["input"]), drawn(case)).to_dense().any()


@each("quant_natural")
def test_natural(case):
    half_way = (flat(case["expected"]["random_ints"]).double() + 0.5) / 2**23
    message = compress("natural", flat(case["input"]), half_way.float())
    assert torch.equal(message.to_dense()[0], dense(case))
    ours, theirs = message.codes[0].tolist(), case["expected"]["codes"]
    assert [c for c in ours if c % 128] == [c for c in theirs if c % 128]


@each("quant_misc")
def test_fp16(case):
    x = flat(case["input"]) * case["params"]["premultiply"]
    assert torch.equal(compress("fp16", x).to_dense()[0], dense(case))


@each("quant_sign", named("signsgd", "signpack"))
def test_signs(case):
    assert torch.equal(compress("sign:none", flat(case["input"])).to_dense()[0], dense(case))


@each("quant_sign", named("signpack"))
def test_a_sign_takes_a_bit_in_bytes_where_the_reference_fills_words(case):
    n = len(flat(case["input"]))
    assert compress("sign:none", flat(case["input"])).payload_bytes().item() == -(-n // 8)
    assert case["expected"]["words"] == -(-n // 32)


@each("quant_sign", named("efsign_compress"))
def test_signs_with_their_mean_magnitude(case):
    message = compress("sign", flat(case["input"]))
    assert_equals_step(message.scales[0, 0], torch.tensor(case["expected"]["mean_abs"]))
    assert_equals_step(message.to_dense()[0], dense(case))


@each("quant_sign", named("onebit"))
def test_onebit(case):
    message = compress("onebit", flat(case["input"]))
    assert message.codes[0].int().tolist() == case["expected"]["negative_mask"]
    means = [case["expected"]["mean_negative"], case["expected"]["mean_nonnegative"]]
    assert_equals_step(message.scales[0], torch.tensor(means))
    assert_equals_step(message.to_dense()[0], dense(case))


@each("quant_sign", named("majority"))
def test_signs_sum_to_the_votes(case):
    given = torch.stack([flat(x) for x in case["inputs"]])
    sent = composed("sign:none").compress(
        given, {}, StepInfo(RandomKey(0, torch.arange(len(given))))
    )
    assert torch.equal(sent.sum(), flat(case["expected"]["sum"]))


STATISTICS = [
    *(("terngrad", case) for case in cases("quant_terngrad", named("terngrad_stats"))),
    *(("qsgd:4,bucket=128", case) for case in cases("quant_qsgd", named("qsgd_stats"))),
]


@pytest.mark.parametrize(("spec", "case"), STATISTICS, ids=lambda v: v if type(v) is str else "")
def test_means_agree_within_the_standard_errors_of_both(spec, case):
    x, draws = flat(case["input"]), case["expected"]["draws"]
    sent = (
        composed(spec)
        .compress(x.expand(draws, -1), {}, StepInfo(RandomKey(0, torch.arange(draws))))
        .to_dense()
    )
    error = sent.double().std(0) * (2 / draws) ** 0.5
    off = (sent.double().mean(0) - flat(case["expected"]["empirical_mean"])).abs()
    rarest = float(sent.abs().max()) * WITHIN**2 / draws  # of an entry that may never be drawn
    assert (off <= WITHIN * error + rarest).all()
