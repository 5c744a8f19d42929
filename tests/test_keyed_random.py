import torch

from simsgd.keyed_random import RandomKey, uniform


def draw(workers, *place, seed=0):
    return RandomKey(seed, torch.tensor(workers)).fold_in(*place)


def test_a_worker_draws_the_same_whoever_is_beside_it():
    together = draw([0, 1, 2, 3], 7, "layer").uniform(50)
    alone = draw([2], 7, "layer").uniform(50)
    assert torch.equal(together[2:3], alone)


def test_another_seed_step_segment_or_worker_draws_other_numbers():
    rows = [
        draw([0], 1, "a"), draw([0], 2, "a"), draw([0], 1, "b"), draw([1], 1, "a"),
        draw([0], 1, "a", seed=1),
    ]  # fmt: skip
    seen = {tuple(row.uniform(4)[0].tolist()) for row in rows}
    assert len(seen) == len(rows)


def test_shared_numbers_are_the_same_for_all_and_nobodys_own():
    shared = draw([0, 1], 3).shared().uniform(10)
    assert torch.equal(shared[0], shared[1])
    assert not torch.equal(shared[0], draw([0], 3).uniform(10)[0])


def test_a_longer_draw_begins_with_the_shorter():
    assert torch.equal(draw([0]).uniform(100)[:, :10], draw([0]).uniform(10))


def test_numbers_are_uniform_and_independent_enough():
    numbers = draw(list(range(8)), 5).uniform(50_000, torch.float64)
    histogram = torch.histc(numbers, 20, 0, 1) / numbers.numel()
    assert ((numbers >= 0) & (numbers < 1)).all()
    assert (histogram - 0.05).abs().max() < 5 * (0.05 * 0.95 / numbers.numel()) ** 0.5
    correlation = torch.corrcoef(torch.cat([numbers[:, 1:], numbers[:, :-1]]))
    assert (correlation - torch.eye(16)).abs().max() < 5 / 50_000**0.5


def test_neighboring_keys_give_unrelated_streams():
    streams = uniform(torch.arange(64), 20_000, torch.float64)
    correlation = torch.corrcoef(streams)
    assert (correlation - torch.eye(64)).abs().max() < 5.5 / 20_000**0.5


def test_the_output_function_is_splitmix64():
    first = (uniform(torch.tensor([0]), 3, torch.float64) * 2**53).long()[0].tolist()
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # seed 0, as published
    assert first == [number >> 11 for number in known]


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    draw([0, 1], 2).uniform(100)
    assert torch.equal(before, torch.get_rng_state())


def test_draws_work_inside_vmap():
    keys = draw([0, 1, 2]).keys()
    assert torch.equal(torch.func.vmap(lambda key: uniform(key, 9))(keys), uniform(keys, 9))
