"""Checks folders of images in classes, and reads image files, or says which one is damaged."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...settings import SettingError, one_line, require

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchvision.datasets import ImageFolder

_SECOND = ("val", "valid", "test")  # folders of the part for validation
_MOST_NAMED = 5  # classes in an error
_MOST_PIXELS = 1 << 26  # of an image
_KINDS = {"I": "whole numbers", "F": "floats"}  # by Pillow's mode


def class_folders(name: str, root: Path, layout: str) -> "tuple[ImageFolder, ImageFolder]":
    """Return the images of ROOT/train/CLASS/* and ROOT/val/CLASS/*, not yet read.

    In place of val there may be valid or test, the first of them that is there.

    Raises `SettingError` for the data set `name`, with the `layout` that is expected, if a folder
    is missing, empty, or has other classes than the other.
    """
    from torchvision.datasets import ImageFolder

    second = next((part for part in _SECOND if (root / part).is_dir()), "val")
    for part in ("train", second):
        if not (root / part).is_dir():
            raise SettingError("dataset", name, f"has no folder {root / part}", layout)
    try:
        train, val = ImageFolder(root / "train"), ImageFolder(root / second)
    except OSError as wrong:  # no class, a class without images, or one that cannot be read
        raise SettingError("dataset", name, f"is incomplete: {one_line(wrong)}", layout) from wrong
    for part in (train, val):
        _check_files(name, [Path(path) for path, _ in part.samples])
    differ = sorted({*train.classes} ^ {*val.classes})
    if differ:
        named = ", ".join(differ[:_MOST_NAMED])
        rule = f"has classes in one of train and {second} only: {named}"
        raise SettingError("dataset", name, rule, layout)
    require(len(train.classes) > 1, "dataset", name, f"has but one class in {root / 'train'}")
    return train, val


def _check_files(name: str, paths: list[Path]) -> None:
    """Raise `SettingError` for what is no file, such as a pipe, and for folders linked twice."""
    for path in paths:
        if not path.is_file():
            raise SettingError("dataset", name, f"has {path}, which is no file", "remove it")
    there: dict[Path, Path] = {}
    for folder in dict.fromkeys(path.parent for path in paths):
        first = there.setdefault(folder.resolve(), folder)
        rule = f"has one folder by two names, {first} and {folder}"
        require(first == folder, "dataset", name, rule, "remove the link")


def rgb_image(name: str, path: str) -> "Image":
    """Return an image file in color.

    Of 16 bits a gray pixel keeps the upper 8, as Pillow keeps them of a color. Raises
    `SettingError` for the data set `name` if the file is damaged, too large to be read, or of 32
    bits.
    """
    from PIL import Image

    too_large = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(path)
        with opened as image:
            width, height = image.size
            if width * height > _MOST_PIXELS:
                rule = f"has an image of {width:,} x {height:,} pixels, {path}"
                fix = f"at most {_MOST_PIXELS:,} are read: make it smaller"
                raise SettingError("dataset", name, rule, fix)
            with warnings.catch_warnings():  # as of a palette's transparency, which has no place
                warnings.simplefilter("ignore", UserWarning)
                return _of_8_bits(name, path, image).convert("RGB")
    except too_large as wrong:
        fix = f"at most {_MOST_PIXELS:,} pixels are read: make it smaller"
        raise SettingError("dataset", name, f"has too large an image, {path}", fix) from wrong
    except SettingError:
        raise
    except (OSError, SyntaxError, ValueError) as wrong:  # what PIL raises for damaged files
        rule = f"has a damaged image, {path} ({one_line(wrong)})"
        raise SettingError("dataset", name, rule, "replace or remove it") from wrong


def _of_8_bits(name: str, path: str, image: "Image") -> "Image":
    """Return an image whose pixels Pillow can turn into 8 bits without cutting off the large ones.

    Raises `SettingError` for pixels of 32 bits, whose white is not known.
    """
    from PIL import Image

    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")
    if deep:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        rule = f"has an image of {_KINDS[image.mode]} of 32 bits, {path}"
        raise SettingError("dataset", name, rule, "save it with 8 or 16 bits")
    return image
