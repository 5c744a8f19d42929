"""Data sets by name.

A split of images is held whole, as one uint8 tensor, but for ImageNet's, which is streamed, and a
text as one stream of numbers. Some sets are embedded and need no network; the others are read from
files.
"""

from pathlib import Path

from ...recipe_rules import names_own_file
from ...settings import unknown
from ...simulator.epoch_length import worker_batches
from .contract import Dataset, Samples, Split
from .downloaded import DOWNLOADED, from_files
from .embedded import EMBEDDED, embedded
from .folder import image_folder
from .imagenet import imagenet
from .order import epoch_order
from .own import own_file
from .partition import epoch_index, parted
from .round_order import RoundOrder
from .streams import Streams, in_order
from .svmlight import libsvm
from .text import ABOUT, Text, is_text, load_text

__all__ = [
    "Dataset",
    "RoundOrder",
    "Samples",
    "Split",
    "Streams",
    "Text",
    "about",
    "epoch_index",
    "epoch_order",
    "in_order",
    "is_text",
    "load",
    "load_text",
    "names",
    "parted",
    "readers",
    "worker_batches",
]


def names() -> list[str]:
    """Return the names of all data sets."""
    return sorted(about())


def about() -> dict[str, str]:
    """Return what each data set is."""
    return {
        "mnist5k": "5,000 handwritten digits of MNIST, 1x28x28, 10 classes; embedded",
        "digits": "1,797 small handwritten digits, 1x8x8, 10 classes; embedded",
        "cifar10": "60,000 photographs, 3x32x32, 10 classes; from --data-dir",
        "cifar100": "60,000 photographs, 3x32x32, 100 classes; from --data-dir",
        "mnist": "70,000 handwritten digits, 1x28x28, 10 classes; from --data-dir",
        "fashion-mnist": "70,000 pictures of clothes, 1x28x28, 10 classes; from --data-dir",
        "svhn": "99,289 house numbers, 3x32x32, 10 classes; from --data-dir",
        "stl10": "13,000 labeled photographs, 3x96x96, 10 classes; from --data-dir",
        "imagenet": "1,331,167 photographs, cut to 3x224x224, 1,000 classes; from --data-dir",
        "libsvm:PATH": "features in LIBSVM's format in PATH, and in PATH.t for validation",
        "imagefolder:PATH": "images in PATH/train/CLASS/* and PATH/val/CLASS/*",
        **ABOUT,
    }


def readers(name: str) -> list[str]:
    """Return the names of the modules, beside torch and NumPy, that read a data set."""
    kind = name.partition(":")[0]
    if kind == "libsvm":
        return ["sklearn.datasets"]
    by_torchvision = kind in ("imagefolder", "imagenet") or name in DOWNLOADED
    return ["torchvision.datasets"] if by_torchvision else []


def load(name: str, data_dir: Path = Path("data"), download: bool = False) -> Dataset:
    """Return a data set of images; `load_text` returns those of text.

    Raises `SettingError` for an unknown name, and for files that are missing or damaged: it says
    which, and where they must lie.
    """
    kind, colon, path = name.partition(":")
    if kind == "imagefolder":
        return image_folder(name, path, data_dir)
    if kind == "libsvm":
        return libsvm(name, path, data_dir)
    if names_own_file(name):
        return own_file(name, data_dir)
    if name == "imagenet":
        return imagenet(name, data_dir)
    if colon or (name not in EMBEDDED and name not in DOWNLOADED):
        raise unknown("dataset", name, names())
    if name in EMBEDDED:
        return embedded(name)
    return from_files(name, data_dir, download)
