"""Models and regimes by name, factories and their settings, and the networks shipped here."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from simsgd import catalog
from simsgd.config import Config
from simsgd.settings import SettingError
from simsgd.training.schedule import schedule_of

from . import toy

ours = catalog.names("models")
of_images = [name for name in ours if name not in toy.OF_TEXT]


def test_a_model_is_loaded_by_its_name() -> None:
    assert catalog.load("models", "resnet").__name__ == "simsgd.models.resnet"


def test_private_files_are_no_models() -> None:
    assert not any(name.startswith("_") for name in ours)


@pytest.mark.parametrize(("kind", "setting"), [("models", "model"), ("regimes", "regime")])
def test_an_unknown_name_is_refused_with_what_is_known(kind: str, setting: str) -> None:
    with pytest.raises(SettingError, match=f"^{setting} is not known, got zzz; (known|nearest)"):
        catalog.load(kind, "zzz")


def test_a_mistyped_model_is_answered_by_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean resnet"):
        catalog.load("models", "resent")


def test_a_file_of_ones_own_is_a_model(tmp_path: Path) -> None:
    module = _file(tmp_path, "def mine(num_classes):\n    return nn.Linear(3, num_classes)\n")
    assert _built(module).out_features == 7


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^model names a file that does not exist"):
        catalog.load("models", str(tmp_path / "nothing.py"))


def test_the_factory_named_as_the_file_comes_before_model(tmp_path: Path) -> None:
    one = "def model():\n    return nn.Linear(3, 1)\n"
    two = "def mine():\n    return nn.Linear(3, 2)\n"
    assert _built(_file(tmp_path, one)).out_features == 1
    assert _built(_file(tmp_path, one + two)).out_features == 2


def test_the_error_of_a_file_without_a_factory_names_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="neither a function mine nor one called model"):
        _built(_file(tmp_path, "mine = 3\n"))


def test_a_factory_that_makes_no_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"returns a int and not a torch\.nn\.Module"):
        _built(_file(tmp_path, "def mine():\n    return 3\n"))


def test_a_setting_of_the_user_comes_before_that_of_the_data(tmp_path: Path) -> None:
    module = _file(tmp_path, "def mine(num_classes):\n    return nn.Linear(3, num_classes)\n")
    assert _built(module, num_classes=4).out_features == 4


def test_a_setting_that_the_model_does_not_take_is_answered_by_those_it_takes() -> None:
    with pytest.raises(SettingError, match=r"not take: layers, got layers=3; .*depth, width"):
        catalog.build_model("resnet", {"layers": 3}, 10, (3, 32, 32))


def test_a_factory_of_any_settings_is_given_all(tmp_path: Path) -> None:
    module = _file(tmp_path, "def mine(**config):\n    return nn.Linear(3, config['units'])\n")
    assert _built(module, units=5).out_features == 5


@pytest.mark.parametrize(
    ("name", "config", "error"),
    [
        ("resnet", {"depth": 21}, r"depth must be 6n \+ 2"),
        ("resnet", {"depth": "deep"}, r"depth must be 6n \+ 2"),
        ("resnet", {"width": 0}, "width must be a whole number"),
        ("resnet", {"shortcut": "C"}, "shortcut must be A"),
        ("mlp", {"hidden": (0,)}, "hidden must be"),
        ("mlp", {"hidden": "many"}, "hidden must be"),
        ("lenet", {"input_shape": (784,)}, "images of at least 4 x 4"),
    ],
)
def test_a_value_that_a_model_refuses_is_a_setting_error(
    name: str, config: dict[str, Any], error: str
) -> None:
    with pytest.raises(SettingError, match=f"^model_config does not fit: .*{error}"):
        catalog.build_model(name, config, 10, (3, 32, 32))


def test_what_a_network_carries_comes_before_what_its_file_does(tmp_path: Path) -> None:
    module = _file(tmp_path, "epochs = 3\ndef mine():\n    return nn.Linear(1, 1)\n")
    network: Any = _built(module)
    assert catalog.attribute(module, network, "epochs") == 3
    network.epochs = 4
    assert catalog.attribute(module, network, "epochs") == 4


def test_what_nobody_carries_is_the_default() -> None:
    module = catalog.load("models", "mlp")
    assert catalog.attribute(module, nn.Identity(), "criterion", cross_entropy) is cross_entropy


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("depth=20, width=1", {"depth": 20, "width": 1}),
        ("hidden=(256, 128), bias = true", {"hidden": (256, 128), "bias": True}),
        ("hidden=256,128,rate=1e-3", {"hidden": (256, 128), "rate": 1e-3}),
        ("shortcut=B", {"shortcut": "B"}),
        ("evil=__import__('os')", {"evil": "__import__('os')"}),
    ],
)
def test_settings_are_read_from_a_text(text: str, settings: dict[str, Any]) -> None:
    assert catalog.parse_config(text) == settings


@pytest.mark.parametrize("text", ["depth", "depth 20", "=3", "depth=", "1=2"])
def test_a_text_that_holds_no_settings_is_answered_by_an_example(text: str) -> None:
    with pytest.raises(SettingError, match=r'model_config must read .* "depth=20, width=1"'):
        catalog.parse_config(text)


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(SettingError, match="sets depth twice"):
        catalog.parse_config("depth=20, depth=32")


@pytest.mark.quick_cases(16)
@pytest.mark.parametrize("name", of_images)
@pytest.mark.parametrize("input_shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 20, 36)])
def test_every_model_of_images_takes_any_size(name: str, input_shape: tuple[int, ...]) -> None:
    network = catalog.build_model(name, {}, 7, input_shape)
    assert network(torch.randn(2, *input_shape)).shape == (2, 7)


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", of_images)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_model_of_images_has_transforms_that_fit(name: str, channels: int) -> None:
    module = catalog.load("models", name)
    network = catalog.build_model(module, {}, 10, (channels, 32, 32))
    images = torch.rand(2, channels, 32, 32)
    for transform in catalog.attribute(module, network, "input_transform").values():
        drawn = [torch.rand(2, transform.draws)] if hasattr(transform, "draws") else []
        assert transform(images, *drawn).shape == images.shape


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", ours)
def test_every_model_drops_its_rate_before_its_last_epoch(name: str) -> None:
    module = catalog.load("models", name)
    network = catalog.build_model(module, {}, 10, (8,) if name in toy.OF_TEXT else (3, 32, 32))
    schedule = schedule_of(Config(), module, network, batches=100)
    last = schedule.epochs - 1
    rates = [schedule.regime.at(epoch, 100 * epoch)["lr"] for epoch in range(schedule.epochs)]
    assert rates[last] <= max(rates) / 5
    assert rates[last // 2 :] == sorted(rates[last // 2 :], reverse=True)


def test_a_zero_padded_shortcut_keeps_every_second_pixel_and_adds_zeros() -> None:
    module: Any = importlib.import_module("simsgd.models.resnet")
    images = torch.randn(2, 3, 6, 6)
    out = module.ZeroPad(extra=2, stride=2)(images)
    assert torch.equal(out[:, :3], images[:, :, ::2, ::2])
    assert torch.equal(out[:, 3:], torch.zeros(2, 2, 3, 3))


def _file(folder: Path, content: str) -> ModuleType:
    path = folder / "mine.py"
    path.write_text(f"from torch import nn\n{content}")
    return catalog.load("models", str(path))


def _built(module: ModuleType, **config: Any) -> Any:
    return catalog.build_model(module, config, 7, (1, 2, 2))
