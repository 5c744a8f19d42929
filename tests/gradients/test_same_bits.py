"""Tensors of any kind are looked at for other numbers, and put back after a trial."""

import numpy as np
import pytest
import torch

from simsgd.gradients.same_bits import digest, same_bits
from simsgd.gradients.variables import keeper

KINDS = {
    "float32": lambda: torch.rand(3, 4),
    "bfloat16": lambda: torch.rand(3, 4).bfloat16(),
    "complex": lambda: torch.rand(3, 4, dtype=torch.complex64).conj(),
    "bool": lambda: torch.rand(3, 4) > 0.5,
    "turned": lambda: torch.rand(4, 3).t(),
    "a number": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 3),
    "large": lambda: torch.rand(300, 400),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.empty(3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8),
    "repeated": lambda: torch.ones(1, 1).expand(3, 4),
}


@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize("kind", KINDS)
def test_any_tensor_has_a_digest_and_is_put_back(kind):
    tensor = KINDS[kind]()
    put_back = keeper([{"a": tensor}, tensor])
    before = digest(tensor)
    assert digest(tensor) == before
    plain = kind not in ("sparse", "meta", "quantized", "repeated", "empty", "bool")
    if plain:
        saved = tensor.clone()
        tensor.data.add_(1)
        assert digest(tensor) != before
        assert not same_bits(tensor, saved)
        put_back()
        assert digest(tensor) == before
        assert same_bits(tensor, saved)
    put_back()


def test_containers_and_arrays_are_put_back():
    array, fixed = np.zeros(3), np.zeros(3)
    fixed.flags.writeable = False
    held = {"a": [1, {2}], "b": array, "c": fixed}
    held["me"] = held
    put_back = keeper(held)
    array += 1
    held["a"][1].add(3)
    held["a"].append(4)
    del held["b"]
    put_back()
    assert held["a"] == [1, {2}]
    assert held["b"] is array
    assert array.tolist() == [0, 0, 0]
