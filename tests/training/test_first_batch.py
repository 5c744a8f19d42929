"""What a model is tried on before its run: few samples, or as many as an evaluation gives it."""

import pytest
import torch
from torch import nn

from simsgd import SettingError, train

X, Y = torch.rand(96, 64), torch.arange(96) % 3
SMALL = {"workers": 2, "batch_size": 8, "epochs": 1, "lr": 0.1, "quiet": True}


class Seen:
    """Numbers in an object, which a trial leaves where it puts them."""

    def __init__(self):
        self.numbers = []


class Sized(nn.Module):
    """Takes batches of some sizes only, and notes which it was evaluated on."""

    def __init__(self, *sizes):
        super().__init__()
        self.linear, self.sizes, self.seen = nn.Linear(64, 3), sizes, Seen()

    def forward(self, x):
        if not self.training:
            self.seen.numbers.append(len(x))
        if self.sizes and len(x) not in self.sizes:
            raise RuntimeError(f"not {len(x)}")
        return self.linear(x)


def trained(model, tmp_path, samples, **more):
    data = (X, Y), (X[:samples], Y[:samples])
    return train(model=model, dataset=data, runs_dir=tmp_path / "runs", **SMALL, **more)


def test_a_model_of_any_size_is_tried_on_few_samples(tmp_path):
    model = Sized()
    trained(model, tmp_path, 96)
    assert model.seen.numbers[:3] == [2, 3, 96]


def test_a_model_that_takes_what_an_evaluation_gives_it_is_trained(tmp_path):
    model = Sized(8)
    assert trained(model, tmp_path, 8).epochs["val_loss"].notna().all()


def test_one_that_does_not_is_told_so_before_its_run(tmp_path):
    with pytest.raises(SettingError, match="cannot be evaluated on 96 samples of tuple: Runtime"):
        trained(Sized(8), tmp_path, 96)
    assert list(tmp_path.iterdir()) == []


def test_a_complex_loss_is_refused_before_the_run(tmp_path):
    def loss(output, target):
        return nn.functional.cross_entropy(output, target) * 1j

    with pytest.raises(SettingError, match="criterion returns a complex number, complex64"):
        trained(Sized(), tmp_path, 96, criterion=loss)
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_does_not_depend_on_the_model_is_refused(tmp_path):
    def loss(output, target):
        return torch.tensor(1.0, requires_grad=True) * len(target)

    with pytest.raises(SettingError, match="criterion returns a loss from which no parameter"):
        trained(Sized(), tmp_path, 96, criterion=loss)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("persistent", "moves"), [(True, True), (False, False)])
def test_a_buffer_may_begin_without_bound_that_a_forward_bounds(tmp_path, persistent, moves):
    class Bounded(Sized):
        def __init__(self):
            super().__init__()
            self.register_buffer("largest", torch.tensor(-torch.inf), persistent=persistent)

        def forward(self, x):
            if moves:
                self.largest = torch.maximum(self.largest, x.detach().max())
            return super().forward(x)

    run = trained(Bounded(), tmp_path, 96, engine="loop")
    assert len(run.epochs) == 1


def test_a_last_batch_of_one_sample_is_tried_too(tmp_path, monkeypatch):
    monkeypatch.setattr("simsgd.training.evaluation._CHUNK_ON_CPU", 5)
    with pytest.raises(SettingError, match="cannot be evaluated on 1 samples of tuple: Runtime"):
        trained(Sized(2, 3, 5, 8), tmp_path, 6)
    assert list(tmp_path.iterdir()) == []


def test_trying_draws_nothing_from_the_generator(tmp_path):
    class Drawing(Sized):
        def forward(self, x):
            return super().forward(x) + (0 if self.training else torch.rand(()))

    model = Drawing()
    torch.manual_seed(5)
    trained(model, tmp_path, 96)
    evaluated = torch.rand(())
    torch.manual_seed(5)
    torch.rand(())  # of the one evaluation
    assert torch.rand(()) == evaluated
