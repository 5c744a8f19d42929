"""Augmentations done in a batch, against the same done image by image; each set's statistics."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

import simsgd
from simsgd.config import Config
from simsgd.training import data
from simsgd.training.data.statistics import statistics
from simsgd.training.experiment import Experiment

vision: Any = importlib.import_module("simsgd.models._vision")
large: Any = importlib.import_module("simsgd.models._imagenet")
plain = vision.Normalize((0.0,), (1.0,))
normalize = vision.Normalize((0.2, 0.4, 0.6), (0.5, 0.25, 2.0))


def test_cutout_equals_the_same_done_image_by_image() -> None:
    images, uniform = torch.rand(64, 3, 7, 9) + 1, torch.rand(64, 5)
    got = vision.PadCropFlip(2, normalize, hole=4)(images, uniform)
    wanted = vision.PadCropFlip(2, normalize)(images, uniform)
    for image, numbers in zip(wanted, uniform, strict=True):
        top, left = int(numbers[3] * (7 - 4 + 1)), int(numbers[4] * (9 - 4 + 1))
        image[:, top : top + 4, left : left + 4] = 0
    assert torch.equal(got, wanted)


def test_a_hole_as_large_as_the_image_leaves_nothing() -> None:
    images = torch.rand(2, 3, 4, 4)
    assert vision.PadCropFlip(0, normalize, hole=9)(images, torch.rand(2, 5)).eq(0).all()


def test_a_random_resized_crop_equals_the_same_done_image_by_image() -> None:
    images, uniform = torch.rand(16, 3, 40, 50), torch.rand(16, 5)
    got = large.RandomResizedCrop(12, plain)(images, uniform)
    for image, numbers, found in zip(images, uniform.tolist(), got, strict=True):
        area = (0.08 + 0.92 * numbers[0]) * 40 * 50
        aspect = (4 / 3) ** (2 * numbers[1] - 1)
        tall, wide = min(40.0, (area / aspect) ** 0.5), min(50.0, (area * aspect) ** 0.5)
        top, left = (40 - tall) * numbers[2], (50 - wide) * numbers[3]
        wanted = torch.stack(
            [
                torch.stack([_pixel(image, top + (i + 0.5) * tall / 12 - 0.5,
                                    left + (j + 0.5) * wide / 12 - 0.5) for j in range(12)], 1)
                for i in range(12)
            ], 1,
        )  # fmt: skip
        wanted = wanted.flip(2) if numbers[4] < 0.5 else wanted
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_part_lies_within_its_image() -> None:
    uniform = torch.rand(1000, 5)
    sides, center = large.part_of(torch.Size([30, 80]), uniform)
    assert (sides > 0).all()
    assert (center.abs() + sides <= 1 + 1e-6).all()


def test_a_center_crop_is_the_center_of_the_resized_image() -> None:
    images = torch.rand(2, 3, 64, 96)
    got = large.CenterCrop(28, plain)(images)
    resized = functional.interpolate(images, (32, 48), mode="bilinear", antialias=True)
    assert torch.equal(got, resized[:, :, 2:30, 10:38])


def test_what_a_set_cuts_itself_is_only_mirrored() -> None:
    images, uniform = torch.rand(2, 3, 8, 8), torch.tensor([[0.5] * 4 + [0.4], [0.5] * 4 + [0.6]])
    after = large.RandomResizedCrop(4, normalize).after_crop
    assert torch.equal(after(images, uniform)[0], normalize(images)[0].flip(2))
    assert torch.equal(after(images, uniform)[1], normalize(images)[1])
    assert large.CenterCrop(4, normalize).after_crop == normalize


@pytest.mark.parametrize(
    "transform",
    [
        vision.PadCrop(2, normalize),
        vision.PadCropFlip(2, normalize, hole=3),
        large.RandomResizedCrop(6, normalize),
    ],
)
def test_an_image_is_changed_alike_whoever_is_beside_it(transform: Any) -> None:
    images, uniform = torch.rand(5, 3, 8, 8), torch.rand(5, transform.draws)
    alone = torch.cat([transform(images[i : i + 1], uniform[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(transform(images, uniform), alone)


@pytest.mark.parametrize(
    "transform",
    [
        normalize,
        vision.PadCrop(2, normalize),
        vision.PadCropFlip(2, normalize, hole=3),
        large.RandomResizedCrop(6, normalize),
        large.CenterCrop(6, normalize),
    ],
)
def test_a_transform_takes_the_statistics_of_a_set(transform: Any) -> None:
    fitted = transform.fitted((0.1,), (0.3,), False)
    assert getattr(fitted, "then", fitted) == vision.Normalize((0.1,), (0.3,))
    assert getattr(fitted, "mirrors", False) is False


def test_a_set_of_signs_is_not_mirrored() -> None:
    images, uniform = torch.rand(8, 3, 4, 4), torch.full((8, 5), 0.4)
    fitted = vision.PadCropFlip(0, plain).fitted((0.0,), (1.0,), False)
    assert torch.equal(fitted(images, uniform), images)
    assert torch.equal(vision.PadCropFlip(0, plain)(images, uniform), images.flip(3))


def test_statistics_are_those_of_all_pixels() -> None:
    images = torch.randint(256, (20, 2, 5, 6), dtype=torch.uint8)
    images[:, 1] = 7
    mean, std = statistics(images)
    pixels = images[:, 0].double() / 255
    assert mean == pytest.approx([float(pixels.mean()), 7 / 255])
    assert std == pytest.approx([float(pixels.std(correction=0)), 1])


def test_digits_are_normalized_by_their_own_statistics() -> None:
    experiment = Experiment.of(Config(dataset="digits", workers=2, batch_size=4))
    train: Any = experiment.dataset.train
    pixels = train.images.double() / 255
    then: Any = experiment.transforms["eval"]
    assert then.mean == pytest.approx((float(pixels.mean()),))
    assert then.std == pytest.approx((float(pixels.std(correction=0)),))


@pytest.mark.parametrize("name", ["mnist5k"])
def test_published_statistics_are_used_for_known_sets(name: str) -> None:
    assert data.load(name).mean == (0.1307,)


@pytest.mark.slow
def test_augmentation_is_a_function_of_seed_epoch_and_sample(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part in ("train", "val"):
        for number in range(12):
            path = tmp_path / part / ("cat", "dog")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(path)
    given = {"model": "resnet", "model_config": "depth=8", "dataset": f"imagefolder:{tmp_path}"}
    seen: list[dict[float, Tensor]] = []
    for workers, size in ((1, 12), (4, 3), (2, 3)):
        experiment = Experiment.of(Config(**given, workers=workers, batch_size=size))  # type: ignore[arg-type]
        train: Any = experiment.dataset.train
        found = {}
        for index in torch.arange(12).split(size):
            for i, image in zip(
                index, experiment.prepared(train.batch(index)[0], "train", index, 3), strict=True
            ):
                found[float(i)] = image
        seen.append(found)
    assert all(torch.equal(seen[0][i], other[i]) for other in seen[1:] for i in seen[0])


def _pixel(image: Tensor, y: float, x: float) -> Tensor:
    """Return the bilinear value [C] of an image [C, H, W] at a place, edges repeated."""
    height, width = image.shape[1:]
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    above = image[:, top, left] * (1 - x + left) + image[:, top, right] * (x - left)
    below = image[:, bottom, left] * (1 - x + left) + image[:, bottom, right] * (x - left)
    return above * (1 - y + top) + below * (y - top)


DRAWING = """
import random
import torch
def model(num_classes, input_shape):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))
def noisy(x):
    x += torch.rand_like(x) + random.random()
    return x
input_transform = {"train": noisy}
"""


def test_what_a_transform_draws_by_itself_follows_from_seed_epoch_and_batch(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(DRAWING)
    settings: Any = {
        "model": f"{tmp_path}/net.py", "dataset": "digits", "workers": 2, "batch_size": 60,
        "lr": 0.1, "quiet": True, "runs_dir": tmp_path,
    }  # fmt: skip
    one = simsgd.train(**settings, epochs=2)
    other = simsgd.train(**settings, epochs=1)
    again = simsgd.train(resume=other.folder, epochs=2)
    assert again.epochs["train_loss"].tolist() == one.epochs["train_loss"].tolist()
    first, second = one.steps["loss"].to_numpy().reshape(2, -1)
    assert (first != second).all()
    experiment = Experiment.of(Config(**{**settings, "epochs": 1}))
    noise = [
        experiment.prepared(torch.zeros(4, 1), "train", None, epoch, number)
        for epoch, number in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert len({float(own.sum()) for own in noise}) == 3
    assert torch.equal(noise[0], noise[3])
    changed = simsgd.train(**settings, epochs=1, seed=1)
    assert changed.epochs["train_loss"].iloc[0] != one.epochs["train_loss"].iloc[0]
