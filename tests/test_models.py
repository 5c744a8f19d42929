"""Every model on every engine: the same gradients, and statistics of each worker's own."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simsgd import catalog
from simsgd.gradients import Gradients

from . import toy
from .toy import gradients

W, B = 3, 4
SMALL: dict[str, list[dict[str, Any]]] = {  # settings that make a model small, by its name
    "alexnet": [{"width": 4, "hidden": 8}, {"width": 4, "hidden": 8, "batch_norm": True}],
    "cifar_shallow": [{"width": 4, "hidden": (12, 8)}],
    "densenet": [{"depth": 10, "growth": 3}, {"depth": 10, "growth": 3, "dropout": 0.2}],
    "lenet": [{"channels": (3, 4), "hidden": 10}],
    "logistic": [{}, {"num_classes": 2, "bias": False}],
    "mlp": [{"hidden": 9}],
    "mnist_f1": [{"hidden": 8, "depth": 2}],
    "mobilenet_v2": [{"width": 0.1, "blocks": 1}],
    "resnet": [{"depth": 8}, {"depth": 8, "shortcut": "B"}],
    "resnet18_cifar": [{"width": 2}],
    "resnet9": [{"width": 4}],
    "vgg": [{"depth": 11, "width": 2}],
    "wide_resnet": [{"depth": 10, "width": 1}, {"depth": 10, "width": 2, "dropout": 0.3}],
}
CASES = [(name, config) for name, configs in SMALL.items() for config in configs]
SIDE = {"resnet18_cifar": 8}  # pixels, where 12 would take long


def case_id(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items())


def made(name: str, config: dict[str, Any]) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model in float64, and W batches of B samples."""
    torch.manual_seed(0)
    shape = (3, SIDE.get(name, 12), SIDE.get(name, 12))
    classes = config.get("num_classes", 5)
    model = catalog.build_model(name, config, classes, shape).double().train()
    x, y = toy.batch(W, B, shape=shape, classes=classes, dtype=torch.float64)
    return model, x, y


def assert_same(got: Gradients, wanted: Gradients) -> None:
    size = max(float(value.norm()) for value in wanted.values.values())
    for name, value in wanted.values.items():
        torch.testing.assert_close(got.values[name], value, rtol=1e-8, atol=1e-11 * max(1, size))
    for name, buffer in wanted.buffers.items():
        torch.testing.assert_close(got.buffers[name], buffer, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.loss, wanted.loss)
    torch.testing.assert_close(got.output, wanted.output)


def test_every_model_of_images_has_its_case() -> None:
    assert set(SMALL) == set(catalog.names("models")) - toy.OF_TEXT


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize(("name", "config"), CASES, ids=case_id)
def test_all_workers_by_vmap_equal_one_after_another(name: str, config: dict[str, Any]) -> None:
    model, x, y = made(name, config)
    assert_same(gradients("vmap", model, x, y), gradients("loop", model, x, y))


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize(("name", "config"), CASES, ids=case_id)
def test_all_workers_in_one_pass_equal_one_after_another(name: str, config: dict[str, Any]) -> None:
    model, x, y = made(name, config)
    assert_same(gradients("onepass", model, x, y), gradients("loop", model, x, y))


@pytest.mark.parametrize(("name", "config"), CASES, ids=case_id)
def test_one_worker_is_plain_autograd(name: str, config: dict[str, Any]) -> None:
    if config.get("dropout") or name in ("alexnet", "cifar_shallow", "mobilenet_v2"):
        config = {**config, "dropout": 0.0}  # whose masks are not torch's
    model, x, y = made(name, config)
    got = gradients("loop", model, x[:1], y[:1])
    loss = F.cross_entropy(model(x[0]), y[0])
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(got.loss[0], loss.detach())
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(got.values[key][0], parameter.grad, rtol=1e-9, atol=1e-12)
    for key, buffer in model.named_buffers():
        torch.testing.assert_close(got.buffers[key][0], buffer)


@pytest.mark.parametrize("engine", ["onepass", "vmap", "loop"])
def test_statistics_are_of_each_worker(engine: str) -> None:
    model, x, y = made("resnet9", {"width": 2})
    after = gradients(engine, model, x, y).buffers
    for w in range(W):
        norm = nn.BatchNorm2d(2).double()
        norm(model.get_submodule("first.0")(x[w]))
        torch.testing.assert_close(after["first.1.running_var"][w], norm.running_var)
    assert not torch.equal(after["first.1.running_var"][0], after["first.1.running_var"][1])
