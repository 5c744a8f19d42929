"""Ten networks as people write them, on which auto's choice of an engine is measured.

Those that `models/` has are built by name, the others here, of torch's own modules.

Letters: W workers, b samples each, T tokens of a text, E numbers of a token.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..catalog import build_model, parse_config
from ..settings import require
from .cases import MOST, Task, begun, require_room

_CLASSES, _WORDS, _TOKENS = 10, 1000, 64
_COLORED = (3, 32, 32)


@dataclass(frozen=True)
class Network:
    """A network by name, what it is an example of, and what it sees."""

    kind: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (
        _COLORED  # of a sample; (T,) of a text, each of whose tokens has a target
    )


def _named(
    name: str, config: str = "", shape: tuple[int, ...] = _COLORED
) -> Callable[[], nn.Module]:
    classes = _CLASSES if len(shape) == 3 else _WORDS
    return lambda: build_model(name, parse_config(config), classes, shape)


class VisionTransformer(nn.Module):
    """Patches of 4 x 4, a token for the class, places that are learned, and torch's encoder.

    Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, https://arxiv.org/abs/2010.11929
    """

    def __init__(self, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 65, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [b, classes] of images [b, 3, 32, 32]."""
        x = self.patches(x).flatten(2).transpose(1, 2)  # [b, 64, E]
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        scores: Tensor = self.head(self.encoder(x)[:, 0])
        return scores


class UNet(nn.Module):
    """Two levels down and up again, joined across; a class for each pixel.

    Ronneberger et al., "U-Net", MICCAI 2015, https://arxiv.org/abs/1505.04597
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = _twice(3, width), _twice(width, 2 * width)
        self.lowest = _twice(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up_first = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.back_second, self.back_first = _twice(4 * width, 2 * width), _twice(2 * width, width)
        self.head = nn.Conv2d(width, _CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [b, classes, 32, 32] of images [b, 3, 32, 32]."""
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        x = self.up_second(self.lowest(F.max_pool2d(second, 2)))
        x = self.up_first(self.back_second(torch.cat([x, second], 1)))
        scores: Tensor = self.head(self.back_first(torch.cat([x, first], 1)))
        return scores


def _twice(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for entering in (before, after):
        convolution = nn.Conv2d(entering, after, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Recurrent(nn.Module):
    """Two layers of `nn.LSTM` between an embedding and its decoder."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, width)
        self.inner = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, _WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores [b, words, T] of `tokens` [b, T]."""
        scores: Tensor = self.head(self.inner(self.words(tokens))[0])
        return scores.transpose(1, 2)


class LanguageModel(nn.Module):
    """A language model of `models/`, with scores [b, words, T] as torch's criteria want them."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.inner = make()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores [b, words, T] of `tokens` [b, T]."""
        scores: Tensor = self.inner(tokens)
        return scores.transpose(1, 2)


NETWORKS = {
    "mlp": Network("dense layers", _named("mlp", shape=(1, 28, 28)), (1, 28, 28)),
    "lenet": Network("small", _named("lenet", shape=(1, 28, 28)), (1, 28, 28)),
    "resnet20": Network("residual, small", _named("resnet", "depth=20")),
    "resnet18": Network("residual, 11 M", _named("resnet18_cifar")),
    "densenet40": Network("densely connected", _named("densenet", "depth=40")),
    "mobilenet_v2": Network("depthwise", _named("mobilenet_v2")),
    "unet": Network("U-Net", UNet),
    "vit": Network("attention, images", VisionTransformer),
    "gpt": Network(
        "attention, text",
        lambda: LanguageModel(_named("gpt", "layers=4,heads=4,emb=128", (_TOKENS,))),
        (_TOKENS,),
    ),
    "lstm": Network("recurrent", Recurrent, (_TOKENS,)),
}


def network_task(name: str, workers: int, batch: int, device: str) -> Task:
    """Return a network with its first weights, always the same, and W * b random samples.

    Raises `SettingError` for more workers or samples than memory holds.
    """
    network = NETWORKS[name]
    lead = workers, batch
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = network.make()
    require_room(model, name, workers, device)
    most = max(1, MOST // (workers * math.prod(network.shape)))
    rule = f"must be at most {most:,} for {name} with W = {workers:,}"
    require(batch <= most, "batch", batch, rule)
    generator = torch.Generator().manual_seed(0)
    if len(network.shape) == 1:
        x, y = torch.randint(_WORDS, (2, *lead, *network.shape), generator=generator)
    else:
        x = torch.randn(*lead, *network.shape, generator=generator)
        pixels = network.shape[1:] if isinstance(model, UNet) else ()
        y = torch.randint(_CLASSES, (*lead, *pixels), generator=generator)
    model = begun(model, batch).to(device).train()
    return Task(model, F.cross_entropy, x.to(device), y.to(device))
