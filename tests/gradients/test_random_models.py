"""Random small models: every engine and algorithm gives what the plain loop gives, or declines.

Letters: W workers, b samples each.
"""

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


def built(plan):
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
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, nn.Linear(WIDTH, CLASSES)).double()


def batches():
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(B, WIDTH, generator=generator, dtype=torch.float64)
        yield x, torch.randint(CLASSES, (B,), generator=generator)


def own_error(plan, method):
    """Return what a plain loop raises for such a model, None if it takes it."""
    loop = PlainLoop(built(plan), workers=W, lr=0.05, **method)
    try:
        for x, y in batches():
            loop.step(x, y)
    except RuntimeError as wrong:
        return wrong, loop
    return None, loop


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plans(), st.sampled_from(ENGINES), st.sampled_from(METHODS))
def test_it_is_the_plain_loop_or_a_refusal(plan, engine, method):
    refused, loop = own_error(plan, method)
    model = built(plan)
    before = {id(p) for p in model.parameters()}
    started = torch.get_rng_state()
    try:
        simulator = Simulator(model, F.cross_entropy, workers=W, lr=0.05, engine=engine, **method)
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
    close = 1e-5 if any("narrow" in str(part) for part in plan) else 1e-9
    for name, value in loop.parameters().items():
        own = simulator.parameters()[name].detach().expand_as(value)
        assert float((own - value).norm()) <= close * (1 + float(value.norm())), name
    for name, value in loop.buffers().items():
        assert torch.allclose(simulator.buffers[name], value, rtol=close, atol=close), name
