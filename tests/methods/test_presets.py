"""Published methods as compositions: what they come to, and what must hold of every one."""

import functools

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import simsgd
from simsgd import Config, Recipe, SettingError, Simulator
from simsgd.cli import main
from simsgd.registry import find, names
from simsgd.simulator.step_bytes import sizes

from .. import toy
from ..process_group import verified

W, B = 4, 16
PRESETS = sorted(names("preset"))
SHORTER = {  # rounds than the papers', and more clients in them
    **{
        name: {"local_steps": 4, "participation": 0.5}
        for name in ("fedavg", "fedavgm", "fedprox", "scaffold")
    },
    **{
        name: {"local_steps": 4, "participation": 0.5, "outer_lr": 0.01}
        for name in ("fedadam", "fedyogi", "fedadagrad")
    },
    "diloco": {"local_steps": 4},
    "muloco": {"local_steps": 4},
    "slowmo": {"local_steps": 4},
    "onebit_adam": {"algorithm": "onebit_adam:freeze_step=2"},
    "zero_one_adam": {"algorithm": "zero_one_adam:freeze_step=2,local_scaler=1,most_local=4"},
    "sparseloco": {"local_steps": 4},
    "noloco": {"algorithm": "noloco:local_steps=4"},
    "sparta_diloco": {"algorithm": "sparta_diloco:fraction=0.2,local_steps=4"},
    "streaming_diloco": {"algorithm": "streaming:fragments=2,delay=1,mixing=0.5,local_steps=4"},
}


def model(seed=0):
    """Return a model of two matrices and two biases, from 6 features to 3 classes."""
    return toy.mlp(seed)


batches = functools.partial(toy.batches, size=B)


def settings_of(method, **more):
    return {"method": method, "workers": W, **SHORTER.get(method, {}), **more}


def stepped(steps=8, seed=0, **settings):
    simulator = Simulator(model(seed), **{"lr": 0.05, **settings})
    return simulator, [simulator.step(x, y, 0) for x, y in batches(steps)]


def same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], value) for name, value in other.items())


@pytest.mark.parametrize("method", PRESETS)
def test_a_method_is_its_settings_and_each_of_them_may_be_replaced(method):
    settings = find("preset", method).settings
    recipe = Recipe.of({"method": method})
    assert {name: getattr(recipe, name) for name in settings} == dict(settings)
    other = Recipe.of({"method": method, "compressor": "sign", "lr": 0.3})
    assert (other.compressor, other.lr) == ("sign", 0.3)


def test_a_method_may_have_a_dict_of_compressors_by_layer(tmp_path):
    file = tmp_path / "by_layer_preset.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom simsgd.methods import Preset\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(Preset):\n"
        "    settings = {'compress_layers': {'0.*': 'sign'}}\n"
    )
    simulator = Simulator(model(1), method=f"{file}:Mine", workers=2, lr=0.1, compress_if="all")
    assert simulator.compress_layers == "0.*=sign"


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("method", PRESETS)
def test_a_method_steps_finitely_and_is_resumed_to_the_last_bit(method, tmp_path):
    settings = settings_of(method)
    whole, _ = stepped(**settings)
    first, _ = stepped(5, **settings)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    again = Simulator(model(1), **{"lr": 0.05, **settings})
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for x, y in list(batches(8))[5:]:
        again.step(x, y, 0)
    same(again.parameters(), whole.parameters())
    assert all(value.isfinite().all() for value in whole.parameters().values())
    begun = dict(model().named_parameters())
    assert all(not torch.equal(p[0], begun[n]) for n, p in again.parameters().items())


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("method", PRESETS)
def test_the_bytes_of_a_method_follow_from_shapes(method):
    settings = settings_of(method)
    shapes = {name: p.shape for name, p in model().named_parameters()}
    counted = sizes(shapes, "float64", **settings)
    assert counted.period <= 4
    rounds = 12 // counted.period * counted.period
    late = {"onebit_adam": 2, "zero_one_adam": 4}.get(method, 0)  # steps before it compresses
    _, records = stepped(12 + late, **settings)
    records = records[late:]
    sent = [max(record.payload_bytes) for record in records][:rounds]
    assert sent == list(counted.step_payloads) * (rounds // counted.period)
    network = sum(record.network_bytes for record in records[:rounds])
    assert network == sum(counted.network_bytes.values()) * (rounds // counted.period)


@pytest.mark.distributed
@pytest.mark.parametrize("method", PRESETS)
def test_a_simulated_worker_is_a_real_rank(two_ranks, tmp_path, method):
    recipe = settings_of(
        method, model="mlp", model_config="hidden=8", dataset="digits", batch_size=10, lr=0.02,
        dtype="float64", runs_dir=tmp_path, quiet=True,
    )  # fmt: skip
    rows, _ = two_ranks(verified, 9, {**recipe, "workers": 2})
    assert max(row["parameter_difference"] for row in rows) < 1e-10
    assert all(row["bytes_agree"] for row in rows)


@pytest.mark.parametrize("method", PRESETS)
def test_a_method_is_listed_with_what_it_is_made_of(method):
    done = CliRunner().invoke(main, ["list", "methods"])
    assert done.exit_code == 0
    told = simsgd.list_names("methods")[method]
    first, made_of, *rest = told.splitlines()
    assert first.endswith(".")
    assert made_of.startswith("--algorithm ")
    assert any(line.startswith("paper: ") for line in rest)
    assert rest[-1].startswith("Differs from the paper: ")


def test_the_options_that_are_listed_are_the_method(tmp_path):
    """What `list methods` prints, given as options, is the run that --method gives."""
    small = ["train", "--model", "mlp", "--model-config", "hidden=4", "--dataset", "digits",
             "--workers", "2", "--epochs", "1", "--batch-size", "100", "--quiet", "--lr", "0.01",
             "--runs-dir", str(tmp_path)]  # fmt: skip
    made_of = simsgd.list_names("methods")["demo"].splitlines()[1].split()
    runs = []
    for name, words in (("named", ["--method", "demo"]), ("spelled", made_of)):
        done = CliRunner().invoke(main, [*small, *words, "--name", name])
        assert done.exit_code == 0, done.output
        runs.append(torch.load(tmp_path / name / "last.pt", weights_only=True)["model"])
    same(*runs)


def test_another_algorithm_or_prune_takes_the_place_of_the_methods():
    recipe = Recipe.of({"method": "sparseloco", "algorithm": "local"})
    assert (recipe.local_steps, recipe.outer_lr, recipe.memory) == (15, None, "residual:beta=0.95")
    pruned = Recipe.of({"method": "sparseloco", "prune": 0.9})
    assert (pruned.compressor, pruned.memory, pruned.prune) == (None, None, 0.9)


def test_a_method_of_ones_own_is_one_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom simsgd.methods import Preset\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(Preset):\n"
        '    settings = {"algorithm": "local", "local_steps": 3}\n'
    )
    config = Config.of({"method": f"{tmp_path}/mine.py:Mine", "workers": 2})
    assert (config.algorithm, config.local_steps) == ("local", 3)


def test_a_method_that_names_no_algorithm_is_of_allreduce(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom simsgd.methods import Preset\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(Preset):\n"
        '    settings = {"compressor": "sign", "memory": "residual"}\n'
    )
    mine = {"method": f"{tmp_path}/mine.py:Mine", "workers": 2}
    for more in ({}, {"algorithm": "allreduce"}, {"algorithm": "local"}):
        config = Config.of({**mine, **more})
        assert config.compressor == "sign"
        assert config.algorithm == more.get("algorithm", "allreduce")


def test_an_unknown_method_is_refused():
    with pytest.raises(SettingError, match="method is not known, got dmo; did you mean demo"):
        Recipe.of({"method": "dmo"})


def test_rounds_have_the_bytes_of_the_papers():
    sparse = sizes({"weight": (128, 256)}, method="sparseloco")
    assert sparse.step_payloads == (0,) * 14 + (896 + 20,)  # 61.1 B a step
    two = {"0.weight": (64, 64), "1.weight": (64, 64)}
    fragments = sizes(two, algorithm="streaming:fragments=2,local_steps=4").step_payloads
    assert fragments == (0, 4 * 4096, 0, 4 * 4096)
    assert sizes(two, algorithm="diloco:local_steps=4").step_payloads == (0, 0, 0, sum(fragments))
    assert sizes(two, method="noloco").step_payloads == (0,) * 49 + (2 * 4 * 8192,)


# SparseLoCo


def test_sparseloco_that_sends_all_is_diloco():
    plain = {"workers": W, "algorithm": "diloco", "local_steps": 4, "outer_lr": 0.8,
             "outer_momentum": 0.0}  # fmt: skip
    own = {"method": "sparseloco", "compressor": "tiled_topk:4096", "memory": "residual:beta=0"}
    one, _ = stepped(**{**plain, **own})
    other, _ = stepped(**plain)
    for name, value in other.parameters().items():
        torch.testing.assert_close(one.parameters()[name], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("aggregate", ["mean", "senders"])
def test_sparseloco_is_its_formulas(aggregate):
    """Two workers of one matrix: residual, selection and outer step, in a plain loop."""
    beta, lr, outer, steps, k = 0.9, 0.1, 0.7, 2, 5
    torch.manual_seed(0)
    layer = nn.Linear(6, 3, bias=False).double()
    simulator = Simulator(
        layer, workers=2, method="sparseloco", local_steps=steps, outer_lr=outer, lr=lr,
        compressor=f"tiled_topk:{k}", memory=f"residual:beta={beta}", aggregate=aggregate,
    )  # fmt: skip
    torch.manual_seed(0)
    common = nn.Linear(6, 3, bias=False).double().weight.detach().clone()
    own, residual = [common.clone(), common.clone()], [torch.zeros_like(common)] * 2
    for number, (x, y) in enumerate(batches(6)):
        simulator.step(x, y, 0)
        for w, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
            weight = own[w].clone().requires_grad_()
            nn.functional.cross_entropy(a @ weight.T, b).backward()
            own[w] = own[w] - lr * weight.grad
        if (number + 1) % steps:
            continue
        sent = []
        for w in range(2):
            residual[w] = beta * residual[w] + common - own[w]
            bar = residual[w].abs().flatten().sort(descending=True).values[k - 1]
            sent.append(residual[w] * (residual[w].abs() >= bar))
            residual[w] = residual[w] - sent[w]
        by = 2 if aggregate == "mean" else sum((s != 0).double() for s in sent).clamp(min=1)
        common = common - outer * (sent[0] + sent[1]) / by
        own = [common.clone(), common.clone()]
    torch.testing.assert_close(simulator.parameters()["weight"][0], common, rtol=0, atol=1e-10)


# DeMo


def test_demo_of_all_coefficients_and_one_worker_is_sign_descent():
    settings = {"workers": 1, "method": "demo", "compressor": "tiled_topk:4096,basis=dct"}
    simulator, _ = stepped(**settings, weight_decay=0.1)
    plain = model()
    for x, y in batches(8):
        loss = nn.functional.cross_entropy(plain(x), y)
        parameters = list(plain.parameters())
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data.mul_(1 - 0.05 * 0.1).sub_(g.sign(), alpha=0.05)
    for name, p in plain.named_parameters():
        torch.testing.assert_close(simulator.parameters()[name], p.detach(), rtol=0, atol=1e-12)


def test_demo_steps_a_convolution_as_the_matrix_of_its_filters():
    settings = {"workers": 2, "method": "demo", "compressor": "tiled_topk:5,basis=dct", "lr": 0.1}
    torch.manual_seed(0)
    filters = nn.Conv2d(2, 3, 4).double()
    matrix = nn.Linear(32, 3).double()
    with torch.no_grad():
        matrix.weight.copy_(filters.weight.flatten(1))
        matrix.bias.copy_(filters.bias)
    one = Simulator(nn.Sequential(filters, nn.Flatten()), **settings)
    other = Simulator(matrix, **settings)
    for _ in range(4):
        x, y = torch.randn(8, 2, 4, 4, dtype=torch.float64), torch.randint(3, (8,))
        one.step(x, y, 0)
        other.step(x.flatten(1), y, 0)
    torch.testing.assert_close(filters.weight.flatten(1), matrix.weight, rtol=0, atol=1e-12)


def test_demo_keeps_a_momentum_that_lacks_what_was_sent():
    """With one coefficient of a bias: sign descent of the mean of what two workers sent."""
    layer = nn.Linear(1, 4).double()
    simulator = Simulator(
        layer, workers=2, method="demo", compressor="tiled_topk:1,basis=dct", lr=0.1
    )
    n, half = torch.arange(4, dtype=torch.float64), 0.5
    dct = torch.cos(torch.pi * (2 * n + 1) * n.unsqueeze(1) / 8) * half**0.5
    dct[0] /= 2**0.5
    momentum = torch.zeros(2, 4, dtype=torch.float64)
    for x, y in batches(5):
        x, bias = x[:, :1], layer.bias.detach().clone()
        weight = layer.weight.detach().clone()
        for w, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
            own = bias.clone().requires_grad_()
            nn.functional.cross_entropy(a @ weight.T + own, b).backward()
            momentum[w] = 0.999 * momentum[w] + own.grad
        cosines = momentum @ dct.T
        best = cosines.abs().argmax(1)
        total, senders = torch.zeros(4, dtype=torch.float64), torch.zeros(4)
        for w in range(2):
            total[best[w]] += cosines[w, best[w]]
            senders[best[w]] += 1
            momentum[w] -= cosines[w, best[w]] * dct[best[w]]
        step = (total / senders.clamp(min=1)) @ dct
        simulator.step(x, y, 0)
        torch.testing.assert_close(layer.bias.detach(), bias - 0.1 * step.sign(), rtol=0, atol=1e-9)


# MuLoCo


def test_muloco_is_its_formulas():
    """Muon and AdamW of torch for each worker, and Nesterov's outer step along the mean."""
    steps, lr, outer, m = 3, 0.05, 0.6, 0.8
    settings = {"local_steps": steps, "outer_lr": outer, "outer_momentum": m}
    simulator, _ = stepped(7, **settings_of("muloco", compressor="none", memory="none", **settings))
    models = [model() for _ in range(W)]
    inside = []
    for own in models:
        matrices = [p for p in own.parameters() if p.dim() == 2]
        biases = [p for p in own.parameters() if p.dim() == 1]
        muon = torch.optim.Muon(matrices, lr=lr, momentum=0.95, adjust_lr_fn="match_rms_adamw")
        inside.append((muon, torch.optim.AdamW(biases, lr=lr)))
    common = [p.detach().clone() for p in models[0].parameters()]
    velocity = [torch.zeros_like(p) for p in common]
    for number, (x, y) in enumerate(batches(7), 1):
        for own, optimizers, a, b in zip(models, inside, x.chunk(W), y.chunk(W), strict=True):
            own.zero_grad()
            nn.functional.cross_entropy(own(a), b).backward()
            for optimizer in optimizers:
                optimizer.step()
        if number % steps:
            continue
        for i, parts in enumerate(zip(*(own.parameters() for own in models), strict=True)):
            g = sum(common[i] - p.detach() for p in parts) / W
            velocity[i] = m * velocity[i] + g
            common[i] = common[i] - outer * (g + m * velocity[i])
            for p in parts:
                p.data.copy_(common[i])
    for name, value in simulator.parameters().items():
        wanted = torch.stack([dict(own.named_parameters())[name].detach() for own in models])
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-10)


def test_an_optimizer_that_is_given_takes_the_place_of_the_methods():
    given, _ = stepped(3, **settings_of("muloco", optimizer="SGD"))
    plain, _ = stepped(3, **{**find("preset", "muloco").settings, **SHORTER["muloco"]}, workers=W)
    same(given.parameters(), plain.parameters())


# 1-bit Adam


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_onebit_adam_that_never_freezes_is_adam_to_the_last_bit(optimizer):
    settings = {"optimizer": optimizer, "weight_decay": 0.1}
    one, _ = stepped(6, **settings_of("onebit_adam", algorithm="onebit_adam", **settings))
    other, _ = stepped(6, workers=W, **settings)
    same(one.parameters(), other.parameters())


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_onebit_adam_is_its_formulas(optimizer):
    """Signs of momenta with error feedback at each worker, and of each chunk of their mean."""
    freeze, lr, beta, decay, workers = 3, 0.05, 0.9, 0.1, 3
    torch.manual_seed(0)
    layer = nn.Linear(6, 3, bias=False).double()  # 18 entries; 5 workers would have 4 each
    simulator = Simulator(
        layer, workers=workers, method="onebit_adam", lr=lr, optimizer=optimizer,
        algorithm=f"onebit_adam:freeze_step={freeze}", weight_decay=decay,
    )  # fmt: skip
    torch.manual_seed(0)
    plain = nn.Linear(6, 3, bias=False).double()
    adam = getattr(torch.optim, optimizer)(plain.parameters(), lr=lr, weight_decay=decay)
    weight = plain.weight
    m = torch.zeros(18, dtype=torch.float64)
    own, chunks = torch.zeros(workers, 18, dtype=torch.float64), m.clone().view(workers, 6)

    def signs(x):
        scale = (x.norm() / len(x) ** 0.5).float().double()
        return torch.where(x < 0, -scale, scale)

    for number, (x, y) in enumerate(toy.batches(7, 12)):
        simulator.step(x, y, 0)
        rows = []
        for a, b in zip(x.chunk(workers), y.chunk(workers), strict=True):
            loss = nn.functional.cross_entropy(plain(a), b)
            rows.append(torch.autograd.grad(loss, weight)[0].flatten())
        if number < freeze:
            mean = torch.stack(rows).mean(0)
            m = beta * m + (1 - beta) * mean
            weight.grad = mean.view_as(weight)
            adam.step()
        else:
            own += torch.stack([beta * m + (1 - beta) * g for g in rows])
            sent = torch.stack([signs(row) for row in own])
            own -= sent
            chunks += sent.mean(0).view(workers, 6)
            served = torch.stack([signs(row) for row in chunks])
            chunks -= served
            m = served.flatten()
            v = adam.state[weight]["exp_avg_sq"] / (1 - 0.999**freeze)
            moved = m.view_as(weight) / (v.sqrt() + 1e-8)
            if optimizer == "AdamW":
                weight.data.mul_(1 - lr * decay)
            else:
                moved = moved + decay * weight.detach()
            weight.data.sub_(moved, alpha=lr)
        torch.testing.assert_close(layer.weight, weight, rtol=0, atol=1e-10)


def test_chunks_of_an_uneven_number_of_entries_are_sent_without_padding():
    """83 entries in 4 chunks of 21: the last has 20, and the bytes of a bit each."""
    settings = settings_of("onebit_adam", compress_if="all", granularity="model")
    _, records = stepped(4, **settings)
    assert records[1].payload_bytes == [8 * 83] * W
    assert records[2].payload_bytes == [4 + 11 + 4 + 3] * W
    network = 3 * (4 + 11) + W * 3 * (4 + 3)  # 3/4 of W buffers to who serves, W of chunks to all
    assert records[2].network_bytes == network


def test_a_worker_of_onebit_adam_receives_its_part_of_the_messages_and_all_chunks():
    """No link carries more than another: 3/4 of 15 bytes each way, and 3 chunks of 7."""
    settings = settings_of("onebit_adam", compress_if="all", granularity="model")
    _, records = stepped(4, **settings)
    links = [3 * (4 + 11) // 4 + 3 * (4 + 3)] * W
    assert records[2].bytes.on_links() == (links, links)
    transfers = records[2].bytes.transfers
    assert [transfer.collective for transfer in transfers] == ["all-to-all", "all-gather"]


def test_an_optimizer_without_a_variance_is_refused():
    with pytest.raises(SettingError, match="keeps no variance that algorithm onebit_adam can"):
        stepped(1, **settings_of("onebit_adam", optimizer="SGD"))
    with pytest.raises(SettingError, match="must be a quantizer with algorithm onebit_adam"):
        stepped(1, **settings_of("onebit_adam", compressor="topk:0.1"))
    with pytest.raises(SettingError, match="must be none with algorithm onebit_adam"):
        stepped(1, **settings_of("onebit_adam", memory="residual"))
