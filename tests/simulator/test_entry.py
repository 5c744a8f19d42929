"""A simulator whose model was changed, or that two threads use, says so at the next call."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from simsgd import SettingError, Simulator

X, Y = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
OTHER = "; change it before, or make another Simulator"
CHANGES = [
    (lambda model: setattr(model[0], "bias", None), "has no 0.bias any more" + OTHER),
    (lambda model: model.pop(0), "has another 0 by now" + OTHER),
    (lambda model: model.append(nn.Linear(2, 2)), "has a new 2" + OTHER + "; what its forward"),
    (lambda model: weight_norm(model[0]), "has no 0.weight any more" + OTHER),
    (
        lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
        "has another 0.weight by now" + OTHER,
    ),
    (
        lambda model: model.double(),
        "has 0.weight of torch.float64 by now, which was of torch.float32" + OTHER,
    ),
    (
        lambda model: setattr(model[0].weight, "data", torch.ones(5, 5)),
        "has 0.weight of (5, 5) by now, which was of (2, 3)" + OTHER,
    ),
    (
        lambda model: model[1].register_buffer("running_mean", None),
        "has no 1.running_mean any more" + OTHER,
    ),
    (lambda model: model[1].register_buffer("more", X), "has a new 1.more" + OTHER),
    (
        lambda model: model.requires_grad_(False),
        "has no parameters to train any more; let some require gradients again",
    ),
]


class Growing(nn.Linear):
    """Keeps what it saw in a buffer that is not there before."""

    def forward(self, x):
        self.register_buffer("seen", x.detach().mean(0))
        return super().forward(x + self.seen)


def simulator(algorithm="allreduce", observers=()):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    settings = {"workers": 2, "lr": 0.1, "engine": "loop", "algorithm": algorithm}
    return Simulator(model, observers=observers, **settings)


@pytest.mark.parametrize(("change", "told"), CHANGES)
@pytest.mark.parametrize("algorithm", ["allreduce", "local"])
def test_a_model_that_was_changed_is_refused_at_the_next_step(algorithm, change, told):
    trained = simulator(algorithm)
    trained.step(X, Y)
    change(trained.model)
    with pytest.raises(SettingError) as refused:
        trained.step(X, Y)
    assert str(refused.value).startswith(f"model {told}")
    assert trained.steps == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_buffer_that_the_forward_makes_is_refused(workers):
    trained = Simulator(Growing(3, 2), workers=workers, lr=0.1, engine="loop")
    with pytest.raises(SettingError, match=r"model has a new seen; .* called on a batch once"):
        trained.state_dict() if trained.step(X, Y) else None


def test_other_numbers_modes_and_gradients_are_no_change():
    trained = simulator()
    trained.step(X, Y)
    trained.model.eval().load_state_dict(copy.deepcopy(trained.model.state_dict()))
    trained.model[0].weight.requires_grad_(False)
    copy.deepcopy(trained).step(X, Y)
    assert trained.step(X, Y).step == 2


@pytest.mark.parametrize(
    "drawn", [{"engine": "loop"}, {"engine": "vmap"}, {"compressor": "qsgd:3"}]
)
def test_threads_with_a_simulator_each_do_as_if_alone(drawn):
    def made(settings):
        torch.manual_seed(0)
        kind = nn.Dropout if settings else nn.Tanh
        model = nn.Sequential(nn.Linear(3, 4), kind(), nn.Linear(4, 2))
        return Simulator(model, workers=2, lr=0.1, **settings)

    def stepped(trained):
        for _ in range(20):
            trained.step(X, Y)
        return trained.parameters()

    kinds = [{}, drawn, {}]
    alone = [stepped(made(settings)) for settings in kinds]
    with ThreadPoolExecutor(3) as pool:
        together = [*pool.map(stepped, [made(settings) for settings in kinds])]
    assert_close(together, alone, rtol=0, atol=0)


def test_a_second_thread_is_refused_and_the_first_goes_on():
    told = []

    def use():
        for call in (lambda: trained.step(X, Y), trained.evaluation_model, trained.state_dict):
            with pytest.raises(SettingError) as refused:
                call()
            told.append(str(refused.value))

    def observe(*_):
        other = threading.Thread(target=use)
        other.start()
        other.join()
        trained.parameters()  # the same thread may look

    trained = simulator(observers=[observe])
    assert trained.step(X, Y).step == 1
    assert {*told} == {"simulator is in use in another thread; make one for each thread"}
    assert copy.deepcopy(trained).steps == 1
