"""What each sparsifier promises beyond the contract, see test_compressors.

Statistical tests take 4,000 workers as so many independent draws, and allow 5 standard errors.
"""

import math

import pytest
import torch

from simsgd.communication.cuts import Cuts
from simsgd.communication.wire import Wire
from simsgd.keyed_random import RandomKey
from simsgd.methods.compressors import StepInfo, distinct_places, turns
from simsgd.methods.compressors.adacomp import AdaComp
from simsgd.methods.compressors.block import Block
from simsgd.methods.compressors.distinct_places import distinct
from simsgd.methods.compressors.randomk import RandomK
from simsgd.methods.compressors.sampled_topk import SampledTopK, sampling
from simsgd.methods.compressors.threshold import AdaptiveThreshold, Threshold
from simsgd.methods.compressors.topk import TopK
from simsgd.methods.compressors.variance import Variance
from simsgd.methods.memories import Residual
from simsgd.registry import build
from simsgd.settings import SettingError, count

from ..toy import normal

DRAWS = 4000


def key_of(workers, step=0, segment="segment"):
    return RandomKey(0, torch.arange(workers)).fold_in(step, segment)


def compress(method, inputs, step=0, segment="segment", **known):
    key = key_of(len(inputs), step, segment)
    return method.compress(inputs, {}, StepInfo(key, step, segment=segment, **known))


def deviation(samples, expected):
    """Return the distance of the mean of samples [DRAWS, ...] in standard errors."""
    error = samples.std(0) / math.sqrt(len(samples))
    return float(((samples.mean(0) - expected).abs() / error.clamp(min=1e-12)).max())


def first_different(numbers, k):
    """Return the first k different ones of an endless row of numbers, ascending."""
    found = []
    for number in numbers:
        if number not in found:
            found.append(number)
    return sorted(found[:k])


@pytest.mark.parametrize("k", [1, 8, 100, 250, 251, 500, 1000])
def test_random_places_are_all_different(k):
    places = distinct(key_of(3), 1000, k)
    assert [len(row.unique()) for row in places] == [k] * 3
    assert places.min() >= 0
    assert places.max() < 1000


def test_few_random_places_are_the_first_different_numbers_drawn():
    numbers = (key_of(5).uniform(1000, torch.float64) * 40).long()
    wanted = [first_different(row.tolist(), 10) for row in numbers]
    assert distinct(key_of(5), 40, 10).tolist() == wanted


def test_how_many_numbers_are_drawn_does_not_matter(monkeypatch):
    wanted = distinct(key_of(50), 40, 10)
    usual = distinct_places._drawn
    monkeypatch.setattr(distinct_places, "_drawn", lambda n, k: 2 * usual(n, k))
    assert torch.equal(distinct(key_of(50), 40, 10), wanted)


def test_too_few_numbers_drawn_are_an_error_and_no_message(monkeypatch):
    monkeypatch.setattr(distinct_places, "_drawn", lambda n, k: k)
    with pytest.raises(RuntimeError, match="too few different places"):
        distinct(key_of(50), 40, 10)


@pytest.mark.parametrize("k", [10, 60])
def test_every_place_is_as_likely(k):
    chosen = torch.zeros(DRAWS, 100).scatter_(1, distinct(key_of(DRAWS), 100, k), 1.0)
    assert deviation(chosen, k / 100) < 5


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_scaled_random_entries_are_unbiased(shared):
    x = normal(1, 20)
    method = RandomK(0.2, shared=shared, scale=True)
    steps = DRAWS if shared else 1  # shared places differ by step only
    rows = [compress(method, x.expand(DRAWS // steps, 20), step) for step in range(steps)]
    assert deviation(torch.cat([row.to_dense() for row in rows]), x) < 5


@pytest.mark.parametrize(("scale", "factor"), [(False, 1 - 4 / 20), (True, 20 / 4 - 1)])
def test_the_error_of_random_entries_is_the_papers(scale, factor):
    x = normal(1, 20)
    sent = compress(RandomK(0.2, scale=scale), x.expand(DRAWS, 20)).to_dense()
    errors = (sent - x).square().sum(1)
    assert deviation(errors, factor * x.square().sum()) < 5


def test_random_entries_are_scaled_only_when_asked():
    ones = torch.ones(2, 100)
    assert compress(RandomK(0.1), ones).to_dense().max() == 1
    assert compress(RandomK(0.1, scale=True), ones).to_dense().max() == 10


def test_whether_random_entries_are_biased_is_up_to_the_scale():
    assert RandomK(0.1).biased
    assert not RandomK(0.1, scale=True).biased


def test_shared_places_are_not_sent():
    inputs = normal(4, 1000)
    shared, own = compress(RandomK(0.1, shared=True), inputs), compress(RandomK(0.1), inputs)
    assert shared.payload_bytes().tolist() == [400] * 4
    assert own.payload_bytes().tolist() == [800] * 4
    assert shared.summable
    assert not own.summable


def test_shared_places_do_not_add_up_to_more():
    inputs = normal(4, 1000)
    assert compress(RandomK(0.1, shared=True), inputs).sum().count_nonzero() == 100
    union = compress(RandomK(0.1), inputs).sum().count_nonzero()
    assert abs(int(union) - 344) < 5 * 15  # 1 - 0.9^4 of 1000, binomial


def test_places_differ_by_worker_step_and_segment():
    inputs = normal(2, 1000)
    here = compress(RandomK(0.1), inputs).index
    assert not torch.equal(here[0], here[1])
    assert not torch.equal(here, compress(RandomK(0.1), inputs, step=1).index)
    ab, ba = (compress(RandomK(0.1), inputs, segment=name).index for name in ("ab", "ba"))
    assert not torch.equal(ab, ba)


def test_a_random_choice_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    compress(RandomK(0.1), normal(2, 1000))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("n", [1, 7, 10, 33])
def test_every_entry_has_its_turn_in_a_block(n):
    inputs = torch.ones(2, n)
    k = count(0.3, n)
    sent = sum(compress(Block(0.3), inputs, step).to_dense() for step in range(n))
    assert torch.equal(sent, torch.full((2, n), float(k)))


def test_a_block_begins_where_the_last_one_ended_and_wraps_around():
    inputs = torch.arange(10.0).expand(2, 10)
    blocks = [compress(Block(0.4), inputs, step) for step in range(3)]
    assert [block.index.tolist() for block in blocks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
    assert blocks[2].payload_bytes().tolist() == [16, 16]


def test_shared_places_leave_a_memory_what_was_not_sent():
    inputs, x, ones = normal(2, 10), normal(2, 10), torch.ones(2, 10)
    message = compress(Block(0.4), inputs, step=2)
    message.subtract_from_(x)
    message.clear_(ones)
    assert torch.equal(x, normal(2, 10) - message.to_dense())
    assert torch.equal(ones == 0, message.to_dense() != 0)


def test_whose_turn_it_is_follows_the_steps_number_and_not_its_key():
    inputs, key = normal(2, 10), key_of(2, step=7)
    sent = [Block(0.4).compress(inputs, {}, StepInfo(key, number)) for number in range(3)]
    assert [message.index.tolist() for message in sent] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1],
    ]  # fmt: skip


def test_shared_places_sum_to_the_sum_over_workers():
    message = compress(RandomK(0.3, shared=True), normal(4, 50))
    torch.testing.assert_close(message.sum(), message.to_dense().sum(0))


def test_shared_places_arrive_rounded():
    message = compress(RandomK(0.3, shared=True), normal(2, 50)).on_wire(Wire("float16"))
    assert message.payload_bytes().tolist() == [30, 30]
    assert torch.equal(message.to_dense(), message.to_dense().half().float())


def test_a_threshold_that_nothing_reaches_sends_a_header_and_keeps_all():
    g = torch.tensor([[0.1, -0.2, 0.05]] * 2)
    memory = Residual()
    state = memory.init(g, dense=False)
    inputs = memory.compensate(g, state)
    message = compress(Threshold(1.0), inputs)
    memory.update(inputs, message, state)
    assert message.counts.tolist() == [0, 0]
    assert message.payload_bytes().tolist() == [4, 4]
    assert torch.equal(message.sum(), torch.zeros(3))
    assert torch.equal(state["residual"], g)


def test_rows_send_as_many_entries_as_reach_the_threshold():
    inputs = torch.tensor([[1.0, -2, 0.5, 3], [0, 0.1, 0, -5], [0, 0, 0, 0]])
    message = compress(Threshold(1), inputs)
    assert message.counts.tolist() == [3, 1, 0]
    assert message.payload_bytes().tolist() == [4 + 3 * 8, 4 + 8, 4]
    assert message.to_dense().tolist() == [[1, -2, 0, 3], [0, 0, 0, -5], [0, 0, 0, 0]]


def test_a_threshold_of_zero_sends_everything():
    assert compress(Threshold(0), torch.zeros(2, 5)).counts.tolist() == [5, 5]


def test_half_the_largest_magnitude_is_sent_and_of_zeros_nothing():
    inputs = torch.tensor([[4.0, -2, 1.9, 0], [0, 0, 0, 0], [-3e38, 3e38, 1, 2]])
    assert compress(AdaptiveThreshold(), inputs).counts.tolist() == [2, 0, 2]


N = 50_000  # large enough to be sampled at 1 %


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize("resample", [True, False])
def test_a_sampled_row_sends_about_k_and_never_more(strided, resample):
    inputs = normal(8, N) * torch.logspace(-6, 6, 8).unsqueeze(1)
    k = count(0.01, N)
    counts = compress(SampledTopK(0.01, strided=strided, resample=resample), inputs).counts
    assert counts.max() <= k
    assert counts.min() >= 0.8 * k


def test_a_sampled_row_sends_nothing_smaller_than_what_it_keeps():
    inputs = normal(8, N)
    message = compress(SampledTopK(0.01), inputs)
    rest = inputs.clone()
    message.clear_(rest)
    sent = message.to_dense().abs().masked_fill(message.to_dense() == 0, math.inf)
    assert (sent.amin(1) >= rest.abs().amax(1)).all()


def test_a_sampled_selection_contracts_as_the_largest_entries_would():
    inputs = normal(8, N)
    error = (inputs - compress(SampledTopK(0.01), inputs).to_dense()).square().sum(1)
    assert (error <= (1 - 0.8 * 0.01) * inputs.square().sum(1)).all()


def test_too_many_above_the_bar_are_cut_to_the_largest(monkeypatch):
    inputs = normal(3, 1000)
    monkeypatch.setattr(SampledTopK, "_estimated", lambda *_: torch.full((3, 1), 0.5))
    for resample in (True, False):
        message = compress(SampledTopK(0.1, iters=0, resample=resample), inputs)
        assert torch.equal(message.to_dense(), compress(TopK(0.1), inputs).to_dense())


def test_a_bar_that_is_too_high_is_lowered_row_by_row(monkeypatch):
    inputs = normal(3, 1000)
    bars = torch.tensor([[10.0], [1.5], [4.0]])
    monkeypatch.setattr(SampledTopK, "_estimated", lambda *_: bars)
    counts = compress(SampledTopK(0.1), inputs).counts
    assert counts.min() >= 80
    alone = inputs[1:2]
    monkeypatch.setattr(SampledTopK, "_estimated", lambda *_: bars[1:2])
    assert compress(SampledTopK(0.1), alone).counts == counts[1]


def test_a_small_segment_is_searched_whole():
    inputs = normal(3, 199)
    assert sampling(199, 0.01, 0.01) == (199, 1)
    sent = compress(SampledTopK(0.01), inputs).to_dense()
    assert torch.equal(sent, compress(TopK(0.01), inputs).to_dense())


@pytest.mark.parametrize(("reached", "sent"), [(8, 8), (7, 10), (11, 10)])
def test_a_bar_that_four_fifths_reach_is_left_where_it_is(monkeypatch, reached, sent):
    inputs = torch.arange(1.0, 101).unsqueeze(0)
    bar = torch.full((1, 1), 101.0 - reached)
    monkeypatch.setattr(SampledTopK, "_estimated", lambda *_: bar)
    assert compress(SampledTopK(0.1), inputs).counts.tolist() == [sent]


def test_all_samples_make_the_selection_exact():
    inputs = normal(3, 3000)
    sent = compress(SampledTopK(0.01, sample_ratio=1), inputs).to_dense()
    assert torch.equal(sent, compress(TopK(0.01), inputs).to_dense())


def test_a_gradient_of_mostly_zeros_sends_its_largest_entries():
    inputs = torch.zeros(2, N)
    inputs[:, ::100] = normal(2, N // 100)
    sent = compress(SampledTopK(0.001), inputs).to_dense()
    assert torch.equal(sent, compress(TopK(0.001), inputs).to_dense())
    few = compress(SampledTopK(0.1), inputs)
    assert torch.equal(few.to_dense(), inputs)


def test_of_equal_entries_above_the_bar_the_lowest_go():
    message = compress(SampledTopK(0.01), torch.full((2, N), -0.5))
    assert torch.equal(message.index, torch.arange(500).expand(2, 500))


def test_the_sample_begins_elsewhere_at_another_step():
    inputs = normal(1, N)
    counts = {compress(SampledTopK(0.01), inputs, step).counts.item() for step in range(10)}
    assert len(counts) > 1


def slow_adacomp(G, g, size, c, variant):
    bins = [range(i, min(i + size, len(G))) for i in range(0, len(G), size)]
    most = [max(abs(G[i]) for i in places) for places in bins]
    sent = [0.0] * len(G)
    for places, top in zip(bins, most, strict=True):
        for i in places:
            if abs(G[i] + c * g[i]) >= top and G[i] != 0:
                scale = math.copysign(sum(most) / len(most), G[i])
                sent[i] = scale if variant == "paper" else G[i]
    return sent


@pytest.mark.parametrize("variant", ["paper", "values"])
@pytest.mark.parametrize(("n", "size", "c"), [(33, 7, 1.0), (100, 50, 0.5), (20, 500, 3.0)])
def test_adacomp_is_the_slow_loop(variant, n, size, c):
    inputs, gradient = normal(3, n, 1, torch.float64), normal(3, n, 2, torch.float64)
    method = AdaComp(size, c, variant)
    ours = compress(method, inputs, gradient=gradient).to_dense()
    rows = zip(inputs.tolist(), gradient.tolist(), strict=True)
    slow = [slow_adacomp(G, g, size, c, variant) for G, g in rows]
    rtol = 1e-7 if variant == "paper" else 0  # the scale travels in float32
    torch.testing.assert_close(ours, torch.tensor(slow, dtype=torch.float64), rtol=rtol, atol=0)


def test_without_a_look_ahead_the_largest_of_each_bin_goes():
    inputs = normal(3, 1000)
    message = compress(AdaComp(50, c=0), inputs, gradient=normal(3, 1000, 1))
    assert message.counts.tolist() == [20] * 3


def test_adacomp_sends_one_bit_an_entry_and_one_scale():
    inputs = normal(3, 1000)
    message = compress(AdaComp(50), inputs, gradient=inputs)
    wanted = [4 + 4 * m + 4 + (m + 7) // 8 for m in message.counts.tolist()]
    assert message.payload_bytes().tolist() == wanted


def test_a_bin_of_zeros_sends_nothing():
    inputs = torch.zeros(2, 100)
    inputs[0, :50] = 1.0
    gradient = torch.ones(2, 100)
    assert compress(AdaComp(50), inputs, gradient=gradient).counts.tolist() == [50, 0]


def test_the_bins_of_a_convolution_are_smaller():
    assert AdaComp().for_shape((16, 3, 3, 3)).bin == 50
    assert [AdaComp().for_shape(shape).bin for shape in ((10, 64), (640,))] == [500, 500]
    assert AdaComp(7).for_shape((16, 3, 3, 3)).bin == 7


@pytest.mark.parametrize("spec", ["adacomp:50", "adacomp:50,variant=values", "sampled_topk:0.1"])
def test_what_was_sent_and_what_is_kept_are_what_came_in(spec):
    method, memory = build("compressor", spec)[0], Residual()
    state = memory.init(torch.zeros(2, 1000), dense=False)
    came = sent = torch.zeros(2, 1000, dtype=torch.float64)
    for step in range(5):
        gradient = normal(2, 1000, step)
        inputs = memory.compensate(gradient, state)
        message = compress(method, inputs, step, gradient=gradient)
        memory.update(inputs, message, state)
        came, sent = came + gradient, sent + message.to_dense()
    torch.testing.assert_close(sent + state["residual"], came, rtol=0, atol=1e-5)


def slow_variance(steps, alpha, zeta):
    r = v = 0.0
    sent = []
    for samples in steps:
        b = len(samples)
        r += sum(samples) / b
        v += sum((g / b) ** 2 for g in samples)
        certain = r**2 > alpha * v
        sent.append(r if certain else 0.0)
        r, v = (0.0, 0.0) if certain else (r, v * zeta)
    return sent


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_variance_is_the_slow_loop(alpha):
    samples = normal(6, 2 * 4 * 30, 3, torch.float64).view(6, 2, 4, 30) + 0.3  # step, L, b, n
    method = Variance(alpha, zeta=0.9)
    state, ours = method.init(samples[0, :, 0]), []
    for step in samples:
        known = StepInfo(key_of(2), squares=(step / 4).square().sum(1))
        ours.append(method.compress(step.mean(1), state, known).to_dense())
    for w in range(2):
        for i in range(30):
            slow = slow_variance(samples[:, w, :, i].tolist(), alpha, 0.9)
            torch.testing.assert_close(torch.stack(ours)[:, w, i].tolist(), slow)
    assert 0 < torch.stack(ours).count_nonzero() < 6 * 2 * 30 / 2


def test_entries_go_where_samples_agree_and_stay_where_they_do_not():
    method = Variance()
    g = torch.tensor([[[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0]]])  # [L, b, n]
    state = method.init(g[:, 0])
    step = StepInfo(key_of(1), squares=(g / 4).square().sum(1))
    assert method.compress(g.mean(1), state, step).to_dense().tolist() == [[1.0, 0.0]]
    assert state["residual"].tolist() == [[0.0, 0.0]]
    assert state["variance"].tolist() == [[0.0, pytest.approx(0.25 * 0.999)]]


@pytest.mark.parametrize(
    "spec",
    [
        "randomk:0",
        "randomk:0.1,shared=maybe",
        "block:2",
        "threshold:-1",
        "threshold:1e999",
        "sampled_topk:0.1,sample_ratio=0",
        "sampled_topk:0.1,upper=1",
        "sampled_topk:0.1,lower=1",
        "sampled_topk:0.1,iters=-1",
        "adacomp:0",
        "adacomp:wide",
        "adacomp:50,variant=code",
        "adacomp:50,c=-1",
        "variance:0",
        "variance:1.5,zeta=2",
    ],
)
def test_a_setting_out_of_range_is_refused(spec):
    with pytest.raises(SettingError, match="must"):
        build("compressor", spec)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "spec",
    [
        "randomk:0.01",
        "randomk:0.5,shared=true",
        "block:0.1",
        "threshold:1",
        "adaptive_threshold",
        "sampled_topk:0.01",
        "sampled_topk:0.01,resample=false,strided=false",
        "adacomp",
        "variance",
    ],
)
def test_cuda_sends_what_the_cpu_sends(spec):
    inputs, method = normal(3, N), build("compressor", spec)[0]
    sent = []
    for device in ("cpu", "cuda"):
        here = inputs.to(device)
        key = RandomKey(0, torch.arange(3, device=device)).fold_in(0, "segment")
        step = StepInfo(key, gradient=here / 2, squares=here.abs() / 2)
        sent.append(method.compress(here, method.init(here), step).to_dense().cpu())
    torch.testing.assert_close(sent[1], sent[0])


@pytest.mark.parametrize("kinds", [1, 3, 50, 10**9])
def test_a_turn_is_that_of_all_in_order_whatever_is_equal(kinds):
    drawn = torch.randint(kinds, (2000,), generator=torch.Generator().manual_seed(1)).double()
    for rank in drawn, drawn / kinds, drawn / kinds / 9:
        for first, last in [(0, 1), (0, 2000), (70, 300), (1000, 1001), (1500, 2000)]:
            wanted = rank.argsort(stable=True)[first:last].sort().values
            assert torch.equal(turns._between(rank, first, last), wanted)


def test_turns_of_segments_are_found_together_as_one_by_one():
    cuts, ends = Cuts((7, 200, 1, 40)), [(0, 2), (150, 200), (0, 1), (3, 9)]
    rank = torch.randint(30, (1, cuts.total), generator=torch.Generator().manual_seed(2)).double()
    found = turns._between_of_each(rank[0], cuts, ends)
    assert torch.equal(turns.sorted_in_segments(rank[0], cuts, ends), found)
