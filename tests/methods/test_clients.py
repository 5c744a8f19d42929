"""Clients far beyond those who train at once, and clients of unequal size."""

import copy

import pytest
import torch
from torch import nn

from simsgd import SettingError, Simulator

from .. import toy
from ..toy import batch_norm_mlp, mlp
from .test_federated import LR, B, H, Variates, W, assert_model, batches

N = 20
POOL = {"clients": N, "workers": W, "lr": LR, "local_steps": H}


def stepped(simulator, steps, start=0):
    """Step; return the clients of each round."""
    drawn = []
    for number, (x, y) in enumerate(list(batches(start + steps))[start:], start):
        if number % H == 0:
            drawn.append(simulator.clients.tolist())
        simulator.step(x, y, 0)
    return drawn


def same(one, other):
    return all(torch.equal(one[name], value) for name, value in other.items())


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox:mu=0.3", "scaffold"])
def test_as_many_clients_as_workers_are_the_workers(algorithm):
    settings = {"algorithm": algorithm, "compressor": "topk:0.3", "local_steps": H}
    settings |= {"samples": torch.arange(1.0, W + 1), "workers": W}
    one, _ = toy.simulated(batch_norm_mlp(), batches(8), 0, clients=W, **settings)
    other, _ = toy.simulated(batch_norm_mlp(), batches(8), 0, participation=1.0, **settings)
    assert same(one.parameters(), other.parameters())
    assert same(one.buffers, other.buffers)


def test_scaffold_of_clients_far_beyond_the_workers_is_its_formulas():
    samples = torch.arange(1.0, N + 1)
    simulator = Simulator(mlp(), **POOL, algorithm="scaffold", samples=samples)
    rounds = stepped(simulator, 9)
    assert len({tuple(own) for own in rounds}) == 3
    wanted, data = Variates(samples=samples, number=N), list(batches(9))
    for number, clients in enumerate(rounds):
        assert sorted(set(clients)) == clients
        seats = {client: seat for seat, client in enumerate(clients)}
        wanted.round(data[number * H : number * H + H], seats)
    assert_model(simulator, wanted.common)
    for name, c in wanted.c.items():
        held = simulator.client_states[f"{name} exchange control"]
        every = torch.stack([own[name] for own in wanted.of]).flatten(1)
        torch.testing.assert_close(held, every, rtol=0, atol=1e-10)
        [own] = [s for s in simulator.components.segment_states if s.segment.name == name]
        common = own.algorithm_state["common_control"]
        torch.testing.assert_close(common, c.flatten().unsqueeze(0), rtol=0, atol=1e-10)


def test_who_is_not_drawn_does_not_move():
    """Memories, control variates and BatchNorm statistics are those of before, to the last bit."""
    simulator = Simulator(batch_norm_mlp(), **POOL, algorithm="scaffold", compressor="topk:0.3")
    names = {"0.weight exchange control", "0.weight memory residual", "buffer 1.running_mean"}
    assert names <= set(simulator.client_states)
    assert not any("gradients" in name for name in simulator.client_states)
    for start in range(0, 9, H):
        before = copy.deepcopy(simulator.client_states)
        [drawn] = stepped(simulator, H, start)
        for name in names:
            moved = (simulator.client_states[name] != before[name]).any(1).nonzero().flatten()
            assert moved.tolist() == drawn


def test_what_a_client_left_out_waits_for_it():
    """What is sent and what memories keep add up to what clients had moved, over all rounds."""
    layer = nn.Linear(6, 3, bias=False).double()
    simulator = Simulator(layer, **POOL, algorithm="fedavg", compressor="topk:0.2")
    [state] = simulator.components.segment_states
    held, step_of = simulator.components.parameters.trained["weight"], None
    begun, moved = held.detach()[0].clone(), torch.zeros(18, dtype=torch.float64)
    step_of = simulator.components.optimizer.step

    def then_note_what_moved(update):
        step_of(update)
        if simulator.steps % H == H - 1:
            moved.add_((held.detach().flatten(1) - state.algorithm_state["anchor"]).sum(0))

    simulator.components.optimizer.step = then_note_what_moved
    stepped(simulator, 12)
    kept = simulator.client_states["weight memory residual"].sum(0)
    sent = W * (held.detach()[0] - begun).flatten()
    torch.testing.assert_close(sent + kept, moved, rtol=0, atol=1e-12)


@pytest.mark.parametrize("stop", [3, 4])
def test_a_loaded_simulation_goes_on_to_the_last_bit(stop):
    settings = {**POOL, "algorithm": "scaffold", "compressor": "topk:0.3"}
    whole, first = (Simulator(batch_norm_mlp(), **settings) for _ in range(2))
    stepped(whole, 9)
    stepped(first, stop)
    again = Simulator(batch_norm_mlp(seed=5), **settings)
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    stepped(again, 9 - stop, stop)
    assert same(again.parameters(), whole.parameters())
    assert same(again.client_states, whole.client_states)
    other = Simulator(batch_norm_mlp(), **{**settings, "clients": N + 1})
    with pytest.raises(SettingError, match="belongs to another number of clients"):
        other.load_state_dict(first.state_dict())


def numbers_of(state):
    if isinstance(state, torch.Tensor):
        return state.numel()
    values = state.values() if isinstance(state, dict) else []
    return sum(numbers_of(value) for value in values)


def test_what_is_held_grows_with_clients_only_where_clients_keep_something():
    def held(clients, **settings):
        simulator = Simulator(mlp(), **{**POOL, "clients": clients}, **settings)
        simulator.step(*next(batches(1)), 0)
        state = simulator.state_dict()
        return numbers_of(state.pop("clients")), numbers_of(state)

    size = sum(p.numel() for p in mlp().parameters())
    few, same_few = held(10, algorithm="scaffold")
    many, same_many = held(1000, algorithm="scaffold")
    assert (few, many, same_few) == (10 * size, 1000 * size, same_many)
    assert held(1000, algorithm="fedavg")[0] == 0


@pytest.mark.parametrize("how", ["average", "server"])
def test_buffers_that_are_not_a_clients_own_are_not_kept_for_it(how):
    simulator = Simulator(batch_norm_mlp(), **POOL, algorithm="fedavg", client_buffers=how)
    stepped(simulator, H)
    assert simulator.client_states == {}


def test_a_round_that_was_skipped_leaves_its_clients_as_they_were():
    settings = {**POOL, "algorithm": "scaffold", "on_nonfinite": "skip", "compressor": "topk:0.3"}
    simulator = Simulator(mlp(), **settings)
    stepped(simulator, H)
    before = copy.deepcopy(simulator.client_states)
    models = copy.deepcopy(simulator.parameters())
    for number, (x, y) in enumerate(batches(H)):
        if number == H - 1:
            x[0] = float("nan")
        simulator.step(x, y, 0)
    assert same(simulator.client_states, before)
    simulator.step(*next(batches(1)), 0)  # the next round begins from the common model
    for own, x in zip(
        simulator.components.segment_states,
        simulator.components.parameters.segments(simulator.components.layout),
        strict=True,
    ):
        anchor = own.algorithm_state["anchor"][0]
        common = models[own.segment.name][0].flatten()
        assert torch.equal(anchor, common)
        assert (x - anchor).abs().max() < 0.5


# clients of unequal size


SAMPLES = torch.tensor([9, 1, 4, 12, 6, 2, 8, 3])


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_client_takes_its_own_steps_and_waits_for_the_others(algorithm):
    """Two epochs of 4 samples a step: ceil(2 n / 4) steps of each client, K in its variate."""
    simulator = Simulator(
        mlp(), workers=W, lr=LR, algorithm=algorithm, local_epochs=2, participation=0.25,
        samples=SAMPLES, worker_batch=B // W,
    )  # fmt: skip
    steps = [5, 1, 2, 6, 3, 1, 4, 2]
    size = 8 * sum(p.numel() for p in mlp().parameters())

    class Own(Variates):
        def corrected(self, client, name, gradient, value):
            if algorithm == "fedavg":
                return gradient
            return super().corrected(client, name, gradient, value)

    wanted, data = Own(samples=SAMPLES), list(batches(24))
    wanted.steps, begin, lengths = steps, 0, set()
    for _ in range(4):
        record = simulator.step(*data[begin], 0)
        drawn = record.participants
        assert int(drawn.sum()) == W // 4
        length = max(steps[worker] for worker in drawn.nonzero().flatten().tolist())
        for step in range(1, length):
            assert record.payload_bytes == [0] * W
            record = simulator.step(*data[begin + step], 0)
            assert torch.equal(record.participants, drawn & (step < torch.tensor(steps)))
            assert record.losses.isfinite().all()
        times = 2 if algorithm == "scaffold" else 1
        assert record.payload_bytes == (times * size * drawn).tolist()
        of_round = data[begin : begin + length]
        wanted.round(of_round, {w: w for w in drawn.nonzero().flatten().tolist()})
        begin, lengths = begin + length, lengths | {length}
    assert len(lengths) > 1
    assert_model(simulator, wanted.common)


def test_adam_of_a_client_that_is_done_stands_still():
    simulator = Simulator(
        mlp(), workers=2, lr=0.01, algorithm="fedavg", local_epochs=1, participation=1.0,
        samples=torch.tensor([8, 2]), worker_batch=2, optimizer="Adam",
    )  # fmt: skip
    held = simulator.components.parameters.trained["0.weight"]
    one = dict(mlp().named_parameters())
    alone = torch.optim.Adam(one.values(), lr=0.01)
    model = mlp()
    for (name, p), q in zip(model.named_parameters(), one.values(), strict=True):
        assert torch.equal(p, q), name
    for number, (x, y) in enumerate(toy.batches(3, 4)):
        simulator.step(x, y, 0)
        if number == 0:
            logits = torch.func.functional_call(model, one, (x[2:],))
            nn.functional.cross_entropy(logits, y[2:]).backward()
            alone.step()
        torch.testing.assert_close(held.detach()[1], one["0.weight"].detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"clients": W - 1}, "clients must be at least the 8 workers"),
        ({"clients": N, "participation": 0.2}, "participation has no effect with clients"),
        ({"clients": N, "inner_state": "keep"}, "must be reset or average with clients"),
        ({"clients": N, "post_local_from": 1}, "post_local_from must be 0 with clients"),
        ({"clients": N, "memory": "ef21", "compressor": "topk:0.1"}, "needs what all clients sent"),
        ({"clients": N, "compressor": "variance"}, "looks at the gradients of single samples"),
        ({"clients": N, "compressor": "dion:2"}, "compressor keeps a state of each worker"),
        (
            {"clients": N, "samples": torch.ones(W)},
            "samples must be a tensor .20., a number for",
        ),
        ({"local_epochs": 0}, "local_epochs must be at least 1"),
        ({"local_epochs": 1}, "local_epochs needs samples that are fixed to clients"),
        ({"local_epochs": 1, "local_steps": 2}, "local_epochs and local_steps were both given"),
        ({"algorithm": "diloco", "clients": N}, "clients has no effect with algorithm diloco"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(settings, error):
    with pytest.raises(SettingError, match=error):
        Simulator(mlp(), **{"workers": W, "lr": LR, "algorithm": "fedavg", **settings})
