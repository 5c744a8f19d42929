"""Files that would run code, fill the memory or never end are refused in one line."""

import os
import pickle
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from simsgd import SettingError
from simsgd.training import data
from simsgd.training.data import folder, text
from simsgd.training.data.cifar import PlainUnpickler


def images(root: Path) -> Path:
    """Write a whole folder of images, and return a folder of one class."""
    for part in ("train", "val"):
        for kind in ("cat", "dog"):
            (root / part / kind).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(root / part / kind / "a.png")
    return root / "train" / "cat"


def png_header(width: int, height: int) -> bytes:
    """Return a PNG image of so many pixels that has none of them."""
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (b"IHDR" + size, b"IDAT", b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + chunks


def refusal(name: str, *settings: Any) -> str:
    """Return what is said of a data set that is refused."""
    load = data.load_text if name.startswith("text:") else data.load
    with pytest.raises(SettingError) as refused:
        load(name, *settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "floats"), ("int32", "whole numbers")])
def test_an_image_of_32_bits_is_refused(dtype, kind, tmp_path):
    Image.fromarray(np.ones((4, 4), dtype)).save(images(tmp_path) / "z.tiff")
    assert f"has an image of {kind} of 32 bits" in refusal(f"imagefolder:{tmp_path}")


def test_images_of_one_class_are_refused(tmp_path):
    images(tmp_path)
    for part in ("train", "val"):
        shutil.rmtree(tmp_path / part / "dog")
    told = f"dataset has but one class in {tmp_path}/train, got imagefolder:{tmp_path}"
    assert refusal(f"imagefolder:{tmp_path}") == told


@pytest.mark.parametrize("file", ["0.png", "z.png"])  # the first that is read, and a later one
@pytest.mark.parametrize(
    ("size", "error"),
    [
        ((8_200, 8_200), "has an image of 8,200 x 8,200 pixels"),
        ((10_000, 9_000), "has too large an image"),
        ((60_000, 60_000), "has too large an image"),
    ],
)
def test_an_image_of_too_many_pixels_is_refused_by_its_header(file, size, error, tmp_path):
    (images(tmp_path) / file).write_bytes(png_header(*size))
    told = refusal(f"imagefolder:{tmp_path}")
    assert error in told
    assert file in told


def test_images_that_do_not_fit_into_memory_at_the_size_of_the_first_are_refused(
    tmp_path, monkeypatch
):
    images(tmp_path)
    monkeypatch.setattr(folder, "memory_of", lambda device: 191)
    told = refusal(f"imagefolder:{tmp_path}")
    assert "takes 192 B as 4 images of 4 x 4 pixels, the size of the first" in told


def test_a_pipe_named_like_an_image_is_refused(tmp_path):
    os.mkfifo(images(tmp_path) / "b.png")
    assert "b.png, which is no file" in refusal(f"imagefolder:{tmp_path}")


def test_a_link_to_its_own_class_is_refused(tmp_path):
    (images(tmp_path) / "more").symlink_to(tmp_path / "train" / "cat")
    assert "has one folder by two names" in refusal(f"imagefolder:{tmp_path}")


def test_an_empty_class_is_refused(tmp_path):
    (images(tmp_path) / "a.png").unlink()
    assert "is incomplete" in refusal(f"imagefolder:{tmp_path}")


class Runs:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("value", [Runs(), os.path.join, Path("a"), {1: Runs()}])
def test_a_pickle_of_anything_but_data_is_refused_and_not_run(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batch").write_bytes(pickle.dumps(value))
    with (tmp_path / "batch").open("rb") as file, pytest.raises(pickle.UnpicklingError):
        PlainUnpickler(file, encoding="latin1").load()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_data_is_read(protocol, tmp_path):
    entry = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "name": "a"}
    (tmp_path / "batch").write_bytes(pickle.dumps(entry, protocol=protocol))
    with (tmp_path / "batch").open("rb") as file:
        read = PlainUnpickler(file, encoding="latin1").load()
    assert read["labels"] == [1, 2]
    assert (read["data"] == entry["data"]).all()


def test_a_text_is_refused_by_its_size_and_by_its_vocabulary(tmp_path, monkeypatch):
    (tmp_path / "all.txt").write_text(" ".join(map(str, range(300))))
    monkeypatch.setattr(text, "_MOST_TOKENS", 200)
    told = refusal(f"text:{tmp_path}/all.txt", tmp_path, "word", 1)
    assert "different tokens" in told
    assert "raise --min-count" in told
    monkeypatch.setattr(text, "_LARGEST", 1000)
    assert "at most 1000 B are read" in refusal(f"text:{tmp_path}/all.txt", tmp_path, "word", 1)


@pytest.mark.parametrize(
    ("train", "second", "error"),
    [
        ("nan 1:1\n1 2:1\n0 1:1\n1 1:2\n", None, "a label that is not finite"),
        ("1 1:1\n0 2:1\n1 1:1\n0 1:2\n", "1 0:1\n", "counts features from 0 in one"),
        ("1 0:1\n0 2:1\n1 1:1\n0 1:2\n", "1 1:1\n", "counts features from 0 in one"),
    ],
)
def test_strange_numbers_in_a_libsvm_file_are_refused(train, second, error, tmp_path):
    (tmp_path / "a").write_text(train)
    if second is not None:
        (tmp_path / "a.t").write_text(second)
    assert error in refusal(f"libsvm:{tmp_path}/a")


def test_features_of_a_libsvm_file_may_be_counted_from_0_or_from_1(tmp_path):
    for first in (0, 1):
        lines = [f"{i % 2} {first}:{i} {first + 2}:1\n" for i in range(10)]
        (tmp_path / "a").write_text("".join(lines))
        assert data.load(f"libsvm:{tmp_path}/a").input_shape == (3,)
