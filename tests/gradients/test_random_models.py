"""Random small models: every engine and algorithm gives what the plain loop gives, or declines.

Letters: W workers, b samples each.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from simsgd import SettingError, Simulator
from tests.plain_loop import PlainLoop

W, B, WIDTH, CLASSES, STEPS = 3, 12, 6, 3, 3
ENGINES = ("auto", "onepass", "vmap", "loop", "threads")
METHODS = (
    {"algorithm": "allreduce"},
    {"algorithm": "allreduce", "momentum": 0.9},
    {"algorithm": "dpsgd", "topology": "ring"},
    {"algorithm": "dpsgd", "topology": "complete", "optimizer": "Adam"},
    {"algorithm": "local", "local_steps": 2},
    {"algorithm": "fedavg", "local_steps": 2, "participation": 0.5},
)


class Scale(nn.Module):
    """A raw parameter, and one that nothing uses."""

    def __init__(self):
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.scale


class Remembering(nn.Module):
    """A mean that is made anew, or changed in place."""

    def __init__(self, anew):
        super().__init__()
        self.anew = anew
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        if self.training:
            now = x.detach().mean(0)
            if self.anew:
                self.mean = 0.9 * self.mean + 0.1 * now
            else:
                self.mean.mul_(0.9).add_(now, alpha=0.1)
        return x - self.mean


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x) if self.training else x


class DropPath(nn.Module):
    def forward(self, x):
        return x + x.sin() * torch.rand(len(x), 1, dtype=x.dtype).round()


class Recomputed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Inner(nn.Module):
    """A gradient inside forward."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Linear(WIDTH, 1)

    def forward(self, x):
        with torch.enable_grad():
            at = x if x.requires_grad else x.detach().requires_grad_()
            (force,) = torch.autograd.grad(self.energy(at).tanh().sum(), at, create_graph=True)
        return x - force


class Mixing(nn.Module):
    """Looks at the other samples of a worker's batch."""

    def forward(self, x):
        return x - x.mean(0)


class Narrow(nn.Module):
    """Computes in float32 between layers of float64."""

    def forward(self, x):
        return x.float().tanh().double()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(2, WIDTH, batch_first=True)

    def forward(self, x):
        return self.cell(x.unflatten(1, (3, 2)))[0][:, -1]


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Single(nn.Module):
    """A layer with parameters and a buffer of float32 among those of float64."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(self.layer(x.float())).tanh().double()


class Masked(nn.Module):
    """Counts in a buffer of whole numbers, and masks by one of truth values."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.arange(WIDTH) % 3 > 0)

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return x * self.mask


class Formed(nn.Module):
    """Returns its output in a form of others: a tuple, a dict, or its loss beside it."""

    def __init__(self, body, form):
        super().__init__()
        self.body, self.form = body, form

    def forward(self, x):
        out = self.body(x)
        return {"tensor": out, "tuple": (out, [x]), "dict": {"out": out, "x": x}}[self.form]


def criterion_of(form):
    """Return a loss of such outputs."""

    def criterion(output, target):
        out = {"tensor": lambda o: o, "tuple": lambda o: o[0], "dict": lambda o: o["out"]}[form]
        return F.cross_entropy(out(output), target)

    return criterion


def frozen():
    layer = nn.Linear(WIDTH, WIDTH)
    layer.bias.requires_grad_(False)
    return layer


LEAVES = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "tanh": nn.Tanh,
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "batch norm without momentum": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "dropout": lambda: nn.Dropout(0.3),
    "alpha dropout": lambda: nn.AlphaDropout(0.3),
    "dropout of features": lambda: nn.Sequential(
        nn.Unflatten(1, (WIDTH, 1)), nn.Dropout1d(0.3), nn.Flatten()
    ),
    "single": Single,
    "masked": Masked,
    "in place": lambda: nn.ReLU(inplace=True),
    "scale": Scale,
    "anew": lambda: Remembering(True),
    "changed": lambda: Remembering(False),
    "noise": Noise,
    "drop path": DropPath,
    "inner gradient": Inner,
    "mixing": Mixing,
    "narrow": Narrow,
    "recurrent": Recurrent,
    "tied": Tied,
    "frozen": frozen,
}
WRAPPERS = {"recomputed": Recomputed, "residual": Residual}


def plans():
    leaf = st.sampled_from(sorted(LEAVES))
    wrapped = st.tuples(st.sampled_from(sorted(WRAPPERS)), st.lists(leaf, min_size=1, max_size=2))
    again = st.tuples(st.just("again"), st.integers(0, 2))  # a block that came before
    return st.lists(leaf | wrapped | again, min_size=1, max_size=4)


FORMS = ("tensor", "tuple", "dict")


def built(plan, form="tensor"):
    torch.manual_seed(0)
    blocks = []
    for part in plan:
        if isinstance(part, str):
            blocks.append(LEAVES[part]())
        elif part[0] == "again":
            blocks.append(blocks[part[1] % len(blocks)] if blocks else nn.Identity())
        else:
            inner = nn.Sequential(*(LEAVES[name]() for name in part[1]))
            blocks.append(WRAPPERS[part[0]](inner))
    body = nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES)).double()
    for module in body.modules():
        if isinstance(module, Single):
            module.float()
    return body if form == "tensor" else Formed(body, form)


def batches():
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(B, WIDTH, generator=generator, dtype=torch.float64)
        yield x, torch.randint(CLASSES, (B,), generator=generator)


def own_error(model, method, form):
    """Return what a plain loop raises for a copy of a model, None if it takes it; and the loop."""
    criterion = criterion_of(form)
    loop = PlainLoop(copy.deepcopy(model), criterion, workers=W, lr=0.05, **method)
    try:
        for x, y in batches():
            loop.step(x, y)
    except RuntimeError as wrong:
        return wrong, loop
    return None, loop


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plans(), st.sampled_from(ENGINES), st.sampled_from(METHODS), st.sampled_from(FORMS))
def test_it_is_the_plain_loop_or_a_refusal(plan, engine, method, form):
    model, criterion = built(plan, form), criterion_of(form)
    refused, loop = own_error(model, method, form)
    before = {id(p) for p in model.parameters()}
    started = torch.get_rng_state()
    try:
        simulator = Simulator(model, criterion, workers=W, lr=0.05, engine=engine, **method)
        for x, y in batches():
            simulator.step(x, y)
    except SettingError as error:
        if engine in ("auto", "loop"):  # which take whatever a loop takes
            raise AssertionError(str(error)) from error
        return
    except RuntimeError:
        assert refused is not None
        return
    finally:
        assert torch.equal(torch.get_rng_state(), started)
        assert {id(p) for p in model.parameters()} == before
        assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    assert refused is None
    close = (
        1e-5 if any(word in str(part) for part in plan for word in ("narrow", "single")) else 1e-9
    )
    for name, value in loop.parameters().items():
        own = simulator.parameters()[name].detach().expand_as(value)
        assert float((own - value).norm()) <= close * (1 + float(value.norm())), name
    for name, value in loop.buffers().items():
        assert torch.allclose(simulator.buffers[name], value, rtol=close, atol=close), name
