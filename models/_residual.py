"""What residual networks for small images share: a block of two convolutions and its shortcuts.

Letters: B images of C channels, H x W pixels.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
https://arxiv.org/abs/1512.03385
"""

from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Two normalized 3 x 3 convolutions F added to their input: y = relu(F(x) + shortcut(x)).

    Where the shape changes, `shortcut` "A" pads with channels of zeros and "B" is a normalized
    1 x 1 convolution.
    """

    def __init__(self, before: int, after: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.first = convolution(before, after, stride)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = convolution(after, after)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut = _shortcut(before, after, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output [B, after, H / stride, W / stride]."""
        out = functional.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        return functional.relu(out + self.shortcut(x))


class ZeroPad(nn.Module):
    """Shortcut A: every `stride`-th pixel, and `extra` channels of zeros."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, x: Tensor) -> Tensor:
        """Return x [B, C, H, W] as [B, C + extra, H / stride, W / stride]."""
        kept = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(kept, (0, 0, 0, 0, 0, self.extra))


def convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3 x 3 convolution without a bias that keeps the size, up to its stride."""
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)


def drawn_as_he(layer: nn.Module) -> None:
    """Draw weights from a normal distribution of variance 2 / fan-in; for `Module.apply`.

    He, Zhang, Ren, Sun, "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852
    """
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if isinstance(layer, nn.Linear):
        nn.init.zeros_(layer.bias)


def _shortcut(before: int, after: int, stride: int, kind: str) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    if kind == "A":
        return ZeroPad(after - before, stride)
    projection = nn.Conv2d(before, after, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(after))
