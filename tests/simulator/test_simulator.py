import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.simulator.shard import shard

from .. import toy
from ..toy import batch_norm_mlp, mlp, trained_by_torch

W, B, STEPS = 4, 24, 20


batches = functools.partial(toy.batches, size=B)


def trained(model, steps=STEPS, epoch=9, **settings):
    return toy.simulated(model, batches(steps), epoch, **{"workers": W, **settings})


def distance(a, b):
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((p - q).detach().norm() / q.detach().norm()) for p, q in pairs)


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("workers", [1, 2, 4, 24])
@pytest.mark.parametrize("engine", ["vmap", "loop"])
def test_without_compression_it_is_plain_large_batch_sgd(workers, engine):
    settings = {"momentum": 0.9, "weight_decay": 0.01}
    model = mlp()
    trained(model, workers=workers, engine=engine, **settings)
    assert distance(model, trained_by_torch(mlp(), batches(STEPS), **settings)) < 1e-9


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_dgc_that_sends_everything_is_momentum_sgd(nesterov, decay):
    settings = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": decay}
    model = mlp()
    trained(model, memory="dgc", **settings)
    assert distance(model, trained_by_torch(mlp(), batches(STEPS), **settings)) < 1e-9


def test_momentum_never_applies_twice():
    model, wanted = mlp(), mlp()
    simulator, _ = trained(model, memory="dgc:masking=false", momentum=0.9, prune=0.0)
    trained_by_torch(wanted, batches(STEPS), momentum=0.9)
    assert simulator.components.optimizer.inner.param_groups[0]["momentum"] == 0
    assert distance(model, wanted) < 1e-9


def test_decay_before_the_memory_and_on_the_average_differ_only_when_pruned():
    def run(place, prune):
        model = mlp()
        trained(model, weight_decay=0.05, weight_decay_at=place, prune=prune, momentum=0.9)
        return model

    assert distance(run("local", 0.0), run("global", 0.0)) < 1e-12
    assert distance(run("local", 0.9), run("global", 0.9)) > 1e-4


def test_a_coordinate_that_is_never_sent_decays_globally_but_not_locally():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, 2, dtype=torch.float64))

        def forward(self, x):
            return x * self.w[:, 0]  # the second coordinate has no gradient

    def run(place):
        model = Two()
        simulator = Simulator(
            model, lambda out, y: out.sum(), workers=1, lr=0.1, prune=0.5, warmup=False,
            weight_decay=0.1, weight_decay_at=place, memory="residual",
        )  # fmt: skip
        simulator.step(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1))
        return model.w[0, 1].item()

    assert run("global") == pytest.approx(1 - 0.1 * 0.1)
    assert run("local") == 1


def test_each_workers_batchnorm_sees_its_own_batch_once_a_step():
    model = batch_norm_mlp()
    simulator, _ = trained(model, steps=1, lr=1e-9)
    x = next(batches(1))[0].unflatten(0, (W, -1))
    mean = batch_norm_mlp()[0](x).mean(1)  # [W, 8]
    assert torch.allclose(simulator.buffers["1.running_mean"], 0.1 * mean)
    assert simulator.buffers["1.num_batches_tracked"].tolist() == [1] * W


def test_evaluation_uses_the_mean_of_the_workers_statistics_or_rank_0s():
    simulator, _ = trained(batch_norm_mlp())
    running = simulator.buffers["1.running_var"]
    assert torch.equal(simulator.evaluation_model()[1].running_var, running.mean(0))
    assert torch.equal(simulator.evaluation_model("rank0")[1].running_var, running[0])
    assert not simulator.components.model.training


def test_evaluating_in_between_changes_nothing():
    def run(look):
        model = batch_norm_mlp()
        simulator = Simulator(model, workers=W, lr=0.1, prune=0.5, momentum=0.9)
        for x, y in batches(STEPS):
            simulator.step(x, y, epoch=9)
            if look:
                simulator.evaluation_model()(x)
        return simulator

    once, other = run(True), run(False)
    assert torch.equal(once.buffers["1.running_mean"], other.buffers["1.running_mean"])
    assert distance(once.model, other.model) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"prune": 0.9, "momentum": 0.9, "weight_decay": 0.01},
        {"prune": 0.9, "memory": "residual", "momentum": 0.9, "granularity": "model"},
        {"optimizer": "Adam"},
        {"compressor": "randomk:0.3", "flush_every": 7},  # draws and periods of the step's number
    ],
)
def test_a_loaded_simulator_goes_on_to_the_last_bit(settings, tmp_path):
    whole, _ = trained(batch_norm_mlp(), **settings)
    first, _ = trained(batch_norm_mlp(), steps=STEPS // 2, **settings)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    again = Simulator(batch_norm_mlp(seed=5), workers=W, **{"lr": 0.1, **settings})
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for x, y in list(batches(STEPS))[STEPS // 2 :]:
        again.step(x, y)
    assert distance(again.model, whole.model) == 0
    assert torch.equal(again.buffers["1.running_mean"], whole.buffers["1.running_mean"])


def test_the_bytes_of_a_step_are_those_of_its_messages():
    _, [record] = trained(mlp(), steps=1, prune=0.9, value_dtype="float32")
    sent = (5 + 3) * 8 + (8 + 3) * 4  # 48 and 24 weights at 10 %; 11 biases whole
    assert record.payload_bytes == [sent] * W
    assert record.dense_bytes == (48 + 24 + 11) * 8
    assert record.network_bytes == W * (W - 1) * 64 + 2 * (W - 1) * 44


def test_the_record_knows_its_step_and_its_settings():
    _, records = trained(mlp(), steps=3, prune=0.99, epoch=2)
    assert [r.step for r in records] == [1, 2, 3]
    assert {(r.epoch, r.lr, r.kept) for r in records} == {(2, 0.1, 0.0625)}
    x, y = next(batches(STEPS))
    assert records[0].loss == pytest.approx(F.cross_entropy(mlp()(x), y).item())


def test_the_whole_model_shares_one_selection():
    simulator, _ = trained(mlp(), steps=1, prune=0.9, granularity="model")
    held = {v.segment.name: v.memory_state["residual"] for v in simulator.components.segment_states
            if "residual" in v.memory_state}  # fmt: skip
    assert held.keys() == {"model"}
    assert (held["model"] == 0).sum(1).tolist() == [8] * W  # ceil(0.1 * 72)


def test_clipping_comes_before_the_division_by_the_number_of_workers():
    def run(workers, clip):
        model = mlp()
        before = [p.detach().clone() for p in model.parameters()]
        simulator = Simulator(model, workers=workers, lr=1.0, clip=clip)
        x, y = next(batches(STEPS))
        simulator.step(x.repeat(workers, 1), y.repeat(workers))  # every worker has the same batch
        pairs = zip(model.parameters(), before, strict=True)
        return torch.cat([(p.detach() - q).flatten() for p, q in pairs])

    assert run(1, 0.01).norm() == pytest.approx(0.01)
    assert run(4, 0.01).norm() == pytest.approx(0.01 / 2)


def test_the_settings_are_those_of_the_recipe():
    with pytest.raises(
        SettingError, match="setting is not known, got wrokers; did you mean workers"
    ):
        Simulator(mlp(), wrokers=4)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(SettingError, match="batch must be a multiple of the 4 workers, got 10"):
        Simulator(mlp(), workers=4, lr=0.1).step(torch.ones(10, 6), torch.zeros(10).long())


def test_a_complex_loss_is_refused():
    simulator = Simulator(mlp(), lambda o, t: F.cross_entropy(o, t) * 1j, workers=4, lr=0.1)
    with pytest.raises(
        SettingError, match=r"criterion returns a complex number, complex128; .*real"
    ):
        simulator.step(*next(batches(STEPS)))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"prune": 0.9}, "the regime, its scheduler or the warm-up follows it"),
        (
            {"algorithm": "local", "local_steps": 4, "post_local_from": 1},
            "post_local_from 1 follows it",
        ),
    ],
)
def test_an_epoch_is_asked_for_where_something_follows_it(settings, what):
    simulator = Simulator(mlp(), workers=4, lr=0.1, **settings)
    with pytest.raises(SettingError, match=f"^epoch is needed: {what}"):
        simulator.step(*next(batches(STEPS)))


def test_a_model_without_parameters_is_refused():
    with pytest.raises(SettingError, match="model has no parameters to train"):
        Simulator(nn.ReLU(), workers=2)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"workers": 2}, "belongs to a simulator of 4 workers, and this one has 2"),
        ({"memory": "residual"}, "belongs to another memory"),
        ({"granularity": "model"}, "belongs to another memory"),
    ],
)
def test_a_foreign_state_is_refused(other, message):
    simulator, _ = trained(mlp(), steps=1, prune=0.9)
    stranger = Simulator(mlp(), **{"workers": W, "lr": 0.1, "prune": 0.9, **other})
    with pytest.raises(SettingError, match=message):
        stranger.load_state_dict(simulator.state_dict())


def test_twenty_steps_stay_what_they_were(pytestconfig):
    """Golden trajectory: a refactor leaves it identical."""
    _, records = trained(batch_norm_mlp(), prune=0.8, momentum=0.9, weight_decay=0.01, clip=1.0)
    golden = (pytestconfig.rootpath / "tests/data/golden_dgc.txt").read_text().split()
    assert [record.loss for record in records] == pytest.approx(list(map(float, golden)), rel=1e-9)


def test_a_flush_sends_all_that_the_memories_hold():
    simulator, records = trained(mlp(), steps=4, compressor="topk:0.1", flush_every=2)
    assert [r.kept < 1 for r in records] == [True, False, True, False]
    assert records[1].payload_bytes == [records[1].dense_bytes] * W
    assert all(
        (v.memory_state["residual"] == 0).all()
        for v in simulator.components.segment_states
        if v.memory_state
    )


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_several_passes_before_an_exchange_are_one_larger_batch(passes):
    model, wanted = mlp(), mlp()
    trained(model, workers=4, accumulate=passes)
    trained(wanted, workers=4)
    assert distance(model, wanted) < 1e-12


def test_a_worker_gets_samples_that_follow_each_other_whatever_the_passes():
    of_workers = shard(torch.arange(12), workers=2, passes=3)  # [W, M, b]
    assert of_workers.tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]


def test_batchnorm_sees_one_pass_after_the_other():
    simulator, _ = trained(batch_norm_mlp(), steps=1, workers=2, accumulate=3)
    assert simulator.buffers["1.num_batches_tracked"].tolist() == [3, 3]


def test_a_regime_may_change_the_compressor_and_its_state_begins_anew():
    phases = [{"lr": 0.1, "compressor": "powersgd:1"}, {"step": 2, "compressor": "powersgd:2"},
              {"step": 4, "prune": 0.9}]  # fmt: skip
    simulator = Simulator(mlp(), workers=W, regime=phases, memory="residual")
    sent = [simulator.step(x, y).payload_bytes[0] for x, y in batches(6)]
    biases, rows, columns = 11 * 8, (8 + 3) * 8, (6 + 8) * 8
    assert sent[0] == sent[1] == biases + rows + columns
    assert sent[2] == sent[3] == biases + 2 * (rows + columns)
    assert sent[4] == sent[5] == biases + (5 + 3) * (8 + 4)


def test_with_lr_in_the_memory_a_constant_lr_changes_nothing():
    settings = {"compressor": "sign", "memory": "residual"}
    model, wanted = mlp(), mlp()
    trained(model, lr_in_memory=True, **settings)
    trained(wanted, **settings)
    assert distance(model, wanted) < 1e-6  # scales are float32


def test_signs_are_voted_on():
    model, before = mlp(), mlp()
    settings = {"compressor": "sign:none", "memory": "momentum", "momentum": 0.9}
    trained(model, steps=1, aggregate="vote", compress_if="all", **settings)
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    moved = torch.cat([(p - q).detach().flatten().abs() for p, q in pairs])
    assert torch.allclose(moved, torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compressor": "topk:0.1", "prune": 0.9}, "compressor and prune were both given"),
        ({"compressor": "variance", "memory": "residual"}, "memory must be none with variance"),
        ({"compressor": "powersgd:2", "granularity": "model"}, "powersgd"),
        ({"compressor": "topk:0.1", "lr_in_memory": True, "memory": "none"}, "needs memory resid"),
        ({"clip_by": "value"}, "clip_by has no effect without clip"),
        ({"prune_1d": True, "compress_if": "all"}, "prune_1d and compress_if were both given"),
        ({"compressor": "sign+topk:0.1"}, "must end with its quantizer"),
    ],
)
def test_settings_that_fight_are_refused_before_the_first_step(settings, message):
    with pytest.raises(SettingError, match=message):
        Simulator(mlp(), **{"workers": W, "lr": 0.1, **settings})


def test_a_simulator_shows_what_it_does_and_how_far_it_is():
    simulator = Simulator(nn.Linear(40, 3), workers=4, compressor="topk:0.1", lr=0.1)
    simulator.step(torch.ones(8, 40), torch.zeros(8, dtype=torch.long))
    shown = "workers=4, compressor='topk:0.1', memory='residual', parameters=123, steps=1"
    assert repr(simulator) == f"Simulator({shown})"
    shown = simulator._repr_html_()
    for words in ("Linear, 123 in 2 tensors, 492 B", "topk:0.1 on 120 entries; 3 whole"):
        assert words in shown


@pytest.mark.parametrize(
    ("later", "settings", "error"),
    [
        ({"optimizer": "Adam"}, {"prune": 0.5}, "memory must not be dgc with Adam"),
        ({"nesterov": True}, {}, "optimizer refuses its settings: Nesterov"),
        (
            {"optimizer": "Muon"},
            {"algorithm": "dpsgd"},
            "optimizer refuses its settings: Muon only supports 2D .*set param_groups",
        ),
        ({"compressor": "powersgd:1"}, {"granularity": "model"}, "powersgd needs granularity"),
        ({"compressor": "variance"}, {"memory": "residual"}, "memory must be none with variance"),
        ({"compressor": "variance"}, {"algorithm": "local"}, "looks at the gradients of single"),
    ],
)
@pytest.mark.parametrize("key", ["epoch", "step"])
def test_what_a_later_phase_cannot_do_is_refused_before_the_first_step(later, settings, error, key):
    regime = [{key: 0, "lr": 0.1}, {key: 3, **later}]
    if "prune" in settings and key == "step":
        settings = {**settings, "warmup": False}
    with pytest.raises(SettingError, match=error):
        Simulator(mlp(), workers=2, regime=regime, **settings)


def test_a_regime_of_functions_is_asked_for_now_only():
    regime = {0: {"lr": lambda epoch, step, results: results[epoch - 1]["x"] if epoch else 0.1}}
    assert Simulator(mlp(), workers=2, regime=regime).components.regime.starts == []


def test_a_memory_that_would_remember_twice_is_refused_when_it_would():
    regime = {0: {"lr": 0.1}, 1: lambda epoch: {"compressor": "variance", "lr": 0.1}}
    simulator = Simulator(mlp(), workers=2, regime=regime, memory="residual")
    x, y = next(iter(batches(1)))
    simulator.step(x, y, epoch=0)
    with pytest.raises(SettingError, match="memory must be none with variance"):
        simulator.step(x, y, epoch=1)


@pytest.mark.parametrize(
    ("x", "y", "error"),
    [
        (torch.randn(8, 6).numpy(), torch.zeros(8).long(), "batch has no tensor, got ndarray"),
        (torch.randn(8, 6), torch.zeros(12).long(), "batch has 8 inputs and 12 targets"),
    ],
)
def test_a_batch_that_is_none_is_refused(x, y, error):
    with pytest.raises(SettingError, match=error):
        Simulator(mlp().float(), workers=4, lr=0.1).step(x, y)
