"""Checks folders of images in classes, and reads image files, or says which one is damaged."""

from pathlib import Path
from typing import TYPE_CHECKING

from ...settings import SettingError, one_line

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchvision.datasets import ImageFolder

_SECOND = ("val", "valid", "test")  # folders of the part for validation
_MOST_NAMED = 5  # classes in an error


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
    except FileNotFoundError as wrong:  # no class, or a class without images
        raise SettingError("dataset", name, f"is incomplete: {one_line(wrong)}", layout) from wrong
    differ = sorted({*train.classes} ^ {*val.classes})
    if differ:
        named = ", ".join(differ[:_MOST_NAMED])
        rule = f"has classes in one of train and {second} only: {named}"
        raise SettingError("dataset", name, rule, layout)
    return train, val


def rgb_image(name: str, path: str) -> "Image":
    """Return an image file in color. Raises `SettingError` for the data set `name` if damaged."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as wrong:  # what PIL raises for damaged files
        rule = f"has a damaged image, {path} ({one_line(wrong)})"
        raise SettingError("dataset", name, rule, "replace or remove it") from wrong
