"""Transformers and other uses of parameters, by every engine and plan: what a loop gives."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simsgd import SettingError, Simulator
from simsgd.catalog import build_model
from simsgd.gradients.contract import EngineConfig
from simsgd.keyed_random import RandomKey
from simsgd.registry import find

from ..toy import relative_distance

W, B, T, E, V = 3, 4, 5, 8, 10


class Block(nn.Module):
    """As nanoGPT has it: layers without biases, fused or written-out attention."""

    def __init__(self, fused, length):
        super().__init__()
        self.first, self.second = nn.LayerNorm(E, bias=False), nn.LayerNorm(E, bias=False)
        self.qkv, self.out = nn.Linear(E, 3 * E, bias=False), nn.Linear(E, E, bias=False)
        self.feed = nn.Sequential(
            nn.Linear(E, 4 * E), nn.GELU(approximate="tanh"), nn.Linear(4 * E, E)
        )
        self.fused = fused
        self.register_buffer("causal", torch.ones(length, length).tril().view(1, 1, length, length))

    def forward(self, x):
        b, t, _ = x.size()
        q, k, v = self.qkv(self.first(x)).split(E, dim=2)
        q, k, v = (p.view(b, t, 2, E // 2).transpose(1, 2) for p in (q, k, v))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.causal[:, :, :t, :t] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        x = x + self.out(y.transpose(1, 2).contiguous().view(b, t, E))
        return x + self.feed(self.second(x))


class NanoGPT(nn.Module):
    def __init__(self, fused=True, length=T):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, E), nn.Embedding(length + 3, E)
        self.blocks = nn.ModuleList(Block(fused, length) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(E), nn.Linear(E, V, bias=False)
        self.wte.weight = self.head.weight

    def forward(self, idx):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).mean(1)


class ViT(nn.Module):
    """A token for the class, learned places, nn.MultiheadAttention, layer scale."""

    def __init__(self, token="expand"):
        super().__init__()
        self.patches = nn.Conv2d(3, E, 4, stride=4)
        self.cls, self.pos = (nn.Parameter(torch.randn(1, n, E) * 0.3) for n in (1, 5))
        self.norm, self.mix = nn.LayerNorm(E), nn.MultiheadAttention(E, 2, batch_first=True)
        self.gamma = nn.Parameter(torch.full((E,), 0.5))
        self.head, self.token = nn.Linear(E, V), token

    def tokens(self, x):
        if self.token == "expand":
            return self.cls.expand(x.shape[0], -1, -1)
        if self.token == "repeat":
            return self.cls.repeat(len(x), 1, 1)
        return self.cls.expand_as(x[:, :1])

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.tokens(x), x], dim=1) + self.pos
        h = self.norm(x)
        x = x + self.gamma * self.mix(h, h, h, need_weights=self.token == "expand")[0]
        return self.head(x[:, 0])


class Masked(nn.Module):
    """MultiheadAttention of other keys, with masks of both kinds."""

    def __init__(self, kdim=None):
        super().__init__()
        self.words = nn.Embedding(V, E)
        self.mix = nn.MultiheadAttention(E, 2, batch_first=True, kdim=kdim, vdim=kdim)
        self.keys, self.head = nn.Linear(E, kdim or E), nn.Linear(E, V)

    def forward(self, idx):
        x = self.words(idx)
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        padded = (idx == 3) & (torch.arange(T) > 0)
        k = self.keys(x)
        out, _ = self.mix(x, k, k, key_padding_mask=padded, attn_mask=later)
        return self.head(out.mean(1))


class RMS(nn.Module):
    """RMSNorm by hand, SwiGLU, rotary places, a learned temperature."""

    def __init__(self):
        super().__init__()
        self.words, self.scale = nn.Embedding(V, E), nn.Parameter(torch.rand(E) + 0.5)
        self.gate, self.up, self.down = nn.Linear(E, E), nn.Linear(E, E), nn.Linear(E, E)
        self.log_temperature, self.head = nn.Parameter(torch.tensor(0.3)), nn.Linear(E, V)
        angle = torch.arange(T).unsqueeze(1) / 10 ** (torch.arange(E // 2) / 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, idx):
        x = self.words(idx)
        a, b = x.chunk(2, -1)
        x = torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], -1)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        x = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return self.head(x.mean(1)) / self.log_temperature.exp()


class Relative(nn.Module):
    """A table of biases by distance, added to the scores or given as the mask."""

    def __init__(self, given):
        super().__init__()
        self.words, self.table = nn.Embedding(V, E), nn.Parameter(torch.randn(2 * T - 1, 2))
        place = torch.arange(T)
        self.register_buffer("index", place.view(-1, 1) - place.view(1, -1) + T - 1)
        self.qkv, self.head, self.given = nn.Linear(E, 3 * E), nn.Linear(E, V), given

    def forward(self, idx):
        parts = self.qkv(self.words(idx)).reshape(-1, T, 3, 2, E // 2).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        bias = self.table[self.index.view(-1)].view(T, T, -1).permute(2, 0, 1).contiguous()
        if self.given:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))
        else:
            out = ((q @ k.transpose(-2, -1)) * 0.5 + bias.unsqueeze(0)).softmax(-1) @ v
        return self.head(out.transpose(1, 2).flatten(2).mean(1))


class Products(nn.Module):
    """Weights in products that are no layers: @, einsum, a mixture along the tokens, addmm."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(V, E)
        self.right, self.heads = nn.Parameter(torch.randn(E, E)), nn.Parameter(torch.randn(2, E, 3))
        self.along, self.bias = nn.Parameter(torch.randn(T, T)), nn.Parameter(torch.randn(T, 1))
        self.last, self.shift = nn.Parameter(torch.randn(6, V)), nn.Parameter(torch.randn(V))

    def forward(self, idx):
        x = torch.tanh(self.words(idx) @ self.right)
        x = torch.tanh(self.along @ x + self.bias)
        x = torch.einsum("bte,hef->bthf", x, self.heads).flatten(2)
        x = torch.tanh(x.mean(1))
        return torch.addmm(self.shift, x, self.last)


class Queries(nn.Module):
    """Learned queries look at the tokens; weights are normed, transposed and sliced."""

    def __init__(self):
        super().__init__()
        self.words, self.query = nn.Embedding(V, E), nn.Parameter(torch.randn(2, E))
        self.mix = nn.utils.parametrizations.weight_norm(nn.Linear(E, E))
        self.table, self.mask = nn.Parameter(torch.randn(E, 2 * V)), nn.Parameter(torch.randn(E))

    def forward(self, idx):
        x = self.mix(self.words(idx))
        x = torch.where((idx == 1).unsqueeze(-1), self.mask, x)
        q = self.query.unsqueeze(0).expand(x.size(0), -1, -1)
        out = F.scaled_dot_product_attention(q, x, x)
        return F.linear(out.mean(1), F.normalize(self.table[:, ::2].t(), dim=1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.inner = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.slope = nn.BatchNorm2d(4), nn.PReLU(4)
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1, groups=2)
        self.gain, self.head = nn.Parameter(torch.ones(4, 1, 1)), nn.Conv2d(7, V, 1)

    def forward(self, x):
        h = self.inner(self.slope(self.norm(self.down(x))))
        h = h.mul_(self.gain) if self.training else h * self.gain
        return self.head(torch.cat([self.up(h), x], 1)).mean((2, 3))


class Gated(nn.Module):
    """Adds in place, subtracts from a weight, and takes powers."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, E), nn.Linear(E, V)
        self.a, self.b, self.c = (nn.Parameter(torch.rand(E) + 0.5) for _ in range(3))

    def forward(self, x):
        x = self.layer(x)
        x += self.a
        x = self.b - x.sigmoid()
        return self.head(x.square() ** self.c / (1 + self.a * self.b))


def encoder_layer():
    layer = nn.TransformerEncoderLayer(E, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(nn.Embedding(V, E), layer, Mean(), nn.Linear(E, V))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def own_model():
    return nn.Sequential(
        build_model("transformer_lm", {"emb": E, "layers": 1, "heads": 2}, V, (T,)), Mean()
    )


def texts(length=T):
    return torch.randint(V, (W, B, length), generator=torch.Generator().manual_seed(0))


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(W, B, 3, 8, 8, dtype=torch.float64, generator=generator)


def vectors():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(W, B, 6, dtype=torch.float64, generator=generator)


CASES = {
    "nanoGPT": (NanoGPT, texts),
    "nanoGPT, written out": (lambda: NanoGPT(fused=False), texts),
    "as long as two workers' batch": (lambda: NanoGPT(length=2 * B), lambda: texts(2 * B)),
    "as long as all workers' batch": (lambda: NanoGPT(length=W * B), lambda: texts(W * B)),
    "ViT, expand": (ViT, images),
    "ViT, repeat": (lambda: ViT("repeat"), images),
    "ViT, expand_as": (lambda: ViT("expand_as"), images),
    "masks": (Masked, texts),
    "keys of another size": (lambda: Masked(6), texts),
    "RMS": (RMS, texts),
    "relative": (lambda: Relative(False), texts),
    "relative mask": (lambda: Relative(True), texts),
    "products": (Products, texts),
    "queries": (Queries, texts),
    "U-Net": (UNet, images),
    "gated": (Gated, vectors),
    "encoder layer": (encoder_layer, texts),
    "transformer_lm": (own_model, texts),
}


def case(name):
    torch.manual_seed(0)
    make, batch = CASES[name]
    generator = torch.Generator().manual_seed(1)
    return make().double().train(), batch(), torch.randint(V, (W, B), generator=generator)


def run(engine, model, x, y, per_worker=False, **config):
    """Return an engine's gradients; with `per_worker`, of parameters that differ."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if per_worker:
        generator = torch.Generator().manual_seed(2)
        params = {
            name: p.detach() * (1 + 0.1 * torch.rand(W, *p.shape, generator=generator).double())
            for name, p in params.items()
        }
    buffers = {name: torch.stack([b] * W) for name, b in model.named_buffers()}
    keys = RandomKey(0, torch.arange(W)).keys()
    settings = EngineConfig(per_worker=per_worker, **config)
    return find("engine", engine)(model, F.cross_entropy, settings)(params, buffers, x, y, keys)


def assert_same(got, wanted):
    assert relative_distance(got.values, wanted.values) < 1e-10
    for name, value in wanted.values.items():
        assert torch.allclose(got.values[name], value, rtol=1e-8, atol=1e-11), name
    assert torch.allclose(got.loss, wanted.loss, rtol=1e-10)
    assert torch.allclose(got.output, wanted.output, rtol=1e-10, atol=1e-12)
    for name, buffer in wanted.buffers.items():
        assert torch.allclose(got.buffers[name].double(), buffer.double(), rtol=1e-10), name


@pytest.mark.quick_cases(24)
@pytest.mark.parametrize("per_worker", [False, True])
@pytest.mark.parametrize("plan", ["cpu", "gpu"])
@pytest.mark.parametrize("name", CASES)
def test_one_pass_takes_it_and_gives_what_a_loop_gives(name, plan, per_worker):
    model, x, y = case(name)
    wanted = run("loop", model, x, y, per_worker)
    for chunk in ("auto", 2):
        assert_same(run("onepass", model, x, y, per_worker, plan=plan, chunk=chunk), wanted)


@pytest.mark.parametrize("name", ["nanoGPT", "ViT, expand", "relative mask", "transformer_lm"])
@pytest.mark.parametrize("engine", ["vmap", "threads", "auto"])
def test_the_other_engines_give_the_same_without_warnings(name, engine):
    model, x, y = case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(run(engine, model, x, y), run("loop", model, x, y))


def test_dropout_of_attention_is_declined():
    model, x, y = case("encoder layer")
    model[1].self_attn.dropout = 0.5
    with pytest.raises(SettingError, match="attention draws its dropout from torch's generator"):
        run("onepass", model, x, y)


@pytest.mark.parametrize("method", [{"momentum": 0.9}, {"algorithm": "dpsgd"}], ids=str)
def test_steps_by_the_plan_of_a_gpu_are_those_of_a_loop(method):
    taken = []
    for own in ({"plan": "gpu", "engine": "onepass"}, {"engine": "loop"}):
        model, x, y = case("U-Net")
        simulator = Simulator(model, workers=W, lr=0.1, **own, **method)
        for _ in range(3):
            simulator.step(x.flatten(0, 1), y.flatten())
        taken.append({**simulator.parameters(), **simulator.buffers})
    assert taken[0].keys() == taken[1].keys()
    for name, value in taken[1].items():
        assert torch.allclose(taken[0][name].double(), value.double(), rtol=1e-10, atol=1e-12), name
