"""SVHN, STL-10, ImageNet and LIBSVM files in their true formats; what is error where one lacks."""

import bz2
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from sklearn.datasets import dump_svmlight_file
from torch import Tensor
from torchvision import datasets
from torchvision.transforms import functional

import simsgd
from simsgd.settings import SettingError
from simsgd.training import data
from simsgd.training.data.imagenet import Files

# --- SVHN and STL-10 ---


@pytest.fixture
def svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Write train_32x32.mat and test_32x32.mat, images [32, 32, 3, N], the digit 0 labeled 10."""
    generator = np.random.default_rng(0)
    written: dict[str, Any] = {}
    sums = dict(datasets.SVHN.split_list)
    for part, size in (("train", 5), ("test", 3)):
        images = generator.integers(256, size=(32, 32, 3, size), dtype=np.uint8)
        labels = np.array([[10], [1], [2], [9], [10]], dtype=np.uint8)[:size]
        path = tmp_path / f"{part}_32x32.mat"
        scipy.io.savemat(path, {"X": images, "y": labels})
        sums[part] = [*sums[part][:2], hashlib.md5(path.read_bytes()).hexdigest()]
        written[part] = images
    monkeypatch.setattr(datasets.SVHN, "split_list", sums)
    return written


def test_svhn_is_read_from_its_mat_files(svhn: dict[str, Any], tmp_path: Path) -> None:
    loaded = data.load("svhn", tmp_path)
    assert (loaded.num_classes, loaded.input_shape, loaded.mirrors) == (10, (3, 32, 32), False)
    for split, part, labels in (
        (loaded.train, "train", [0, 1, 2, 9, 0]),
        (loaded.val, "test", [0, 1, 2]),
    ):
        images, found = whole(split)
        assert torch.equal(
            (images * 255).round().byte(), torch.from_numpy(svhn[part].transpose(3, 2, 0, 1).copy())
        )
        assert found.tolist() == labels


def test_a_changed_svhn_file_is_damaged(svhn: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SettingError, match=r"damaged file among .*test_32x32\.mat"):
        data.load("svhn", tmp_path)


def test_stl10_is_read_from_its_binary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    generator = np.random.default_rng(0)
    written: dict[str, Any] = {}
    lists: dict[str, list[list[str]]] = {"train": [], "test": []}
    for part, size in (("train", 4), ("test", 3)):
        images = generator.integers(256, size=(size, 3, 96, 96), dtype=np.uint8)
        labels = np.arange(1, size + 1, dtype=np.uint8)  # counted from 1
        written[part] = images
        by_column = images.transpose(0, 1, 3, 2)  # as the authors' files are
        for name, content in (("X", by_column.tobytes()), ("y", labels.tobytes())):
            (folder / f"{part}_{name}.bin").write_bytes(content)
            lists[part].append([f"{part}_{name}.bin", hashlib.md5(content).hexdigest()])
    monkeypatch.setattr(datasets.STL10, "train_list", lists["train"])
    monkeypatch.setattr(datasets.STL10, "test_list", lists["test"])
    loaded = data.load("stl10", tmp_path)
    assert (loaded.num_classes, loaded.input_shape, loaded.mirrors) == (10, (3, 96, 96), True)
    for split, part in ((loaded.train, "train"), (loaded.val, "test")):
        images, labels = whole(split)
        assert torch.equal((images * 255).round().byte(), torch.from_numpy(written[part]))
        assert labels.tolist() == list(range(len(written[part])))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("svhn", r"lacks train_32x32\.mat, test_32x32\.mat in .*--download"),
        ("stl10", r"lacks train_X\.bin.* in .*stl10_binary.*--download"),
        ("imagenet", r"no folder .*imagenet/train.*md5 1d675b47.*image-net\.org"),
        ("libsvm:a9a", r"names no file .*a9a; .*csie\.ntu\.edu\.tw"),
    ],
)
def test_what_is_missing_is_named_with_its_place_and_source(
    name: str, error: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=error):
        data.load(name, tmp_path)


# --- ImageNet ---


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Write images of two classes and several sizes, each of one color and a white half."""
    for part, count in (("train", 6), ("val", 4)):
        for number in range(count):
            wnid = ("n01", "n02")[number % 2]
            path = tmp_path / "imagenet" / part / wnid / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((60 + 10 * number, 90, 3), 20 * number, dtype=np.uint8)
            pixels[:, 45:] = 255
            Image.fromarray(pixels).save(path)
    return tmp_path


@pytest.mark.slow
def test_imagenet_is_read_by_other_processes_as_by_this_one(photographs: Path) -> None:
    train = data.load("imagenet", photographs).train
    numbers = torch.rand(6, 4)
    together = list(train.batches([torch.arange(6)], lambda index: numbers[index]))
    apart = list(train.batches(torch.arange(6).split(2), lambda index: numbers[index]))
    assert torch.equal(torch.cat([x for x, _ in apart]), together[0][0])
    assert torch.cat([y for _, y in apart]).tolist() == [0, 0, 0, 1, 1, 1]


def test_what_is_validated_is_the_center(photographs: Path) -> None:
    val: Any = data.load("imagenet", photographs).val
    images, _ = next(val.batches([torch.arange(4)]))
    for image, path in zip(images, val.paths, strict=True):
        with Image.open(path) as file:
            resized = functional.resize(file, [256])
            wanted = functional.to_tensor(functional.center_crop(resized, [224]))
        assert float((image - wanted).abs().mean()) < 0.01  # resized once, not twice


def test_a_training_image_is_the_part_that_its_numbers_choose(photographs: Path) -> None:
    train: Any = data.load("imagenet", photographs).train
    numbers = torch.rand(6, 4)
    images, _ = next(train.batches([torch.arange(6)], lambda index: numbers[index]))
    with Image.open(train.paths[5]) as file:
        width, height = file.size
        area = (0.08 + 0.92 * float(numbers[5, 0])) * width * height
        aspect = (4 / 3) ** (2 * float(numbers[5, 1]) - 1)
        tall, wide = min(height, (area / aspect) ** 0.5), min(width, (area * aspect) ** 0.5)
        top, left = (height - tall) * float(numbers[5, 2]), (width - wide) * float(numbers[5, 3])
        box = (round(left), round(top), round(left + wide), round(top + tall))
        wanted = functional.to_tensor(file.crop(box).resize((224, 224), Image.Resampling.BILINEAR))
    assert float((images[5] - wanted).abs().mean()) < 0.05  # of pixels that are not cut in two


@pytest.mark.slow
def test_a_damaged_photograph_is_named(photographs: Path) -> None:
    path = photographs / "imagenet" / "val" / "n02" / "3.JPEG"
    path.write_bytes(path.read_bytes()[:200])
    val = data.load("imagenet", photographs).val
    for indices in ([torch.arange(4)], torch.arange(4).split(1)):  # read here, and elsewhere
        with pytest.raises(SettingError, match=r"damaged image, .*n02/3\.JPEG"):
            list(val.batches(indices))


def test_a_split_of_files_returns_what_it_reads_on_the_device_asked_for(photographs: Path) -> None:
    train: Any = data.load("imagenet", photographs).train
    moved = train.to("meta")
    images, labels = next(moved.batches([torch.arange(2)]))
    assert isinstance(moved, Files)
    assert (images.device.type, labels.device.type) == ("meta", "meta")
    assert list(train.batches([])) == []


# --- LIBSVM ---


def written(path: Path, seed: int, size: int = 40, labels: tuple[int, int] = (-1, 1)) -> Any:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(size, 12)) * (generator.random((size, 12)) < 0.4)
    x[0, 11] = 1.0  # so that all columns are there
    y = np.array(labels)[generator.integers(2, size=size)]
    dump_svmlight_file(x, y, str(path), zero_based=False)
    return x, y


def test_libsvm_files_are_read_with_their_validation_file(tmp_path: Path) -> None:
    parts = [written(tmp_path / name, seed) for seed, name in enumerate(("a9a", "a9a.t"))]
    loaded = data.load("libsvm:a9a", tmp_path)
    assert (loaded.num_classes, loaded.input_shape) == (2, (12,))
    for split, (x, y) in zip((loaded.train, loaded.val), parts, strict=True):
        features, labels = whole(split)
        torch.testing.assert_close(features, torch.from_numpy(x).float())
        assert labels.tolist() == ((y + 1) // 2).tolist()


def test_samples_come_in_any_order(tmp_path: Path) -> None:
    x, _ = written(tmp_path / "file", 0)
    train: Any = data.load("libsvm:file", tmp_path).train
    everything, _ = whole(train)
    index = torch.tensor([5, 0, 5, 17])
    assert torch.equal(train.batch(index)[0], everything[index])
    assert len(train) < len(x)


@pytest.mark.parametrize("packed", [("rcv1", "rcv1.t"), ("rcv1",), ("rcv1.t",)])
def test_a_packed_file_and_its_validation_file_are_read(tmp_path: Path, packed: Any) -> None:
    for name in ("rcv1", "rcv1.t"):
        written(tmp_path / name, 0)
    for name in packed:
        content = bz2.compress((tmp_path / name).read_bytes())
        (tmp_path / f"{name}.bz2").write_bytes(content)
        (tmp_path / name).unlink()
    loaded = data.load("libsvm:rcv1.bz2" if "rcv1" in packed else "libsvm:rcv1", tmp_path)
    assert (len(loaded.train), len(loaded.val)) == (40, 40)


def test_a_folder_in_place_of_a_validation_file_is_told(tmp_path: Path) -> None:
    written(tmp_path / "rcv1", 0)
    (tmp_path / "rcv1.t").mkdir()
    with pytest.raises(SettingError, match=r"has .*rcv1\.t for validation, which is no file"):
        data.load("libsvm:rcv1", tmp_path)


def test_without_a_second_file_a_fifth_of_each_class_is_for_validation(tmp_path: Path) -> None:
    _, y = written(tmp_path / "file", 0, size=200)
    loaded: Any = data.load("libsvm:file", tmp_path)
    for label, own in ((0, (y == -1).sum()), (1, (y == 1).sum())):
        assert int((loaded.val.labels == label).sum()) == round(own / 5)
    assert len(loaded.train) + len(loaded.val) == 200


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("1 1:0.5 nonsense\n", "cannot be read from"),
        ("", "has no samples in"),
        ("1 1:0.5\n1 2:0.5\n", "has but one class"),
        ("0.5 1:1\n0.25 1:2\n0.125 1:3\n", "has 3 different labels in 3 samples, as real "),
        ("1 1:1\n-1 1:2\n", "has 2 different labels in 2 samples, as real numbers are"),
        ("1 1:nan\n0 1:1\n1 1:2\n0 1:3\n", "not finite"),
    ],
)
def test_a_file_that_is_not_in_the_format_is_refused_in_one_line(
    content: str, error: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(SettingError, match=rf"^[^\n]*{error}[^\n]*$"):
        data.load("libsvm:file", tmp_path)


def test_a_label_of_validation_alone_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "file", 0)
    written(tmp_path / "file.t", 0, labels=(1, 7))
    with pytest.raises(SettingError, match=r"has labels in .*file\.t that .*file lacks: 7"):
        data.load("libsvm:file", tmp_path)


@pytest.mark.parametrize("model", ["mlp", "mnist_f1", "logistic"])
def test_models_of_any_shape_take_features(tmp_path: Path, model: str) -> None:
    written(tmp_path / "file", 0, size=100)
    run = simsgd.train(
        model=model, dataset=f"libsvm:{tmp_path / 'file'}", workers=2, batch_size=20, epochs=1,
        runs_dir=tmp_path, quiet=True, name="run",
    )  # fmt: skip
    assert run.epochs["val_loss"].notna().all()


def test_logistic_regression_on_it_is_the_formula(tmp_path: Path) -> None:
    written(tmp_path / "file", 0, size=100)
    run = simsgd.train(
        model="logistic", model_config="bias=false", dataset=f"libsvm:{tmp_path / 'file'}",
        workers=1, batch_size=80, epochs=3, lr=0.5, weight_decay=0.1, dtype="float64",
        runs_dir=tmp_path, quiet=True, name="run",
    )  # fmt: skip
    train: Any = data.load("libsvm:file", tmp_path).train
    features, labels = (t.numpy() for t in whole(train))
    sign, weight = 2.0 * labels - 1, np.zeros(12)
    losses = []
    for _ in range(3):
        margin = sign * (features @ weight)
        losses.append(np.log1p(np.exp(-margin)).mean())
        slope = -(sign / (1 + np.exp(margin))) @ features / len(sign)
        weight -= 0.5 * (slope + 0.1 * weight)
    assert run.epochs["train_loss"].tolist() == pytest.approx(losses, rel=1e-9)


def whole(split: Any) -> tuple[Tensor, Tensor]:
    x, y = next(split.batches([torch.arange(len(split))]))
    return x, y
