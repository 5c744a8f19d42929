import pytest
import torch
import torch.nn.functional as F
from torch import nn

import simsgd
from simsgd.gradients.auto import order
from simsgd.gradients.contract import EngineConfig, Gradients, UnsupportedModel
from simsgd.gradients.model_cost import CallCounter
from simsgd.gradients.plan import CPU, GPU
from simsgd.gradients.self_check import compare
from simsgd.keyed_random import RandomKey
from simsgd.registry import find, names
from simsgd.settings import SettingError
from simsgd.simulator.gradient_transforms import clip_
from simsgd.simulator.simulator import Simulator

from .. import toy
from ..toy import gradients, relative_distance

W, B = 4, 6


class Net(nn.Module):
    """Convolution, BatchNorm, dropout of three kinds, a parameter that nothing uses."""

    def __init__(self, p=0.0):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.features = nn.Dropout2d(p)
        self.alpha = nn.AlphaDropout(p)
        self.drop = nn.Dropout(p)
        self.fc = nn.Linear(4 * 36, 5)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x):
        x = self.features(F.relu(self.norm(self.conv(x)), inplace=True))
        return self.fc(self.drop(self.alpha(x.flatten(1))))


def net(p=0.0, dtype=torch.float64):
    torch.manual_seed(0)
    return Net(p).to(dtype)


def batch(dtype=torch.float64, seed=1):
    return toy.batch(W, B, seed=seed, dtype=dtype)


@pytest.fixture(params=sorted(set(names("engine")) - {"compiled"}))  # see test_tune.py
def engine(request):
    return request.param


def test_an_engine_gives_what_separate_copies_of_the_model_give(engine):
    x, y = batch()
    got = gradients(engine, net(), x, y)
    for w in range(W):
        model = net().train()
        loss = F.cross_entropy(model(x[w]), y[w])
        loss.backward()
        for name, parameter in model.named_parameters():
            wanted = torch.zeros(3) if parameter.grad is None else parameter.grad
            assert torch.allclose(got.values[name][w], wanted.double(), rtol=1e-10, atol=1e-14)
        for name, buffer in model.named_buffers():
            assert torch.allclose(got.buffers[name][w].double(), buffer.double(), rtol=1e-12)
        assert torch.allclose(got.loss[w], loss)


def test_the_gradients_of_an_engine_can_be_changed_in_place(engine):
    class Partly(nn.Linear):
        def __init__(self):
            super().__init__(8, 5, dtype=torch.float64)
            self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))

    x, y = batch()
    for value in gradients(engine, Partly(), x[:, :, 0, 0], y).values.values():
        value[0] += 1
        assert not torch.equal(value[0], value[1])


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_all_engines_agree(engine, dtype, close):
    x, y = batch(dtype)
    got, wanted = (gradients(e, net(dtype=dtype), x, y) for e in (engine, "loop"))
    assert relative_distance(got.values, wanted.values) < close
    assert relative_distance(got.buffers, wanted.buffers) < close


def test_all_engines_draw_the_same_dropout(engine):
    x, y = batch()
    got, wanted = (gradients(e, net(p=0.4), x, y) for e in (engine, "loop"))
    assert relative_distance(got.values, wanted.values) < 1e-10
    assert torch.allclose(got.output, wanted.output, rtol=1e-10)


def test_dropout_differs_between_workers_and_steps(engine):
    x, y = batch()
    x, y = x[:1].expand(W, *x.shape[1:]), y[:1].expand(W, B)
    now, later = (gradients(engine, net(p=0.4), x, y, step=s).output for s in (0, 1))
    assert not torch.allclose(now[0], now[1])
    assert not torch.allclose(now, later)


def test_a_worker_is_the_same_whoever_is_beside_it(engine):
    x, y = batch()
    together = gradients(engine, net(p=0.4), x, y)
    alone = gradients(engine, net(p=0.4), x[2:3], y[2:3], workers=[2])
    assert torch.allclose(together.values["fc.weight"][2], alone.values["fc.weight"][0])


def test_the_callers_buffers_stay_unchanged(engine):
    model, (x, y) = net(), batch()
    before = {name: b.clone() for name, b in model.named_buffers()}
    gradients(engine, model, x, y)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())


def test_the_global_generator_is_left_alone(engine):
    before = torch.get_rng_state()
    gradients(engine, net(p=0.4).double(), *batch())
    model = net(p=0.4)
    before = torch.get_rng_state()
    gradients(engine, model, *batch())
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_keeps_the_expected_share_and_scale():
    x = torch.ones(W, 500, 100, dtype=torch.float64)

    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x):
            return F.dropout(x * self.scale, 0.3, self.training)

    params, keys = {"scale": Drop().scale}, RandomKey(0, torch.arange(W)).keys()
    engine = find("engine", "vmap")(Drop(), lambda output, y: output.mean())
    out = engine(params, {}, x, torch.zeros(W, 500), keys).output
    values = [0.0, 1 / 0.7]
    assert all(any(abs(v - w) < 1e-12 for w in values) for v in out.unique().tolist())
    assert abs((out == 0).double().mean() - 0.3) < 5 * (0.21 / out.numel()) ** 0.5


def test_frozen_parameters_get_no_gradient(engine):
    model = net()
    model.conv.requires_grad_(False)
    before = model.conv.weight.clone()
    simulator = Simulator(model, workers=W, lr=0.1, engine=engine)
    x, y = batch()
    simulator.step(x.flatten(0, 1), y.flatten())
    assert "conv.weight" not in simulator.components.params
    assert torch.equal(model.conv.weight, before)


class TiedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def test_tied_weights_get_the_sum_of_both_uses(engine):
    model = TiedNet().double()
    x, y = torch.randn(W, B, 6, dtype=torch.float64), torch.randint(6, (W, B))
    got = gradients(engine, model, x, y)
    F.cross_entropy(model(x[0]), y[0]).backward()
    assert torch.allclose(got.values["first.weight"][0], model.first.weight.grad)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(3, 5, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0][:, -1]


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_does_not_batch_is_named_with_the_engine_to_use():
    x, y = torch.randn(W, B, 7, 3), torch.randint(5, (W, B))
    with torch.backends.mkldnn.flags(enabled=False), pytest.raises(SettingError) as caught:
        gradients("vmap", Recurrent(), x, y)
    assert "cannot batch the module inner (GRU)" in str(caught.value)
    assert str(caught.value).endswith("use engine loop")


def test_the_loop_takes_a_module_that_does_not_batch():
    x, y = torch.randn(W, B, 7, 3), torch.randint(5, (W, B))
    assert gradients("loop", Recurrent(), x, y).loss.isfinite().all()


def test_an_error_of_the_model_itself_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shape"):
        gradients("vmap", nn.Linear(3, 2), torch.randn(W, B, 4), torch.zeros(W, B).long())


def test_clipping_scales_each_worker_on_its_own():
    pieces = [torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0], [0.4]])]
    clip_(pieces, threshold=1.0, workers=4)  # local threshold 0.5; norms are 5 and 0.5
    assert torch.allclose(torch.cat(pieces, 1), torch.tensor([[0.3, 0.4], [0.3, 0.4]]))


def test_clipping_leaves_zero_gradients_zero():
    pieces = [torch.zeros(2, 3)]
    clip_(pieces, threshold=1.0, workers=2)
    assert torch.equal(pieces[0], torch.zeros(2, 3))


def test_clipping_by_tensor_scales_each_segment_on_its_own():
    pieces = [torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([[6.0], [-0.1]])]
    clip_(pieces, threshold=1.0, workers=4, by="per-tensor")
    assert torch.allclose(pieces[0], torch.tensor([[0.3, 0.4], [0.3, 0.4]]))
    assert torch.allclose(pieces[1], torch.tensor([[0.5], [-0.1]]))


def test_clipping_by_value_holds_each_entry():
    pieces = [torch.tensor([[3.0, -0.2], [-4.0, 0.5]])]
    clip_(pieces, threshold=0.5, workers=4, by="value")
    assert torch.equal(pieces[0], torch.tensor([[0.5, -0.2], [-0.5, 0.5]]))


class Stacked(nn.Module):
    """Layers of a kind, and a parameter used as no engine but vmap and loop know if `raw`."""

    def __init__(self, layer, raw=False):
        super().__init__()
        self.layer, self.out, self.raw = layer, nn.Linear(5, 5), raw
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x):
        x = self.layer(x)
        x = x[0][:, -1] if isinstance(x, tuple) else x
        return self.out(torch.logaddexp2(x, self.scale) if self.raw else x)


def convolving():
    return nn.Sequential(nn.Conv1d(3, 2, 3), nn.Flatten(), nn.Linear(10, 5))


@pytest.mark.parametrize(
    ("layer", "raw", "chosen", "why"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(21, 5)), False, "onepass", ""),
        (convolving, False, "onepass", ""),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(21, 5)), True, "vmap", "scale is used by"),
        (convolving, True, "loop", "scale is used by"),
        (lambda: nn.LSTM(7, 5, batch_first=True), False, "loop", ""),
    ],
)
def test_auto_takes_the_first_engine_of_its_table_that_can(layer, raw, chosen, why):
    model = Stacked(layer(), raw).double()
    x, y = torch.randn(W, B, 3, 7, dtype=torch.float64), torch.randint(5, (W, B))
    params, keys = dict(model.named_parameters()), RandomKey(0, torch.arange(W)).keys()
    engine = find("engine", "auto")(model, F.cross_entropy)
    got = engine(params, {}, x, y, keys)
    assert engine.chosen == chosen
    assert why in engine.note
    assert relative_distance(got.values, gradients("loop", model, x, y).values) < 1e-12


class Patches(nn.Module):
    """A small convolution before a large product."""

    def __init__(self):
        super().__init__()
        self.patches, self.out = nn.Conv1d(3, 2, 1), nn.Linear(14, 5)
        self.wide = nn.Linear(14, 14)

    def forward(self, x):
        return self.out(self.wide(self.patches(x).flatten(1)))


@pytest.mark.parametrize(
    ("make", "large", "chosen"),
    [
        (convolving, 10**6, "onepass"),
        (convolving, 100, "loop"),  # the forward makes 6 * (10 + 5) numbers, and some of the loss
        (Patches, 100, "onepass"),  # most of its multiplications are of matrices
    ],
)
@pytest.mark.parametrize("per_worker", [False, True])
def test_convolutions_that_make_much_go_worker_by_worker(
    make, large, chosen, per_worker, monkeypatch
):
    monkeypatch.setattr("simsgd.gradients.auto._LARGE", large)
    monkeypatch.setattr("simsgd.gradients.auto.helpful", lambda workers: False)
    model = make().double()
    x, y = torch.randn(W, B, 3, 7, dtype=torch.float64), torch.randint(5, (W, B))
    params, keys = dict(model.named_parameters()), RandomKey(0, torch.arange(W)).keys()
    if per_worker:
        params = {n: torch.stack([p.detach()] * W) for n, p in params.items()}
    for plan, wanted in (("cpu", chosen), ("gpu", "onepass")):
        config = EngineConfig(per_worker=per_worker, plan=plan)
        engine = find("engine", "auto")(model, F.cross_entropy, config)
        assert engine.choose(params, {}, x, y, keys) == wanted


def test_what_a_forward_computes_is_counted():
    x = torch.randn(2, 1, 4, 4)
    layer = nn.Conv2d(1, 3, 3, bias=False)
    with torch.no_grad(), CallCounter() as counter:
        layer(x).relu().flatten(1)
    assert (counter.calls, counter.multiplications) == (1, 2 * 3 * 4 * 9)
    assert (counter.convolved, counter.elements) == (2 * 3 * 4 * 9, 2 * (2 * 3 * 4))


class Untidy(nn.Module):
    """Its output depends on numbers, which neither onepass nor vmap can take."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x):
        return self.layer(x) * (2.0 if float(x.sum()) > 0 else 1.0)


def test_auto_ends_with_the_loop_and_gives_the_reasons():
    x, y = torch.randn(W, B, 6), torch.randint(5, (W, B))
    x[0], x[1] = x[0].abs(), -x[1].abs()
    model = Untidy()
    engine = find("engine", "auto")(model, F.cross_entropy)
    engine(dict(model.named_parameters()), {}, x, y, RandomKey(0, torch.arange(W)).keys())
    assert engine.chosen == "loop"
    assert "onepass declines" in engine.note
    assert "vmap declines: cannot batch the module" in engine.note


def test_the_plans_and_kinds_of_layers_have_their_order():
    linear, convolution = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Conv2d(2, 2, 1))
    assert order(linear, CPU) == ("onepass", "vmap", "loop")
    assert order(convolution, CPU) == ("onepass", "loop")
    assert order(nn.Sequential(nn.Conv2d(2, 2, 1), nn.GRU(2, 2)), CPU) == ("loop",)
    assert order(convolution, GPU) == ("onepass", "vmap", "loop")


RUN = {
    "model": "mlp", "model_config": "hidden=16", "dataset": "digits", "workers": 4,
    "batch_size": 30, "quiet": True, "name": "run",
}  # fmt: skip


@pytest.mark.slow
def test_a_run_logs_the_engine_it_chose_and_keeps_it(tmp_path):
    run = simsgd.train(**RUN, runs_dir=tmp_path, epochs=1)
    assert run.config["engine"] == "onepass"
    assert "  engine onepass\n" in run.log
    again = simsgd.train(resume=run.folder, epochs=2)
    assert again.config["engine"] == "onepass"
    named = simsgd.train(**RUN | {"name": "named"}, runs_dir=tmp_path, epochs=2, engine="onepass")
    assert again.epochs["train_loss"].tolist() == named.epochs["train_loss"].tolist()


def test_a_run_logs_why_an_engine_was_passed_over(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(SCALED)
    changed = {"model": str(path), "model_config": "", "epochs": 1, "runs_dir": tmp_path}
    run = simsgd.train(**RUN | changed, lr=0.1)
    assert run.config["engine"] == "vmap"
    line = "  engine vmap; onepass declines: scale is used by something onepass does not know"
    assert f"{line} (logaddexp2)" in run.log


SCALED = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(64, 10), nn.Parameter(torch.ones(10))
    def forward(self, x):
        return torch.logaddexp2(self.layer(x.flatten(1)), self.scale)
def model():
    return Net()
"""


def test_the_engine_of_the_simulator_is_known_before_its_first_step():
    model = nn.Linear(3, 2)
    x, y = torch.randn(8, 3), torch.zeros(8).long()
    before = model.weight.clone()
    simulator = Simulator(model, workers=4, lr=0.1)
    assert simulator.engine_for(x, y) == "onepass"
    assert (simulator.steps, simulator.components.channel.ledger.transfers) == (0, [])
    assert torch.equal(model.weight, before)
    assert Simulator(model, workers=4, lr=0.1, engine="loop").engine_for(x, y) == "loop"


@pytest.mark.parametrize("chunk", [1, 3, "2", "auto"])
@pytest.mark.parametrize("engine", ["onepass", "vmap"])
def test_chunks_of_workers_change_nothing(engine, chunk):
    losses = []
    for settings in ({"engine": "loop"}, {"engine": engine, "worker_chunk": chunk}):
        simulator = Simulator(net(), workers=W, lr=0.1, **settings)
        x, y = batch()
        losses.append([simulator.step(x.flatten(0, 1), y.flatten()).loss for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"worker_chunk": 0}, "worker_chunk must be a number of at least 1, or auto, got 0"),
        ({"worker_chunk": "few"}, "worker_chunk must be a number of at least 1, or auto, got few"),
        ({"engine": "loop", "worker_chunk": 2}, "worker_chunk has no effect with engine loop"),
    ],
)
def test_a_chunk_that_means_nothing_is_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        Simulator(net(), workers=W, lr=0.1, **settings)


def test_a_chunk_is_refused_where_auto_ends_with_a_loop():
    x, y = torch.randn(W * B, 3, 7), torch.randint(5, (W * B,))
    simulator = Simulator(Stacked(convolving(), raw=True), workers=W, lr=0.1, worker_chunk=2)
    with pytest.raises(SettingError, match="worker_chunk has no effect with engine loop, which"):
        simulator.step(x, y)


@pytest.mark.parametrize("engine", ["onepass", "loop", "vmap"])
def test_passes_are_added_up_although_an_engine_uses_its_memory_again(engine):
    x, y = batch()
    got, wanted = (
        Simulator(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)).double(), workers=w, **settings)
        for w, settings in ((2, {"accumulate": 2, "engine": engine, "lr": 1.0}), (1, {"lr": 1.0}))
    )
    wanted.model.load_state_dict(got.model.state_dict())
    for simulator in (got, wanted):
        simulator.step(x.flatten(0, 1), y.flatten())
    for one, other in zip(
        got.components.params.values(), wanted.components.params.values(), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-10)


def test_an_engine_that_may_write_over_its_gradients_does_so_at_every_call(engine):
    model = net()
    params = dict(model.named_parameters())
    buffers = {name: torch.stack([b] * W) for name, b in model.named_buffers()}
    one = find("engine", engine)(model.train(), F.cross_entropy)
    for seed in (1, 2, 3):
        x, y = batch(seed=seed)
        got = one(params, buffers, x, y, RandomKey(0, torch.arange(W)).keys())
        assert relative_distance(got.values, gradients("loop", model, x, y).values) < 1e-10


def test_means_that_cancel_to_rounding_are_not_taken_for_mixed_samples():
    mean, var = torch.tensor([2e-10, -1e-10]), torch.tensor([0.9, 1.1])

    def found(mean, var):
        buffers = {"mean": mean, "var": var, "constant": torch.full((9,), 1e9)}
        one = torch.ones(1)
        return Gradients(values={"w": one}, loss=one, output=one, buffers=buffers)

    compare(found(mean, var), found(-mean, var + 1e-7))
    with pytest.raises(UnsupportedModel, match="mean is not what a loop over workers gives"):
        compare(found(mean + 1e-3, var), found(mean, var + 1e-7))


def test_imaginary_parts_are_compared_too():
    whole = torch.tensor([[1 + 2j]])
    one, other = (
        Gradients(values={"w": torch.ones(1)}, loss=torch.zeros(1), output=output, buffers={})
        for output in (whole, whole.conj())
    )
    compare(one, one)
    with pytest.raises(UnsupportedModel, match="output is not what a loop over workers gives"):
        compare(other, one)
