"""Make the images that docs/evidence.md is measured on: a share of CIFAR-10's, at half their size.

python docs/evidence_images.py CIFAR TARGET

CIFAR has train/CLASS/* and test/CLASS/*, images of 32 x 32 pixels. TARGET gets every fifth image of
a class of train (10,000 in all) and every second of test (5,000), as PNG of 16 x 16.
"""

import sys
from pathlib import Path

from PIL import Image

SIDE = 16  # pixels
EVERY = {"train": 5, "test": 2}  # one image in so many, in the order of their names


def main(source, target):
    """Write the images."""
    for part, every in EVERY.items():
        for folder in sorted(path for path in (source / part).iterdir() if path.is_dir()):
            place = target / part / folder.name
            place.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.iterdir())[::every]:
                image = Image.open(path).convert("RGB")
                small = image.resize((SIDE, SIDE), Image.Resampling.BOX)
                small.save(place / f"{path.stem}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
