import copy

import pytest
import torch
from torch import nn

import simsgd
from simsgd import Simulator
from simsgd.settings import SettingError
from simsgd.simulator.running_state import RunningState
from simsgd.simulator.worker_gradients import compute_gradients
from simsgd.training.checkpoint import load_checkpoint
from simsgd.training.errors import Diverged

from .. import toy
from ..toy import batch_norm_mlp

W, B = 4, 6


def batches(nonfinite=()):
    """Yield five batches; those in `nonfinite` have one number of worker 2's that is not finite."""
    for number, (x, y) in enumerate(toy.batches(5, W * B)):
        if number in nonfinite:
            x[2 * B + 1, 0] = float("nan")
        yield x, y


def simulator(**settings):
    usual = {"workers": W, "lr": 0.1}
    return Simulator(batch_norm_mlp(), **usual | settings)


def tensors(state, name=""):
    if isinstance(state, torch.Tensor):
        return {name: state}
    pairs = state.items() if isinstance(state, dict) else ()
    return {n: t for key, value in pairs for n, t in tensors(value, f"{name}/{key}").items()}


def equal(one, two):
    one, two = tensors(one), tensors(two)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


METHODS = [
    {"prune": 0.5, "momentum": 0.9, "warmup": False},
    {"compressor": "qsgd:15"},
    {"compressor": "powersgd:2"},
    {"compressor": "topk:0.3", "memory": "residual", "state_dtype": "bfloat16"},
    {"algorithm": "choco", "compressor": "topk:0.3"},
    {"algorithm": "local", "local_steps": 2},
    {"algorithm": "async", "staleness": 1},
    {"accumulate": 3, "clip": 1.0},
]


@pytest.mark.parametrize("settings", METHODS, ids=str)
def test_a_skipped_step_leaves_everything_but_the_counter_as_it_was(settings):
    skipping = simulator(on_nonfinite="skip", **settings)
    for number, (x, y) in enumerate(batches(nonfinite={2})):
        before = copy.deepcopy(skipping.state_dict())
        record = skipping.step(x, y, epoch=0)
        assert record.applied == (number != 2)
        assert record.nonfinite.tolist() == [False, False, number == 2, False]
        if number == 2:
            after = skipping.state_dict()
            assert after["steps"] == before["steps"] + 1
            same = {key: value for key, value in after.items() if key != "steps"}
            if settings.get("algorithm") == "async":  # time goes on: who is late sees a newer model
                same = {key: value for key, value in same.items() if key != "parameters"}
            assert equal(same, {key: before[key] for key in same})
            assert sum(record.payload_bytes) == 0
    assert all(t.isfinite().all() for t in tensors(skipping.state_dict()).values())


@pytest.mark.parametrize("settings", METHODS, ids=str)
def test_a_zeroed_worker_leaves_nothing_that_is_not_finite(settings):
    zeroing = simulator(on_nonfinite="zero", **settings)
    for number, (x, y) in enumerate(batches(nonfinite={1, 2})):
        record = zeroing.step(x, y, epoch=0)
        assert record.applied
        assert record.nonfinite.tolist() == [False, False, number in (1, 2), False]
        assert record.loss == pytest.approx(float(record.losses[~record.nonfinite].mean()))
    assert all(t.isfinite().all() for t in tensors(zeroing.state_dict()).values())


@pytest.mark.slow
def test_a_zeroed_gradient_is_that_of_a_worker_who_sends_nothing():
    zeroing = simulator(on_nonfinite="zero")
    x, y = next(batches(nonfinite={0}))
    before = zeroing.parameters()["0.weight"].clone()
    others = simulator()
    zeroing.step(x, y)
    x = x.clone()
    x[2 * B : 3 * B] = 0.0  # finite, and taken away again below
    key = others.components.key.fold_in(0)
    state = RunningState.of(others.components)
    gradients = compute_gradients(others.components, state, x, y, key)
    three = gradients.values["0.weight"][[0, 1, 3]].sum(0) / W
    assert torch.allclose(zeroing.parameters()["0.weight"], before - 0.1 * three)


@pytest.mark.parametrize("rule", ["skip", "zero"])
def test_a_run_of_finite_numbers_is_the_same_under_every_rule(rule):
    usual, guarded = (
        simulator(prune=0.5, warmup=False, on_nonfinite=r, value_dtype="float16")
        for r in ("stop", rule)
    )
    for x, y in batches():
        one, two = usual.step(x, y), guarded.step(x, y)
        assert (one.loss, one.payload_bytes) == (two.loss, two.payload_bytes)
    assert equal(usual.state_dict(), guarded.state_dict())


@pytest.mark.parametrize("rule", ["stop", "skip", "zero"])
def test_numbers_of_a_worker_that_does_not_train_change_nothing(rule):
    settings = {"algorithm": "fedavg", "participation": 0.5, "on_nonfinite": rule, "momentum": 0.9}
    one, other = simulator(**settings), simulator(**settings)
    drawn = one.components.algorithm.participants(0, W, 0, 0)
    nonfinite = int((~drawn).nonzero()[0])
    x, y = next(batches())
    broken = x.clone()
    broken[nonfinite * B] = float("nan")
    got, wanted = one.step(broken, y), other.step(x, y)
    assert got.applied
    assert got.loss == wanted.loss
    assert torch.equal(got.losses_of_participants, wanted.losses_of_participants)
    assert got.losses_of_participants.isfinite().all()
    after = [{n: p[drawn] for n, p in s.parameters().items()} for s in (one, other)]
    assert equal(*after)
    assert all(p.isfinite().all() for p in [*one.parameters().values(), *one.buffers.values()])
    assert all(m.compensated.isfinite().all() for m in got.segments)


OVERFLOWING = [
    {},
    {"compressor": "topk:0.3"},
    {"compressor": "randomk:0.3,shared=true"},
    {"compressor": "powersgd:2"},
    {"prune": 0.5, "warmup": False},
]


def loud(x, factor):
    x = x.clone()
    x[2 * B : 3 * B] *= factor
    return x


@pytest.mark.parametrize("settings", OVERFLOWING, ids=str)
def test_an_overflow_of_float16_is_skipped_and_the_memory_is_what_it_was(settings):
    skipping = Simulator(plain(), squared, workers=W, lr=1e-9,
                         value_dtype="float16", on_nonfinite="skip", **settings)  # fmt: skip
    for number, (x, _) in enumerate(batches()):
        before = copy.deepcopy(skipping.state_dict())
        x = loud(x, 1e6 if number == 2 else 1.0)
        record = skipping.step(x, x[:, :3])
        assert record.applied == (number != 2)
        if number == 2:
            after = skipping.state_dict()
            keys = ("parameters", "voices", "optimizer")
            assert equal({k: after[k] for k in keys}, {k: before[k] for k in keys})
            assert sum(record.payload_bytes) == 0


@pytest.mark.parametrize("settings", OVERFLOWING[:3], ids=str)
def test_an_overflow_of_float16_is_zeroed_where_that_helps(settings):
    zeroing = Simulator(plain(), squared, workers=W, lr=1e-9,
                        value_dtype="float16", on_nonfinite="zero", **settings)  # fmt: skip
    for number, (x, _) in enumerate(batches()):
        record = zeroing.step(loud(x, 1e6 if number == 2 else 1.0), x[:, :3])
        assert record.applied
        assert record.nonfinite.tolist() == [False, False, number == 2, False]
    sent = record.payload_bytes
    assert sent[0] == sent[2]
    assert all(t.isfinite().all() for t in tensors(zeroing.state_dict()).values())


@pytest.mark.parametrize("rule", ["skip", "zero"])
@pytest.mark.parametrize("algorithm", ["dpsgd", "choco", "local"])
def test_a_rule_that_would_not_see_models_overflow_is_refused(algorithm, rule):
    chosen = {"algorithm": algorithm, "on_nonfinite": rule, "value_dtype": "float16"}
    told = (
        f"on_nonfinite does not see models that overflow float16, as algorithm {algorithm} sends, "
        f"got {rule}; use value_dtype bfloat16, or on_nonfinite stop"
    )
    with pytest.raises(SettingError) as refused:
        simulator(**chosen)
    assert str(refused.value) == told
    simulator(**chosen | {"value_dtype": "bfloat16"})
    simulator(**chosen | {"on_nonfinite": "stop"})


class Amplifying(nn.Module):
    """Keeps the square of what it saw last; its loss and gradients do not see it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x):
        with torch.no_grad():
            self.last.copy_(x.abs().max() ** 2)
        return self.layer(x.clamp(-1, 1))


@pytest.mark.parametrize("rule", ["skip", "zero"])
def test_a_worker_whose_buffer_overflows_is_nonfinite(rule):
    one = Simulator(Amplifying(), workers=W, lr=0.1, on_nonfinite=rule)
    x, y = torch.ones(W * B, 6), torch.zeros(W * B, dtype=torch.long)
    assert not one.step(x, y).nonfinite.any()
    x[2 * B] = 1e30
    record = one.step(x, y)
    assert record.nonfinite.tolist() == [False, False, True, False]
    assert record.applied == (rule == "zero")
    assert one.buffers["last"].tolist() == [1, 1, 1, 1]


def plain():
    torch.manual_seed(0)
    return nn.Linear(6, 3).double()


def squared(output, target):
    return (output - target).square().mean()


# a run

EXPLODING = """
import torch
from torch import nn
regime = {0: {"lr": 0.05}}
epochs = 2
class Break:
    draws = 1
    def __call__(self, images, uniform):
        return torch.where(uniform.view(-1, 1, 1, 1) < 0.001, torch.nan, images)
input_transform = {"train": Break()}
def model(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


@pytest.fixture
def settings(kill_runs, tmp_path):
    (tmp_path / "exploding.py").write_text(EXPLODING)
    nonfinite = {"model": str(tmp_path / "exploding.py"), "model_config": "", "runs_dir": tmp_path}
    return kill_runs.TINY | nonfinite | {"batch_size": 20, "name": "run"}


def test_a_run_stops_by_default_with_worker_and_step_in_the_error(settings):
    with pytest.raises(Diverged, match=r"the loss of worker \d became nan at step \d+"):
        simsgd.train(**settings)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "did"), [("skip", "skipped"), ("zero", "zeroed")])
def test_a_run_counts_what_was_not_finite_in_its_log_table_and_summary(settings, rule, did):
    run = simsgd.train(**settings, on_nonfinite=rule)
    table = run.nonfinite
    assert len(table) >= 1
    assert set(table["did"]) == {did}
    assert "not finite" in run.summary()
    assert f"{table['step'].nunique()} steps {did}" in run.summary()
    assert run.log.count("note: not finite at step") == table["step"].nunique()
    assert run.steps["step"].tolist() == [*range(1, len(run.steps) + 1)]
    assert run.epochs["train_loss"].between(0, 10).all()
    state = load_checkpoint(run.folder)
    assert all(t.isfinite().all() for t in tensors(state).values())
    assert run.steps["loss"].between(0, 10).all()  # of the other workers
    without_messages = run.steps["step"][run.steps["payload_bytes"] == 0].tolist()
    assert without_messages == (table["step"].drop_duplicates().tolist() if rule == "skip" else [])


@pytest.mark.slow
def test_a_run_that_stopped_goes_on_with_another_rule(settings, tmp_path):
    whole = simsgd.train(**settings | {"name": "whole"}, on_nonfinite="skip")
    with pytest.raises(Diverged):
        simsgd.train(**settings, checkpoint_every=1, log_every=1)
    run = simsgd.train(resume=tmp_path / "run", on_nonfinite="skip")
    assert run.nonfinite.equals(whole.nonfinite)
    assert run.steps["loss"].equals(whole.steps["loss"])


@pytest.mark.slow
def test_a_resumed_run_has_no_row_of_nonfinite_twice(settings, tmp_path, monkeypatch):
    whole = simsgd.train(**settings | {"name": "whole"}, on_nonfinite="skip")
    step, last = Simulator.step, int(whole.nonfinite["step"].iloc[-1])

    def killed(self, *arguments):
        if self.steps == last + 1:
            raise MemoryError
        return step(self, *arguments)

    monkeypatch.setattr(Simulator, "step", killed)
    with pytest.raises(MemoryError):
        simsgd.train(**settings, on_nonfinite="skip", log_every=1)
    monkeypatch.undo()
    assert simsgd.train(resume=tmp_path / "run").nonfinite.equals(whole.nonfinite)


def test_a_checkpoint_with_a_parameter_that_is_not_finite_is_not_written(
    settings, kill_runs, tmp_path, monkeypatch
):
    step = Simulator.step

    def spoiled(self, *arguments):
        record = step(self, *arguments)
        if self.steps == 2:
            next(iter(self.components.params.values())).data[0] = float("inf")
        return record

    monkeypatch.setattr(Simulator, "step", spoiled)
    usual = {**kill_runs.TINY, "runs_dir": tmp_path, "name": "run", "checkpoint_every": 1}
    with pytest.raises(Diverged, match=r"1\.weight of the model is not finite after step 2"):
        simsgd.train(**usual)
    assert load_checkpoint(tmp_path / "run")["simulator"]["steps"] == 1


LOUD = """
from torch import nn
regime = {0: {"lr": 1e-9}}
epochs = 1
def criterion(output, target):
    return nn.functional.cross_entropy(output, target) * 1e8
def model(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""


def test_an_overflow_of_float16_stops_a_run_with_worker_and_segment(settings, tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    loud_run = {"model": str(tmp_path / "loud.py"), "value_dtype": "float16"}
    what = r"the float16 message of 1\.weight of worker 0 became inf at step 1, epoch 0"
    with pytest.raises(Diverged, match=what):
        simsgd.train(**settings | loud_run)
