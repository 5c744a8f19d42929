"""Mean and standard deviation of each channel: published ones of known sets, else computed.

Letters: N images of C channels, H x W pixels.
"""

import torch
from torch import Tensor

from .contract import Dataset, Split

_Each = tuple[float, ...]

PUBLISHED: dict[str, tuple[_Each, _Each]] = {  # of the training images, pixels in [0, 1]
    "mnist": ((0.1307,), (0.3081,)),
    "mnist5k": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "stl10": ((0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
_WRITTEN = ("mnist", "mnist5k", "digits", "svhn")  # whose classes are signs: not to be mirrored


def described(name: str, train: Split, val: Split, num_classes: int) -> Dataset:
    """Return a data set of images with its statistics."""
    mean, std = PUBLISHED.get(name) or statistics(train.images)
    shape = tuple(train.images.shape[1:])
    mirrors = name not in _WRITTEN
    return Dataset(name, train, val, num_classes, shape, mean, std, mirrors)


def statistics(images: Tensor) -> tuple[_Each, _Each]:
    """Return mean and standard deviation of each channel of uint8 images [N, C, H, W], over 255.

    A channel without variance has the deviation 1.
    """
    channels = [images[:, c].flatten() for c in range(images.shape[1])]
    counts = torch.stack([channel.bincount(minlength=256) for channel in channels])  # [C, 256]
    values = torch.arange(256, dtype=torch.float64) / 255
    shares = counts.double().cpu() / counts.sum(1, keepdim=True).cpu()  # [C, 256]
    mean = shares @ values
    std = ((shares * (values - mean[:, None]) ** 2).sum(1)).sqrt()
    std[std == 0] = 1
    return tuple(mean.tolist()), tuple(std.tolist())
