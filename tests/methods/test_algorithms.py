"""Workers with models of their own, and those that do not wait: what must hold of each."""

import copy
import functools
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simsgd
from simsgd import SettingError, Simulator
from simsgd.bench.consensus import gossip, tune_consensus
from simsgd.communication.ledger import NEIGHBORS
from simsgd.communication.topology import topology
from simsgd.methods.algorithms.butterfly import lateness
from simsgd.registry import find, names

from .. import toy
from ..toy import batch_norm_mlp, mlp, trained_by_torch

W, B = 8, 32
OWN = {  # every algorithm whose workers have models of their own, with settings to try it with
    "dpsgd": {},
    "qg_dsgdm": {"momentum": 0.0},
    "sgp": {"topology": "random-peer", "compressor": "qsgd:63"},
    "choco": {"compressor": "topk:0.2", "consensus_stepsize": 0.3},
    "dcd": {"compressor": "qsgd:63"},
    "ecd": {"compressor": "qsgd:127"},
    "deepsqueeze": {"compressor": "topk:0.5", "consensus_stepsize": 0.2},
    "local": {"compressor": "topk:0.3", "local_steps": 3},
    "fedavg": {"local_steps": 3, "participation": 0.4},
    "fedprox": {"algorithm": "fedprox:mu=0.5", "local_steps": 3, "participation": 0.4},
    "scaffold": {"local_steps": 3, "participation": 0.4, "compressor": "topk:0.5"},
    "diloco": {"local_steps": 3},
    "streaming": {"algorithm": "streaming:fragments=2,delay=1,mixing=0.3,local_steps=4"},
    "sparta": {"compressor": "turns:0.3,fresh=true"},
    "sparta_diloco": {
        "algorithm": "sparta_diloco:fraction=0.2,selector=shuffled,local_steps=3",
        "compressor": "topk:0.3",
    },
    "islands": {"algorithm": "islands:island_size=3,local_steps=2"},
    "noloco": {"algorithm": "noloco:local_steps=2"},
    "powergossip": {"topology": "star"},
    "zero_one_adam": {
        "algorithm": "zero_one_adam:freeze_step=3,kappa=1,local_scaler=2,eps=1e-3",
        "compressor": "sign:rms",
        "momentum": 0.0,
    },
    "butterfly": {"compressor": "topk:0.3"},
}
SHARED = {
    "allreduce": {"compressor": "topk:0.3", "downlink": "topk:0.5"},
    "async": {"compressor": "topk:0.3", "staleness": "uniform:3"},
    "onebit_adam": {
        "algorithm": "onebit_adam:freeze_step=3",
        "compressor": "sign:rms",
        "optimizer": "Adam",
        "momentum": None,
    },
}
ALL = {**OWN, **SHARED}


batches = functools.partial(toy.batches, size=B)


def trained(model, steps=12, **settings):
    return toy.simulated(model, batches(steps), 0, **{"workers": W, **settings})


def apart(simulator, model):
    """Return the largest relative difference of the workers' mean model from a model."""
    own = [(n, p.detach()) for n, p in simulator.evaluation_model().named_parameters()]
    wanted = {n: p.detach() for n, p in model.named_parameters()}
    return max(float((p - wanted[n]).norm() / wanted[n].norm()) for n, p in own)


def test_every_algorithm_is_tried():
    assert set(ALL) == set(names("algorithm"))
    assert {n for n in ALL if find("algorithm", n).parameters_per_worker} == set(OWN)


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "dpsgd", "topology": "complete"},
        {"algorithm": "dpsgd", "topology": "complete", "momentum": 0.9, "weight_decay": 0.01},
        {"algorithm": "dpsgd", "topology": "complete", "momentum": 0.9, "nesterov": True},
        {"algorithm": "local", "local_steps": 1},
        {"algorithm": "sparta", "compressor": "randomk:1,shared=true", "compress_if": "all"},
        {"algorithm": "sparta", "momentum": 0.9, "weight_decay": 0.01},
        {"algorithm": f"islands:island_size={W},local_steps=1", "momentum": 0.9},
        {"algorithm": "local", "local_steps": 1, "momentum": 0.9, "weight_decay": 0.01},
        {"algorithm": "local", "local_steps": 7, "post_local_from": 1, "momentum": 0.9},
        {"algorithm": "fedavg", "local_steps": 1, "participation": 1.0},
        {"algorithm": "diloco", "local_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0},
        {"algorithm": "async", "staleness": 0},
        {"algorithm": "allreduce", "downlink": "none"},
        {"algorithm": "butterfly", "workers": 2},
    ],
    ids=str,
)
def test_it_is_plain_sgd_where_nothing_is_lost_and_nobody_is_late(settings):
    own = {k: v for k, v in settings.items() if k in ("momentum", "nesterov", "weight_decay")}
    simulator, _ = trained(mlp(), **settings)
    assert apart(simulator, trained_by_torch(mlp(), batches(12), **own)) < 1e-9
    assert simulator.consensus_distance() < 1e-12


def test_choco_that_loses_nothing_has_a_closed_form():
    """With C the identity, xhat is the model before, and gossip is one step behind."""
    gamma, steps = 1.0, 6
    mixing = topology("ring", W).at(0).weights
    simulator, _ = trained(
        mlp(), steps, algorithm="choco", compressor="none", consensus_stepsize=gamma
    )
    models = [mlp() for _ in range(W)]
    public = {n: torch.zeros(W, *p.shape, dtype=p.dtype) for n, p in models[0].named_parameters()}
    for x, y in batches(steps):
        for own, a, b in zip(models, x.unflatten(0, (W, -1)), y.unflatten(0, (W, -1)), strict=True):
            loss = F.cross_entropy(own(a), b)
            for p, g in zip(
                own.parameters(), torch.autograd.grad(loss, own.parameters()), strict=True
            ):
                p.data.sub_(g, alpha=0.1)
        for name in public:
            stack = torch.stack([dict(m.named_parameters())[name].detach() for m in models])
            stack += gamma * (torch.einsum("ij,j...->i...", mixing, public[name]) - public[name])
            public[name] = stack.clone()
            for own, row in zip(models, stack, strict=True):
                dict(own.named_parameters())[name].data.copy_(row)
    for name, held in simulator.components.parameters.trained.items():
        wanted = torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        assert torch.allclose(held, wanted, atol=1e-12)


@pytest.mark.parametrize("name", ["ring", "torus", "star", "exponential", "path", "complete"])
def test_gossip_alone_contracts_by_the_spectral_gap(name):
    workers = 16
    gap = topology(name, workers).at(0).spectral_gap
    x = torch.randn(workers, 50, dtype=torch.float64)
    distances = gossip(find("algorithm", "dpsgd")(name), "none", x, 30)
    for before, after in itertools.pairwise(distances):
        assert after <= (1 - gap) * before + 1e-12
    if gap < 0.9:
        assert distances[30] / distances[29] == pytest.approx(1 - gap, rel=0.05)


@pytest.mark.quick_cases(12)
@pytest.mark.parametrize(
    "compressor", ["none", "topk:0.1", "sign", "qsgd:15", "powersgd:1", "terngrad"]
)
@pytest.mark.parametrize(
    "name", ["ring", "torus", "star", "hypercube", "margulis", "erdos-renyi:0.5"]
)
@pytest.mark.parametrize("algorithm", ["choco", "deepsqueeze"])
def test_gossip_does_not_change_the_mean_whatever_is_lost(algorithm, compressor, name):
    x = torch.randn(16, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    mean = x.mean(0)
    gossip(find("algorithm", algorithm)(name, 0.1), compressor, x, 100)
    assert torch.allclose(x.mean(0), mean, atol=1e-6)


@pytest.mark.slow
def test_choco_brings_workers_together_although_a_tenth_is_sent():
    x = torch.randn(16, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    distances = gossip(find("algorithm", "choco")("ring", 0.05), "topk:0.1", x, 2000)
    assert distances[-1] < 0.01 * distances[0]


@pytest.mark.parametrize(("algorithm", "compressor"), [("dcd", "topk:0.3"), ("dcd", "qsgd:15")])
def test_the_mean_of_the_replicas_is_what_neighbors_hold(algorithm, compressor):
    """One replica a worker is enough: the weighted sum is that of the replicas at any time."""
    simulator, _ = trained(batch_norm_mlp(), algorithm=algorithm, compressor=compressor)
    mixing = topology("ring", W).at(0).weights
    parts = simulator.components
    models = parts.parameters.segments(parts.layout)
    for state, x in zip(parts.segment_states, models, strict=True):
        replica, total = state.algorithm_state["replica"], state.algorithm_state["sum"]
        assert torch.equal(replica, x)
        assert torch.allclose(total, mixing @ replica, atol=1e-12)


@pytest.mark.parametrize("algorithm", ["choco", "ecd"])
def test_the_weighted_sum_is_that_of_the_public_copies(algorithm):
    simulator, _ = trained(batch_norm_mlp(), algorithm=algorithm, **OWN[algorithm])
    mixing = topology("ring", W).at(0).weights
    for segment_state in simulator.components.segment_states:
        own = segment_state.algorithm_state
        held = own["public"] if algorithm == "choco" else own["replica"]
        assert torch.allclose(own["sum"], mixing @ held, atol=1e-12)


def test_state_grows_with_the_workers_and_not_with_their_neighbors():
    def numbers(name):
        simulator, _ = trained(batch_norm_mlp(), 1, algorithm="choco", topology=name)
        return sum(
            v.numel()
            for segment_state in simulator.components.segment_states
            for v in segment_state.algorithm_state.values()
        )

    assert numbers("ring") == numbers("complete") == 2 * W * simulator_size()


def simulator_size():
    return sum(p.numel() for p in batch_norm_mlp().parameters())


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("algorithm", ALL)
def test_a_loaded_simulation_goes_on_to_the_last_bit(algorithm, tmp_path):
    settings = {"algorithm": algorithm, "momentum": 0.9} | ALL[algorithm]
    whole, _ = trained(batch_norm_mlp(), 12, **settings)
    first, _ = trained(batch_norm_mlp(), 5, **settings)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    again = Simulator(batch_norm_mlp(seed=5), workers=W, lr=0.1, **settings)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for x, y in list(batches(12))[5:]:
        again.step(x, y)
    ended, wanted = again.state_dict(), whole.state_dict()
    assert all(torch.equal(ended["parameters"][n], p) for n, p in wanted["parameters"].items())
    assert all(torch.equal(ended["buffers"][n], p) for n, p in wanted["buffers"].items())


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("algorithm", OWN)
@pytest.mark.parametrize("engine", ["vmap", "auto"])
def test_engines_agree_on_models_of_their_own(algorithm, engine):
    settings = {"algorithm": algorithm} | OWN[algorithm]
    simulator, records = trained(batch_norm_mlp(), 4, engine=engine, **settings)
    other, others = trained(batch_norm_mlp(), 4, engine="loop", **settings)
    for name, held in simulator.components.parameters.trained.items():
        assert torch.allclose(
            held, other.components.parameters.trained[name], rtol=1e-10, atol=1e-12
        )
    assert [r.payload_bytes for r in records] == [r.payload_bytes for r in others]


@pytest.mark.parametrize("granularity", ["layer", "model", "bucket:200B"])
def test_models_of_their_own_lie_in_segments_of_any_size(granularity):
    simulator, _ = trained(mlp(), algorithm="dpsgd", granularity=granularity)
    other, _ = trained(mlp(), algorithm="dpsgd")
    for name, held in simulator.components.parameters.trained.items():
        assert torch.allclose(held, other.components.parameters.trained[name], atol=1e-13)


def test_a_worker_steps_along_its_own_gradient_with_its_own_momentum():
    simulator, _ = trained(mlp(), 5, algorithm="local", local_steps=100, momentum=0.9)
    for worker in range(W):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for x, y in batches(5):
            optimizer.zero_grad()
            part = slice(worker * B // W, (worker + 1) * B // W)
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
        own = dict(simulator.evaluation_model(worker=worker).named_parameters())
        assert all(torch.allclose(own[n], p, atol=1e-12) for n, p in model.named_parameters())


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "RMSprop", "Adagrad"])
def test_the_optimizer_treats_each_model_as_if_it_were_alone(optimizer):
    simulator, _ = trained(
        mlp(), 5, algorithm="local", local_steps=100, optimizer=optimizer, lr=0.01
    )
    model = mlp()
    alone = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    for x, y in batches(5):
        alone.zero_grad()
        F.cross_entropy(model(x[: B // W]), y[: B // W]).backward()
        alone.step()
    own = dict(simulator.evaluation_model(worker=0).named_parameters())
    assert all(torch.allclose(own[n], p, atol=1e-10) for n, p in model.named_parameters())


def test_local_sgd_sends_every_h_steps_and_then_all_agree():
    simulator = Simulator(mlp(), workers=W, lr=0.1, algorithm="local", local_steps=3)
    sent, apart = [], []
    for x, y in batches(7):
        sent.append(simulator.step(x, y, 0).payload_bytes[0])
        apart.append(simulator.consensus_distance() > 1e-9)
    size = 8 * sum(p.numel() for p in mlp().parameters())
    assert sent == [0, 0, size, 0, 0, size, 0]
    assert apart == [True, True, False, True, True, False, True]


def test_post_local_sgd_agrees_at_every_step_until_its_epoch():
    simulator = Simulator(
        mlp(), workers=W, lr=0.1, algorithm="local", local_steps=3, post_local_from=2
    )
    sent = [
        simulator.step(x, y, step // 4).payload_bytes[0] for step, (x, y) in enumerate(batches(16))
    ]
    assert [step for step, bytes in enumerate(sent) if bytes] == [*range(8), 8, 11, 14]


def test_what_local_sgd_leaves_out_is_sent_later():
    """Sent and kept add up to what the workers had moved when they exchanged."""
    simulator = Simulator(
        mlp(), workers=W, lr=0.1, algorithm="local", local_steps=2, compressor="topk:0.2"
    )
    assert simulator.recipe.memory == "residual"
    held = simulator.components.parameters.trained
    begun = {n: p.detach()[0].clone() for n, p in held.items()}
    moved = {n: torch.zeros_like(p) for n, p in begun.items()}
    step_of = simulator.components.optimizer.step
    anchor = {}

    def then_note_what_moved(update):
        step_of(update)
        for n, p in held.items() if simulator.steps % 2 else ():
            moved[n] += (p.detach() - anchor[n]).mean(0)

    simulator.components.optimizer.step = then_note_what_moved
    for x, y in batches(8):
        if simulator.steps % 2 == 0:
            anchor.update({n: p.detach().clone() for n, p in held.items()})
        simulator.step(x, y, 0)
    left = {
        v.segment.name: v.memory_state.get("residual") for v in simulator.components.segment_states
    }
    for name, p in held.items():
        kept = 0 if left[name] is None else left[name].mean(0).view_as(begun[name])
        assert torch.allclose(p[0] - begun[name] + kept, moved[name], atol=1e-12)


def test_fedavg_averages_those_drawn_by_their_samples():
    samples = torch.arange(1.0, W + 1)
    simulator = Simulator(
        mlp(), workers=W, lr=0.1, algorithm="fedavg", local_steps=2, participation=0.4,
        samples=samples,
    )  # fmt: skip
    held, step_of, ended = (
        simulator.components.parameters.trained,
        simulator.components.optimizer.step,
        {},
    )

    def then_note_the_models(update):
        step_of(update)
        ended.update({n: p.detach().clone() for n, p in held.items()})

    simulator.components.optimizer.step = then_note_the_models
    for number, (x, y) in enumerate(batches(6)):
        record = simulator.step(x, y, 0)
        if number % 2 == 0:
            continue
        drawn = torch.tensor(record.payload_bytes) > 0
        assert int(drawn.sum()) == math.ceil(0.4 * W)
        weights = (samples * drawn).double() / (samples * drawn).sum()
        for name, p in held.items():
            wanted = torch.einsum("w,w...->...", weights, ended[name])
            assert torch.allclose(p, wanted.expand_as(p), atol=1e-12)


def test_fedavg_draws_anew_each_round_and_the_same_for_all_segments():
    _, records = trained(mlp(), 12, algorithm="fedavg", local_steps=2, participation=0.25)
    drawn = {tuple(w for w, b in enumerate(r.payload_bytes) if b) for r in records[1::2]}
    assert len(drawn) > 1
    assert all(len(some) == 2 for some in drawn)
    size = 8 * sum(p.numel() for p in mlp().parameters())
    assert {b for r in records[1::2] for b in r.payload_bytes} == {0, size}
    assert {b for r in records[1::2] for b in r.bytes.downlink.tolist()} == {0, size}


@pytest.mark.parametrize("post_local_from", [0, 1])
def test_losses_and_errors_of_fedavg_are_those_of_the_workers_drawn(post_local_from):
    simulator = Simulator(
        mlp(), workers=W, lr=0.1, algorithm="fedavg", local_steps=3, participation=0.25,
        post_local_from=post_local_from,
    )  # fmt: skip
    epoch_of, records, targets = [0] * 3 + [1] * 6, [], []
    for epoch, (x, y) in zip(epoch_of, batches(9), strict=True):
        records.append(simulator.step(x, y, epoch))
        targets.append(y)
    for start in (0, 3, 6):
        each = start == 0 and post_local_from > 0  # a round of every step
        for at in range(start, start + 3):
            record, exchanged = records[at], records[at if each else start + 2]
            drawn = torch.tensor(exchanged.payload_bytes) > 0
            assert record.participants.tolist() == drawn.tolist()
            assert record.losses.shape == (W,)
            assert record.loss == pytest.approx(float(record.losses[drawn].mean()), abs=1e-12)
            assert abs(record.loss - float(record.losses.mean())) > 1e-6
            own = targets[at].view(W, -1)[drawn].flatten()
            assert record.of_participants(targets[at], slice(None)).tolist() == own.tolist()
            assert record.num_of_participants(B) == len(own) == B // 4
    for worker, theirs in enumerate(targets[0].view(W, -1)):  # as each process sees it
        counted = records[0].of_participants(theirs, slice(worker, worker + 1))
        assert len(counted) == (len(theirs) if records[0].participants[worker] else 0)


def test_a_run_of_fedavg_logs_the_loss_of_those_drawn(tmp_path):
    run = simsgd.train(
        model="mlp", dataset="digits", workers=4, batch_size=32, epochs=1, algorithm="fedavg",
        local_steps=4, participation=0.25, partition="sorted", runs_dir=tmp_path, quiet=True,
    )  # fmt: skip
    steps, epoch = run.steps, run.epochs.iloc[0]
    assert epoch["train_loss"] == pytest.approx(steps["loss"].mean())
    assert steps["loss"].iloc[4:].max() < 1.5  # who is drawn soon knows the few classes it has,
    assert epoch["train_error1"] < 50  # and those who wait do not count


def test_diloco_is_nesterov_sgd_on_the_mean_difference():
    simulator = Simulator(mlp(), workers=W, lr=0.1, algorithm="diloco", local_steps=2)
    outer_model = mlp()
    outer = torch.optim.SGD(outer_model.parameters(), 0.7, momentum=0.9, nesterov=True)
    models = [copy.deepcopy(outer_model) for _ in range(W)]
    for step, (x, y) in enumerate(batches(8)):
        simulator.step(x, y, 0)
        for own, a, b in zip(models, x.unflatten(0, (W, -1)), y.unflatten(0, (W, -1)), strict=True):
            grads = torch.autograd.grad(F.cross_entropy(own(a), b), own.parameters())
            for p, g in zip(own.parameters(), grads, strict=True):
                p.data.sub_(g, alpha=0.1)
        if step % 2:
            for place, p in enumerate(outer_model.parameters()):
                mean = torch.stack([list(m.parameters())[place].detach() for m in models]).mean(0)
                p.grad = p.detach() - mean
            outer.step()
            models = [copy.deepcopy(outer_model) for _ in range(W)]
    assert apart(simulator, outer_model) < 1e-10


def test_a_server_that_waits_for_nobody_steps_at_every_push():
    """Gradients at the model of two steps ago, W steps of lr / W, momentum at each."""
    model, wanted = mlp(), mlp()
    trained(model, 6, algorithm="async", staleness=2, momentum=0.5, weight_decay=0.01)
    optimizer = torch.optim.SGD(wanted.parameters(), 0.1 / W, momentum=0.5, weight_decay=0.01)
    past = [copy.deepcopy(wanted) for _ in range(3)]
    for x, y in batches(6):
        late = past[0]
        pushes = [
            torch.autograd.grad(F.cross_entropy(late(a), b), late.parameters())
            for a, b in zip(x.unflatten(0, (W, -1)), y.unflatten(0, (W, -1)), strict=True)
        ]
        for push in pushes:
            for p, g in zip(wanted.parameters(), push, strict=True):
                p.grad = g
            optimizer.step()
        past = [*past[1:], copy.deepcopy(wanted)]
    for p, q in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-12)


def test_workers_of_different_speeds_are_late_by_their_own_steps():
    delays = find("algorithm", "async")("uniform:3").delays(0, torch.arange(64))
    assert set(delays.tolist()) == {0, 1, 2, 3}
    assert torch.equal(delays, find("algorithm", "async")("uniform:3").delays(0, torch.arange(64)))
    assert not torch.equal(
        delays, find("algorithm", "async")("uniform:3").delays(1, torch.arange(64))
    )
    assert find("algorithm", "async")(2).delays(0, torch.arange(3)).tolist() == [2, 2, 2]


def butterfly_by_tables(workers, steps):
    """Return {step: [[step of the newest gradient of r that w knows]]}, by tables."""
    depth = int(math.log2(workers))
    known = [[-1] * workers for _ in range(workers)]
    for step in range(steps):
        for w in range(workers):
            known[w][w] = step
        merged = []
        for w in range(workers):
            other = w ^ (1 << step % depth)
            merged.append([max(a, b) for a, b in zip(known[w], known[other], strict=True)])
        known = merged
        yield step, known


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_news_crosses_the_butterfly_as_tables_that_meet_would_have_it(workers):
    for step, known in butterfly_by_tables(workers, 9):
        arrived = step - lateness(workers, step)
        assert torch.where(arrived < 0, -1, arrived).tolist() == known


def test_a_butterfly_applies_the_mean_of_what_each_worker_knows():
    workers, lr = 4, 0.1
    simulator = Simulator(mlp(), workers=workers, lr=lr, algorithm="butterfly")
    models, past = [mlp() for _ in range(workers)], []
    tables = butterfly_by_tables(workers, 6)
    for x, y in batches(6):
        record = simulator.step(x, y, 0)
        past.append([
            torch.autograd.grad(F.cross_entropy(m(a), b), m.parameters())
            for m, a, b in zip(
                models, x.unflatten(0, (workers, -1)), y.unflatten(0, (workers, -1)), strict=True
            )
        ])  # fmt: skip
        step, known = next(tables)
        for w, model in enumerate(models):
            news = [past[at][r] for r, at in enumerate(known[w]) if at >= 0]
            for place, p in enumerate(model.parameters()):
                p.data.sub_(sum(g[place] for g in news), alpha=lr / len(news))
        size = 8 * sum(p.numel() for p in mlp().parameters())
        assert record.payload_bytes == [size * (1 if step == 0 else 2)] * workers
    for w, model in enumerate(models):
        own = dict(simulator.evaluation_model(worker=w).named_parameters())
        assert all(torch.allclose(own[n], p, atol=1e-12) for n, p in model.named_parameters())


@pytest.mark.parametrize(("name", "degree"), [("ring", 2), ("torus", 4), ("complete", 15)])
def test_a_worker_sends_its_message_to_each_neighbor(name, degree):
    record = trained(mlp(), 1, workers=16, algorithm="dpsgd", topology=name)[1][0]
    size = 8 * sum(p.numel() for p in mlp().parameters())
    assert record.payload_bytes == [degree * size] * 16
    assert record.network_bytes == 16 * degree * size


def test_the_middle_of_a_star_sends_to_all():
    record = trained(mlp(), 1, algorithm="dpsgd", topology="star")[1][0]
    size = 8 * sum(p.numel() for p in mlp().parameters())
    assert record.payload_bytes == [(W - 1) * size] + [size] * (W - 1)


def test_choco_sends_8_bytes_an_entry_and_biases_whole():
    simulator = Simulator(
        mlp().float(), workers=4, lr=0.1, algorithm="choco", compressor="topk:0.1"
    )
    x, y = next(batches(1))
    record = simulator.step(x.float(), y, 0)
    assert record.payload_bytes == [2 * (8 * (5 + 3) + 4 * (8 + 3))] * 4


def test_a_servers_answer_is_compressed_and_remembered():
    """DoubleSqueeze: v = mean + e, all move along C(v), e = v - C(v)."""
    model = mlp()
    simulator = Simulator(model, workers=W, lr=1.0, downlink="topk:0.2")
    plain_model = mlp()
    applied = {n: torch.zeros_like(p) for n, p in plain_model.named_parameters()}
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for x, y in batches(3):
        step = simulator.components.optimizer.step

        def then_note(values, step=step):
            for name, value in values.items():
                applied[name] += value
            step(values)

        simulator.components.optimizer.step = then_note
        record = simulator.step(x, y, 0)
        simulator.components.optimizer.step = step
    for segment_state in simulator.components.segment_states:
        name = segment_state.segment.name
        moved = before[name] - dict(model.named_parameters())[name]
        assert torch.allclose(moved, applied[name], atol=1e-12)
        if "residual" in segment_state.algorithm_state:
            assert segment_state.algorithm_state["residual"].shape == (1, segment_state.segment.n)
            assert (segment_state.algorithm_state["residual"] != 0).any()
    sent = 12 * (10 + 5) + 8 * 11  # 48 and 24 weights at 20 %, 8 bytes a value and 4 an index
    assert record.bytes.downlink.tolist() == [sent] * W
    assert record.payload_bytes == [8 * 83] * W


def test_the_consensus_distance_is_that_of_its_definition():
    simulator, _ = trained(mlp(), 4, algorithm="dpsgd")
    rows = torch.cat(
        [p.detach().flatten(1) for p in simulator.components.parameters.trained.values()], 1
    )
    wanted = (rows - rows.mean(0)).square().sum(1).mean().sqrt()
    assert simulator.consensus_distance() == pytest.approx(float(wanted))
    assert trained(mlp(), 1)[0].consensus_distance() == 0


@pytest.mark.slow
def test_the_best_step_size_grows_with_what_is_sent():
    few, many = (
        tune_consensus(8, "ring", f"topk:{k}", elements=100, rounds=200) for k in (0.05, 0.5)
    )
    assert few.best < many.best
    assert min(many.contraction) < min(few.contraction) < 1
    assert f"--consensus-stepsize {few.best:g}" in few.summary()


def test_uncompressed_gossip_contracts_as_fast_as_the_graph_allows():
    found = tune_consensus(16, "torus", "none", algorithm="deepsqueeze", elements=20, rounds=100)
    assert found.best == 1.0
    assert min(found.contraction) == pytest.approx(0.6, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"algorithm": "gossip"}, "algorithm is not known"),
        ({"algorithm": "choco", "workers": 1}, "workers must be at least 2 for gossip"),
        ({"algorithm": "dpsgd", "topology": "torus"}, "both must be at least 3"),
        ({"topology": "ring"}, "topology has no effect with algorithm allreduce"),
        ({"consensus_stepsize": 0.5, "algorithm": "dcd"}, "use algorithm choco or deepsqueeze"),
        ({"local_steps": 2}, "local_steps has no effect with algorithm allreduce"),
        ({"algorithm": "local", "local_steps": 0}, "local_steps must be at least 1"),
        ({"algorithm": "local", "staleness": 2}, "staleness has no effect with algorithm local"),
        ({"algorithm": "async", "staleness": "slow"}, "must be a number of steps, or uniform:N"),
        ({"algorithm": "async", "staleness": -1}, "must be a number of steps, or uniform:N"),
        ({"algorithm": "choco", "consensus_stepsize": 1.5}, r"must lie in \(0, 1\]"),
        ({"algorithm": "fedavg", "participation": 0.0}, r"participation must lie in \(0, 1\]"),
        ({"algorithm": "diloco", "outer_momentum": 1.0}, r"outer_momentum must lie in \[0, 1\)"),
        ({"algorithm": "diloco", "outer_lr": 0.0}, "outer_lr must be greater than 0"),
        ({"algorithm": "butterfly", "workers": 12}, "must be a power of 2"),
        (
            {"algorithm": "choco", "topology": "one-peer"},
            "which only dpsgd, qg_dsgdm and sgp allow",
        ),
        ({"algorithm": "choco", "memory": "residual"}, "must be none with algorithm choco"),
        ({"algorithm": "local", "memory": "dgc"}, "owns the gradient's momentum"),
        ({"algorithm": "local", "lr_in_memory": True, "memory": "residual"}, "lr_in_memory has no"),
        ({"algorithm": "dpsgd", "flush_every": 3}, "flush_every has no effect"),
        ({"algorithm": "dpsgd", "weight_decay_at": "local"}, "weight_decay_at has no effect"),
        ({"algorithm": "dpsgd", "aggregate": "vote"}, "aggregate has no effect"),
        ({"aggregate": "vote", "downlink": "sign"}, "downlink has no effect with aggregate vote"),
        ({"downlink": "powersgd:2"}, "downlink needs several rounds"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(settings, error):
    with pytest.raises(SettingError, match=error):
        Simulator(mlp(), **{"workers": W, "lr": 0.1, **settings})


def test_a_compressor_that_needs_the_global_maximum_is_refused_by_gossip():
    with pytest.raises(SettingError, match="needs the largest number of all workers"):
        trained(mlp(), 1, algorithm="choco", compressor="terngrad:shared_scale=true")


def test_a_state_of_another_algorithm_is_refused():
    state = trained(mlp(), 1, algorithm="choco")[0].state_dict()
    for other in ("dpsgd", "allreduce"):
        with pytest.raises(SettingError, match="belongs to another"):
            Simulator(mlp(), workers=W, lr=0.1, algorithm=other).load_state_dict(state)


STREAMING = "streaming:fragments={},delay={},mixing={},local_steps=4"


def test_streaming_of_one_fragment_without_delay_is_diloco_to_the_last_bit():
    settings = {"momentum": 0.9, "compressor": "topk:0.3", "outer_lr": 0.5}
    one, _ = trained(mlp(), 10, algorithm=STREAMING.format(1, 0, 0), **settings)
    other, _ = trained(mlp(), 10, algorithm="diloco:local_steps=4", **settings)
    for name, value in other.parameters().items():
        assert torch.equal(one.parameters()[name], value)


@pytest.mark.parametrize("pattern", ["strided", "sequential"])
def test_fragments_are_sent_one_after_the_other(pattern):
    _, records = trained(mlp(), 9, algorithm=STREAMING.format(2, 1, 0.5) + f",pattern={pattern}")
    first, second = (8 * (6 * 8 + 8), 8 * (8 * 3 + 3))  # the layers of the network
    sent = [record.payload_bytes[0] for record in records]
    assert sent == [0, first, 0, second, 0, first, 0, second, 0]


def test_streaming_is_its_formulas():
    """Each fragment is a plain loop: what changed, the mean tau steps later, the mixture."""
    steps, tau, alpha, lr, outer, m = 4, 1, 0.3, 0.1, 0.6, 0.8
    simulator, _ = trained(
        mlp(), 11, algorithm=STREAMING.format(2, tau, alpha), outer_lr=outer, outer_momentum=m
    )
    models, common = [mlp() for _ in range(W)], dict(mlp().named_parameters())
    common = {name: p.detach().clone() for name, p in common.items()}
    velocity = {name: torch.zeros_like(p) for name, p in common.items()}
    begin = {name: 2 if name.startswith("0") else 4 for name in common}
    arriving = {}
    for number, (x, y) in enumerate(batches(11), 1):
        for own, a, b in zip(models, x.chunk(W), y.chunk(W), strict=True):
            loss = F.cross_entropy(own(a), b)
            parameters = list(own.parameters())
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.data.sub_(g, alpha=lr)
        for name in common:
            own = [dict(model.named_parameters())[name] for model in models]
            if (number - begin[name]) % steps == tau and name in arriving:
                g = arriving.pop(name)
                velocity[name] = m * velocity[name] + g
                common[name] = common[name] - outer * (g + m * velocity[name])
                for p in own:
                    p.data.mul_(alpha).add_(common[name], alpha=1 - alpha)
            if (number - begin[name]) % steps == 0:
                arriving[name] = sum(common[name] - p.detach() for p in own) / W
    for name, value in simulator.parameters().items():
        wanted = torch.stack([dict(model.named_parameters())[name].detach() for model in models])
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-12)


def test_all_fragments_arrive_after_the_last_step_if_asked():
    simulator = Simulator(
        mlp(), workers=W, lr=0.1, algorithm=STREAMING.format(2, 1, 0), final_exchange=True
    )
    *first, last = batches(7)
    for x, y in first:
        simulator.step(x, y, 0)
    assert simulator.consensus_distance() > 1e-9
    simulator.step(*last, 0, last=True)
    assert simulator.consensus_distance() < 1e-14


@pytest.mark.parametrize(
    ("spec", "rule"),
    [("fragments=3", "must divide the 4 local"), ("fragments=2,delay=2", r"must lie in \[0, 2\)"),
     ("fragments=1,mixing=2", r"in \[0, 1\]"), ("fragments=1,pattern=odd", "strided or sequential"),
     ("fragments=4", "must not exceed the model's 2 layers")],
)  # fmt: skip
def test_fragments_that_do_not_fit_are_refused(spec, rule):
    with pytest.raises(SettingError, match=rule):
        Simulator(mlp(), workers=2, lr=0.1, algorithm=f"streaming:local_steps=4,{spec}")


@pytest.mark.parametrize(("steps", "parts"), [(6, 3), (8, 2), (5, 1)])
def test_unless_given_fragments_are_as_many_as_fit_three_at_most(steps, parts):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    simulator = Simulator(model, workers=2, lr=0.1, algorithm="streaming", local_steps=steps)
    begins = {begin for _, begin in simulator.components.algorithm.begins}
    assert begins == {(turn + 1) * steps // parts for turn in range(parts)}


@pytest.mark.parametrize(
    ("spec", "given", "wrong"),
    [
        ("streaming:delay=2,fragments=2", {"local_steps": 6}, {"local_steps": 4}),
        ("fedavg:outer_lr=0.5", {"outer_optimizer": "sgd"}, {}),
    ],
)
def test_settings_in_a_spec_and_beside_it_are_held_to_each_other(spec, given, wrong):
    Simulator(mlp(), workers=2, lr=0.1, algorithm=spec, **given)
    with pytest.raises(SettingError, match=r"must lie in \[0, 2\)|without outer_optimizer"):
        Simulator(mlp(), workers=2, lr=0.1, algorithm=spec, **wrong)


# SPARTA, islands, NoLoCo


def vectors(workers=W, n=4000, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(workers, n, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize(
    "compressor", ["randomk:0.1,shared=true", "turns:0.1", "turns:0.1,fresh=true"]
)
def test_sparta_keeps_the_mean_and_contracts_by_what_is_not_averaged(compressor):
    x = vectors()
    mean = x.mean(0)
    distances = gossip(find("algorithm", "sparta")(), compressor, x, 5)
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=1e-14)
    for step, distance in enumerate(distances):
        part = (1 - 0.1) ** step if compressor.startswith("randomk") else 1 - 0.1 * step
        assert distance**2 / distances[0] ** 2 == pytest.approx(part, abs=0.03)


@pytest.mark.parametrize("fresh", [False, True])
def test_every_entry_has_its_turn_in_a_round(fresh):
    from simsgd.keyed_random import RandomKey
    from simsgd.methods.compressors import StepInfo
    from simsgd.methods.compressors.turns import Turns

    def round_of(begin):
        key = RandomKey(7, torch.arange(2))
        steps = (StepInfo(key.fold_in(t), t, segment="s") for t in range(begin, begin + 4))
        return [Turns(0.3, fresh).compress(x, {}, step).index for step in steps]

    x = torch.ones(2, 103)
    first, second = round_of(0), round_of(4)
    for parts in (first, second):
        assert torch.cat(parts).sort().values.tolist() == list(range(103))
        assert {len(part) for part in parts} == {25, 26}
    assert torch.equal(first[0], second[0]) != fresh


def test_sparta_is_a_plain_loop():
    """After each local step the entries of the mask become their mean; the rest stays."""
    simulator, records = trained(mlp(), 5, algorithm="sparta", compressor="turns:0.5,fresh=true")
    other, _ = trained(mlp(), 5, algorithm="local", local_steps=1)
    sizes = {name: p.numel() for name, p in mlp().named_parameters()}
    compressed = {name: size for name, size in sizes.items() if "weight" in name}
    whole = sum(sizes.values()) - sum(compressed.values())
    halves = [
        sum((t % 2 + 1) * n // 2 - t % 2 * n // 2 for n in compressed.values()) for t in range(5)
    ]
    assert [r.payload_bytes[0] for r in records] == [8 * (whole + half) for half in halves]
    assert simulator.consensus_distance() > 1e-6 > other.consensus_distance()


@pytest.mark.parametrize("compressor", ["none", "turns:1", "randomk:1,shared=true"])
def test_sparta_that_shares_all_averages_after_every_step(compressor):
    one, _ = trained(mlp(), 5, algorithm="sparta", compressor=compressor, compress_if="all")
    other, _ = trained(mlp(), 5, algorithm="local", local_steps=1)
    for name, value in other.parameters().items():
        torch.testing.assert_close(one.parameters()[name], value, rtol=0, atol=1e-14)


def test_sparta_refuses_what_selects_other_entries_of_each_worker():
    with pytest.raises(SettingError, match="selects other entries of each worker"):
        Simulator(mlp(), workers=2, lr=0.1, algorithm="sparta", compressor="topk:0.1")


def test_sparta_with_diloco_that_shares_all_is_diloco_of_one_model():
    """What is averaged after every step leaves one model, whose change DiLoCo steps along."""
    settings = {"outer_lr": 0.6, "outer_momentum": 0.5}
    one, records = trained(
        mlp(), 7, algorithm="sparta_diloco:fraction=1,selector=shuffled,local_steps=3", **settings
    )
    model, common = mlp(), [p.detach().clone() for p in mlp().parameters()]
    velocity = [torch.zeros_like(p) for p in common]
    for number, (x, y) in enumerate(batches(7), 1):
        parameters = list(model.parameters())
        for p, g in zip(
            parameters, torch.autograd.grad(F.cross_entropy(model(x), y), parameters), strict=True
        ):
            p.data.sub_(g, alpha=0.1)
        for i, p in enumerate(parameters if number % 3 == 0 else ()):
            g = common[i] - p.detach()
            velocity[i] = 0.5 * velocity[i] + g
            common[i] = common[i] - 0.6 * (g + 0.5 * velocity[i])
            p.data.copy_(common[i])
    assert apart(one, model) < 1e-12
    size = 8 * sum(p.numel() for p in mlp().parameters())
    assert [r.payload_bytes[0] for r in records] == [size, size, 2 * size] * 2 + [size]


def test_islands_average_and_change_from_round_to_round():
    from simsgd.methods.algorithms.islands import islands

    x = vectors(workers=7, n=5)
    mixing = islands(0, 0, 7, 3)
    members = [row.nonzero().flatten().tolist() for row in mixing.weights]
    assert sorted(map(len, members)) == [1] + [3] * 6
    moved = mixing.times(x)
    for own, row in zip(members, moved, strict=True):
        torch.testing.assert_close(row, x[own].mean(0), rtol=0, atol=1e-15)
    assert not torch.equal(islands(0, 1, 7, 3).weights, mixing.weights)


def test_one_island_of_all_is_local_sgd():
    one, _ = trained(mlp(), 5, algorithm=f"islands:island_size={W},local_steps=2", momentum=0.9)
    other, _ = trained(mlp(), 5, algorithm="local", local_steps=2, momentum=0.9)
    for name, value in other.parameters().items():
        torch.testing.assert_close(one.parameters()[name], value, rtol=0, atol=1e-14)


def test_islands_send_their_models_to_their_island_alone():
    algorithm = "islands:island_size=3,local_steps=2"
    simulator, records = trained(mlp(), 4, algorithm=algorithm)
    size = 8 * sum(p.numel() for p in mlp().parameters())
    assert [set(r.payload_bytes) for r in records] == [{0}, {size, 2 * size}] * 2
    assert simulator.consensus_distance() > 0


def test_noloco_is_its_formulas():
    from simsgd.methods.algorithms.islands import islands

    alpha, beta, gamma, steps, workers = 0.5, 0.7, 0.9, 2, 3
    simulator = Simulator(
        mlp(), workers=workers, lr=0.1,
        algorithm=f"noloco:local_steps={steps},alpha={alpha},beta={beta},gamma={gamma}",
    )  # fmt: skip
    models = [mlp() for _ in range(workers)]
    slow = [[p.detach().clone() for p in own.parameters()] for own in models]
    momentum = [[torch.zeros_like(p) for p in own] for own in slow]
    size = 8 * sum(p.numel() for p in mlp().parameters())
    for number, (x, y) in enumerate(toy.batches(6, 12)):
        sent = simulator.step(x, y, 0).payload_bytes
        for own, a, b in zip(models, x.chunk(workers), y.chunk(workers), strict=True):
            parameters = list(own.parameters())
            loss = F.cross_entropy(own(a), b)
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.data.sub_(g, alpha=0.1)
        if (number + 1) % steps:
            assert sent == [0] * workers
            continue
        weights = islands(0, number // steps, workers, 2).weights
        assert sorted(sent) == [0, 2 * size, 2 * size]
        before = [[p.clone() for p in own] for own in slow]
        for i in range(workers):
            pair = weights[i].nonzero().flatten().tolist()
            for j in range(len(slow[i])):
                changes = [list(models[w].parameters())[j].detach() - before[w][j] for w in pair]
                mean = sum(before[w][j] for w in pair) / len(pair)
                momentum[i][j] = (
                    alpha * momentum[i][j] + beta * sum(changes) / len(changes)
                    + gamma * (mean - before[i][j])
                )  # fmt: skip
                slow[i][j] = before[i][j] + momentum[i][j]
        for own, rows in zip(models, slow, strict=True):
            for p, row in zip(own.parameters(), rows, strict=True):
                p.data.copy_(row)
    for name, value in simulator.parameters().items():
        wanted = torch.stack([dict(own.named_parameters())[name].detach() for own in models])
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-12)


def test_two_workers_of_noloco_agree_and_nothing_goes_to_all():
    seen = []
    settings = {"algorithm": "noloco:local_steps=2", "observers": [lambda t, _: seen.append(t)]}
    two, _ = trained(mlp(), 4, workers=2, **settings)
    assert two.consensus_distance() < 1e-15
    four, _ = trained(mlp(), 4, workers=4, **settings)
    assert four.consensus_distance() > 1e-6
    assert {transfer.collective for transfer in seen} == {NEIGHBORS}
    assert {int(transfer.degree.max()) for transfer in seen} == {1}


@pytest.mark.parametrize(
    ("spec", "rule"),
    [("islands:island_size=9", "must not exceed the 8 workers"),
     ("islands:island_size=0", "must be at least 1"),
     ("noloco:alpha=1", r"must lie in \[0, 1\)"), ("noloco:gamma=3", r"must lie in \[0, 2\]"),
     ("sparta_diloco:fraction=0", r"must lie in \(0, 1\]"),
     ("sparta_diloco:selector=best", "must be one of random, shuffled, partitioned")],
)  # fmt: skip
def test_islands_pairs_and_shares_that_do_not_fit_are_refused(spec, rule):
    with pytest.raises(SettingError, match=rule):
        Simulator(mlp(), workers=W, lr=0.1, algorithm=spec)
